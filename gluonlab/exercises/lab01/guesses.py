"""The guesses of lab 01."""

from gluonlab.exercises.guesses import choice, guess, listed, number, yes_or_no

guess(
    "01-a",
    number(0, 1, such_as=0.5, within=0.1),
    en="what fraction of the time has passed when Python has the result array?",
    ja="Python が結果の配列を手にした時点で、時間の何割が過ぎているか",
)
guess(
    "01-b",
    listed(number(0, 7, such_as=2), 3),
    en="how many of 7 images does each of 3 devices get?",
    ja="7 枚の画像を 3 台に分けると、それぞれ何枚か",
)
guess(
    "01-c",
    yes_or_no(),
    en="the initial weights are random: are the two replicas equal?",
    ja="重みの初期値は乱数。2 つのレプリカは等しいか",
)
guess(
    "01-d",
    choice("sum", "mean", "neither"),
    en="what makes the gradient of all 7 images out of the two?",
    ja="2 つの勾配の何が、7 枚全体の勾配になるか",
)
guess(
    "01-e",
    number(0, such_as=1.0, factor=1.2),
    en="how many times as fast are two devices as one?",
    ja="2 台は 1 台の何倍速いか",
)
