"""The exercises of lab 06: training memory, gradient accumulation, and GPU numbers.

06-1 and 06-6: memory. 06-2 and 06-3: gradient accumulation. 06-4: the physical GPU that
a process means by gpu:0 (CUDA_VISIBLE_DEVICES). 06-5: rounds of microbatches.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np
from mxnet import autograd, gluon, nd

from gluonlab.data.loading.split_batch import shard_bounds
from gluonlab.exercises.array_tracking import ACTIVATIONS_KEPT_EN, ACTIVATIONS_KEPT_JA, ForwardRecorder, cpu_devices
from gluonlab.exercises.exercise_registry import case_rng, exercise, extra_cases
from gluonlab.exercises.explain_wrong_answers import (
    NUMBER_TYPES,
    CaseText,
    Mistake,
    TextPair,
    check_faults,
    check_number,
    count_in_english,
    counterexample,
    formula_mistakes,
    is_same_number,
    matches_formula,
    pick_explanation,
    run_cases,
    wrong_return,
    wrong_value_texts,
)
from gluonlab.exercises.guesses import ChoiceForm, DictForm, NumberForm, register_guess
from gluonlab.exercises.softmax_regression import (
    CLASSES,
    FEATURES,
    LR,
    LayerParams,
    check_updates,
    explain_wrong_update,
    initial_params,
    make_net,
    make_trainer,
    read_params,
    weight_distance,
)

# --- 06-1 and 06-6: the bytes that training needs, and the largest batch that fits


Shape = Tuple[int, ...]


@exercise("06-1")
def check_training_bytes(answer: Callable[..., int]) -> None:
    """The bytes that training needs: parameters, gradients, optimizer state, activations."""
    cases: List[Tuple[List[Shape], List[int], int, int]] = [([(3,)], [], 1, 0), ([(3,)], [], 1, 2)]
    cases += [([(2, 3)], [5], 1, 0), ([(2, 3)], [5], 4, 0), ([(2, 3), (2,)], [5, 1], 4, 1)]
    randint = case_rng(6).randint
    for _ in range(8):
        count = randint(1, 5)
        shapes = [tuple(randint(1, 9, randint(1, 5)).tolist()) for _ in range(count)]
        outputs = randint(1, 999, randint(1, 6)).tolist()
        cases.append((shapes, outputs, int(randint(1, 512)), int(randint(0, 3))))

    def expected_bytes(shapes: List[Shape], kept: List[int], n: int, s: int) -> int:
        return 4 * (_parameter_size(shapes) * (2 + s) + n * sum(kept))

    def describe(shapes: List[Shape], kept: List[int], n: int, s: int, got: Any, want: int) -> TextPair:
        call = f"training_bytes({shapes}, {kept}, images={n}, states={s})"
        check_number(got, call)
        return wrong_value_texts(call, repr(got), want)

    run_cases(answer, cases, expected_bytes).check_results(is_same_number, TRAINING_BYTES_MISTAKES, describe)


def _parameter_size(shapes: Sequence[Shape]) -> int:
    """Return the total number of elements of parameters with these shapes."""
    return sum(math.prod(shape) for shape in shapes)


TRAINING_BYTES_MISTAKES = formula_mistakes(matches_formula, [
    (lambda shapes, kept, n, s: 4 * (sum(map(sum, shapes)) * (2 + s) + n * sum(kept)),
     "a shape's numbers are multiplied, not added", "形状の各次元は足すのではなく掛けます"),
    (lambda shapes, kept, n, s: 4 * _parameter_size(shapes) * (2 + s), "as if no activations were kept for backward",
     "逆伝播のために残す活性値が入っていません"),
    (lambda shapes, kept, n, s: 4 * n * (_parameter_size(shapes) * (2 + s) + sum(kept)),
     "as if every image had parameters of its own", "画像 1 枚ごとにパラメータがあるかのような値です"),
    (lambda shapes, kept, n, s: 4 * (_parameter_size(shapes) * (2 + s) + sum(kept)),
     "as if only one image were in flight", "画像 1 枚分の活性値しか数えていないようです"),
    (lambda shapes, kept, n, s: 4 * (_parameter_size(shapes) * 2 + n * sum(kept)), "as if the optimizer kept nothing",
     "オプティマイザの状態が入っていないようです"),
    (lambda shapes, kept, n, s: 4 * (_parameter_size(shapes) * (1 + s) + n * sum(kept)),
     "as if there were no gradients", "勾配が入っていないようです"),
    (lambda shapes, kept, n, s: 4 * (_parameter_size(shapes) * (2 + s) + 2 * n * sum(kept)),
     "as if a gradient were kept beside every activation", "活性値ごとに勾配も残しているかのような値です"),
    (lambda shapes, kept, n, s: _parameter_size(shapes) * (2 + s) + n * sum(kept),
     "those are numbers, and a float32 has 4 bytes", "それは数値の個数です。float32 は 1 個 4 バイトです"),
])  # fmt: skip


class SimulatedMemory(NamedTuple):
    """Simulated memory: ``fixed`` bytes, plus ``each`` bytes per block of ``block`` images.

    An incomplete block needs as many bytes as a complete block.
    """

    fixed: int
    each: int
    block: int

    def bytes_for(self, images: int) -> int:
        """Return the bytes for this many images."""
        return self.fixed + self.each * -(-int(images) // self.block)


@exercise("06-6")
def check_largest_batch(answer: Callable[[Callable[[int], int], int, int], int]) -> None:
    """The largest batch that fits, asked for a few times only."""
    cases = [(10, 1, 15, 8), (10, 1, 10, 8), (10, 1, 18, 8), (10, 1, 1000, 8), (10, 5, 14, 8)]
    cases += [(10, 1, 21, 1), (0, 7, 6999, 10**6)]
    randint = case_rng(6).randint
    for _ in range(12):
        fixed, each, limit = int(randint(0, 1000)), int(randint(1, 50)), int(randint(1, 10**6))
        budget = int(fixed + each * randint(1, 2 * limit) + randint(0, each))
        cases.append((fixed, each, budget, limit))
    for fixed, each, budget, limit in cases:
        _check_batch_search(answer, SimulatedMemory(fixed, each, 1), budget, limit)
    _check_batch_search(answer, SimulatedMemory(10, 5, 8), 30, 64)
    _check_batch_search(answer, SimulatedMemory(0, 3, 64), 299, 5000)
    _check_batch_search(answer, SimulatedMemory(100, 7, 1000), 2200, 10**6)


def _check_batch_search(answer: Callable[..., Any], simulated: SimulatedMemory, budget: int, limit: int) -> None:
    """Raise Wrong unless the answer finds the largest batch, and tries only few sizes.

    ``simulated``: the bytes that a batch needs. ``budget``: the available bytes. ``limit``: the
    most images.
    """
    sizes_asked: List[int] = []

    def memory(images: int) -> int:
        sizes_asked.append(images)
        return simulated.bytes_for(images)

    got = answer(memory, budget, limit)
    expected = max(0, min(limit, (budget - simulated.fixed) // simulated.each * simulated.block))
    if not isinstance(got, NUMBER_TYPES):
        call = f"largest_batch(memory, {budget}, {limit})"
        raise wrong_return(got, call, "a number of images", "画像の枚数")
    if got != expected:
        fixed, each, block = simulated
        unit, unit_ja = "image", "1 枚あたり"
        if block > 1:
            unit, unit_ja = f"{block} images or part of them", f"{block} 枚ごと (端数は切り上げ) に"
        is_integer = isinstance(got, (int, np.integer))
        raise counterexample(
            f"with {fixed} bytes + {each} for each {unit}, "
            f"a budget of {budget} and a limit of {limit} images: {got!r}, expected {expected}",
            f"必要量 {fixed} バイト + {unit_ja} {each}、予算 {budget}、"
            f"上限 {limit} 枚のとき {got!r} でしたが、正しくは {expected} です",
            pick_explanation(
                (expected == 0, "not even one image fits", "1 枚も入りません"),
                (is_integer and got > limit, "there are no more images", "それより多くの画像はありません"),
                (is_integer and got > expected, f"{got} need {simulated.bytes_for(int(got)) if is_integer else 0}",
                 f"{got} 枚には {simulated.bytes_for(int(got)) if is_integer else 0} 要ります"),
                (is_integer, f"{got + 1} would fit, too", f"{got + 1} 枚でも入ります"),
            ),
        )  # fmt: skip
    max_calls = 2 * limit.bit_length() + 2
    if len(sizes_asked) > max_calls:
        raise counterexample(
            f"{expected} is right, but with a limit of {limit:,} images `memory` was asked {len(sizes_asked):,} times, "
            f"expected at most {max_calls}: halve the range with each question",
            f"{expected} は正しいのですが、上限 {limit:,} 枚に対して `memory` を {len(sizes_asked):,} 回呼びました。"
            f"{max_calls} 回以内で済みます。1 回呼ぶごとに範囲を半分に絞ってください",
        )


# --- 06-2: one update from several microbatches


@exercise("06-2")
def check_accumulate(answer: Callable[..., Any]) -> None:
    """An update from several microbatches, the same as that of the whole batch."""
    cases: List[Tuple[Tuple[int, ...], int]] = [((4,), 1), ((4,), 2), ((4, 4), 2), ((7,), 3)]
    for sizes, parts in [*cases, ((7, 5, 9), 3), ((3,), 3), ((11, 2, 8), 2)]:
        check_updates(answer, sizes, parts, explain_wrong_update, as_even=True)


# --- 06-3: microbatches of sentences, whose loss is the mean over all words except padding


Array = Any  # of numpy


CUT_RULES = ("larger first", "larger last", "rest to the last")


class _SentenceBatch(NamedTuple):
    """A batch of sentences. ``lengths``: in words. ``parts``: the number of microbatches.

    ``cut_rule``: one of CUT_RULES. It says which microbatch is larger if the number of sentences is
    not divisible by ``parts``.
    """

    lengths: Tuple[int, ...]
    parts: int
    seed: int
    cut_rule: str = "larger first"

    @property
    def word_mask(self) -> Array:
        """An array of shape (sentences, positions): 1 for a word and 0 for padding."""
        places = np.arange(max(self.lengths))
        return (places < np.array(self.lengths)[:, None]).astype("float32")

    def network_inputs(self) -> Tuple[Array, Array]:
        """Return random inputs and labels of all positions.

        Their shapes are (sentences, positions, FEATURES) and (sentences, positions).
        """
        random, shape = case_rng([6, self.seed]), self.word_mask.shape
        x = random.normal(0, 1, (*shape, FEATURES)).astype("float32")
        return x, random.randint(0, CLASSES, shape).astype("float32")

    def microbatch_bounds(self) -> List[Tuple[int, int]]:
        """Return (first sentence, last sentence + 1) of each microbatch, by ``cut_rule``."""
        count = len(self.lengths)
        if self.cut_rule == "larger last":
            places = [count * part // self.parts for part in range(self.parts + 1)]
        elif self.cut_rule == "rest to the last":
            places = [*(count // self.parts * part for part in range(self.parts)), count]
        else:
            return list(shard_bounds(count, self.parts))
        return list(zip(places, places[1:]))

    def word_counts(self) -> List[int]:
        """Return the number of words in each microbatch."""
        return [sum(self.lengths[begin:end]) for begin, end in self.microbatch_bounds()]

    def part_gradients(self, begin: LayerParams) -> List[LayerParams]:
        """Return, for each microbatch, the gradient of the sum of its words' losses."""
        (x, y), real = self.network_inputs(), self.word_mask > 0
        return [begin.gradient((x[a:b][real[a:b]], y[a:b][real[a:b]].astype(int))) for a, b in self.microbatch_bounds()]


@exercise("06-3")
def check_accumulate_means(answer: Callable[..., Any]) -> None:
    """An update by the mean over all words, from microbatches with means of their own."""
    cases = [((4, 4), 1), ((4, 4), 2), ((5, 1), 2), ((3, 6, 1), 2), ((2, 2, 0, 0), 2)]
    cases += [((6, 1, 4, 2, 5, 1, 3), 3), ((0, 3, 0, 5), 4), ((1, 7, 2), 3), ((2, 9, 4, 4), 2)]
    # for answers with parts of 1, 1, 3 or 2, 2, 2 sentences, which are not even
    cases += [((3, 5, 2, 4, 1), 3), ((4, 2, 6, 1, 3, 2), 4)]
    cases += extra_cases(3, lambda random: (tuple(map(int, random.randint(1, 9, 6))), 4), 6)
    batches = [(_SentenceBatch(lengths, parts, seed),) for seed, (lengths, parts) in enumerate(cases)]
    calls: List[ForwardRecorder] = []
    updates: Dict[_SentenceBatch, int] = {}
    results = run_cases(lambda batch: _run_training(answer, batch, calls, updates), batches, _right_params)
    mistakes = [MEAN_MISTAKES[0], _update_per_microbatch_mistake(updates), *MEAN_MISTAKES[1:]]
    results.check_results(_are_close_params, mistakes, _describe_update)
    for (batch,), call in zip(batches, calls):
        _check_forward_calls(batch, call)


def _check_forward_calls(batch: _SentenceBatch, recorder: ForwardRecorder) -> None:
    """Raise Wrong unless there was one forward call per microbatch, of sizes as even as can be."""
    count, parts, sizes = len(batch.lengths), batch.parts, recorder.batch_sizes
    allowed, least = math.ceil(count / parts), count // parts
    all_have_words = all(batch.word_counts())  # the answer may skip microbatches without words
    en = f"the update of {count} sentences in {count_in_english(parts, 'microbatch', 'es')} is right, but"
    ja = f"{count} 文を {parts} 個のマイクロバッチにした更新は正しいのですが、"
    check_faults(
        (max(sizes) > allowed, f"{en} {max(sizes)} went through the network at once, expected at most {allowed}",
         f"{ja}一度に {max(sizes)} 文がネットワークを通りました (多くても {allowed} 文のはず)"),
        (len(sizes) > parts, f"{en} they went through the network in {len(sizes)} parts, expected {parts}",
         f"{ja}{len(sizes)} 個に分けられました。{parts} 個のはずです"),
        (min(sizes) < least or (all_have_words and len(sizes) < parts),
         f"{en} the microbatches have {sizes} sentences; as even as can be, there are {parts} of {least} or more",
         f"{ja}文の数が {sizes} です。できるだけ均等に分けると、{least} 文以上のものが {parts} 個になります"),
        (all_have_words and recorder.overlapping_forwards, f"{en} {ACTIVATIONS_KEPT_EN}", f"{ja}{ACTIVATIONS_KEPT_JA}"),
    )  # fmt: skip


def _run_training(
    answer: Callable[..., Any],
    batch: _SentenceBatch,
    recorders: List[ForwardRecorder],
    updates: Dict[_SentenceBatch, int],
) -> LayerParams:
    """Return the parameters after the answer's update.

    A recorder of its forward calls is appended to ``recorders``. The number of its updates is
    stored in ``updates[batch]``.
    """
    [ctx] = cpu_devices(1)
    net = make_net(initial_params(), [ctx], "add", flatten=False)
    x, y = (nd.array(each, ctx=ctx) for each in batch.network_inputs())
    with autograd.record():  # leaves gradients, as the previous batch does
        old_loss = net(x[:1]).sum()
    old_loss.backward()
    recorders.append(ForwardRecorder(net))
    trainer = make_trainer(net)
    answer(net, mean_loss, trainer, x, y, nd.array(batch.word_mask, ctx=ctx), batch.parts)
    updates[batch] = trainer.optimizer.num_update
    return read_params(net, ctx)


def mean_loss(scores: nd.NDArray, labels: nd.NDArray, real: nd.NDArray) -> nd.NDArray:
    """Return the mean loss of the positions where ``real`` is 1; nan if there is none."""
    losses = gluon.loss.SoftmaxCrossEntropyLoss()(scores.reshape((-1, CLASSES)), labels.reshape((-1,)))
    return (losses * real.reshape((-1,))).sum() / real.sum()


def _right_params(batch: _SentenceBatch) -> LayerParams:
    return _params_by_weighted_sums(batch, [1 / sum(batch.lengths)] * batch.parts)


def _params_by_weighted_sums(batch: _SentenceBatch, weights: Sequence[float]) -> LayerParams:
    """Return the parameters after an update by a weighted sum of the microbatches' losses."""
    initial = after = initial_params()
    for gradient, weight in zip(batch.part_gradients(initial), weights):
        after = after.subtract(gradient, LR * weight)
    return after


def _params_by_means(batch: _SentenceBatch, factors: Sequence[float]) -> LayerParams:
    """Return the parameters after an update by weighted means of the microbatches with words."""
    weights = [f / count if count else 0.0 for f, count in zip(factors, batch.word_counts())]
    return _params_by_weighted_sums(batch, weights)


def _are_close_params(got: Any, want: LayerParams) -> bool:
    return isinstance(got, LayerParams) and got.is_close(want)


def _params_updated_with_old_gradients(batch: _SentenceBatch, divisor: float = 1.0) -> LayerParams:
    """Return the parameters if old gradients were not cleared before the update.

    ``divisor``: the number by which the old gradients are divided.
    """
    x, _ = batch.network_inputs()
    old_gradient = LayerParams(np.tile(x[0].sum(axis=0), (CLASSES, 1)), np.full(CLASSES, float(x.shape[1])))
    return _right_params(batch).subtract(old_gradient, LR / divisor)


def _matches_params(formula: Callable[[_SentenceBatch], LayerParams]) -> Callable[..., bool]:
    """Return a mistake's predicate: whether the result is ``formula(batch)`` for a CUT_RULE."""
    return lambda batch, got: any(_are_close_params(got, formula(batch._replace(cut_rule=rule))) for rule in CUT_RULES)


def _microbatch_sizes(batch: _SentenceBatch) -> List[int]:
    return [end - begin for begin, end in batch.microbatch_bounds()]


MEAN_MISTAKES: List[Mistake] = [
    (lambda batch, got: bool(np.isnan(got.weight).any()),
     "a part without any word has the mean 0 / 0, which is nan, and nan times 0 is nan: leave such a part out",
     "単語が 1 つもない部分の平均は 0 / 0 で nan です。nan に 0 を掛けても nan なので、その部分は飛ばしてください"),
    (_matches_params(lambda batch: initial_params()), "the parameters have not changed at all",
     "パラメータがまったく変わっていません"),
    *((_matches_params(left_over), "the gradients of the batch before are still in it",
       "前のバッチの勾配が残ったままです")
      for left_over in (
          _params_updated_with_old_gradients,
          lambda batch: _params_updated_with_old_gradients(batch, sum(batch.lengths)))),
    (_matches_params(lambda batch: _params_by_means(batch, [1.0] * batch.parts)), "the means are only added up",
     "平均を足しただけです"),
    (_matches_params(lambda batch: _params_by_means(batch, [1 / batch.parts] * batch.parts)),
     "a mean of means: a word of a part with few words counts more than others",
     "平均の平均なので、単語の少ない部分の 1 語の寄与が大きくなります"),
    (_matches_params(lambda batch:
        _params_by_means(batch, [each / len(batch.lengths) for each in _microbatch_sizes(batch)])),
     "the parts are weighted by their sentences, but their means are over words",
     "文の数で重みを付けています。平均されているのは単語です"),
    (_matches_params(lambda batch: _params_by_weighted_sums(batch, [1.0] * batch.parts)),
     "that is the update by the sum of all losses: divide by the words of the whole batch",
     "損失の合計による更新です。バッチ全体の単語数で割ってください"),
    (_matches_params(lambda batch: _params_by_weighted_sums(
        batch, [1 / (sum(batch.lengths) * len(batch.lengths))] * batch.parts)),
     "`trainer.step` divides once more: the gradients are those of a mean already",
     "`trainer.step` がもう一度割っています。勾配は、すでに平均の損失の勾配です"),
    (_matches_params(lambda batch: _params_by_weighted_sums(batch, [1 / sum(batch.lengths) ** 2] * batch.parts)),
     "the sum is divided by the words twice", "合計を単語数で 2 回割っています"),
    (_matches_params(lambda batch: _params_by_weighted_sums(batch, [1 / len(batch.lengths)] * batch.parts)),
     "the sum is divided by the sentences, not by the words", "単語数ではなく文の数で割っています"),
    (_matches_params(lambda batch: _params_by_weighted_sums(
        batch, [0.0] * (batch.parts - 1) + [1 / sum(batch.lengths)])), "only the last part counts",
     "最後の部分しか効いていません"),
]  # fmt: skip


def _update_per_microbatch_mistake(updates: Mapping[_SentenceBatch, int]) -> Mistake:
    """Return the known mistake of updating the parameters after each microbatch.

    ``updates``: how many updates the answer made for each batch. It may have skipped microbatches
    without words.
    """
    return (
        lambda batch, got: updates[batch] in (batch.parts, sum(map(bool, batch.word_counts()))),
        "the parameters are updated after each part: call `trainer.step` once, when the gradients "
        "of all parts have been added up",
        "部分ごとにパラメータを更新しています。`trainer.step` は、全部の部分の勾配を足し終えて"
        "から 1 回だけ呼んでください",
    )


def _describe_update(batch: _SentenceBatch, got: LayerParams, want: LayerParams) -> TextPair:
    """Return the texts about a wrong update: how far the weights moved."""
    moved, expected = (weight_distance(each, initial_params()) for each in (got, want))
    words = ", ".join(map(str, batch.lengths))
    return (
        f"sentences of {words} words in {count_in_english(batch.parts, 'microbatch', 'es')}: the weights moved by "
        f"{moved:.4g}, expected {expected:.4g}, as with the mean over all words at once",
        f"{words} 語の文をマイクロバッチ {batch.parts} 個で: 重みが {moved:.4g} 動きました。"
        f"全部の単語の平均を一度に使ったときの {expected:.4g} になるはずです",
    )


# --- 06-4: the physical GPU numbers of gpu:0, gpu:0,2 and gpu:* in a process


@exercise("06-4")
def check_physical_gpu_numbers(answer: Callable[[str, "str | None", int], List[int]]) -> None:
    """The GPUs of the machine that a process means by gpu:0, gpu:0,2 and gpu:*."""
    cases = [("gpu:1", None, 4), ("gpu:0,2", None, 4), ("gpu:*", None, 4), ("gpu:*", "2,3", 4)]
    cases += [(spec, "3,4,5,6,7", 8) for spec in ("gpu:0", "gpu:1,2", "gpu:*")]
    cases += [("gpu:*", "7,5", 8), ("gpu:1,0", "6,2,4", 8)]
    random = case_rng(4)
    for _ in range(8):
        visible_gpus = random.permutation(8)[: random.randint(2, 8)].tolist()
        requested = random.permutation(len(visible_gpus))[: random.randint(1, len(visible_gpus) + 1)].tolist()
        cases.append(("gpu:" + ",".join(map(str, requested)), ",".join(map(str, visible_gpus)), 8))
    for spec, visible, count in cases:
        got, call = answer(spec, visible, count), f"machine_numbers({spec!r}, {visible!r}, {count})"
        if not isinstance(got, Iterable) or isinstance(got, str):
            raise wrong_return(got, call, "a list of numbers", "番号のリスト")
        visible_gpus, names = list(range(count)), spec.split(":")[1]
        if visible is not None:
            visible_gpus = [int(number) for number in visible.split(",")]
        requested = list(range(len(visible_gpus))) if names == "*" else [int(n) for n in names.split(",")]
        got, want = list(got), [visible_gpus[name] for name in requested]
        if got == want:
            continue
        explanation = pick_explanation(
            (list(map(str, got)) == list(map(str, want)), "numbers are wanted, not texts",
             "文字列ではなく数値が必要です"),
            (got == requested, "those are the names inside the process; CUDA_VISIBLE_DEVICES gives them to other GPUs",
             "それはプロセスの中での番号です。CUDA_VISIBLE_DEVICES によって別の GPU に割り当てられます"),
            (got == list(range(count)), "the process sees only those that CUDA_VISIBLE_DEVICES names",
             "CUDA_VISIBLE_DEVICES にあるものしか見えません"),
            (sorted(map(str, got)) == sorted(map(str, want)), "in another order", "順番が違います"),
        )  # fmt: skip
        raise counterexample(*wrong_value_texts(call, repr(got), want), explanation)


# --- 06-5: the images of each device in each round


Rounds = List[List[Tuple[int, int, int]]]


@exercise("06-5")
def check_microbatch_rounds(answer: Callable[[int, int, int], Rounds]) -> None:
    """The images that go through each device in each round."""
    cases = [(4, 1, 1), (4, 2, 1), (8, 2, 2), (6, 2, 3), (7, 2, 1), (7, 2, 2), (10, 3, 2)]
    cases += [(3, 2, 2), (1, 2, 2), (5, 4, 3)]
    randint = case_rng(5).randint
    for _ in range(12):
        cases.append((int(randint(1, 200)), int(randint(1, 9)), int(randint(1, 9))))
    for images, devices, microbatches in cases:
        call = f"rounds({images}, {devices}, {microbatches})"
        returned = answer(images, devices, microbatches)
        try:
            got = [[(int(device), int(a), int(b)) for device, a, b in each] for each in returned]
        except (TypeError, ValueError):
            en = "a list of rounds, each a list of (device, begin, end)"
            ja = "(デバイス, 始め, 終わり) のリストのリスト"
            raise wrong_return(returned, call, en, ja) from None
        _check_round_parts(CaseText(call, call), got, images)
        _check_device_shares(CaseText(call, call), got, images, devices, microbatches)


def _check_round_parts(case: CaseText, got: Rounds, images: int) -> None:
    """Check the parts (device, first image, last + 1) of all rounds.

    No part is empty, each image is in one part, and no device has two parts in a round.
    """
    for number, round_parts in enumerate(got):
        case.check_faults(
            (any(end <= begin for _, begin, end in round_parts),
             f"a part of round {number} has no image: {round_parts}",
             f"ラウンド {number} に空の部分があります: {round_parts}"),
            (len({device for device, _, _ in round_parts}) < len(round_parts),
             f"a device has two parts in round {number}, {round_parts}: its memory holds both",
             f"ラウンド {number} で 1 台のデバイスに 2 個の部分があります: {round_parts}。"
             "これでは両方がメモリに載ってしまいます"),
        )  # fmt: skip
    parts, use_counts = [part for round_parts in got for part in round_parts], np.zeros(images, int)
    for _, begin, end in parts:
        use_counts[max(begin, 0) : end] += 1
    outside_parts = [part for part in parts if part[1] < 0 or part[2] > images]
    first, place = next(iter(outside_parts), None), int(np.argmax(use_counts != 1))
    case.check_faults(
        (outside_parts, f"{first} goes beyond the batch of {images} images",
         f"{first} は {images} 枚のバッチからはみ出しています"),
        (use_counts[place] != 1, f"image {place} is used {use_counts[place]} times, expected once",
         f"画像 {place} が使われた回数は {use_counts[place]} 回です。ちょうど 1 回のはずです"),
    )  # fmt: skip


def _check_device_shares(case: CaseText, got: Rounds, images: int, devices: int, microbatches: int) -> None:
    """Check that the images are divided evenly among the devices, and then among the rounds.

    In each round, all devices that have images left must work.
    """
    parts = [part for round_parts in got for part in round_parts]
    shards = dict(enumerate(shard_bounds(images, devices)))
    for device in sorted({device for device, _, _ in parts} | set(shards)):
        device_parts = [(begin, end) for number, begin, end in parts if number == device]
        begin, end = shards.get(device, (0, 0))
        size = end - begin
        expected = [(begin + a, begin + b) for a, b in shard_bounds(size, microbatches)]
        case.check_faults(
            (sum(b - a for a, b in device_parts) != size
             or (device_parts and (device_parts[0][0], device_parts[-1][1]) != (begin, end)),
             f"device {device} gets {device_parts}, expected images {begin} to {end}: the shares of the devices are as "
             "even as can be",
             f"デバイス {device} の担当分が {device_parts} です。{begin} から {end} までのはずです "
             "(できるだけ均等に分けます)"),
            (device_parts != expected,
             f"device {device} has its {size} images in the parts {device_parts}, expected {expected}: "
             f"{min(microbatches, size)} of them, as even as can be",
             f"デバイス {device} の {size} 枚が {device_parts} に分けられています。{expected} のはずです "
             f"({min(microbatches, size)} 個に、できるだけ均等に)"),
        )  # fmt: skip
    if len(got) != min(microbatches, len(range(*shards[0]))):
        raise case.counterexample(f"there are {len(got)} rounds: {got}", f"ラウンドが {len(got)} 回あります: {got}")
    counts = [min(microbatches, end - begin) for begin, end in shards.values()]
    for number, round_parts in enumerate(got):
        if len(round_parts) < sum(count > number for count in counts):
            raise case.counterexample(
                f"in round {number} only {round_parts} work, while another device has parts left: "
                "they should work side by side",
                f"ラウンド {number} で動くのが {round_parts} だけです。画像の残っているデバイスは同時に動かします",
            )


# --- The guesses


# fmt: off
register_guess("06-a",
    DictForm(NumberForm(0, example=2, factor=1.1), "parameters", "optimizer_state", "activations", "total"),
    "from 128 to 512 images: by what factor does each row grow?",
    "128 枚から 512 枚にすると、それぞれの行は何倍になるか")
register_guess("06-b", NumberForm(0, example=0.01, factor=30),
    "how far is the gradient of the parts from that of the whole batch?",
    "部分に分けた勾配は、バッチ全体の勾配とどれだけ違うか")
register_guess("06-c", NumberForm(0, example=10, factor=1.5),
    "how many MiB more does the whole batch take than 64 microbatches?",
    "バッチ全体のピークは、最も小さいマイクロバッチより何 MiB 高いか")
register_guess("06-d", ChoiceForm(32, 16, 1), "microbatch 2: how many images does each GPU compute at a time?",
    "microbatch が 2 のとき、各 GPU は一度に何枚を計算するか")
register_guess("06-e", NumberForm(0, example=2, factor=1.25),
    "how many times as long do 64 microbatches take as the whole batch?",
    "64 個のマイクロバッチの時間はバッチ全体の何倍か")
register_guess("06-f", NumberForm(0, 1, example=0.2, within=0.01), "what is the running mean after four microbatches?",
    "4 個のマイクロバッチの後、移動平均はいくつか")
register_guess("06-g", DictForm(ChoiceForm(16, 64, 512), "images/s", "accuracy"),
    "which batch size is best in images/s, which in accuracy?",
    "1 秒あたりの枚数と正解率は、それぞれどのサイズが最もよいか")
