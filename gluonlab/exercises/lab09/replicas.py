"""09-6: replicas made by hand that begin alike on every device, each with memory of its own."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import Any, Callable, Iterator, List

import mxnet as mx
import numpy as np

from gluonlab.exercises.cases import more
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.lab09.symptom import still
from gluonlab.exercises.shared.arrays import cpus
from gluonlab.exercises.shared.counterexamples import check, in_english, returned, wrong
from gluonlab.scratch.lenet import SHAPES, fan_in
from gluonlab.scratch.recipes import he


@exercise("09-6")
def initial_parameters(answer: Callable[..., Any]) -> None:
    """Replicas that begin alike on every device."""
    others = more(2, lambda random: (int(random.randint(1, 4)), int(random.randint(10, 10_000))))
    for count, seed in [(1, 0), (2, 0), (2, 7), (3, 1), *others]:
        ctxs = cpus(count)
        with _seedings() as everywhere:
            replicas = answer(ctxs, seed)
        _check_form(replicas, ctxs)
        values = [[param.asnumpy() for param in replica.params] for replica in replicas]
        _check_equal(values, ctxs)
        _check_seeding(len(everywhere), count)
        _check_draws(values[0], [param.asnumpy() for param in answer(ctxs, seed)[0].params], seed)
        _check_memory(replicas, ctxs)
    one, other = (answer(cpus(2), seed)[0].params[0].asnumpy() for seed in (1, 2))
    if np.array_equal(one, other):
        raise wrong(
            "seeds 1 and 2 give the same parameters: the seed has no effect",
            "seed が 1 でも 2 でもパラメータが同じです。seed が効いていません",
        )


@contextmanager
def _seedings() -> Iterator[List[Any]]:
    """The calls of mx.random.seed in the block that are for all devices at once."""
    seed, calls = mx.random.seed, []  # type: Any, List[Any]

    def noted(value: int, ctx: Any = "all") -> None:
        if ctx == "all":
            calls.append(value)
        seed(value, ctx)

    mx.random.seed = noted
    try:
        yield calls
    finally:
        mx.random.seed = seed


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


def _check_seeding(times: int, replicas: int) -> None:
    if times > 1:
        raise wrong(
            f"the generators of all devices were seeded {times} times for {replicas} replicas. "
            "CPU devices share one, so it looks right here; "
            "GPUs have one each, which adds the device's number to its seed, and would differ",
            f"{replicas} 個のレプリカのために、全デバイスの乱数生成器にシードが {times} "
            "回設定されました。CPU デバイスは 1 個の生成器を共有するので、"
            "ここでは正しく見えますが、GPU では番号がシードに混ざり、デバイスごとに値が変わります",
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
