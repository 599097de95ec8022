"""The guesses of lab 04."""

from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.exercises.guesses import choice, each, guess, number

guess(
    "04-a",
    each(number(0, such_as=2.5, within=0.001), "ring: steps", "ring: sends", "star: sends"),
    en="4 ranks: how many steps, and how many arrays does the busiest rank send?",
    ja="4 ランク: 何ステップか。最も忙しいランクが送るのは配列何個分か",
)
guess(
    "04-b",
    number(0, such_as=3, factor=1.01),
    en="8 ranks: how many times as many bytes pass the star's busiest port as the ring's?",
    ja="8 ランク: star で最も忙しいポートを通るバイト数は ring の何倍か",
)
guess(
    "04-c",
    each(choice(*ALGORITHMS), "1 KB", "100 MB"),
    en="which algorithm is the fastest on a p3.16xlarge?",
    ja="p3.16xlarge で最も速いのはどのアルゴリズムか",
)
guess(
    "04-d",
    number(0, such_as=20, factor=1.1),
    en="1 GB on a p3.16xlarge: what busbw does the cheapest schedule reach, in GB/s?",
    ja="p3.16xlarge で 1 GB: 見積もりが最も小さいスケジュールの busbw は何 GB/s か",
)
guess(
    "04-e",
    number(0, such_as=3, factor=1.3),
    en="4 MiB here: how many times as long does star take as ring?",
    ja="このマシンで 4 MiB: star の時間は ring の何倍か",
)
guess(
    "04-f",
    each(number(0, 1, such_as=0.5, within=0.15), "15", "1"),
    en="pieces of 15 and of 1: at what share of backward is the last layer's gradient ready?",
    ja="まとまりが演算 15 個と 1 個のとき: 最後の層の勾配は逆伝播の何割でそろうか",
)
