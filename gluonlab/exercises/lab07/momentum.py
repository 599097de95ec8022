"""07-5: MXNet's momentum under a rate that changes."""

from __future__ import annotations

from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from mxnet import nd

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.shared.arrays import check_arrays, cpus, in_words
from gluonlab.exercises.shared.counterexamples import Case, in_english, looks_like
from gluonlab.exercises.shared.diagnosis import Mistake, Results, explains, results

TOLERANCE = 1e-4

Array = Any  # of numpy


class Steps(NamedTuple):
    """Steps of some parameters: the rate of each step, and the gradients, by step and parameter."""

    momentum: float
    rates: Tuple[float, ...]
    begin: Tuple[Array, ...]
    gradients: Tuple[Tuple[Array, ...], ...]

    def case(self) -> Case:
        """In words."""
        rates = ", ".join(f"{rate:g}" for rate in self.rates)
        return Case(
            f"momentum {self.momentum:g}, rates {rates}, gradients of the first parameter "
            f"{', '.join(in_words(of_step[0]) for of_step in self.gradients)}",
            f"モーメンタム {self.momentum:g}、学習率 {rates}、最初のパラメータの勾配 "
            f"{', '.join(in_words(of_step[0]) for of_step in self.gradients)}",
        )


Path = List[List[Array]]  # the weights after each step


class Moved(NamedTuple):
    """The weights and the velocities after each step."""

    path: Path
    velocities: Path


@exercise("07-5")
def momentum_step(answer: Callable[..., Any]) -> None:
    """A step with momentum that stays right when the rate changes."""
    cases = [_made(0.5, (0.5, 0.5), 1, ((1.0,),)), _made(0.5, (0.5, 1.0), 1, ((1.0,),))]
    cases.append(_made(0.75, (0.25, 0.5, 1.0, 1.0, 0.125, 0.125), 2, ((1.0, -2.0), (4.0,))))
    random = draws(75)
    for _ in range(4):
        rates = tuple(2.0 ** -random.randint(0, 6, random.randint(3, 8)))
        cases.append(_drawn(random, float(random.choice([0.5, 0.8, 0.9])), rates))
    found = results(lambda steps: _moved(answer, steps), [(each,) for each in cases], _path)
    for place, one in enumerate(found):
        _check(one.case[0], one.got, one.want, Results(found[place:]))
    found.end()


def _made(momentum: float, rates: Sequence[float], count: int, grads: Any) -> Steps:
    arrays = tuple(np.array(each, np.float32) for each in grads[:count])
    begin = tuple(np.zeros_like(each) for each in arrays)
    return Steps(momentum, tuple(rates), begin, (arrays,) * len(rates))


def _drawn(random: Any, momentum: float, rates: Sequence[float]) -> Steps:
    shapes = [
        tuple(random.randint(1, 4, random.randint(1, 3))) for _ in range(random.randint(1, 4))
    ]

    def some() -> Tuple[Array, ...]:
        return tuple(random.normal(0, 1, shape).astype(np.float32) for shape in shapes)

    return Steps(momentum, tuple(map(float, rates)), some(), tuple(some() for _ in rates))


def _moved(answer: Callable[..., Any], steps: Steps) -> Moved:
    [ctx] = cpus(1)
    weights = [nd.array(each, ctx=ctx) for each in steps.begin]
    velocities = [each.zeros_like() for each in weights]
    path, kept, former = [], [], None
    for rate, grads in zip(steps.rates, steps.gradients):
        given = [nd.array(each, ctx=ctx) for each in grads]
        # lists of their own: an answer that puts other arrays into them has changed nothing
        answer(list(weights), given, list(velocities), rate, former, steps.momentum)
        check_arrays(given, grads)
        path.append([each.asnumpy().astype(np.float64) for each in weights])
        kept.append([each.asnumpy().astype(np.float64) for each in velocities])
        former = rate
    return Moved(path, kept)


def _velocities(steps: Steps, path: Path) -> Path:
    """MXNet's: by how much each step has changed the weights."""
    before = [list(steps.begin), *path]
    return [[b - a for a, b in zip(one, other)] for one, other in zip(before, path)]


def _path(steps: Steps) -> Path:
    return _by_rule(steps, lambda rate, former: (1.0, 1.0))


def _by_rule(
    steps: Steps, factors: Callable[[float, Optional[float]], Optional[Tuple[float, float]]]
) -> Path:
    """v = momentum a v + b g, w = w - rate v, with a and b from the rate and the one before."""
    weights = [each.astype(np.float64) for each in steps.begin]
    velocities = [np.zeros_like(each) for each in weights]
    path, former = [], None
    for rate, grads in zip(steps.rates, steps.gradients):
        old, new = factors(rate, former) or (1.0, 1.0)
        for place, grad in enumerate(grads):
            velocities[place] = steps.momentum * old * velocities[place] + new * grad
            weights[place] = weights[place] - rate * velocities[place]
        path.append([each.copy() for each in weights])
        former = rate
    return path


def _same(got: Any, want: Path) -> bool:
    path = got.path if isinstance(got, Moved) else got
    return all(
        np.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE)
        for one, other in zip(path, want)
        for a, b in zip(one, other)
    )


def _ratio(rate: float, former: Optional[float], power: float) -> Tuple[float, float]:
    return ((rate / former) ** power if former else 1.0), 1.0


def _does(factors: Callable[[float, Optional[float]], Tuple[float, float]]) -> Callable[..., bool]:
    return lambda steps, got: _same(got, _by_rule(steps, factors))


def _late(steps: Steps) -> Path:
    """The factor comes one step too late, after the update."""
    weights = [each.astype(np.float64) for each in steps.begin]
    moves = [np.zeros_like(each) for each in weights]
    path, former = [], None
    for rate, grads in zip(steps.rates, steps.gradients):
        for place, grad in enumerate(grads):
            moves[place] = steps.momentum * moves[place] - rate * grad
            weights[place] = weights[place] + moves[place]
            moves[place] = moves[place] * (rate / former if former else 1.0)
        path.append([each.copy() for each in weights])
        former = rate
    return path


def _forgotten(steps: Steps) -> Path:
    return _by_rule(steps, lambda rate, former: (float(rate == former), 1.0))


MISTAKES: List[Mistake] = [
    (_does(lambda rate, former: _ratio(rate, former, -1)),
     "that is MXNet's rule alone: the velocity still contains the former rate",
     "MXNet の規則のままです。速度の中身には以前の学習率が掛かっています"),
    (_does(lambda rate, former: _ratio(rate, former, -2)),
     "the factor is upside down: it is lr / former_lr",
     "係数が逆数になっています。lr / former_lr です"),
    (lambda steps, got: _same(got, _late(steps)),
     "the velocity is corrected after the update: correct it before",
     "速度を更新の後に補正しています。更新の前に補正してください"),
    (lambda steps, got: _same(got, _by_rule(steps, lambda rate, former: (0.0, 1.0))),
     "that is the step without momentum: keep the velocities for the next step, in place",
     "モーメンタムがないのと同じです。速度をその場で書き換えて、次のステップに残してください"),
    (lambda steps, got: all(_same([one], [list(steps.begin)]) for one in got.path),
     "the weights are unchanged: write into the arrays, do not put new ones into the lists",
     "重みが変わっていません。リストの要素を差し替えるのではなく、配列に書き込んでください"),
    (lambda steps, got: _same(got, _forgotten(steps)),
     "the velocity is forgotten when the rate changes: it is to be multiplied by a factor",
     "学習率が変わるたびに速度を捨てています。係数を掛けて引き継ぎます"),
    (lambda steps, got: _same(got, _by_rule(
        steps, lambda rate, former: (1.0, _ratio(rate, former, 1)[0]))),
     "the gradient is multiplied by the factor, too: it belongs to the velocity alone",
     "勾配にも係数が掛かっています。係数は速度だけに掛けます"),
    (lambda steps, got: _same(got, _by_rule(steps, lambda rate, former: (1.0, 1 - steps.momentum))),
     "the gradient is multiplied by 1 - momentum: MXNet's rule does not do that",
     "勾配に 1 - モーメンタム が掛かっています。MXNet の規則にはありません"),
    (lambda steps, got: _same([[2 * np.asarray(s) - w for w, s in zip(one, steps.begin)]
                               for one in got.path], _path(steps)),
     "the weights move the wrong way", "重みが逆向きに動いています"),
]  # fmt: skip


def _check(steps: Steps, got: Moved, want: Path, rest: Results) -> None:
    if _same(got, want):
        _check_velocities(steps, got, _velocities(steps, want))
        return
    step = next(n for n, pair in enumerate(zip(got.path, want)) if not _same([pair[0]], [pair[1]]))
    place = next(
        n for n in range(len(want[step])) if not _same([[got.path[step][n]]], [[want[step][n]]])
    )
    is_now, expected = in_words(got.path[step][place]), in_words(want[step][place])
    raise steps.case().wrong(
        f"after {in_english(step + 1, 'step')} parameter {place} is {is_now}, expected {expected}",
        f"{step + 1} ステップ後のパラメータ {place} が {is_now} です。正しくは {expected} です",
        explains(rest, _same, *MISTAKES),
    )


def _check_velocities(steps: Steps, got: Moved, want: Path) -> None:
    """Raise Wrong where the weights are right, and a velocity is not what MXNet's would be."""
    found = got.velocities
    for step, (rate, ours, theirs) in enumerate(zip(steps.rates, found, want)):
        for place, (one, other) in enumerate(zip(ours, theirs)):
            if np.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE):
                continue
            raise steps.case().wrong(
                f"after {in_english(step + 1, 'step')} the weights are right, but velocity {place} "
                f"is {in_words(one)}, expected {in_words(other)}",
                f"{step + 1} ステップ後の重みは正しいのですが、速度 {place} が {in_words(one)} "
                f"です。正しくは {in_words(other)} です",
                looks_like(
                    (np.allclose(one, -other, TOLERANCE, TOLERANCE),
                     "MXNet's velocity is what is added to the weight, and has its sign",
                     "MXNet の速度は重みに足す値で、符号も同じです"),
                    (np.allclose(one, -other / rate, TOLERANCE, TOLERANCE),
                     "that is v of the papers; MXNet's velocity is u = -lr v",
                     "それは論文の v です。MXNet の速度は u = -lr v です"),
                    (step > 0 and np.allclose(one, found[step - 1][place], TOLERANCE, TOLERANCE),
                     "it has not changed in this step: `velocity = ...` makes a new array, "
                     "`velocity[:] = ...` and `velocity *= ...` write into the one that was given",
                     "このステップで変わっていません。`velocity = ...` は新しい配列を作ります。"
                     "渡された配列に書き込むのは `velocity[:] = ...` や `velocity *= ...` です"),
                ),
            )  # fmt: skip
