"""09-6: replicas made by hand that begin alike on every device, each with memory of its own."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, Set
from unittest.mock import patch

import mxnet as mx
import numpy as np
from mxnet.ndarray import register

from gluonlab.exercises.cases import more
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.lab09.symptom import still
from gluonlab.exercises.shared.arrays import cpus
from gluonlab.exercises.shared.counterexamples import check, in_english, returned, wrong
from gluonlab.exercises.shared.watch import handle_of
from gluonlab.scratch.lenet import SHAPES, fan_in
from gluonlab.scratch.recipes import he

DRAWING = {
    handle_of(f"_{kind}_{name}")
    for kind in ("random", "sample")
    for name in ("uniform", "normal", "gamma", "exponential")
}


@exercise("09-6")
def initial_parameters(answer: Callable[..., Any]) -> None:
    """Replicas that begin alike on every device."""
    others = more(2, lambda random: (int(random.randint(1, 4)), int(random.randint(10, 10_000))))
    for count, seed in [(1, 0), (2, 0), (2, 7), (3, 1), *others]:
        ctxs = cpus(count)
        with _draws() as drawn:
            replicas = answer(ctxs, seed)
        _check_form(replicas, ctxs)
        values = [[param.asnumpy() for param in replica.params] for replica in replicas]
        _check_equal(values, ctxs)
        _check_seeding(drawn)
        _check_draws(values[0], [param.asnumpy() for param in answer(ctxs, seed)[0].params], seed)
        _check_memory(replicas, ctxs)
    one, other = (answer(cpus(2), seed)[0].params[0].asnumpy() for seed in (1, 2))
    if np.array_equal(one, other):
        raise wrong(
            "seeds 1 and 2 give the same parameters: the seed has no effect",
            "seed が 1 でも 2 でもパラメータが同じです。seed が効いていません",
        )


@contextmanager
def _draws() -> Iterator[Set[mx.Context]]:
    """The devices that draw, in the block, from a generator that was seeded with all others."""
    seed, invoke = mx.random.seed, register._imperative_invoke
    calls: List[Any] = []
    drawn: Set[mx.Context] = set()
    own: Set[mx.Context] = set()  # devices that have been seeded on their own since

    def noted(value: int, ctx: Any = "all") -> None:
        if ctx == "all":
            calls.append(value)
            own.clear()
        else:
            own.add(ctx)
        seed(value, ctx)

    def watched(handle: int, inputs: Any, *rest: Any) -> Any:
        result = invoke(handle, inputs, *rest)
        made = result[0] if isinstance(result, list) else result
        if handle in DRAWING and calls and made.context not in own:
            drawn.add(made.context)
        return result

    drawing = patch.object(register, "_imperative_invoke", watched)
    with patch.object(mx.random, "seed", noted), drawing:
        yield drawn


def _check_form(replicas: Any, ctxs: List[mx.Context]) -> None:
    if not isinstance(replicas, (list, tuple)):
        en, ja = "a list with a Replica for each device", "デバイスごとの Replica のリスト"
        raise returned(replicas, "`make_replicas`", en, ja)
    if len(replicas) != len(ctxs):
        raise wrong(
            f"for {in_english(len(ctxs), 'device')} there are {len(replicas)} replicas",
            f"デバイス {len(ctxs)} 台に対してレプリカが {len(replicas)} 個あります",
        )
    for replica, ctx in zip(replicas, ctxs):
        shapes = tuple(param.shape for param in replica.params)
        check(
            (shapes != SHAPES,
             f"the parameters on {ctx} have the shapes {shapes}, expected {SHAPES}",
             f"{ctx} のパラメータの形状が {shapes} です。{SHAPES} のはずです"),
        )  # fmt: skip
        for number, param in enumerate(replica.params):
            check(
                (param.context != ctx,
                 f"parameter {number} of the replica for {ctx} lies on {param.context}",
                 f"{ctx} 用のレプリカのパラメータ {number} が {param.context} にあります"),
                (param.grad is None or len(replica.grads) != len(SHAPES),
                 f"parameter {number} on {ctx} has no gradient: attach one to every copy",
                 f"{ctx} のパラメータ {number} に勾配がありません。コピーごとに付けてください"),
            )  # fmt: skip


def _check_equal(values: List[List[Any]], ctxs: List[mx.Context]) -> None:
    for number, weights in enumerate(zip(*values)):
        for ctx, other in zip(ctxs[1:], weights[1:]):
            if not np.array_equal(weights[0], other):
                place = np.unravel_index(np.argmax(np.abs(weights[0] - other)), other.shape)
                a, b, at = float(weights[0][place]), float(other[place]), tuple(map(int, place))
                raise still(
                    f"before any training, parameter {number} begins with {a:.4g} on {ctxs[0]} "
                    f"and with {b:.4g} on {ctx}, at {at}",
                    f"まだ学習していないのに、パラメータ {number} の {at} が "
                    f"{ctxs[0]} では {a:.4g}、{ctx} では {b:.4g} です",
                )


def _check_seeding(drawn: Set[mx.Context]) -> None:
    """Raise Wrong where devices draw for themselves, alike only because CPUs share a generator."""
    if len(drawn) > 1:
        names = ", ".join(sorted(map(str, drawn)))
        raise wrong(
            f"{names} each draw numbers of their own, after generators of all devices were "
            "seeded alike. CPU devices share one generator, so it looks right here; "
            "GPUs have one each, which adds the device's number to its seed, and would differ",
            "全デバイスの乱数生成器に同じシードを設定した後、"
            f"{names} がそれぞれ乱数を引いています。"
            "CPU デバイスは 1 個の生成器を共有するのでここでは正しく見えますが、"
            "GPU では番号がシードに混ざり、デバイスごとに値が変わります",
        )


def _check_draws(values: List[Any], again: List[Any], seed: int) -> None:
    if not all(map(np.array_equal, values, again)):
        raise wrong(
            f"seed {seed} gives other parameters the second time: "
            "they should depend on the seed alone",
            f"seed {seed} で 2 回作ると違うパラメータになります。seed だけで決まるはずです",
        )
    for number, (weight, shape) in enumerate(zip(values, SHAPES)):
        want = he(fan_in(shape)) if len(shape) > 1 else 0.0
        if not math.isclose(float(weight.std()), want, rel_tol=0.4):
            raise wrong(
                f"parameter {number} of shape {shape} has the standard deviation "
                f"{weight.std():.4g}, expected {want:.4g}: "
                "alike is not enough, units that begin alike learn alike",
                f"パラメータ {number} (形状 {shape}) の標準偏差が {weight.std():.4g} です。"
                f"{want:.4g} のはずです。そろえるだけでは足りません。"
                "同じ値で始まるユニットは同じことしか学びません",
            )


def _check_memory(replicas: Any, ctxs: List[mx.Context]) -> None:
    """What is written to one replica must not show in another."""
    for number in range(len(SHAPES)):
        for place, replica in enumerate(replicas):
            replica.params[number][:] = place
            replica.params[number].grad[:] = place
        for place, (replica, ctx) in enumerate(zip(replicas, ctxs)):
            param = replica.params[number]
            check(
                (any((array.asnumpy() != place).any() for array in (param, param.grad)),
                 f"parameter {number} on {ctx} changes when another replica's is written: "
                 "each needs a copy of its own",
                 f"{ctx} のパラメータ {number} が、別のレプリカに書き込むと変わります。"
                 "それぞれに自分のコピーが要ります"),
                ((replica.grads[number].asnumpy() != place).any(),
                 f"`grads[{number}]` of the replica on {ctx} is not the gradient of its parameter",
                 f"{ctx} のレプリカの `grads[{number}]` が、そのパラメータの勾配ではありません"),
            )  # fmt: skip
