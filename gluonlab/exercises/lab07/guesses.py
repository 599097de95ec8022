"""The guesses of lab 07."""

from gluonlab.exercises.guesses import choice, each, guess, number, yes_or_no

guess(
    "07-a",
    number(0, such_as=3.0, factor=1.5),
    en="batches of 512 instead of 8: how many times as many images/s?",
    ja="バッチを 8 枚から 512 枚にすると、1 秒あたりの枚数は何倍か",
)
guess(
    "07-b",
    number(0, such_as=64.0, factor=1.5),
    en="batches of 512 instead of 8: by what factor does the number of steps fall?",
    ja="バッチを 8 枚から 512 枚にすると、ステップ数は何分の 1 か",
)
guess(
    "07-c",
    choice("linearly", "more slowly", "not at all"),
    en="how does the best rate grow from batches of 8 to 128?",
    ja="バッチを 8 枚から 128 枚にすると、最適な学習率はどう増えるか",
)
guess(
    "07-d",
    choice("same", "square root", "linear"),
    en="16 devices, equal epochs: which rule for the rate is best?",
    ja="16 台、同じエポック数: どの学習率の規則が最良か",
)
guess(
    "07-e",
    each(number(0, 9, such_as=5, within=1), "without", "with"),
    en="rate 2, momentum 0.9: how many of 9 seeds survive without and with a warm-up?",
    ja="学習率 2 で正解率 50 % を超えるシードは 9 つのうちいくつか (ウォームアップなし / あり)",
)
guess(
    "07-f",
    number(0, such_as=2.0, factor=1.2),
    en="the rate falls to a tenth: MXNet's next step, as a multiple of the papers'?",
    ja="学習率が 10 分の 1 になった直後、MXNet の歩幅は論文の規則の何倍か",
)
guess(
    "07-g",
    choice(2, 4, 8, 16, 32, 64, 128, 256, 512),
    en="which batch size reaches the target soonest?",
    ja="目標に最も早く達するバッチサイズはどれか",
)
guess(
    "07-h",
    yes_or_no(),
    en="equal epochs: do large batches make more mistakes on training images, too?",
    ja="同じエポック数: 大きいバッチは学習画像の誤りも多いか",
)
guess(
    "07-i",
    choice("8", "512", "neither"),
    en="equal training error: which batch size has the smaller validation error?",
    ja="同じ学習誤差: 検証誤差が小さいのはどちらのバッチサイズか",
)
