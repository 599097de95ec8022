"""05-4 and 05-6: how long the devices of a pipeline are idle, computed and measured."""

from __future__ import annotations

from statistics import median
from typing import Any, Callable, Dict, List, Sequence, Tuple

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import Wrong, exercise
from gluonlab.exercises.lab05.lists import by_list, drawn, fault, listed
from gluonlab.exercises.shared.counterexamples import Case
from gluonlab.exercises.shared.diagnosis import Mistake, results
from gluonlab.parallel.pipeline.price import Costs, price
from gluonlab.parallel.pipeline.schedule import gpipe, one_forward_one_backward

Times = List[float]


@exercise("05-4")
def idle_shares(answer: Callable[[Times, Times, int], Sequence[float]]) -> None:
    """Which share of a GPipe step each device of unequal stages is idle."""
    cases: List[Tuple[Times, Times, int]] = [
        ([1, 1], [2, 2], 1),
        ([1, 1, 1, 1], [2, 2, 2, 2], 8),
        ([1, 3], [2, 6], 4),
        ([4, 1, 2], [1, 5, 2], 3),
        ([5], [9], 3),
    ]
    random = draws(54)
    for _ in range(10):
        count = int(random.randint(2, 7))
        forward = [float(one) for one in drawn(random, count, 1, 20)]
        backward = [float(one) for one in drawn(random, count, 1, 40)]
        cases.append((forward, backward, int(random.randint(2, 17))))
    found = results(
        lambda forward, backward, m: listed(answer(list(forward), list(backward), m)),
        cases,
        _idle,
    )
    fails = fault(found, lambda f, b, m: f"idle_shares({f}, {b}, {m})", OF_IDLE)
    if fails:
        raise fails


def _idle(forward: Times, backward: Times, microbatches: int) -> List[float]:
    """As the package prices it."""
    return _bubbles(gpipe, forward, backward, microbatches)


def _bubbles(
    schedule: Callable[..., Any], forward: Times, backward: Times, microbatches: int
) -> List[float]:
    """The idle share of each device, as the package prices a schedule."""
    stages = len(forward)
    free = ((0.0, 0.0),) * (stages - 1)
    costs = Costs(tuple(forward), tuple(backward), free, (0.0,) * stages)
    return [max(0.0, bubble) for bubble in price(schedule(stages, microbatches), costs).bubbles]


def _of_step(step: Callable[[Times, Times, int], float]) -> Callable[..., bool]:
    """Idle shares of a step that takes as long as a formula says."""

    def shares(forward: Times, backward: Times, microbatches: int) -> List[float]:
        whole = step(forward, backward, microbatches)
        return [1 - microbatches * (f + b) / whole for f, b in zip(forward, backward)]

    return by_list(shares)


def _step(forward: Times, backward: Times, m: int) -> float:
    return sum(forward) + sum(backward) + (m - 1) * (max(forward) + max(backward))


def _both(forward: Times, backward: Times) -> List[float]:
    return [f + b for f, b in zip(forward, backward)]


def _until_own_end(forward: Times, backward: Times, m: int) -> List[float]:
    """Of the time until a device's own last backward."""
    there = sum(forward) + (m - 1) * max(forward)
    rests = [backward[device:] for device in range(len(backward))]
    ends = [there + sum(rest) + (m - 1) * max(rest) for rest in rests]
    return [1 - m * each / end for each, end in zip(_both(forward, backward), ends)]


OF_IDLE: List[Mistake] = [
    (by_list(lambda f, b, m: [(len(f) - 1) / (m + len(f) - 1)] * len(f)),
     "that is the bubble of equal stages", "それはステージが等しいときのバブルです"),
    (by_list(lambda f, b, m: [m * each / _step(f, b, m) for each in _both(f, b)]),
     "that is the share in which it works", "それは計算している時間の割合です"),
    (by_list(lambda f, b, m: [_step(f, b, m) / (m * each) - 1 for each in _both(f, b)]),
     "that is its idle time over its busy time, not over the whole step",
     "それは計算時間に対する割合です。ステップ全体の時間で割ります"),
    (by_list(lambda f, b, m: [_step(f, b, m) - m * each for each in _both(f, b)]),
     "that is the idle time itself: divide it by the time of the step",
     "それは待ち時間そのものです。ステップの時間で割ります"),
    (_of_step(lambda f, b, m: sum(_both(f, b)) + (m - 1) * max(_both(f, b))),
     "all forwards come first: the stage that is slowest forward need not be the one that is "
     "slowest backward",
     "順伝播が全部終わってから逆伝播です。順伝播で最も遅いステージと逆伝播で最も遅いステージは、"
     "同じとは限りません"),
    (_of_step(lambda f, b, m: m * sum(_both(f, b))),
     "that is as if a microbatch began only after the one before had gone forward and backward",
     "前のマイクロバッチが逆伝播まで終わってから次を始めるかのような値です"),
    (_of_step(lambda f, b, m: sum(_both(f, b)) + m * (max(f) + max(b))),
     "one microbatch too many: the first one is in the sums already",
     "マイクロバッチが 1 個多く数えられています。最初の 1 個は和に入っています"),
    (_of_step(lambda f, b, m: (m + len(f) - 1) * (max(f) + max(b))),
     "as if all stages took as long as the slowest: the first microbatch passes each of them in "
     "its own time",
     "どのステージにも最も遅いステージと同じ時間がかかるとした値です。"
     "最初のマイクロバッチは、各ステージをそれぞれの時間で通ります"),
    (_of_step(lambda f, b, m: (m + len(f) - 1) * max(_both(f, b))),
     "as if all stages took as long as the slowest: the first microbatch passes each of them in "
     "its own time",
     "どのステージにも最も遅いステージと同じ時間がかかるとした値です。"
     "最初のマイクロバッチは、各ステージをそれぞれの時間で通ります"),
    (by_list(lambda f, b, m: [100 * (1 - m * each / _step(f, b, m)) for each in _both(f, b)]),
     "that is in per cent: a share is a number from 0 to 1",
     "パーセントになっています。割合は 0 から 1 の数です"),
    (by_list(lambda f, b, m: _bubbles(one_forward_one_backward, f, b, m)),
     "those are the shares of 1F1B, which begins with a backward before all forwards are done: "
     "GPipe does all forwards first",
     "それは 1F1B の値です。1F1B は順伝播が全部終わる前に逆伝播を始めますが、GPipe では"
     "順伝播が全部先です"),
    (by_list(_until_own_end),
     "the step ends when all devices are done, not each device by itself",
     "ステップの終わりは全デバイスが終わったときです。デバイスごとの終わりではありません"),
    (_of_step(lambda f, b, m: sum(f) + (m - 1) * max(f) + m * b[-1]),
     "the step ends when all devices are done: device 0 is the last, not the end of the chain",
     "ステップの終わりは全デバイスが終わったときです。最後に終わるのは末尾のデバイスではなく"
     "デバイス 0 です"),
    (_of_step(lambda f, b, m: m * (max(f) + max(b))),
     "the time in which the pipeline fills and drains is missing",
     "パイプラインが埋まるまでと空になるまでの時間が入っていません"),
    (_of_step(lambda f, b, m: sum(_both(f, b)) + (m - 1) * (f[-1] + b[-1])),
     "microbatches follow each other as fast as the slowest stage lets them, "
     "which need not be the last",
     "マイクロバッチの間隔を決めるのは最も遅いステージで、最後のステージとは限りません"),
    (_of_step(lambda f, b, m: sum(_both(f, b)) + (m - 1) * (f[0] + b[0])),
     "microbatches follow each other as fast as the slowest stage lets them, "
     "which need not be the first",
     "マイクロバッチの間隔を決めるのは最も遅いステージで、最初のステージとは限りません"),
]  # fmt: skip


class _Clock:
    """Seconds of works whose true times are known; each time it is read, other programs disturb."""

    def __init__(self, times: Dict[Callable[[], None], float], random: Any) -> None:
        self._times, self._random = times, random
        self.reads: Dict[Callable[[], None], List[float]] = {work: [] for work in times}

    def __call__(self, work: Callable[[], None]) -> float:
        """The seconds that one run of this work takes."""
        if work not in self.reads:
            raise Wrong(
                en="`seconds` was given something other than `step` or one of `alone`: "
                "pass it the work itself, which it calls; write `seconds(step)`",
                ja="`seconds` に `step` と `alone` の要素以外のものが渡されました。"
                "処理そのものを渡すと `seconds` が呼び出します。`seconds(step)` と書いてください",
            )
        reads = self.reads[work]
        disturbed = 1.0 + float(self._random.randint(1, 64)) / 64
        if len(reads) in (0, 2):
            disturbed += 1.0 + len(reads)  # in the first everything is made; others disturb
        elif len(reads) == 4 or (len(reads) > 4 and len(reads) % 3 == 0):
            disturbed = 1.0
        reads.append(self._times[work] * disturbed)
        return reads[-1]

    def was_read(self) -> bool:
        """Whether any work was timed."""
        return any(self.reads.values())


@exercise("05-6")
def measured_idle(answer: Callable[..., Sequence[float]]) -> None:
    """The idle share of each device, measured from outside: from the step, and its work alone."""
    cases: List[Tuple[float, Times]] = [(8.0, [6.0, 4.0]), (4.0, [3.0]), (16.0, [2.0, 12.0, 8.0])]
    random = draws(56)
    for _ in range(6):
        alone = [float(one) for one in drawn(random, int(random.randint(1, 6)), 8, 64)]
        cases.append((max(alone) * (1 + int(random.randint(1, 33)) / 16), alone))
    clocks: List[_Clock] = []

    def ask(step_s: float, alone_s: Times) -> Any:
        works = [_work() for _ in range(1 + len(alone_s))]
        clock = _Clock(dict(zip(works, [step_s, *alone_s])), random)
        clocks.append(clock)
        return listed(answer(clock, works[0], works[1:]))

    found = results(ask, cases, lambda step_s, alone_s: [1 - own / step_s for own in alone_s])
    _check_repeats(cases, clocks)
    if found and isinstance(found[0].got, list) and not any(map(_Clock.was_read, clocks)):
        raise Wrong(
            en="`seconds` was never called: it takes a work, and gives the seconds of one run",
            ja="`seconds` が一度も呼ばれていません。処理を渡すと、1 回にかかった秒数を返します",
        )
    mistakes = [(_by_reads(clocks, cases, formula), en, ja) for formula, en, ja in OF_MEASURED]
    fails = fault(found, _call, mistakes)
    if fails:
        raise fails


def _work() -> Callable[[], None]:
    return lambda: None


def _call(step_s: float, alone_s: Times) -> str:
    alone = ", ".join(f"{seconds:g}" for seconds in alone_s)
    return f"measured_idle(seconds, step, alone), step {step_s:g} s, alone {alone} s"


def _check_repeats(cases: Sequence[Tuple[float, Times]], clocks: Sequence[_Clock]) -> None:
    """Raise Wrong where a work was measured fewer than five times, or never."""
    for case, clock in zip(cases, clocks):
        counts = [len(reads) for reads in clock.reads.values()]
        text = Case(_call(*case), _call(*case))
        text.check(
            (any(counts) and min(counts) < 5,
             f"`seconds` was called {counts} times for the step and for each device's own work: "
             "measure each five times at least, since the first run is slow, and other programs "
             "disturb",
             f"`seconds` の呼び出しは、ステップと各デバイスの処理で {counts} 回でした。"
             "最初の 1 回は遅く、ほかのプログラムの影響もあります。"
             "それぞれ 5 回以上測ってください"),
        )  # fmt: skip


Measured = Callable[[List[float], List[List[float]]], List[float]]


def _by_reads(
    clocks: Sequence[_Clock], cases: Sequence[Tuple[float, Times]], formula: Measured
) -> Callable[..., bool]:
    """A mistake by what the clock gave in the case."""

    def shares(step_s: float, alone_s: Times) -> List[float]:
        clock = clocks[list(cases).index((step_s, alone_s))]
        step, *alone = clock.reads.values()
        return formula(step, alone) if step and all(alone) else []

    return by_list(shares)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


OF_MEASURED: List[Tuple[Measured, str, str]] = [
    (lambda step, alone: [1 - _mean(own) / _mean(step) for own in alone],
     "that is from the means, which a single disturbed run changes: take the smallest of each",
     "平均を使っています。1 回の乱れで動いてしまうので、それぞれの最小値を使ってください"),
    (lambda step, alone: [1 - median(own) / median(step) for own in alone],
     "that is from the medians: other programs only make a run slower, so take the smallest",
     "中央値を使っています。ほかのプログラムは時間を延ばすだけなので、最小値を使ってください"),
    (lambda step, alone: [1 - max(own) / max(step) for own in alone],
     "that is from the slowest runs: take the smallest of each",
     "最も遅い回を使っています。それぞれの最小値を使ってください"),
    (lambda step, alone: [1 - own[0] / step[0] for own in alone],
     "that is from the first run of each, which includes setting everything up",
     "それぞれの最初の 1 回を使っています。最初は準備の時間が入ります"),
    (lambda step, alone: [min(own) / min(step) for own in alone],
     "that is the share in which it works", "それは計算している時間の割合です"),
    (lambda step, alone: [min(step) / min(own) - 1 for own in alone],
     "that is its idle time over its busy time, not over the whole step",
     "それは計算時間に対する割合です。ステップ全体の時間で割ります"),
    (lambda step, alone: [min(step) - min(own) for own in alone],
     "that is the idle time itself: divide it by the time of the step",
     "それは待ち時間そのものです。ステップの時間で割ります"),
    (lambda step, alone: [100 * (1 - min(own) / min(step)) for own in alone],
     "that is in per cent: a share is a number from 0 to 1",
     "パーセントになっています。割合は 0 から 1 の数です"),
    (lambda step, alone: [1 - min(own) / sum(map(min, alone)) for own in alone],
     "that is from its part of all the devices' work: the time of the step is missing",
     "それは全処理に占める割合から出した値です。ステップの時間を使っていません"),
]  # fmt: skip
