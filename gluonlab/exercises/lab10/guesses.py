"""The guesses of lab 10."""

from gluonlab.exercises.guesses import each, guess, number

guess(
    "10-a",
    each(number(0, such_as=11, factor=1.05), "10-3", "10-5", "10-8"),
    en="how many microseconds is the optimum of three puzzles?",
    ja="3 題のパズルの最適値は何 µs か",
)
