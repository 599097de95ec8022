"""03-3: the learning rate of every update, by the recipe of Goyal et al."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterable, List, Tuple

import numpy as np

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.shared.counterexamples import NUMBERS, Case, in_english, returned
from gluonlab.exercises.shared.diagnosis import Mistake, explains, results

Rates = List[float]


@exercise("03-3")
def learning_rates(answer: Callable[..., Iterable[float]]) -> None:
    """The learning rate of every update: scaled, after a warm-up, and lowered later."""
    random = draws(1)
    fixed = [
        _Training(8, 2, 2, 3, 0.1, 1, ()),
        _Training(9, 2, 2, 3, 0.1, 1, (2,)),
        _Training(8, 1, 4, 2, 0.2, 0, ()),
        _Training(8, 1, 2, 3, 0.2, 2, ()),
        _Training(12, 2, 2, 4, 0.1, 0, (1, 3)),
        _Training(2, 4, 2, 4, 0.1, 2, (3,)),
    ]
    cases = [(each,) for each in [*fixed, *(_some_training(random) for _ in range(20))]]
    found = results(lambda each: _listed(answer(*each.given())), cases, lambda each: each.rates())
    mistaken = found.wrong(_alike)
    if not mistaken:
        return
    (each,), got, want = mistaken[0]
    if not isinstance(got, list) or not all(isinstance(rate, NUMBERS) for rate in got):
        call = f"learning_rates({', '.join(map(str, each.given()))})"
        raise returned(got, call, "a list of numbers", "数のリスト")
    why = explains(found, _alike, *OF_RATES)
    en, ja = _first_fault(got, want)
    raise each.case().wrong(en, ja, why)


@dataclass(frozen=True)
class _Training:
    """What the answer is told of a training, and the recipe; mistakes change one line of it."""

    images: int
    devices: int
    per_device: int
    epochs: int
    base_lr: float
    warmup_epochs: int
    drops: Tuple[int, ...]

    def given(self) -> Tuple[Any, ...]:
        """The arguments of the answer."""
        return (
            self.images,
            self.devices,
            self.per_device,
            self.epochs,
            self.base_lr,
            self.warmup_epochs,
            list(self.drops),
        )

    def case(self) -> Case:
        """It in words."""
        n, k, b, e, lr, warmup, drops = self.given()
        return Case(
            f"{n} images, {in_english(k, 'device')} with {b} each, {in_english(e, 'epoch')}, "
            f"base_lr {lr:g}, {in_english(warmup, 'epoch')} of warm-up, drops {drops}",
            f"画像 {n} 枚、1 台 {b} 枚で {k} 台、{e} エポック、base_lr {lr:g}、"
            f"ウォームアップ {warmup} エポック、drops {drops}",
        )

    def rates(
        self,
        each: "Callable[[_Training], int] | None" = None,
        full: "Callable[[_Training], float] | None" = None,
        begin: "Callable[[_Training], float] | None" = None,
        rise: Callable[[int, int], float] = lambda update, steps: update / steps,
        lowered: "Callable[[_Training, int, int], int] | None" = None,
    ) -> Rates:
        """The rate of each update.

        ``each``: updates in an epoch; ``full``, ``begin``: rates after the warm-up and before it;
        ``rise``: how far an update of the warm-up has come; ``lowered``: how often by then.
        """
        steps = each(self) if each else -(-self.images // (self.devices * self.per_device))
        top = full(self) if full else self.base_lr * self.devices
        low = begin(self) if begin else self.base_lr
        of_warmup = steps * self.warmup_epochs
        found: Rates = []
        for update in range(steps * self.epochs):
            if update < of_warmup:
                found.append(low + (top - low) * rise(update, of_warmup))
                continue
            epoch = update // steps
            times = (
                lowered(self, epoch, update)
                if lowered
                else sum(drop <= epoch for drop in self.drops)
            )
            found.append(top * 0.1**times)
        return found

    def early(self) -> Rates:
        """With drops at the beginning of the epoch before."""
        found = self.rates(lowered=lambda training, epoch, update: 0)
        steps = len(found) // self.epochs
        return [
            rate * 0.1 ** sum(drop <= update // steps + 1 for drop in self.drops)
            for update, rate in enumerate(found)
        ]

    def by_epochs(self) -> Rates:
        """With the rate of the warm-up's epoch for all of its updates."""
        right, top = self.rates(), self.base_lr * self.devices
        steps = len(right) // self.epochs
        for update in range(steps * self.warmup_epochs):
            risen = update // steps / self.warmup_epochs
            right[update] = self.base_lr + (top - self.base_lr) * risen
        return right

    def by_factors(self) -> Rates:
        """With a warm-up in which each rate is a multiple of the one before."""
        right = self.rates()
        of_warmup = len(right) // self.epochs * self.warmup_epochs
        for update in range(of_warmup):
            right[update] = self.base_lr * self.devices ** (update / of_warmup)
        return right


def _mistake(en: str, ja: str, **changes: Any) -> Mistake:
    return lambda each, got: _alike(got, each.rates(**changes)), en, ja


OF_RATES: List[Mistake] = [
    _mistake("the smaller batch at the end of an epoch makes an update, too",
             "エポックの最後の小さいバッチでも更新します",
             each=lambda t: t.images // (t.devices * t.per_device)),
    _mistake("a batch is that of all devices together", "1 回の更新に使うバッチは全デバイス分です",
             each=lambda t: -(-t.images // t.per_device)),
    _mistake("it does not grow with the number of devices", "デバイス数に比例していません",
             full=lambda t: t.base_lr),
    _mistake("that is the square root rule; the linear one is asked for",
             "これは平方根の規則です。線形スケーリング則を使ってください",
             full=lambda t: t.base_lr * t.devices**0.5),
    _mistake("the warm-up begins at the rate of one device, not at 0",
             "ウォームアップは 0 からではなく 1 台分の学習率から始めます",
             begin=lambda t: 0.0),
    _mistake("the first update has base_lr; each later one is a step higher",
             "最初の更新の学習率が base_lr で、そこから 1 回ごとに上がります",
             rise=lambda update, steps: (update + 1) / steps),
    _mistake("the full rate comes first in the update after the warm-up",
             "最大の学習率になるのはウォームアップの次の更新です",
             rise=lambda update, steps: update / (steps - 1) if steps > 1 else 0.0),
    _mistake("that is the full rate from the first update on: the warm-up is missing",
             "最初の更新から最大の学習率です。ウォームアップがありません",
             rise=lambda update, steps: 1.0),
    _mistake("there is no update after the last batch: 8 images in batches of 4 make 2 updates",
             "最後のバッチの後に更新はありません。8 枚を 4 枚ずつなら更新は 2 回です",
             each=lambda t: t.images // (t.devices * t.per_device) + 1),
    (lambda each, got: _alike(got, each.by_epochs()),
     "during the warm-up it rises with every update, not once in an epoch",
     "ウォームアップの間は、エポックごとではなく更新ごとに上がります"),
    (lambda each, got: _alike(got, each.by_factors()),
     "during the warm-up it rises by the same amount with every update, not by the same factor",
     "ウォームアップの間は、更新ごとに同じ量だけ上がります。同じ倍率ではありません"),
    _mistake("during the warm-up it rises with every update, it does not jump at the end",
             "ウォームアップの間は更新ごとに上がります。最後に一気に上げるのではありません",
             rise=lambda update, steps: 0.0),
    _mistake("the drops are missing", "drops での引き下げがありません",
             lowered=lambda t, epoch, update: 0),
    _mistake("epochs count from 0: it drops at the beginning of that epoch",
             "エポックは 0 から数えます。そのエポックの始めに下げます",
             lowered=lambda t, epoch, update: sum(drop < epoch for drop in t.drops)),
    (lambda each, got: _alike(got, each.early()),
     "it drops an epoch too early: epochs count from 0",
     "引き下げが 1 エポック早すぎます。エポックは 0 から数えます"),
    _mistake("once lowered it stays low: the rate does not come back after that epoch",
             "一度下げたら低いままです。そのエポックの後に戻してはいけません",
             lowered=lambda t, epoch, update: sum(drop == epoch for drop in t.drops)),
    _mistake("each drop makes it a tenth of what it was, so two make it a hundredth",
             "drops のたびに 10 分の 1 にします。2 回なら 100 分の 1 です",
             lowered=lambda t, epoch, update: int(any(drop <= epoch for drop in t.drops))),
    _mistake("drops are epochs, not updates", "drops は更新の番号ではなくエポックの番号です",
             lowered=lambda t, epoch, update: sum(drop <= update for drop in t.drops)),
]  # fmt: skip


def _some_training(random: Any) -> _Training:
    devices, per_device = int(random.randint(2, 6)), int(random.randint(1, 6))
    warmup, after = int(random.randint(1, 3)), int(random.randint(2, 5))
    drops = sorted(random.choice(np.arange(warmup, warmup + after), random.randint(0, 3), False))
    return _Training(
        int(random.randint(devices * per_device, 60)),
        devices,
        per_device,
        warmup + after,
        0.01 * int(random.randint(1, 50)),
        warmup,
        tuple(map(int, drops)),
    )


def _listed(given: Any) -> Any:
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str) else given


def _alike(got: Any, want: Rates) -> bool:
    if not isinstance(got, list) or len(got) != len(want):
        return False
    return all(isinstance(one, NUMBERS) for one in got) and np.allclose(
        np.array(got, float), want, rtol=1e-6, atol=1e-12
    )


def _first_fault(got: Rates, want: Rates) -> Tuple[str, str]:
    if len(got) != len(want):
        return (
            f"{len(got)} rates, expected {len(want)}, one for each update",
            f"学習率が {len(got)} 個です。更新ごとに 1 個、{len(want)} 個のはずです",
        )
    near = np.isclose(np.array(got, float), want, rtol=1e-6, atol=1e-12)
    place = int(np.argmin(near))
    return (
        f"update {place} (from 0) has the rate {got[place]:.6g}, expected {want[place]:.6g}",
        f"{place} 番目 (0 から) の更新の学習率が {got[place]:.6g} です。"
        f"正しくは {want[place]:.6g} です",
    )
