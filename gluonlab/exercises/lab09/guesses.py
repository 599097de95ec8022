"""The guesses of lab 09."""

from gluonlab.exercises.guesses import choice, each, guess, number, yes_or_no

COURSES = ("equal", "constant", "apart")

guess(
    "09-a",
    choice(*COURSES),
    en="what becomes of the two replicas in training?",
    ja="学習の間に 2 つのレプリカはどうなるか",
)
guess(
    "09-b",
    each(number(0, such_as=2, factor=2), "all is well", "here"),
    en="by what factor does the norm of the gradients change in three epochs?",
    ja="勾配のノルムは 3 エポックで何倍になるか",
)
guess(
    "09-c",
    each(number(0, such_as=1.5, factor=1.02), "64 images", "63 images", "64 images, Adam"),
    en="how large is the first update on two devices, divided by that on one?",
    ja="2 台での最初の更新の大きさは、1 台の何倍か",
)
guess(
    "09-d",
    number(0, 64, such_as=64),
    en="1,025 images in batches of 64: how many are in the last one?",
    ja="1,025 枚を 64 枚ずつ: 最後のバッチは何枚か",
)
guess(
    "09-e",
    each(number(0, such_as=0.5, factor=100), "before it", "after it"),
    en="how far apart are one and two devices, before and after that batch?",
    ja="そのバッチの前と後で、1 台と 2 台の差はどれだけか",
)
guess(
    "09-f",
    each(yes_or_no(), 360, 64, 100, 7),
    en="for which batch sizes is accuracy x images a whole number?",
    ja="正解率に枚数を掛けて整数になるのはどのバッチサイズか",
)
guess(
    "09-g",
    choice(*COURSES),
    en="and with a correct allreduce: what becomes of the replicas?",
    ja="正しい allreduce なら、レプリカの距離はどうなるか",
)
