"""03-2 and 03-3: how many updates a training run makes, and the learning rate of each."""

from __future__ import annotations

from typing import Callable, List

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.shared.counterexamples import NUMBERS, gave, in_english, near, wrong
from gluonlab.exercises.shared.diagnosis import (
    Mistake,
    by,
    explains,
    results,
    same_number,
)


@exercise("03-2")
def updates(answer: Callable[[int, int, int, int], int]) -> None:
    """How many updates a training run makes."""
    rng = draws(0)
    fixed = [(8, 1, 1, 4), (8, 1, 2, 4), (8, 3, 2, 2), (10, 1, 1, 4), (10, 3, 2, 2)]
    large = [(60_000, 5, 1, 64), (60_000, 5, 2, 64)]
    random = [tuple(int(rng.randint(1, top)) for top in (2000, 20, 9, 65)) for _ in range(50)]
    whole = [(epochs * devices * b, epochs, devices, b) for _, epochs, devices, b in random[:10]]

    def right(images: int, epochs: int, devices: int, per_device: int) -> int:
        return epochs * -(-images // (devices * per_device))

    found = results(answer, [*fixed, *large, *random, *whole], right)
    mistaken = found.wrong(same_number)
    if mistaken:
        (images, epochs, devices, per_device), got, want = mistaken[0]
        raise wrong(
            f"{images:,} images, {in_english(epochs, 'epoch')}, "
            f"{in_english(devices, 'device')}, {per_device} per device: "
            f"got {got}, expected {want:,}",
            f"画像 {images:,} 枚、{epochs} エポック、デバイス {devices} 台、"
            f"デバイスあたり {per_device} 枚: 答えは {got} でしたが、正しくは {want:,} です",
            explains(found, same_number, *OF_UPDATES),
        )


OF_UPDATES: List[Mistake] = [
    (by(lambda n, e, k, b: e * -(-n // b)),
     "a batch is that of all devices together", "1 回の更新に使うバッチは全デバイス分です"),
    (by(lambda n, e, k, b: k * e * -(-n // (k * b))),
     "the devices make each update together, so it counts once",
     "1 回の更新は全デバイスが一緒に行うので、1 回と数えます"),
    (by(lambda n, e, k, b: -(-n // (k * b))), "that is one epoch only", "これは 1 エポック分です"),
    (by(lambda n, e, k, b: e * (n // (k * b))),
     "the smaller batch at the end of an epoch makes an update, too",
     "エポックの最後の小さいバッチでも更新します"),
    (by(lambda n, e, k, b: e * (n // (k * b) + 1)),
     "where the images divide evenly, no smaller batch is left at the end of an epoch",
     "割り切れるときは、エポックの最後に小さいバッチは残りません"),
    (by(lambda n, e, k, b: e * round(n / (k * b))),
     "the batch at the end of an epoch makes an update however small it is: round up",
     "エポックの最後のバッチは、どんなに小さくても 1 回更新します。切り上げてください"),
    (by(lambda n, e, k, b: e * n / (k * b)),
     "there are whole updates only, rounded up in every epoch",
     "更新回数は整数で、エポックごとに切り上げます"),
    (by(lambda n, e, k, b: -(-n * e // (k * b))),
     "a batch does not go on into the next epoch", "バッチは次のエポックにまたがりません"),
]  # fmt: skip


@exercise("03-3")
def learning_rate(answer: Callable[[int, float, int, int], float]) -> None:
    """The learning rate of a step: scaled with the devices, after a warm-up."""
    rng = draws(1)
    fixed = [(1, 1, 0), (1, 2, 0), (4, 2, 4), (2, 2, 4), (1, 2, 4), (9, 2, 4)]
    cases = [(step, 0.1, devices, warmup) for step, devices, warmup in fixed]
    for _ in range(50):
        step, base = int(rng.randint(1, 200)), float(rng.uniform(0.01, 1))
        cases.append((step, base, int(rng.randint(1, 9)), int(rng.randint(0, 100))))
    found = results(answer, cases, lambda s, base, k, w: k * base * _ramp(s, w))
    mistaken = found.wrong(near)
    if mistaken:
        (step, base, devices, warmup), got, want = mistaken[0]
        raise gave(
            f"learning_rate(step={step}, base_lr={base:.3g}, devices={devices}, "
            f"warmup_steps={warmup})",
            f"{got:.6g}" if isinstance(got, NUMBERS) else repr(got),
            f"{want:.6g}",
            explains(found, near, *OF_RATES),
        )


def _ramp(step: float, warmup: int) -> float:
    """How far the warm-up has come, from 0 to 1."""
    return min(1.0, step / warmup) if warmup else 1.0


OF_RATES: List[Mistake] = [
    (by(lambda s, base, k, w: base * _ramp(s, w)),
     "it does not grow with the number of devices", "デバイス数に比例していません"),
    (by(lambda s, base, k, w: base + (k - 1) * base * _ramp(s, w)),
     "the warm-up begins at 0, not at the rate of one device",
     "ウォームアップは 1 台分の学習率からではなく 0 から始めます"),
    (by(lambda s, base, k, w: k * base),
     "that is the full rate at every step: the warm-up is missing",
     "どのステップでも最大の学習率です。ウォームアップがありません"),
    (by(lambda s, base, k, w: k * base * (s / w if w else 1)),
     "after the warm-up it stays where it is", "ウォームアップの後は一定です"),
    (by(lambda s, base, k, w: k * base * _ramp(s - 1, w)),
     "steps count from 1, and the last of the warm-up has the full rate",
     "ステップは 1 から数え、ウォームアップの最後で最大になります"),
    (by(lambda s, base, k, w: k * base * (_ramp(s, w + 1) if w else 1)),
     "the last step of the warm-up has the full rate already",
     "ウォームアップの最後のステップで最大になります"),
    (by(lambda s, base, k, w: k * base if s >= w else base),
     "during the warm-up it rises at every step, it does not jump at the end",
     "ウォームアップの間は 1 ステップごとに上がります。最後に一気に上げるのではありません"),
]  # fmt: skip
