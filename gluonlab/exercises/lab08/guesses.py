"""The guesses of lab 08."""

from gluonlab.exercises.guesses import choice, each, guess, number

guess(
    "08-a",
    choice("exactly 0", "rounding", "more"),
    en="how much do the last losses of one process and of two differ?",
    ja="1 プロセスと 2 プロセスの最後の損失はどれくらい違うか",
)
guess(
    "08-b",
    each(number(0, such_as=0.5, within=0.1), "copied", "lasting"),
    en="how many times the parameters' bytes go from device to device in a step?",
    ja="1 ステップでデバイスの間を通るのは、パラメータのバイト数の何倍か",
)
guess(
    "08-c",
    each(number(0, 1, such_as=0.1, within=0.04), "2 ranks", "8 ranks"),
    en="each rank has a permutation of its own: what fraction of the images is used by none?",
    ja="ランクごとに並べ替えが違うとき、どのランクも使わない画像の割合",
)
guess(
    "08-d",
    number(0, 1, such_as=0.1, within=0.08),
    en="rank 0 alone evaluates: for what fraction of the time are the 7 others idle?",
    ja="ランク 0 だけが評価するとき、残りの 7 個が何もしない時間の割合",
)
guess(
    "08-e",
    number(0, such_as=5, within=0.3),
    en="how many updates by the other worker has a pushing worker not seen?",
    ja="push が届いたとき、まだ pull していない相手の更新は平均何回分か",
)
guess(
    "08-f",
    choice("the first step", "the last checkpoint", "the kill"),
    en="where does the run resume after a worker was killed?",
    ja="ワーカーが強制終了された後、どこから再開されるか",
)
guess(
    "08-g",
    number(0, such_as=25),
    en="how many of its steps have a different loss than without the kill?",
    ja="中断しなかった場合と損失が違うステップの数",
)
