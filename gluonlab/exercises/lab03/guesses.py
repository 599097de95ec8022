"""The guesses of lab 03."""

from gluonlab.exercises.guesses import choice, each, guess, listed, number, yes_or_no

guess(
    "03-a",
    each(yes_or_no(), "weights", "gradients"),
    en="after a step, are the replicas' weights the same, and their gradients?",
    ja="1 ステップの後、レプリカの重みは同じか。勾配は同じか",
)
guess(
    "03-b",
    each(choice("higher", "about equal", "lower"), "B", "C"),
    en="after as many epochs, how do B and C compare with A?",
    ja="同じエポック数の後、B と C の正解率は A に比べてどうか",
)
guess(
    "03-c",
    listed(number(such_as=-1, within=0.05), 4),
    en="what does BatchNorm make of 0, 0, 2, 2 on two devices?",
    ja="0, 0, 2, 2 を 2 台に分けると、BatchNorm の出力はどうなるか",
)
guess(
    "03-d",
    choice("computing", "sum", "update", "host"),
    en="which part of a step takes longest on two devices?",
    ja="2 台のステップで最も長いのはどの部分か",
)
