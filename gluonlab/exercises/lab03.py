"""The checkers of lab 03: Trainer and kvstore, updates and learning rates, BatchNorm's shards, and
a model of a step's time.
"""

from __future__ import annotations

import math
from typing import Any, Callable, List, NamedTuple, Sequence, Tuple

import numpy as np

from gluonlab.exercises.exercise import Wrong, exercise
from gluonlab.exercises.one_update import Batch, in_words, judge, numbers

Array = Any  # np.ndarray
BATCHES = ((1, 4), (2, 4), (2, 5), (3, 7), (2, 3), (3, 6))  # devices, images


@exercise("03-1")
def train_batch(answer: Callable[..., Any]) -> None:
    """One update from a batch of any size, the same on any number of devices."""
    for seed, (devices, images) in enumerate(BATCHES):
        batch = Batch(devices, images, seed)
        moved = batch.run(answer)
        what = in_words(devices, images)
        for device, own in enumerate(moved[1:], 1):
            if not np.array_equal(own, moved[0]):
                raise Wrong(
                    en=f"{what['en']}: devices 0 and {device} end with different parameters: "
                    "all of them need the same update",
                    ja=f"{what['ja']}: 更新後のパラメータがデバイス 0 と {device} で違います。"
                    "全デバイスで同じ更新が必要です",
                )
        judge(what, batch, moved[0])


class _Epochs(NamedTuple):
    images: int
    epochs: int
    devices: int
    per_device: int


@exercise("03-2")
def updates(answer: Callable[[int, int, int, int], int]) -> None:
    """How many updates a training run makes."""
    rng = np.random.RandomState(0)
    fixed = [
        _Epochs(8, 1, 1, 4),
        _Epochs(8, 1, 2, 4),
        _Epochs(8, 3, 2, 2),
        _Epochs(10, 1, 1, 4),
        _Epochs(10, 3, 2, 2),
    ]
    random = [_Epochs(*(int(rng.randint(1, top)) for top in (2000, 20, 9, 65))) for _ in range(50)]
    for case in [*fixed, _Epochs(60_000, 5, 1, 64), _Epochs(60_000, 5, 2, 64), *random]:
        batch = case.devices * case.per_device
        steps = -(-case.images // batch)
        want, got = case.epochs * steps, answer(*case)
        if isinstance(got, (int, float, np.number)) and got == want:
            continue
        en, ja = _fault_of_updates(case, batch, got)
        raise Wrong(
            en=f"{case.images:,} images, {case.epochs} epoch{'s' * (case.epochs > 1)}, "
            f"{case.devices} device{'s' * (case.devices > 1)}, {case.per_device} per device: "
            f"got {got}, expected {want:,}{en}",
            ja=f"画像 {case.images:,} 枚、{case.epochs} エポック、デバイス {case.devices} 台、"
            f"デバイスあたり {case.per_device} 枚: 答えは {got} でしたが、"
            f"正しくは {want:,} です{ja}",
        )


def _fault_of_updates(case: _Epochs, batch: int, got: Any) -> Tuple[str, str]:
    if got is None:
        return ": the function returns nothing", "。関数が何も返していません"
    if got == case.epochs * -(-case.images // case.per_device):
        return (
            ": a batch is that of all devices together",
            "。1 回の更新に使うバッチは全デバイス分です",
        )
    if got == -(-case.images // batch):
        return ": that is one epoch only", "。これは 1 エポック分です"
    if got == case.epochs * (case.images // batch):
        return (
            ": the smaller batch at the end of an epoch makes an update, too",
            "。エポックの最後の小さいバッチでも更新します",
        )
    if isinstance(got, float):
        return (
            ": there are whole updates only, rounded up in every epoch",
            "。更新回数は整数で、エポックごとに切り上げます",
        )
    if got == -(-case.images * case.epochs // batch):
        return (
            ": a batch does not go on into the next epoch",
            "。バッチは次のエポックにまたがりません",
        )
    return "", ""


@exercise("03-3")
def learning_rate(answer: Callable[[int, float, int, int], float]) -> None:
    """The learning rate of a step: scaled with the devices, after a warm-up."""
    rng = np.random.RandomState(1)
    fixed = [
        (1, 0.1, 1, 0),
        (1, 0.1, 2, 0),
        (4, 0.1, 2, 4),
        (2, 0.1, 2, 4),
        (1, 0.1, 2, 4),
        (9, 0.1, 2, 4),
    ]
    random = [
        (
            int(rng.randint(1, 200)),
            float(rng.uniform(0.01, 1)),
            int(rng.randint(1, 9)),
            int(rng.randint(0, 100)),
        )
        for _ in range(50)
    ]
    for step, base, devices, warmup in [*fixed, *random]:
        want, got = (
            devices * base * min(1.0, step / warmup if warmup else 1.0),
            answer(step, base, devices, warmup),
        )
        if isinstance(got, (int, float, np.number)) and math.isclose(got, want, rel_tol=1e-6):
            continue
        en, ja = _fault_of_rate(step, base, devices, warmup, got)
        shown = f"{got:.6g}" if isinstance(got, (int, float, np.number)) else repr(got)
        raise Wrong(
            en=f"learning_rate(step={step}, base_lr={base:.3g}, devices={devices}, "
            f"warmup_steps={warmup}) gave {shown}, expected {want:.6g}{en}",
            ja=f"learning_rate(step={step}, base_lr={base:.3g}, devices={devices}, "
            f"warmup_steps={warmup}) の答えは {shown} でしたが、正しくは {want:.6g} です{ja}",
        )


def _fault_of_rate(step: int, base: float, devices: int, warmup: int, got: Any) -> Tuple[str, str]:
    def is_near(value: float) -> bool:
        return isinstance(got, (int, float, np.number)) and math.isclose(got, value, rel_tol=1e-6)

    if got is None:
        return ": the function returns nothing", "。関数が何も返していません"
    if devices > 1 and is_near(base * min(1.0, step / warmup if warmup else 1.0)):
        return ": it does not grow with the number of devices", "。デバイス数に比例していません"
    if warmup and is_near(base + (devices - 1) * base * min(1.0, step / warmup)):
        return (
            ": the warm-up begins at 0, not at the rate of one device",
            "。ウォームアップは 1 台分の学習率からではなく 0 から始めます",
        )
    if warmup and is_near(devices * base):
        return ": the warm-up is not over yet", "。まだウォームアップの途中です"
    if warmup and step > warmup and is_near(devices * base * step / warmup):
        return ": after the warm-up it stays where it is", "。ウォームアップの後は一定です"
    if warmup and is_near(devices * base * (step - 1) / warmup):
        return (
            ": steps count from 1, and the last of the warm-up has the full rate",
            "。ステップは 1 から数え、ウォームアップの最後で最大になります",
        )
    return "", ""


@exercise("03-4")
def combine(answer: Callable[..., Any]) -> None:
    """Mean and variance of a batch from those of its shards."""
    rng = np.random.RandomState(2)
    fixed: List[List[List[float]]] = [
        [[1, 3]],
        [[1, 3], [1, 3]],
        [[0, 0], [2, 2]],
        [[0], [3, 3, 3]],
        [[0, 2], [4]],
    ]
    random = [
        [list(rng.normal(rng.normal(), 2, rng.randint(1, 9))) for _ in range(rng.randint(1, 5))]
        for _ in range(30)
    ]
    for shards in [*fixed, *random]:
        # two channels, the second with other numbers: an answer for one number alone is not enough
        pixels = [np.stack([np.array(shard), 10 - 2 * np.array(shard)], axis=1) for shard in shards]
        means, variances = (
            [part.mean(axis=0) for part in pixels],
            [part.var(axis=0) for part in pixels],
        )
        counts = [len(part) for part in pixels]
        got, whole = answer(means, variances, counts), np.concatenate(pixels)
        if not isinstance(got, (tuple, list)) or len(got) != 2:
            raise Wrong(
                en=f"for shards {_shards(pixels, 0)} it returned {got!r}: "
                "return two things, the mean and the variance",
                ja=f"シャード {_shards(pixels, 0)} に対する戻り値は {got!r} でした。"
                "平均と分散の 2 つを返してください",
            )
        given = (value.asnumpy() if hasattr(value, "asnumpy") else value for value in got)
        mean, variance = (np.broadcast_to(np.asarray(value, dtype=float), (2,)) for value in given)
        for en, ja, value, want, fault in (
            ("mean", "平均", mean, whole.mean(axis=0), _fault_of_mean(means)),
            (
                "variance",
                "分散",
                variance,
                whole.var(axis=0),
                _fault_of_variance(variances, counts, whole),
            ),
        ):
            if not np.allclose(value, want, rtol=1e-4, atol=1e-5):  # float32 is enough
                reason, channel = fault(value), int(np.argmax(np.abs(value - want)))
                shown = _shards(pixels, channel)
                raise Wrong(
                    en=f"shards {shown}: {en} {value[channel]:.4g}, "
                    f"expected {want[channel]:.4g}{reason[0]}",
                    ja=f"シャード {shown}: {ja}は {value[channel]:.4g} でしたが、"
                    f"正しくは {want[channel]:.4g} です{reason[1]}",
                )


def _shards(pixels: Sequence[Array], channel: int) -> str:
    """``[0, 0] + [2, 2]``: what one channel of each shard holds."""
    return " + ".join(numbers(part[:, channel]) for part in pixels)


Reason = Callable[[Array], Tuple[str, str]]


def _fault_of_mean(means: Sequence[Array]) -> Reason:
    def reason(value: Array) -> Tuple[str, str]:
        if np.allclose(value, np.mean(means, axis=0)):
            return (
                ": a shard with more images has more to say: weight by counts",
                "。画像の多いシャードほど重くしてください",
            )
        return "", ""

    return reason


def _fault_of_variance(variances: Sequence[Array], counts: Sequence[int], whole: Array) -> Reason:
    def reason(value: Array) -> Tuple[str, str]:
        if np.allclose(value, np.average(variances, axis=0, weights=counts)) or np.allclose(
            value, np.mean(variances, axis=0)
        ):
            return (
                (
                    ": that is the mean of the shards' variances; "
                    "how far their means lie apart is missing"
                ),
                "。これはシャードの分散の平均です。シャードの平均どうしのずれが入っていません",
            )
        if np.allclose(value, np.sqrt(whole.var(axis=0))):
            return ": that is the standard deviation", "。これは標準偏差です"
        if len(whole) > 1 and np.allclose(value, whole.var(axis=0, ddof=1)):
            return (
                ": BatchNorm divides by the number of images, not by one less",
                "。BatchNorm は n - 1 ではなく n で割ります",
            )
        return "", ""

    return reason


@exercise("03-5")
def speedup(answer: Callable[[float, float, float, int], float]) -> None:
    """How many times the images per second k devices reach, by a model of a step."""
    rng = np.random.RandomState(3)
    fixed = [
        (0.0, 1.0, 0.0, 2),
        (0.0, 1.0, 0.5, 1),
        (0.0, 1.0, 1.0, 2),
        (1.0, 0.0, 0.0, 2),
        (1.0, 3.0, 1.0, 2),
        (1.0, 3.0, 1.0, 8),
    ]
    random = [
        (float(a), float(b), float(c), int(rng.randint(1, 17)))
        for a, b, c in rng.uniform(0.1, 5, (50, 3))
    ]
    for host, compute, total, devices in [*fixed, *random]:
        alone = max(host, compute)
        together = alone if devices == 1 else max(devices * host, compute + total)
        want, got = devices * alone / together, answer(host, compute, total, devices)
        if isinstance(got, (int, float, np.number)) and math.isclose(got, want, rel_tol=1e-6):
            continue
        en, ja = _fault_of_speedup(host, compute, total, devices, got)
        shown = f"{got:.4g}" if isinstance(got, (int, float, np.number)) else repr(got)
        call = (
            f"speedup(host_ms={host:.3g}, compute_ms={compute:.3g}, sum_ms={total:.3g}, "
            f"devices={devices})"
        )
        raise Wrong(
            en=f"{call} gave {shown}, expected {want:.4g}{en}",
            ja=f"{call} の答えは {shown} でしたが、正しくは {want:.4g} です{ja}",
        )


def _fault_of_speedup(
    host: float, compute: float, total: float, devices: int, got: Any
) -> Tuple[str, str]:
    alone, together = max(host, compute), max(devices * host, compute + total)

    def is_near(value: float) -> bool:
        return isinstance(got, (int, float, np.number)) and math.isclose(got, value, rel_tol=1e-6)

    if got is None:
        return ": the function returns nothing", "。関数が何も返していません"
    if devices == 1:
        return (
            ": one device has nothing to sum, and is as fast as itself",
            "。1 台なら合計は要らず、倍率はちょうど 1 です",
        )
    if is_near(alone / together):
        return (
            ": a step on k devices trains on k times the images",
            "。k 台の 1 ステップは k 倍の枚数を処理します",
        )
    if is_near(devices * alone / max(host, compute + total)):
        return (
            ": the host queues the work of one device after the other",
            "。ホストはデバイス 1 台ずつ順に処理をキューに入れます",
        )
    if is_near(devices * (host + compute) / (devices * host + compute + total)):
        return (
            ": the host queues the next step while the devices compute",
            "。デバイスの計算中に、ホストは次のステップをキューに入れられます",
        )
    if is_near(devices * alone / max(devices * host, compute)):
        return (
            ": the sum is missing, which begins when the gradients are there",
            "。勾配がそろってから始まる合計の時間が入っていません",
        )
    return "", ""
