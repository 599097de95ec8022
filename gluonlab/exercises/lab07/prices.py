"""07-6: how many devices and which batch reach a target in time, and most cheaply."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.shared.counterexamples import NOTHING, Case, Pair, looks_like
from gluonlab.exercises.shared.diagnosis import Mistake, Results, explains, results

Choice = Tuple[int, int]  # devices, batch
SLOWER = 4


class Machine(NamedTuple):
    """Made-up steps: so many seconds each, for each image of a device, and for an exchange.

    ``fits``: images that fit into a device's cache; beyond, each takes ``SLOWER`` times as long.
    """

    fixed: float
    image: float
    exchange: float
    fits: int

    def seconds(self, batch: int, devices: int) -> float:
        """Of one step."""
        each = batch / devices
        image = self.image * (SLOWER if each > self.fits else 1)
        return self.fixed + image * each + self.exchange * (devices > 1)


class Offer(NamedTuple):
    """What there is to choose from; ``steps``: of each batch to the target, None: never."""

    steps: Dict[int, Optional[int]]
    machine: Machine
    counts: List[int]
    deadline: float

    def all(self) -> Dict[Choice, Tuple[float, float]]:
        """(seconds, device-seconds) of every choice that reaches the target, in time or not."""
        found = {}
        for batch, steps in self.steps.items():
            for count in self.counts:
                if steps is not None and batch % count == 0:
                    seconds = steps * self.machine.seconds(batch, count)
                    found[count, batch] = (seconds, count * seconds)
        return found

    def in_time(self) -> Dict[Choice, Tuple[float, float]]:
        """Those that are in time."""
        return {each: both for each, both in self.all().items() if both[0] <= self.deadline}

    def case(self) -> Case:
        """In words."""
        fixed, image, exchange, fits = self.machine
        step = f"{fixed:g} + {image:g} * n"
        given = f"steps={self.steps}, counts={self.counts}, deadline={self.deadline:g}"
        return Case(
            f"{given}, a step with n images on each device takes {step} s, {SLOWER} times as long "
            f"for an image where n > {fits}, and {exchange:g} s more on several devices",
            f"{given}、デバイスあたり n 枚の 1 ステップは {step} 秒、n > {fits} なら 1 枚あたり "
            f"{SLOWER} 倍、2 台以上ならさらに {exchange:g} 秒",
        )


@exercise("07-6")
def cheapest(answer: Callable[..., Any]) -> None:
    """The devices and the batch that reach a target in time for the fewest device-seconds."""
    steps: Dict[int, Optional[int]] = {8: 200, 32: 80, 128: 50, 512: 40}
    gpu, slow = Machine(0.5, 0.0625, 0.25, 256), Machine(0.125, 0.25, 1.0, 16)
    offers = [Offer({8: 200}, gpu, [1], 300.0), Offer(steps, gpu, [1, 2, 4], 1000.0)]
    offers += [Offer(steps, gpu, [1, 2, 4, 8], 120.0), Offer(steps, slow, [1, 2, 4, 8], 600.0)]
    offers += [Offer(steps, gpu, [1, 2], 60.0), Offer({**steps, 2: None}, gpu, [1, 3, 4], 150.0)]
    offers.append(Offer({8: 200, 16: 100}, Machine(1.0, 0.0, 0.0, 64), [1], 100.0))
    small = Machine(0.125, 0.25, 0.0625, 64)
    offers += [Offer({128: 50}, small, [1, 2], 8000.0)]
    offers += [Offer({128: 50, 512: 40}, small, [1, 2, 4, 8], 9000.0)]
    even = Machine(0.0, 0.25, 0.0, 64)  # any number of devices costs the same
    offers += [Offer({64: 100}, even, counts, 900.0) for counts in ([1, 2, 4], [4, 1, 2])]
    random = draws(76)
    offers += [_drawn(random) for _ in range(12)]
    asked: List[Tuple[Offer, Any, Any]] = []

    def seconds(offer: Offer, batch: int, devices: int) -> float:
        asked.append((offer, batch, devices))
        return offer.machine.seconds(batch, devices)

    found = results(
        lambda offer: _pair(
            answer(
                dict(offer.steps),
                partial(seconds, offer),
                list(offer.counts),
                offer.deadline,
            )
        ),
        [(offer,) for offer in offers],
        _best,
    )
    mistaken = found.wrong(_is)
    if mistaken:
        [offer], got, want = mistaken[0]
        raise offer.case().wrong(
            f"it returned {got!r}, expected {want}",
            f"戻り値は {got!r} でした。正しくは {want} です",
            next(filter(any, (_why_asked(*each) for each in asked)), None)
            or _why(offer, got, want, found),
        )


def _drawn(random: Any) -> Offer:
    fewest, critical = random.uniform(20, 200), 2.0 ** random.uniform(3, 8)
    sizes = sorted((2 ** random.permutation(10)[: random.randint(2, 7)]).tolist())
    steps: Dict[int, Optional[int]] = {
        size: None if random.uniform() < 0.1 else round(fewest * (1 + critical / size))
        for size in sizes
    }
    fixed, image, exchange = (
        round(float(random.uniform(*ends)), 3) for ends in ((0.01, 1), (0.001, 0.1), (0.01, 0.5))
    )
    machine = Machine(fixed, image, exchange, int(2 ** random.randint(3, 8)))
    counts = sorted({1, *(random.permutation(8)[:4] + 1).tolist()})
    offer = Offer(steps, machine, counts, 0.0)
    times = sorted(seconds for seconds, _ in offer.all().values()) or [1.0]
    late = times[int(len(times) * random.uniform(0, 0.7))] * random.uniform(0.9, 1.5)
    return offer._replace(deadline=round(float(late), 1))


def _best(offer: Offer) -> Optional[Choice]:
    in_time = offer.in_time()
    return min(in_time, key=lambda each: (*in_time[each][::-1], each)) if in_time else None


def _pair(given: Any) -> Any:
    if isinstance(given, (tuple, list)) and len(given) == 2:
        return tuple(given)
    return given


def _is(got: Any, want: Optional[Choice]) -> bool:
    return got is None if want is None else bool(got == want)


def _least(
    key: Callable[[Offer, Choice, float, float], Any], late: bool = False
) -> Callable[..., bool]:
    """A mistake that chooses by something else; ``late``: with no regard to the deadline."""

    def gives(offer: Offer, got: Any) -> bool:
        some = offer.all() if late else offer.in_time()
        if not some:
            return got is None
        return bool(got == min(some, key=lambda each: (key(offer, each, *some[each]), each)))

    return gives


MISTAKES: List[Mistake] = [
    (_least(lambda offer, each, seconds, price: seconds),
     "that is the fastest: choose the cheapest that is in time",
     "これは最も速い選択です。時間内で最も安いものを選んでください"),
    (_least(lambda offer, each, seconds, price: price, late=True),
     "that is the cheapest of all, whether or not it is in time",
     "これは期限を無視した、最も安い選択です"),
    (_least(lambda offer, each, seconds, price: seconds, late=True),
     "that is the fastest, whether or not it is in time",
     "これは期限を無視した、最も速い選択です"),
    (_least(lambda offer, each, seconds, price:
            -each[1] / offer.machine.seconds(each[1], each[0]), late=True),
     "that has the most images/s, which does not decide how long it takes",
     "これは 1 秒あたりの枚数が最大の選択です。待つ時間はそれでは決まりません"),
    (_least(lambda offer, each, seconds, price:
            -each[1] / offer.machine.seconds(each[1], each[0])),
     "that has the most images/s, which does not decide how long it takes",
     "これは 1 秒あたりの枚数が最大の選択です。待つ時間はそれでは決まりません"),
    (_least(lambda offer, each, seconds, price: (each[0], seconds)),
     "that has the fewest devices: more devices may finish so much sooner that they cost less",
     "これはデバイスが最少の選択です。台数が多いほうが早く終わり、安く済むこともあります"),
    (_least(lambda offer, each, seconds, price: offer.steps[each[1]]),
     "that has the fewest steps, but not all steps take the same time",
     "これはステップ数が最少の選択です。1 ステップの時間は同じではありません"),
]  # fmt: skip


def _why_asked(offer: Offer, batch: Any, devices: Any) -> Pair:
    """What is said of a question for the seconds of a step that is not among the choices."""
    if batch in offer.steps and devices in offer.counts:
        return NOTHING
    return looks_like(
        (batch in offer.counts and devices in offer.steps,
         f"`seconds({batch}, {devices})` was called: the batch comes first, then the devices",
         f"`seconds({batch}, {devices})` が呼ばれました。バッチサイズが先、デバイス数が後です"),
        (devices in offer.counts and batch * devices in offer.steps,
         f"`seconds({batch}, {devices})` was called: it takes the size of the whole batch, not "
         "the images of one device",
         f"`seconds({batch}, {devices})` が呼ばれました。"
         "渡すのは 1 台分の枚数ではなく、バッチ全体のサイズです"),
    )  # fmt: skip


def _why(offer: Offer, got: Any, want: Optional[Choice], found: Results) -> Tuple[str, str]:
    if got is None and want is not None:
        return "it can be done in time", "時間内に終わる選択があります"
    is_pair = isinstance(got, tuple) and len(got) == 2
    swapped = is_pair and got not in offer.all() and got[::-1] in offer.all()
    known = explains(found, _is, *MISTAKES)
    if any(known):
        return known
    mine = offer.all().get(got) if is_pair else None
    theirs = offer.all().get(want) if want is not None else None
    return looks_like(
        (not is_pair, "return (devices, batch), or None",
         "(デバイス数, バッチサイズ) か None を返してください"),
        (swapped, "devices come first", "デバイス数が先です"),
        (is_pair and got[1] in offer.steps and offer.steps[got[1]] is None,
         f"batches of {got[1] if is_pair else 0} never reach the target",
         f"バッチサイズ {got[1] if is_pair else 0} では目標に達しません"),
        (is_pair and got[0] in offer.counts and got[1] in offer.steps and mine is None,
         "such a batch does not divide evenly over so many devices",
         "そのバッチはその台数では割り切れません"),
        (mine is not None and mine[0] > offer.deadline,
         f"it takes {mine[0] if mine else 0:.4g} s", f"{mine[0] if mine else 0:.4g} 秒かかります"),
        (mine is not None and theirs is not None and mine[1] == theirs[1],
         f"it costs as much as {want}, but takes {mine[0] if mine else 0:.4g} s, not "
         f"{theirs[0] if theirs else 0:.4g} s",
         f"コストは {want} と同じですが、時間が {theirs[0] if theirs else 0:.4g} 秒ではなく "
         f"{mine[0] if mine else 0:.4g} 秒かかります"),
        (mine is not None and theirs is not None,
         f"it costs {mine[1] if mine else 0:.4g} device-seconds, "
         f"{want} costs {theirs[1] if theirs else 0:.4g}",
         f"コストは {mine[1] if mine else 0:.4g} デバイス秒、"
         f"{want} では {theirs[1] if theirs else 0:.4g} です"),
        (True, "there is no such choice", "そのような選択肢はありません"),
    )  # fmt: skip
