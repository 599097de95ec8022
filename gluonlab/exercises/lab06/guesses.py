"""The guesses of lab 06."""

from gluonlab.exercises.guesses import choice, each, guess, number

guess(
    "06-a",
    each(
        number(0, such_as=2, factor=1.1),
        "parameters",
        "optimizer_state",
        "activations",
        "total",
    ),
    en="from 128 to 512 images: by what factor does each row grow?",
    ja="128 枚から 512 枚にすると、それぞれの行は何倍になるか",
)
guess(
    "06-b",
    number(0, such_as=0.01, factor=30),
    en="how far is the gradient of the parts from that of the whole batch?",
    ja="部分に分けた勾配は、バッチ全体の勾配とどれだけ違うか",
)
guess(
    "06-c",
    number(0, such_as=10, factor=1.5),
    en="how many MiB more does the whole batch take than 64 microbatches?",
    ja="バッチ全体のピークは、最も小さいマイクロバッチより何 MiB 高いか",
)
guess(
    "06-d",
    choice(32, 16, 1),
    en="microbatch 2: how many images does each GPU compute at a time?",
    ja="microbatch が 2 のとき、各 GPU は一度に何枚を計算するか",
)
guess(
    "06-e",
    number(0, such_as=2, factor=1.25),
    en="how many times as long do 64 microbatches take as the whole batch?",
    ja="64 個のマイクロバッチの時間はバッチ全体の何倍か",
)
guess(
    "06-f",
    number(0, 1, such_as=0.2, within=0.01),
    en="what is the running mean after four microbatches?",
    ja="4 個のマイクロバッチの後、移動平均はいくつか",
)
guess(
    "06-g",
    each(choice(16, 64, 512), "images/s", "accuracy"),
    en="which batch size is best in images/s, which in accuracy?",
    ja="1 秒あたりの枚数と正解率は、それぞれどのサイズが最もよいか",
)
