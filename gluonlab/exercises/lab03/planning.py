"""03-2 and 03-3: how many updates a training run makes, and the learning rate of each."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.shared.counterexamples import (
    NUMBERS,
    Pair,
    gave,
    in_english,
    looks_like,
    near,
    wrong,
)


class _Epochs(NamedTuple):
    images: int
    epochs: int
    devices: int
    per_device: int


@exercise("03-2")
def updates(answer: Callable[[int, int, int, int], int]) -> None:
    """How many updates a training run makes."""
    rng = draws(0)
    fixed = [(8, 1, 1, 4), (8, 1, 2, 4), (8, 3, 2, 2), (10, 1, 1, 4), (10, 3, 2, 2)]
    large = [(60_000, 5, 1, 64), (60_000, 5, 2, 64)]
    random = [tuple(int(rng.randint(1, top)) for top in (2000, 20, 9, 65)) for _ in range(50)]
    for case in (_Epochs(*numbers) for numbers in [*fixed, *large, *random]):
        images, epochs, devices, per_device = case
        want, got = epochs * -(-images // (devices * per_device)), answer(*case)
        if not isinstance(got, NUMBERS) or got != want:
            raise wrong(
                f"{images:,} images, {in_english(epochs, 'epoch')}, "
                f"{in_english(devices, 'device')}, {per_device} per device: "
                f"got {got}, expected {want:,}",
                f"画像 {images:,} 枚、{epochs} エポック、デバイス {devices} 台、"
                f"デバイスあたり {per_device} 枚: 答えは {got} でしたが、正しくは {want:,} です",
                _fault_of_updates(case, got),
            )


def _fault_of_updates(case: _Epochs, got: Any) -> Pair:
    batch = case.devices * case.per_device
    return looks_like(
        (got is None, "the function returns nothing", "関数が何も返していません"),
        (got == case.epochs * -(-case.images // case.per_device),
         "a batch is that of all devices together", "1 回の更新に使うバッチは全デバイス分です"),
        (got == -(-case.images // batch),
         "that is one epoch only", "これは 1 エポック分です"),
        (got == case.epochs * (case.images // batch),
         "the smaller batch at the end of an epoch makes an update, too",
         "エポックの最後の小さいバッチでも更新します"),
        (isinstance(got, float),
         "there are whole updates only, rounded up in every epoch",
         "更新回数は整数で、エポックごとに切り上げます"),
        (got == -(-case.images * case.epochs // batch),
         "a batch does not go on into the next epoch", "バッチは次のエポックにまたがりません"),
    )  # fmt: skip


@exercise("03-3")
def learning_rate(answer: Callable[[int, float, int, int], float]) -> None:
    """The learning rate of a step: scaled with the devices, after a warm-up."""
    rng = draws(1)
    fixed = [(1, 1, 0), (1, 2, 0), (4, 2, 4), (2, 2, 4), (1, 2, 4), (9, 2, 4)]
    cases = [(step, 0.1, devices, warmup) for step, devices, warmup in fixed]
    for _ in range(50):
        step, base = int(rng.randint(1, 200)), float(rng.uniform(0.01, 1))
        cases.append((step, base, int(rng.randint(1, 9)), int(rng.randint(0, 100))))
    for step, base, devices, warmup in cases:
        want = devices * base * (min(1.0, step / warmup) if warmup else 1.0)
        got = answer(step, base, devices, warmup)
        if not near(got, want):
            raise gave(
                f"learning_rate(step={step}, base_lr={base:.3g}, devices={devices}, "
                f"warmup_steps={warmup})",
                f"{got:.6g}" if isinstance(got, NUMBERS) else repr(got),
                f"{want:.6g}",
                _fault_of_rate(step, base, devices, warmup, got),
            )


def _fault_of_rate(step: int, base: float, devices: int, warmup: int, got: Any) -> Pair:
    full, done = devices * base, step / warmup if warmup else 1.0
    return looks_like(
        (got is None, "the function returns nothing", "関数が何も返していません"),
        (devices > 1 and near(got, base * min(1.0, done)),
         "it does not grow with the number of devices", "デバイス数に比例していません"),
        (warmup and near(got, base + (devices - 1) * base * min(1.0, done)),
         "the warm-up begins at 0, not at the rate of one device",
         "ウォームアップは 1 台分の学習率からではなく 0 から始めます"),
        (warmup and near(got, full),
         "the warm-up is not over yet", "まだウォームアップの途中です"),
        (warmup and step > warmup and near(got, full * done),
         "after the warm-up it stays where it is", "ウォームアップの後は一定です"),
        (warmup and near(got, full * (step - 1) / warmup),
         "steps count from 1, and the last of the warm-up has the full rate",
         "ステップは 1 から数え、ウォームアップの最後で最大になります"),
    )  # fmt: skip
