"""The guesses of lab 05."""

from gluonlab.exercises.guesses import each, guess, number

guess(
    "05-a",
    each(number(0, such_as=30, factor=1.15), "layers", "channels"),
    en="the whole network takes 20 MiB: how many MiB does the fuller of two devices take?",
    ja="ネットワーク全体は 20 MiB。2 台のうち多いほうは何 MiB 使うか",
)
guess(
    "05-b",
    number(0, 1, such_as=0.5, within=0.05),
    en="for what share of a step does the second device compute?",
    ja="2 台目が計算しているのは 1 ステップの時間の何割か",
)
guess(
    "05-c",
    each(number(0, such_as=3, factor=1.3), "lenet-avg", "mlp"),
    en="for each byte that split layers move, how many do split channels move?",
    ja="チャネルの分割は層の間の分割の何倍のバイト数を転送するか",
)
guess(
    "05-d",
    each(number(0, 1, such_as=0.5, within=0.03), "sequential", "gpipe"),
    en="4 devices, 8 microbatches: for what share of the time are the devices idle?",
    ja="4 台、マイクロバッチ 8 個。デバイスが待っているのは時間の何割か",
)
guess(
    "05-e",
    number(0, such_as=2, factor=1.2),
    en="2 devices, 8 microbatches: GPipe's activations on device 0, as a multiple of 1F1B's?",
    ja="2 台、マイクロバッチ 8 個。デバイス 0 の活性値は、GPipe では 1F1B の何倍か",
)
guess(
    "05-f",
    number(0, such_as=4, factor=1.5),
    en="how many of the lecture's GPUs do weights, gradients and Adam's states of GPT-3 fill?",
    ja="GPT-3 の重み、勾配、Adam の状態だけで、講義の GPU が何個必要か",
)
