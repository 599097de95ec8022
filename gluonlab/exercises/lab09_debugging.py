"""The exercises of lab 09: debugging data-parallel programs with one or two bugs.

As long as the original bug remains, the messages describe its symptom, but not the fix.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple
from unittest.mock import patch

import mxnet as mx
import numpy as np
from mxnet import gluon, nd
from mxnet.ndarray import register

from gluonlab.data.loading.split_batch import shard_bounds
from gluonlab.exercises.array_tracking import ArrayTrace, check_mixing_and_waits, cpu_devices, operator_handle, watch
from gluonlab.exercises.exercise_registry import Wrong, case_rng, exercise, extra_cases
from gluonlab.exercises.explain_wrong_answers import (
    CaseText,
    Mistake,
    TextPair,
    check_faults,
    count_in_english,
    counterexample,
    find_mistake,
    is_number,
    pick_explanation,
    run_cases,
    wrong_return,
)
from gluonlab.exercises.guesses import ChoiceForm, DictForm, NumberForm, YesNoForm, register_guess
from gluonlab.exercises.softmax_regression import (
    CLASSES,
    FEATURES,
    LR,
    Batch,
    ExerciseTraining,
    LayerParams,
    Update,
    check_updates,
    explain_wrong_update,
    initial_params,
    make_net,
    make_trainer,
    params_with_stale_gradients,
    random_batches,
    read_params,
    to_cpu_arrays,
    weight_distance,
)
from gluonlab.scratch.lenet import SHAPES, fan_in
from gluonlab.scratch.recipes import he_deviation

# --- Shared checks


FAULT_REMAINS = CaseText("the bug is still there", "まだ直っていません")


def check_losses(returned: Any, want: Sequence[float], name: str, en: str, ja: str) -> None:
    """Raise Wrong unless the answer returned the losses ``want``.

    ``name``: the name of the answer's function. ``en``, ``ja``: a description of the losses.
    """
    got = _flatten_numbers(returned)
    if got is None:
        raise wrong_return(returned, f"`{name}`", f"{en}, as the original does", f"元のプログラムと同じく{ja}")
    if len(got) != len(want) or not np.allclose(got, want, rtol=1e-3, atol=1e-4):
        shown_text, expected_text = (", ".join(f"{one:.4g}" for one in values[:8]) for values in (got, want))
        raise counterexample(
            f"the parameters are right, but `{name}` returned [{shown_text}], expected [{expected_text}]: return "
            f"{en}, as the original function does",
            f"パラメータは正しいのですが、`{name}` の戻り値が [{shown_text}] です。"
            f"[{expected_text}] のはずです。元のプログラムと同じく{ja}を返してください",
        )


def _flatten_numbers(value: Any) -> Optional[List[float]]:
    """Return all numbers in nested lists and arrays, or None if they contain other values."""
    if isinstance(value, (list, tuple)):
        parts = [_flatten_numbers(each) for each in value]
        return None if None in parts else [one for part in parts for one in part or ()]
    if isinstance(value, nd.NDArray):
        value = value.asnumpy()
    if is_number(value) or isinstance(value, np.ndarray):
        return [float(one) for one in np.ravel(value)]
    return None


# --- 09-1: an allreduce that must write the sums into the given arrays


@exercise("09-1")
def check_allreduce(answer: Callable[[List[nd.NDArray]], None]) -> None:
    """Fix an allreduce whose sums do not reach its input arrays."""
    cases = [[np.array([value]) for value in values] for values in ([1.0, 2.0], [5.0], [1.0, 2, 4])]
    random = case_rng(9)
    cases += [list(random.randint(-50, 50, (count, 2, 3)).astype(float)) for count in (2, 3, 4)]
    for initial in cases:
        arrays = [nd.array(values, ctx=ctx) for values, ctx in zip(initial, cpu_devices(len(initial)))]
        with watch() as trace:
            # a new list, like the list that train_batch creates for each parameter
            answer(list(arrays))
        got, want = [array.asnumpy() for array in arrays], sum(initial)
        if all(np.array_equal(each, want) for each in got):
            check_mixing_and_waits(ArrayTrace(mixed_inputs=trace.mixed_inputs))
        elif all(map(np.array_equal, got, initial)):
            raise FAULT_REMAINS.counterexample(
                f"`allreduce` did not change the arrays {_format_arrays(initial)} on {len(initial)} devices, expected "
                f"{_format_arrays([want])} on every device",
                f"{len(initial)} 台のデバイスの配列は `allreduce` の前に {_format_arrays(initial, '、')} で、"
                f"呼んだ後も同じままです。すべてのデバイスで {_format_arrays([want])} になるはずです",
            )
        else:
            raise counterexample(
                f"`allreduce` changed the arrays {_format_arrays(initial)} to {_format_arrays(got)}, "
                f"expected {_format_arrays([want])} on every device",
                f"{_format_arrays(initial, '、')} の allreduce の結果が {_format_arrays(got, '、')} でした。"
                f"すべてのデバイスで {_format_arrays([want])} になるはずです",
                pick_explanation(
                    (np.array_equal(got[0], want), "the sum is not copied back to all devices",
                     "合計がすべてのデバイスには戻っていません"),
                    (all(np.allclose(each, want / len(initial)) for each in got), "that is the mean, not the sum",
                     "それは合計ではなく平均です"),
                ),
            )  # fmt: skip


def _format_arrays(arrays: List[Any], join: str = " and ") -> str:
    return join.join("[" + " ".join(f"{one:g}" for one in np.ravel(array)) + "]" for array in arrays)


# --- 09-2 and 09-3: updates that use only one batch, and are equal on any number of devices


@exercise("09-2")
def check_accumulation(answer: Callable[..., Any]) -> None:
    """Fix microbatches so that each update uses only its own batch."""
    cases: List[Tuple[Tuple[int, ...], int]] = [((4,), 2), ((4, 4), 2), ((4, 4, 4), 1)]
    losses_and_means: List[Tuple[Any, float]] = []
    for sizes, parts in [*cases, ((8, 8, 3, 8), 3), ((9, 5, 7), 4)]:
        losses = check_updates(answer, sizes, parts, _explain_wrong_update)
        losses_and_means += zip(losses, _mean_losses(initial_params(), random_batches(sizes)))
    for loss, mean in losses_and_means:
        check_losses(loss, [mean], "train_batch", "the batch's mean loss", "バッチの平均損失")


def _mean_losses(begin: LayerParams, batches: Sequence[Batch]) -> List[float]:
    """Return the mean loss of each batch before its update. ``begin``: the initial parameters."""
    return [begin.train(batches[:n]).image_losses(batch).mean() for n, batch in enumerate(batches)]


def _explain_wrong_update(update: Update) -> Wrong:
    """Return a counterexample for a wrong update in exercise 09-2.

    If the update contains stale gradients, the message says that the original bug remains.
    """
    if not update.got.is_close(params_with_stale_gradients(update.initial, update.batches)):
        return explain_wrong_update(update)
    count, previous = len(update.batches), update.params_before
    moved, expected = weight_distance(update.got, previous), weight_distance(update.want, previous)
    return FAULT_REMAINS.counterexample(
        f"the last of {count} batches moved the weights by {moved:.4g}, expected {expected:.4g}, as without "
        "microbatches; the first batch was right",
        f"{count} 番目のバッチで重みが {moved:.4g} 動きました。"
        f"マイクロバッチなしでは {expected:.4g} です。1 番目のバッチは正しい動きでした",
    )


@exercise("09-3")
def check_step_size(answer: Callable[..., Any]) -> None:
    """Fix an update so that it is the same on one device and on several."""
    returned_losses: List[Tuple[Any, Sequence[float]]] = []
    for size, count in ((4, 1), (4, 2), (6, 3), (7, 2), (10, 4), (5, 4), (33, 2)):
        ctxs, batches = cpu_devices(count), random_batches([size, size])
        training = ExerciseTraining(ctxs)
        for number, batch in enumerate(batches):
            losses = training.run_answer(answer, batch, ctxs)
            params_before, want = map(training.initial.train, (batches[:number], batches[: number + 1]))
            for ctx in ctxs:
                got = training.read_params(ctx)
                if not got.is_close(want):
                    raise _explain_wrong_step(got, params_before, want, batch, ctxs, ctx)
            returned_losses.append((losses, params_before.image_losses(batch)))
    for given, each in returned_losses:
        check_losses(given, each, "train_batch_on", "the losses for each shard", "各シャードの損失")


def _explain_wrong_step(
    got: LayerParams,
    params_before: LayerParams,
    want: LayerParams,
    batch: Batch,
    ctxs: Sequence[mx.Context],
    ctx: mx.Context,
) -> Wrong:
    """Return a counterexample for wrong parameters ``got`` on device ``ctx`` in exercise 09-3."""
    size, count = len(batch[0]), len(ctxs)
    share = shard_bounds(size, count)[0][1]
    moved, expected = weight_distance(got, params_before), weight_distance(want, params_before)
    if got.is_close(params_before.step(batch, LR / share)):
        return FAULT_REMAINS.counterexample(
            f"with {size} images on {count} devices the weights moved by {moved:.4g}, but with the same images on "
            f"one device by {expected:.4g}",
            f"{size} 枚を {count} 台のデバイスで学習すると重みが {moved:.4g} 動きました。"
            f"同じ画像を 1 台のデバイスで学習すると {expected:.4g} です",
        )
    return counterexample(
        f"{size} images on {count_in_english(count, 'device')}: on {ctx} the weights moved by "
        f"{moved:.4g}, expected {expected:.4g}, as on one device",
        f"{size} 枚を {count} 台のデバイスで: {ctx} の重みが {moved:.4g} 動きました。"
        f"1 台のデバイスと同じ {expected:.4g} になるはずです",
        pick_explanation(
            (got.is_close(params_before), "the parameters do not change", "パラメータがまったく動いていません"),
            (got.is_close(params_before.step(batch, LR / share / count)), "batches that divide evenly are right",
             "均等に割り切れるバッチでは正しい値でした"),
            (got.is_close(params_before.step(batch, LR)), "the gradients are added up, but never divided",
             "勾配の合計がどこでも割られていません"),
        ),
    )  # fmt: skip


# --- 09-4: an epoch whose last batch has fewer images than there are devices


@exercise("09-4")
def check_idle_replica(answer: Callable[..., Any]) -> None:
    """Fix an epoch whose last batch has fewer images than there are devices."""
    returned_losses: List[Tuple[Any, List[float]]] = []
    for count, size, devices in ((8, 4, 2), (5, 4, 2), (9, 4, 3), (10, 4, 3), (21, 5, 2)):
        ctxs, [(images, labels)] = cpu_devices(devices), random_batches([count])
        batches = [(images[i : i + size], labels[i : i + size]) for i in range(0, count, size)]
        training = ExerciseTraining(ctxs)
        for epoch in (1, 2):
            losses = training.run_answer(answer, (images, labels), size, ctxs)
            for ctx in ctxs:
                got, begin = training.read_params(ctx), training.initial
                if not got.is_close(begin.train(batches * epoch)):
                    raise _explain_wrong_epoch(got, begin, batches, epoch, ctxs, ctx)
            previous = training.initial.train(batches * (epoch - 1))
            returned_losses.append((losses, _mean_losses(previous, batches)))
    for given, means in returned_losses:
        check_losses(given, means, "train_epoch", "the mean loss of each batch", "バッチごとの平均損失")


def _explain_wrong_epoch(
    got: LayerParams, begin: LayerParams, batches: List[Batch], epoch: int, ctxs: Sequence[mx.Context], ctx: mx.Context
) -> Wrong:
    """Return a counterexample for wrong parameters ``got`` on device ``ctx`` in exercise 09-4.

    ``begin``: the initial parameters. ``batches``: the batches of one epoch. ``epoch``: the number
    of finished epochs.
    """
    done, count = batches * epoch, len(ctxs)
    params_before, last = begin.train(done[:-1]), batches[-1]
    last_size, images, size = len(last[0]), sum(len(y) for _, y in batches), len(batches[0][0])
    moved, expected = (weight_distance(got, params_before), weight_distance(begin.train(done), params_before))
    en = f"{images} images in batches of {size} on {count_in_english(count, 'device')}"
    ja = f"{images} 枚を {size} 枚ずつ、{count} 台のデバイスで"
    if got.is_close(_train_with_stale_gradients(begin, done, count)):
        return FAULT_REMAINS.counterexample(
            f"{en}: the last batch, of {last_size}, moved the weights by {moved:.4g}, "
            f"expected {expected:.4g}, as on one device",
            f"{ja}: 最後のバッチ ({last_size} 枚) で重みが {moved:.4g} 動きました。"
            f"1 台のデバイスと同じ {expected:.4g} になるはずです",
        )
    scales = (LR, LR * count / last_size, LR / count)
    return CaseText(en, ja).counterexample(
        f"after epoch {epoch} the parameters on {ctx} are not those of one device; the last batch, of {last_size}, "
        f"moved the weights by {moved:.4g}, expected {expected:.4g}",
        f"エポック {epoch} の後、{ctx} のパラメータが 1 台のデバイスの結果と違います。"
        f"最後のバッチ ({last_size} 枚) で重みが {moved:.4g} 動きました。{expected:.4g} のはずです",
        pick_explanation(
            (got.is_close(params_before), f"the last {last_size} were not used",
             f"最後の {last_size} 枚が使われていません"),
            (any(got.is_close(params_before.step(last, scale)) for scale in scales),
             "an image of the last batch does not count exactly once",
             "最後のバッチの画像が 1 回ずつ数えられていません"),
        ),
    )  # fmt: skip


def _train_with_stale_gradients(begin: LayerParams, batches: List[Batch], count: int) -> LayerParams:
    """Return the parameters of a known mistake: idle devices add their previous gradient again."""
    values, added = begin, [LayerParams(0 * begin.weight, 0 * begin.bias)] * count
    for images, labels in batches:
        for device, (a, b) in enumerate(shard_bounds(len(images), count)):
            added[device] = values.gradient((images[a:b], labels[a:b]))
        for gradient in added:
            values = values.subtract(gradient, LR / len(images))
    return values


# --- 09-5: an accuracy in which every image counts once


@exercise("09-5")
def check_padded_evaluation(answer: Callable[..., float]) -> None:
    """Fix an accuracy so that each image counts once."""
    cases = [([1, 1, 1, 0], 4, 1), ([1, 1, 1, 0], 2, 2), ([1, 0, 1], 2, 1)]
    cases += [([1, 1, 0, 0, 0], 4, 2), ([0, 0, 1], 2, 2), ([1, 0], 8, 2)]
    random = case_rng(5)
    for n, size, k in ((13, 4, 2), (10, 3, 3), (25, 8, 2), (9, 8, 4)):
        cases.append((random.randint(0, 2, n).tolist(), size, k))
    for case in cases:
        _check_accuracy(answer, *case)


def _check_accuracy(answer: Callable[..., float], right: List[int], size: int, count: int) -> None:
    """Raise Wrong unless the answer returns the mean of ``right``.

    ``right``: 1 for each image with a right prediction, and 0 for the others. ``size``: images per
    batch. ``count``: the number of devices.
    """
    n, ctxs = len(right), cpu_devices(count)
    labels = case_rng(n).randint(0, CLASSES, n)
    # Right predictions are the label, and wrong predictions are the next class.
    predicted = (labels + 1 - np.array(right)) % CLASSES
    images = np.eye(CLASSES, FEATURES, dtype="float32")[predicted]
    net = make_net(LayerParams(np.eye(CLASSES, FEATURES), np.zeros(CLASSES)), ctxs)
    calls: List[Tuple[mx.Context, int]] = []
    net.register_forward_pre_hook(lambda block, inputs: calls.append((inputs[0].context, len(inputs[0]))))
    returned = answer(net, images, labels, size, ctxs)
    if not (is_number(returned) or isinstance(returned, nd.NDArray)):
        raise wrong_return(returned, "`accuracy`", "a number", "数値")
    got = float(returned.asscalar() if isinstance(returned, nd.NDArray) else returned)
    en = (f"{n} images, {sum(right)} of them right, in batches of {size}: "
          f"the accuracy is {got:.4g}, expected {sum(right) / n:.4g}")  # fmt: skip
    ja = (f"{n} 枚のうち {sum(right)} 枚が正解、バッチ {size} 枚ずつ: "
          f"正解率が {got:.4g} になりました。正しくは {sum(right) / n:.4g} です")  # fmt: skip
    _check_accuracy_value(en, ja, got, right, size)
    largest, share = max((length for _, length in calls), default=0), math.ceil(size / count)
    idle_devices = [ctx for ctx in ctxs if ctx not in {each for each, _ in calls}]
    check_faults(
        (idle_devices and min(n, size) >= count,
         f"{en}, which is right, but {idle_devices[:1] and idle_devices[0]} was idle: split the images over {count} "
             "devices",
         f"正解率 {got:.4g} は正しいのですが、{idle_devices[:1] and idle_devices[0]} が何もしていません。{count} "
         "台のデバイスで分担してください"),
        (largest > share,
         f"the accuracy is right, but a device had {largest} images at once, expected at most {share} ({size} on "
         f"{count} devices)",
         f"正解率は正しいのですが、1 台のデバイスに一度に {largest} 枚が載りました。多くても {share} 枚のはずです "
         f"({size} 枚を {count} 台のデバイスで)"),
    )  # fmt: skip


def _check_accuracy_value(en: str, ja: str, got: float, right: List[int], size: int) -> None:
    """Raise Wrong unless ``got`` is the mean of ``right``. ``en`` and ``ja`` describe the case."""
    n = len(right)
    rows, whole = math.ceil(n / size) * size, n // size * size
    padded, right_in_whole = sum(right[i % n] for i in range(rows)), sum(right[:whole])

    def is_near(value: float) -> bool:
        return math.isclose(got, value, abs_tol=1e-6)

    if is_near(sum(right) / n):
        return
    if is_near(padded / rows):
        raise FAULT_REMAINS.counterexample(
            f"{en}; an accuracy of {got:.4g} would mean {got * n:.4g} right images",
            f"{ja}。{n} 枚の {got:.4g} 倍は {got * n:.4g} 枚です",
        )
    is_incomplete = right_in_whole != sum(right) and (
        is_near(right_in_whole / n) or is_near(right_in_whole / max(1, whole))
    )
    raise counterexample(
        en,
        ja,
        pick_explanation(
            (is_near(padded / n), f"{padded} correct answers were counted for {n} images: do not count the padding",
             f"{n} 枚の中で正解が {padded} 枚と数えられました"),
            (is_incomplete, f"the last {n % size} were left out", f"最後の {n % size} 枚が抜けています"),
        ),
    )  # fmt: skip


# --- 09-6: replicas with equal initial parameters, each in its own memory


RANDOM_OPERATORS = {
    operator_handle(f"_{kind}_{name}")
    for kind in ("random", "sample")
    for name in ("uniform", "normal", "gamma", "exponential")
}


@exercise("09-6")
def check_initial_parameters(answer: Callable[..., Any]) -> None:
    """Fix replicas so that they start with the same parameters on every device."""
    random_cases = extra_cases(2, lambda random: (int(random.randint(1, 4)), int(random.randint(10, 10_000))))
    for count, seed in [(1, 0), (2, 0), (2, 7), (3, 1), *random_cases]:
        ctxs = cpu_devices(count)
        with _record_shared_draws() as drawing_devices:
            replicas = answer(ctxs, seed)
        _check_replicas(replicas, ctxs)
        values = [[param.asnumpy() for param in replica.params] for replica in replicas]
        _check_equal_values(values, ctxs)
        names = ", ".join(sorted(map(str, drawing_devices)))
        check_faults(
            (len(drawing_devices) > 1,  # the values are equal only because CPU devices share a random generator
             f"{names} each draw their own numbers after the same seed. CPU devices share one generator, so this "
                 "looks right here. Each GPU has its own generator, which adds the device's number to the seed, so the "
                 "replicas would differ",
             f"全デバイスの乱数生成器に同じシードを設定した後、{names} がそれぞれ乱数を引いています。CPU デバイスは 1 "
             "個の生成器を共有するのでここでは正しく見えますが、GPU では番号がシードに混ざり、"
             "デバイスごとに値が変わります"),
        )  # fmt: skip
        _check_initialization(values[0], [param.asnumpy() for param in answer(ctxs, seed)[0].params], seed)
        _check_separate_memory(replicas, ctxs)
    one, other = (answer(cpu_devices(2), seed)[0].params[0].asnumpy() for seed in (1, 2))
    check_faults(
        (np.array_equal(one, other), "seeds 1 and 2 give the same parameters: the seed has no effect",
         "seed が 1 でも 2 でもパラメータが同じです。seed が効いていません"),
    )  # fmt: skip


@contextmanager
def _record_shared_draws() -> Iterator[Set[mx.Context]]:
    """Record which devices draw random numbers after a seed was set for all devices at once."""
    seed, invoke = mx.random.seed, register._imperative_invoke
    calls: List[Any] = []
    drawing_devices: Set[mx.Context] = set()
    reseeded_devices: Set[mx.Context] = set()  # devices that were seeded individually afterwards

    def record_seed(value: int, ctx: Any = "all") -> None:
        """Set the seed, and record whether the seed is for all devices."""
        if ctx == "all":
            calls.append(value)
            reseeded_devices.clear()
        else:
            reseeded_devices.add(ctx)
        seed(value, ctx)

    def record_draw(handle: int, inputs: Any, *rest: Any) -> Any:
        """Invoke an operator, and record its device if it draws random numbers."""
        result = invoke(handle, inputs, *rest)
        output = result[0] if isinstance(result, list) else result
        if handle in RANDOM_OPERATORS and calls and output.context not in reseeded_devices:
            drawing_devices.add(output.context)
        return result

    drawing = patch.object(register, "_imperative_invoke", record_draw)
    with patch.object(mx.random, "seed", record_seed), drawing:
        yield drawing_devices


def _check_replicas(replicas: Any, ctxs: List[mx.Context]) -> None:
    """Raise Wrong unless each device has a replica with gradients and the right shapes."""
    if not isinstance(replicas, (list, tuple)):
        en, ja = "a list with one Replica per device", "デバイスごとの Replica のリスト"
        raise wrong_return(replicas, "`make_replicas`", en, ja)
    if len(replicas) != len(ctxs):
        raise counterexample(
            f"`make_replicas` returned {count_in_english(len(replicas), 'replica')}, expected one for each of the "
            f"{len(ctxs)} devices",
            f"デバイス {len(ctxs)} 台に対してレプリカが {len(replicas)} 個あります",
        )
    for replica, ctx in zip(replicas, ctxs):
        shapes = tuple(param.shape for param in replica.params)
        check_faults(
            (shapes != SHAPES, f"the parameters on {ctx} have the shapes {shapes}, expected {SHAPES}",
             f"{ctx} のパラメータの形状が {shapes} です。{SHAPES} のはずです"),
        )  # fmt: skip
        for number, param in enumerate(replica.params):
            check_faults(
                (param.context != ctx, f"parameter {number} of the replica for {ctx} is on {param.context}",
                 f"{ctx} 用のレプリカのパラメータ {number} が {param.context} にあります"),
                (param.grad is None or len(replica.grads) != len(SHAPES),
                 f"parameter {number} on {ctx} does not have a gradient: call `attach_grad` on every copy",
                 f"{ctx} のパラメータ {number} に勾配がありません。コピーごとに付けてください"),
            )  # fmt: skip


def _check_equal_values(values: List[List[Any]], ctxs: List[mx.Context]) -> None:
    """Raise Wrong unless all devices have equal parameters.

    ``values[device][parameter]``: the values of a parameter on a device.
    """
    for number, (first, *others) in enumerate(zip(*values)):
        for ctx, other in zip(ctxs[1:], others):
            if not np.array_equal(first, other):
                position = np.unravel_index(np.argmax(np.abs(first - other)), other.shape)
                a, b, at = float(first[position]), float(other[position]), tuple(map(int, position))
                raise FAULT_REMAINS.counterexample(
                    f"before training, element {at} of parameter {number} is {a:.4g} on {ctxs[0]}, but {b:.4g} on "
                    f"{ctx}",
                    f"まだ学習していないのに、パラメータ {number} の {at} が "
                    f"{ctxs[0]} では {a:.4g}、{ctx} では {b:.4g} です",
                )


def _check_initialization(values: List[Any], second_values: List[Any], seed: int) -> None:
    """Raise Wrong if two calls with the same seed differ, or if a standard deviation is wrong."""
    is_repeatable = all(map(np.array_equal, values, second_values))
    for number, (weight, shape) in enumerate(zip(values, SHAPES)):
        expected_std = he_deviation(fan_in(shape)) if len(shape) > 1 else 0.0
        check_faults(
            (not is_repeatable,
             f"seed {seed} gives other parameters the second time: they should depend only on the seed",
             f"seed {seed} で 2 回作ると違うパラメータになります。seed だけで決まるはずです"),
            (not math.isclose(float(weight.std()), expected_std, rel_tol=0.4),
             f"parameter {number} of shape {shape} has the standard deviation {weight.std():.4g}, expected "
             f"{expected_std:.4g}: equal replicas are not enough, because units with equal initial weights learn "
             "the same",
             f"パラメータ {number} (形状 {shape}) の標準偏差が {weight.std():.4g} です。{expected_std:.4g} のはずです。"
             "そろえるだけでは足りません。同じ値で始まるユニットは同じことしか学びません"),
        )  # fmt: skip


def _check_separate_memory(replicas: Any, ctxs: List[mx.Context]) -> None:
    """Check that a write to one replica does not change another replica."""
    for number in range(len(SHAPES)):
        for place, replica in enumerate(replicas):
            replica.params[number][:] = place
            replica.params[number].grad[:] = place
        for place, (replica, ctx) in enumerate(zip(replicas, ctxs)):
            param = replica.params[number]
            check_faults(
                (any((array.asnumpy() != place).any() for array in (param, param.grad)),
                 f"parameter {number} on {ctx} changes when you write to another replica: each replica needs its own "
                     "copy",
                 f"{ctx} のパラメータ {number} が、別のレプリカに書き込むと変わります。"
                 "それぞれに自分のコピーが要ります"),
                ((replica.grads[number].asnumpy() != place).any(),
                 f"`grads[{number}]` of the replica on {ctx} is not the gradient of its parameter",
                 f"{ctx} のレプリカの `grads[{number}]` が、そのパラメータの勾配ではありません"),
            )  # fmt: skip


# --- 09-7: a training program with two bugs that have no effect on one device


Array = Any  # np.ndarray


class _TrainingSetting(NamedTuple):
    """The arguments passed to the answer.

    ``images``: the number of training images. ``batch``: the size of a batch over all devices.
    ``max_norm``: the largest norm of the mean gradient after clipping.
    """

    images: int
    batch: int
    devices: int
    epochs: int
    max_norm: float

    def describe(self) -> CaseText:
        """Describe the images, batches, devices and clipping norm in English and Japanese."""
        n, size, count, _, largest = self
        return CaseText(
            f"{n} images in batches of {size} on {count_in_english(count, 'device')}, "
            f"gradients of norm {largest:g} at most",
            f"{n} 枚を {size} 枚ずつ、{count} 台のデバイスで、勾配のノルムは {largest:g} まで",
        )

    @property
    def images_per_device(self) -> int:
        """The number of images per device in a batch."""
        return self.batch // self.devices


class _TrainingRecord(NamedTuple):
    """The record of a training run.

    ``rows``: the image indices, in the order in which the network received the images. ``means``:
    the answer's return value, which should be the mean loss of each epoch.
    """

    rows: List[int]
    devices_of_rows: List[mx.Context]  # the device that received each of the rows
    final_params: List[LayerParams]  # the final parameters on each device
    means: Any

    def row_orders(self, setting: _TrainingSetting) -> List[List[int]]:
        """Return the rows of each epoch, in the order in which the network received them."""
        n = setting.images
        return [self.rows[begin : begin + n] for begin in range(0, len(self.rows), n)]


# With a single batch, the update does not depend on the order of the images.
SINGLE_BATCH_SETTINGS = (
    _TrainingSetting(24, 24, 2, 1, 0.1),
    _TrainingSetting(24, 24, 3, 1, 0.2),
    _TrainingSetting(20, 20, 4, 1, 0.05),
    _TrainingSetting(24, 24, 2, 1, 100.0),
    _TrainingSetting(16, 16, 1, 1, 0.1),
)
EPOCH_SETTINGS = (
    _TrainingSetting(24, 8, 2, 3, 0.3),
    _TrainingSetting(36, 12, 3, 2, 0.2),
    _TrainingSetting(40, 8, 4, 2, 0.15),
)


@exercise("09-7")
def check_two_faults(answer: Callable[..., Any]) -> None:
    """Fix a training program with two bugs that appear only on several devices."""
    epoch_settings = [
        *EPOCH_SETTINGS,
        *extra_cases(2, lambda random: _TrainingSetting(48, 12, int(random.randint(2, 5)), 2, 0.2)),
    ]
    runs = [(setting, _run_training(answer, setting)) for setting in (*epoch_settings, *SINGLE_BATCH_SETTINGS)]
    for setting, run in runs:
        _check_images(setting, run)
    _check_updates(runs[len(epoch_settings) :])
    for setting, run in reversed(runs):  # start with the single-batch settings, because they show a bug more clearly
        _check_parameters(setting, run)
    for setting, run in runs[: len(epoch_settings)]:
        _check_orders(setting, run)
    for setting, run in runs:
        _, means = _train_on_one_device(setting, run.rows)
        check_losses(run.means, means, "fit", "the mean loss of each epoch", "エポックごとの平均損失")


def _training_images(setting: _TrainingSetting) -> Batch:
    [batch] = random_batches([setting.images])
    return batch


def _run_training(answer: Callable[..., Any], setting: _TrainingSetting) -> _TrainingRecord:
    """Run the answer's training code, and record the network's inputs."""
    ctxs, batch = cpu_devices(setting.devices), _training_images(setting)
    row_of_image = {image.tobytes(): row for row, image in enumerate(batch[0])}
    net = make_net(initial_params(), ctxs)
    rows: List[int] = []
    devices_of_rows: List[mx.Context] = []

    def record_inputs(block: gluon.Block, inputs: Sequence[Any]) -> None:
        for image in inputs[0].asnumpy():
            rows.append(row_of_image.get(image.astype(np.float32).tobytes(), -1))
            devices_of_rows.append(inputs[0].context)

    net.register_forward_pre_hook(record_inputs)
    loss, trainer = gluon.loss.SoftmaxCrossEntropyLoss(), make_trainer(net, update_on_kvstore=False)
    settings = (setting.batch, setting.epochs, ctxs, setting.max_norm)
    means = answer(net, loss, trainer, *to_cpu_arrays(batch), *settings)
    return _TrainingRecord(rows, devices_of_rows, [read_params(net, ctx) for ctx in ctxs], means)


def _check_images(setting: _TrainingSetting, run: _TrainingRecord) -> None:
    """Check that every image is used once per epoch, and that each batch is divided evenly."""
    case, n = setting.describe(), setting.images
    if len(run.rows) != n * setting.epochs:
        raise case.counterexample(
            f"{len(run.rows)} images went through the model in {count_in_english(setting.epochs, 'epoch')}, expected "
            f"{n * setting.epochs}",
            f"{setting.epochs} エポックで {len(run.rows)} 枚がネットワークを通りました。"
            f"{n * setting.epochs} 枚のはずです",
        )
    for order in run.row_orders(setting):
        use_counts = np.bincount([row for row in order if row >= 0], minlength=n)
        most_used, least_used = int(np.argmax(use_counts)), int(np.argmin(use_counts))
        FAULT_REMAINS.check_faults(
            (use_counts.max() != 1 or use_counts.min() != 1,
             f"{case.en}: in one epoch image {most_used} went through the model {use_counts[most_used]} times, but "
                 f"image {least_used} {use_counts[least_used]} times",
             f"{case.ja}: 1 エポックで画像 {most_used} は {use_counts[most_used]} 回、画像 {least_used} は "
             f"{use_counts[least_used]} 回ネットワークを通りました"),
        )  # fmt: skip
    for begin in range(0, len(run.rows), setting.batch):
        batch_devices = run.devices_of_rows[begin : begin + setting.batch]
        for ctx in cpu_devices(setting.devices):
            count = batch_devices.count(ctx)
            if count != setting.images_per_device:
                raise case.counterexample(
                    f"{ctx} processed {count} images of batch {begin // setting.batch + 1}, "
                    f"expected {setting.images_per_device}",
                    f"{begin // setting.batch + 1} 番目のバッチで {ctx} が計算したのは {count} 枚です "
                    f"({setting.images_per_device} 枚のはず)",
                )


def _check_updates(runs: Sequence[Tuple[_TrainingSetting, _TrainingRecord]]) -> None:
    """Check the parameters after one update, because they reveal wrong gradient clipping."""
    results = run_cases(lambda setting, run: run.final_params[0], runs, _right_params)

    def describe(setting: _TrainingSetting, run: _TrainingRecord, got: LayerParams, want: LayerParams) -> TextPair:
        """Return the message, in both languages, for an answer that clips gradients wrongly.

        Raises Wrong if the original clipping bug remains.
        """
        moved, expected = (weight_distance(got, initial_params()), weight_distance(want, initial_params()))
        texts = setting.describe().with_texts(
            f"the update moved the weights by {moved:.4g}, expected {expected:.4g}, as on one device",
            f"更新で重みが {moved:.4g} 動きました。1 台のデバイスと同じ {expected:.4g} になるはずです",
        )
        if any(any(find_mistake(results, LayerParams.is_close, (still, "", "yes"))) for still in REMAINING_FAULTS):
            raise FAULT_REMAINS.counterexample(*texts)
        return texts

    results.check_results(LayerParams.is_close, UPDATE_MISTAKES, describe)


def _gradient_norm(gradient: LayerParams) -> float:
    return float(np.sqrt((gradient.weight**2).sum() + (gradient.bias**2).sum()))


def _clipped_update(gradient: LayerParams, images: int, limit: float, factor: float = 1.0) -> LayerParams:
    """Return the initial parameters after an update with ``factor`` times the clipped gradient."""
    scale = min(1.0, limit / _gradient_norm(gradient))
    return initial_params().subtract(gradient, LR / images * scale * factor)


def _whole_gradient(setting: _TrainingSetting) -> LayerParams:
    """Return the gradient of the total loss on all images at the initial parameters."""
    return initial_params().gradient(_training_images(setting))


def _right_params(setting: _TrainingSetting, run: _TrainingRecord) -> LayerParams:
    return _clipped_update(_whole_gradient(setting), setting.images, setting.max_norm * setting.images)


def _matches_clipped_sum(limit: Callable[[_TrainingSetting], float], summed_twice: bool = False) -> Callable[..., bool]:
    """Return a predicate that recognizes a mistake: the gradient sum is clipped to another norm.

    ``limit(setting)`` returns the norm limit of this mistake. ``summed_twice``: whether the mistake
    also sums the gradients twice.
    """

    def gives(setting: _TrainingSetting, run: _TrainingRecord, got: LayerParams) -> bool:
        factor = setting.devices if summed_twice else 1
        return got.is_close(_clipped_update(_whole_gradient(setting), setting.images, limit(setting), factor))

    return gives


def _matches_clipping_by_device(limit: Callable[[_TrainingSetting], float]) -> Callable[..., bool]:
    """Return a predicate that recognizes a mistake: each device clips its own gradient.

    ``limit(setting)`` returns the largest norm of a device's gradient.
    """

    def gives(setting: _TrainingSetting, run: _TrainingRecord, got: LayerParams) -> bool:
        """Return whether clipping the gradients separately on each device would produce these parameters."""
        after = initial_params()
        for gradient in _device_gradients(setting, run):
            scale = min(1.0, limit(setting) / _gradient_norm(gradient))
            after = after.subtract(gradient, LR / setting.images * scale)
        return got.is_close(after)

    return gives


def _device_gradients(setting: _TrainingSetting, run: _TrainingRecord) -> List[LayerParams]:
    """Return each device's gradient of the total loss on its images."""
    images, labels = _training_images(setting)
    rows = [
        [row for row, on in zip(run.rows, run.devices_of_rows) if on == ctx] for ctx in cpu_devices(setting.devices)
    ]
    return [initial_params().gradient((images[own], labels[own])) for own in rows]


def _is_clipped_by_joint_norm(setting: _TrainingSetting, run: _TrainingRecord, got: LayerParams) -> bool:
    """Return whether clipping used the joint norm of all gradients, not the norm of their sum."""
    norm = np.sqrt(sum(_gradient_norm(gradient) ** 2 for gradient in _device_gradients(setting, run)))
    scale = min(1.0, setting.max_norm * setting.images / norm)
    return got.is_close(_clipped_update(_whole_gradient(setting), setting.images, np.inf, scale))


def _is_clipped_by_parameter(setting: _TrainingSetting, run: _TrainingRecord, got: LayerParams) -> bool:
    """Return whether the answer clipped each parameter's gradient separately."""
    limit = setting.max_norm * setting.images
    parts = (part * min(1.0, limit / np.linalg.norm(part)) for part in _whole_gradient(setting))
    return got.is_close(initial_params().subtract(LayerParams(*parts), LR / setting.images))


REMAINING_FAULTS = [
    _matches_clipping_by_device(lambda setting: setting.max_norm * setting.images_per_device),
    _matches_clipping_by_device(lambda setting: setting.max_norm * setting.images),
    _matches_clipping_by_device(lambda setting: setting.max_norm * setting.images_per_device / setting.devices),
    _matches_clipping_by_device(lambda setting: setting.max_norm),
]
UPDATE_MISTAKES: List[Mistake] = [
    (_matches_clipped_sum(lambda setting: float("inf")), "gradients are no longer scaled down",
     "勾配がまったく縮められていません"),
    (_matches_clipped_sum(lambda setting: setting.max_norm),
     "you scale the sum over the images, but `largest` limits the gradient of their mean",
     "縮めている勾配は画像についての合計ですが、`largest` は平均の勾配についての値です"),
    (_matches_clipped_sum(lambda setting: setting.max_norm * setting.images_per_device),
     "the sum over all devices contains the images of the whole batch, not only one shard",
     "全デバイスの合計はバッチ全体の勾配です。掛ける数はシャードの枚数ではありません"),
    (_matches_clipped_sum(lambda setting: setting.max_norm * setting.images, summed_twice=True),
     "the update is too large by the number of devices: the sum was either added up again, as `step` does, or "
         "divided by the images of one device",
     "デバイスの台数倍だけ動いています。`step` のようにもう一度合計したか、1 台分の枚数で割ったかのどちらかです"),
    (_is_clipped_by_joint_norm, "that is the norm of all devices' gradients together: use the norm of their sum",
     "全デバイスの勾配を並べたもののノルムです。合計した勾配のノルムを使ってください"),
    (_is_clipped_by_parameter, "every parameter is scaled separately: all parameters form one gradient with one norm",
     "パラメータごとに縮めています。全体で 1 つの勾配、1 つのノルムです"),
]  # fmt: skip


def _train_on_one_device(setting: _TrainingSetting, rows: Sequence[int]) -> Tuple[LayerParams, List[float]]:
    """Train one device on the images ``rows``.

    Return its parameters, and its mean loss in each epoch.
    """
    images, labels = _training_images(setting)
    params, losses = initial_params(), []
    for begin in range(0, len(rows), setting.batch):
        batch_rows = list(rows[begin : begin + setting.batch])
        batch = images[batch_rows], labels[batch_rows]
        losses.append(float(params.image_losses(batch).mean()))
        gradient = params.gradient(batch)
        scale = min(1.0, setting.max_norm * setting.batch / _gradient_norm(gradient))
        params = params.subtract(gradient, LR / setting.batch * scale)
    return params, np.reshape(losses, (setting.epochs, -1)).mean(axis=1).tolist()


def _check_parameters(setting: _TrainingSetting, run: _TrainingRecord) -> None:
    """Check that the final parameters on all devices equal the result of training on one device."""
    want, _ = _train_on_one_device(setting, run.rows)
    for ctx, got in zip(cpu_devices(setting.devices), run.final_params):
        if not got.is_close(want):
            moved, expected = (weight_distance(got, initial_params()), weight_distance(want, initial_params()))
            raise setting.describe().counterexample(
                f"after {count_in_english(setting.epochs, 'epoch')}, the weights on {ctx} have moved by {moved:.4g}, "
                f"but the same batches move the weights on a single device by {expected:.4g}",
                f"{setting.epochs} エポックで {ctx} の重みが {moved:.4g} 動きました。"
                f"同じバッチを 1 台のデバイスで学習したときの {expected:.4g} になるはずです",
            )


def _check_orders(setting: _TrainingSetting, run: _TrainingRecord) -> None:
    """Check that each epoch has a new random order, and gives each device different images."""
    orders, n = run.row_orders(setting), setting.images
    device_orders = [frozenset(zip(order, run.devices_of_rows[n * epoch :])) for epoch, order in enumerate(orders)]
    setting.describe().check_faults(
        (sorted(orders[0]) == orders[0] or sorted(orders[0]) == orders[0][::-1],
         "the images were used in the order in which they are stored: each epoch needs a random order",
         "画像が並び順のまま使われています。エポックごとに無作為な順にするはずでした"),
        (orders[0] == orders[1], "two epochs have the same order: each epoch needs a new order",
         "2 つのエポックの順番が同じです。エポックごとに新しい順にするはずでした"),
        (setting.devices > 1 and device_orders[0] == device_orders[1],
         "every device saw the same images in two epochs: shuffle so that any images can be in the same batch",
         "2 つのエポックで、どのデバイスにも同じ画像が渡りました。1 台のデバイスなら、"
         "どの画像の組み合わせも同じバッチに入る可能性があるはずです"),
    )  # fmt: skip


# --- The guesses


REPLICA_COURSES = ("equal", "constant", "apart")

# fmt: off
register_guess("09-a", ChoiceForm(*REPLICA_COURSES), "what happens to the two replicas during training?",
    "学習の間に 2 つのレプリカはどうなるか")
register_guess("09-b", DictForm(NumberForm(0, example=2, factor=2), "all is well", "here"),
    "by what factor does the norm of the gradients change in three epochs?", "勾配のノルムは 3 エポックで何倍になるか")
register_guess("09-c", DictForm(NumberForm(0, example=1.5, factor=1.02), "64 images", "63 images", "64 images, Adam"),
    "how many times as large is the first update on two devices as on one?",
    "2 台での最初の更新の大きさは、1 台の何倍か")
register_guess("09-d", NumberForm(0, 64, example=64),
    "if 1,025 images are split into batches of 64, how many images does the last batch have?",
    "1,025 枚を 64 枚ずつ: 最後のバッチは何枚か")
register_guess("09-e", DictForm(NumberForm(0, example=0.5, factor=100), "before it", "after it"),
    "how much do one and two devices differ before and after the last batch?",
    "そのバッチの前と後で、1 台と 2 台の差はどれだけか")
register_guess("09-f", DictForm(YesNoForm(), 360, 64, 100, 7),
    "for which batch sizes is accuracy x images a whole number?",
    "正解率に枚数を掛けて整数になるのはどのバッチサイズか")
register_guess("09-g", ChoiceForm(*REPLICA_COURSES), "what happens to these replicas with a correct allreduce?",
    "正しい allreduce なら、レプリカの距離はどうなるか")
