"""The guesses of lab 10."""

from gluonlab.exercises.guesses import each, guess, number

guess(
    "10-a",
    number(0, such_as=11, factor=1.05),
    en="how many µs does it take to tell seven others?",
    ja="ほかの 7 台に伝えるのに最短で何 µs かかるか",
)

guess(
    "10-b",
    each(number(0, such_as=11, factor=1.05), "10-2", "10-3"),
    en="how many µs are the optima of 10-2 and 10-3?",
    ja="10-2 と 10-3 の最適値は何 µs か",
)

guess(
    "10-c",
    each(number(0, such_as=11, factor=1.05), "10-4", "10-5"),
    en="how many µs are the optima of 10-4 and 10-5?",
    ja="10-4 と 10-5 の最適値は何 µs か",
)

guess(
    "10-d",
    each(number(0, such_as=11, factor=1.05), "10-6", "10-7"),
    en="how many µs are the optima of 10-6 and 10-7?",
    ja="10-6 と 10-7 の最適値は何 µs か",
)

guess(
    "10-e",
    number(0, such_as=11, factor=1.05),
    en="how many µs is the optimum of 10-8?",
    ja="10-8 の最適値は何 µs か",
)
