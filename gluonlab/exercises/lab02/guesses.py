"""The guesses of lab 02."""

from gluonlab.exercises.guesses import choice, each, guess, number, yes_or_no

WAYS = ("between layers", "within layers", "data")

guess(
    "02-a",
    each(choice(*WAYS), 32, 1024),
    en="which way moves the fewest bytes with 32 images, and with 1,024?",
    ja="32 枚のバッチと 1,024 枚のバッチで、転送量が最も少ない方法はどれか",
)
guess(
    "02-b",
    each(number(0, such_as=0.1, factor=3), "chapter", "he"),
    en="how large are the scores, with 0.01 and with He's rule?",
    ja="0.01 の場合と He らの規則の場合で、スコアの大きさはどれくらいか",
)
guess(
    "02-c",
    each(number(0, such_as=0.01, factor=100), "one device or two", "the two replicas"),
    en="by how much do the parameters differ after one step?",
    ja="1 ステップの後、パラメータはどれだけ違うか",
)
guess(
    "02-d",
    number(-1, 1, such_as=0.05, within=0.02),
    en="by how much does a second device change the accuracy?",
    ja="2 台にすると正解率はどれだけ変わるか",
)
guess(
    "02-e",
    number(0, such_as=2.0, factor=1.2),
    en="how many times as fast are two devices?",
    ja="2 台では何倍速いか",
)
guess(
    "02-f",
    each(yes_or_no(), 16, 256),
    en="does the second device pay off with 16 images per step, and with 256?",
    ja="1 ステップが 16 枚のときと 256 枚のとき、2 台目は役に立つか",
)
guess(
    "02-g",
    choice("same rate", "twice the rate"),
    en="with twice the batch, which rate gives a loss nearer to that of one device?",
    ja="バッチが 2 倍のとき、損失が 1 台の場合に近くなる学習率はどちらか",
)
