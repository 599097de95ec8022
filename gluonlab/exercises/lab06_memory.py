"""The exercises of lab 06: training memory, gradient accumulation, and GPU numbers.

06-1 and 06-6: memory. 06-2 and 06-3: gradient accumulation. 06-4: CUDA_VISIBLE_DEVICES, and the
physical GPU of gpu:0. 06-5: rounds of microbatches.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Iterable, List, NamedTuple, Tuple

import numpy as np
from mxnet import autograd, gluon, nd

from gluonlab.data.loading.split_batch import shard_bounds
from gluonlab.exercises import explain_wrong_answers as explain
from gluonlab.exercises import softmax_regression as softmax
from gluonlab.exercises.array_tracking import ACTIVATIONS_KEPT_EN, ACTIVATIONS_KEPT_JA, ForwardRecorder, cpu_devices
from gluonlab.exercises.exercise_registry import case_rng, exercise, extra_cases
from gluonlab.exercises.explain_wrong_answers import CaseText, TextPair, check_faults, counterexample, pick_explanation
from gluonlab.exercises.guesses import ChoiceForm, DictForm, NumberForm, register_guess
from gluonlab.exercises.softmax_regression import CLASSES, FEATURES, LR, LayerParams

# --- 06-1 and 06-6: the bytes that training needs, and the largest batch that fits


@exercise("06-1")
def check_training_bytes(answer: Callable[..., int]) -> None:
    """Count the bytes that training needs: parameters, gradients, optimizer state, activations."""
    cases: List[Any] = [([(3,)], [], 1, 0), ([(3,)], [], 1, 2)]
    cases += [([(2, 3)], [5], 1, 0), ([(2, 3)], [5], 4, 0), ([(2, 3), (2,)], [5, 1], 4, 1)]
    randint = case_rng(6).randint
    for _ in range(8):
        shapes = [tuple(randint(1, 9, randint(1, 5)).tolist()) for _ in range(randint(1, 5))]
        cases.append((shapes, randint(1, 999, randint(1, 6)).tolist(), int(randint(1, 512)), int(randint(0, 3))))

    def describe(shapes: Any, kept: List[int], n: int, s: int, got: Any, want: int) -> TextPair:
        call = f"training_bytes({shapes}, {kept}, images={n}, states={s})"
        explain.check_number(got, call)
        return explain.wrong_value_texts(call, repr(got), want)

    results = explain.run_cases(answer, cases, _bytes_by(lambda p, a, n, s: 4 * (p * (2 + s) + n * a)))
    results.check_results(explain.is_same_number, TRAINING_BYTES_MISTAKES, describe)


def _bytes_by(formula: Callable[[int, int, int, int], int]) -> Callable[..., int]:
    """Return a function that computes the bytes of a case with ``formula``.

    The arguments of ``formula`` are the numbers of parameters, activations per image, images, and
    optimizer states per parameter.
    """
    return lambda shapes, kept, n, s: formula(sum(map(math.prod, shapes)), sum(kept), n, s)


TRAINING_BYTES_MISTAKES = explain.formula_mistakes(explain.matches_formula, [
    (lambda shapes, kept, n, s: 4 * (sum(map(sum, shapes)) * (2 + s) + n * sum(kept)),
     "multiply the numbers of a shape, do not add them", "形状の各次元は足すのではなく掛けます"),
    (_bytes_by(lambda p, a, n, s: 4 * p * (2 + s)), "that is without the activations, which are kept for backward",
     "逆伝播のために残す活性値が入っていません"),
    (_bytes_by(lambda p, a, n, s: 4 * n * (p * (2 + s) + a)),
     "that counts the parameters once per image: all images share them",
     "画像 1 枚ごとにパラメータがあるかのような値です"),
    (_bytes_by(lambda p, a, n, s: 4 * (p * (2 + s) + a)),
     "that counts the activations of one image: multiply them by the number of images",
     "画像 1 枚分の活性値しか数えていないようです"),
    (_bytes_by(lambda p, a, n, s: 4 * (p * 2 + n * a)), "that is without the states that the optimizer keeps",
     "オプティマイザの状態が入っていないようです"),
    (_bytes_by(lambda p, a, n, s: 4 * (p * (1 + s) + n * a)), "that is without the gradients of the parameters",
     "勾配が入っていないようです"),
    (_bytes_by(lambda p, a, n, s: 4 * (p * (2 + s) + 2 * n * a)),
     "that counts a gradient for every activation: only the activations are kept",
     "活性値ごとに勾配も残しているかのような値です"),
    (_bytes_by(lambda p, a, n, s: p * (2 + s) + n * a), "that counts numbers: a float32 has 4 bytes",
     "それは数値の個数です。float32 は 1 個 4 バイトです"),
])  # fmt: skip


@exercise("06-6")
def check_largest_batch(answer: Callable[[Callable[[int], int], int, int], int]) -> None:
    """Find the largest batch that fits, with only a few calls."""
    # A case is (fixed bytes, bytes per block of images, images per block, budget, largest batch). A
    # partial block needs as many bytes as a full block.
    cases = [(10, 1, 1, 15, 8), (10, 1, 1, 10, 8), (10, 1, 1, 18, 8), (10, 1, 1, 1000, 8), (10, 5, 1, 14, 8)]
    cases += [(10, 1, 1, 21, 1), (0, 7, 1, 6999, 10**6)]
    randint = case_rng(6).randint
    for _ in range(12):
        fixed, each, limit = int(randint(0, 1000)), int(randint(1, 50)), int(randint(1, 10**6))
        cases.append((fixed, each, 1, int(fixed + each * randint(1, 2 * limit) + randint(0, each)), limit))
    for case in [*cases, (10, 5, 8, 30, 64), (0, 3, 64, 299, 5000), (100, 7, 1000, 2200, 10**6)]:
        _check_batch_search(answer, *case)


def _check_batch_search(answer: Callable[..., Any], fixed: int, each: int, block: int, budget: int, limit: int) -> None:
    """Raise Wrong unless the answer finds the largest batch with only a few calls of ``memory``."""
    sizes_asked: List[int] = []

    def memory(images: int) -> int:
        sizes_asked.append(images)
        return fixed + each * -(-int(images) // block)

    got = answer(memory, budget, limit)
    expected, max_calls = max(0, min(limit, (budget - fixed) // each * block)), 2 * limit.bit_length() + 2
    if not explain.is_number(got):
        raise explain.wrong_return(got, f"largest_batch(memory, {budget}, {limit})", "a number of images", "画像の枚数")
    if got != expected:
        unit, unit_ja = "image", "1 枚あたり"
        if block > 1:
            unit, unit_ja = f"{block} images (rounded up)", f"{block} 枚ごと (端数は切り上げ) に"
        is_integer = isinstance(got, (int, np.integer))
        needed = memory(int(got)) if is_integer else 0
        raise counterexample(
            f"largest_batch returned {got!r}, expected {expected}, for a model that needs {fixed} bytes and {each} "
            f"bytes per {unit}, with a budget of {budget} bytes and a limit of {limit} images",
            f"必要量 {fixed} バイト + {unit_ja} {each}、予算 {budget}、"
            f"上限 {limit} 枚のとき {got!r} でしたが、正しくは {expected} です",
            pick_explanation(
                (expected == 0, "not even one image fits", "1 枚も入りません"),
                (is_integer and got > limit, "that is above the limit", "それより多くの画像はありません"),
                (is_integer and got > expected, f"{got} need {needed}", f"{got} 枚には {needed} 要ります"),
                (is_integer, f"{got + 1} would also fit", f"{got + 1} 枚でも入ります"),
            ),
        )
    check_faults(
        (len(sizes_asked) > max_calls,
         f"{expected} is right, but with a limit of {limit:,} images `memory` was called {len(sizes_asked):,} times, "
             f"expected at most {max_calls}: halve the range with each call",
         f"{expected} は正しいのですが、上限 {limit:,} 枚に対して `memory` を {len(sizes_asked):,} 回呼びました。"
         f"{max_calls} 回以内で済みます。1 回呼ぶごとに範囲を半分に絞ってください"),
    )  # fmt: skip


# --- 06-2: one update from several microbatches


@exercise("06-2")
def check_accumulate(answer: Callable[..., Any]) -> None:
    """Make an update from several microbatches that equals the update from the whole batch."""
    cases: List[Tuple[Tuple[int, ...], int]] = [((4,), 1), ((4,), 2), ((4, 4), 2), ((7,), 3)]
    for sizes, parts in [*cases, ((7, 5, 9), 3), ((3,), 3), ((11, 2, 8), 2)]:
        softmax.check_updates(answer, sizes, parts, softmax.explain_wrong_update, as_even=True)


# --- 06-3: microbatches of sentences; the loss is the mean over all words except padding


Array = Any  # np.ndarray
Cut = Callable[[int, int], Iterable[Tuple[int, int]]]  # (sentences, microbatches) -> bounds of the microbatches
CUT_RULES: Tuple[Cut, ...] = (shard_bounds, softmax.cut_larger_last, softmax.cut_rest_last)


class _Microbatch(NamedTuple):
    """A microbatch: how many words and sentences it has, and the gradient of its total loss."""

    words: int
    sentences: int
    is_last: bool
    gradient: LayerParams


class _SentenceBatch(NamedTuple):
    """A batch of sentences for ``parts`` microbatches. ``lengths``: the words of each sentence."""

    lengths: Tuple[int, ...]
    parts: int
    seed: int

    @property
    def words(self) -> int:
        """The number of words in all sentences."""
        return sum(self.lengths)

    @property
    def arrays(self) -> Tuple[Array, Array, Array]:
        """Inputs of shape (sentences, positions, FEATURES), labels, and a mask (0 for padding)."""
        real = (np.arange(max(self.lengths)) < np.array(self.lengths)[:, None]).astype("float32")
        random = case_rng([6, self.seed])
        x = random.normal(0, 1, (*real.shape, FEATURES)).astype("float32")
        return x, random.randint(0, CLASSES, real.shape).astype("float32"), real

    def microbatches(self, cut: Cut) -> List[_Microbatch]:
        """Return the microbatches that contain words. ``cut``: one of CUT_RULES."""
        (x, y, real), found = self.arrays, []
        for a, b in cut(len(self.lengths), self.parts):
            part_words = x[a:b][real[a:b] > 0], y[a:b][real[a:b] > 0].astype(int)
            gradient = softmax.initial_params().gradient(part_words)
            found.append(_Microbatch(sum(self.lengths[a:b]), b - a, b == len(self.lengths), gradient))
        return [part for part in found if part.words]


class _SentenceUpdate(NamedTuple):
    """The parameters after an answer's update, its forward calls, and its number of updates."""

    params: LayerParams
    recorder: ForwardRecorder
    updates: int


@exercise("06-3")
def check_accumulate_means(answer: Callable[..., Any]) -> None:
    """Make an update with the mean over all words, from microbatches that have their own means."""
    cases = [((4, 4), 1), ((4, 4), 2), ((5, 1), 2), ((3, 6, 1), 2), ((2, 2, 0, 0), 2)]
    cases += [((6, 1, 4, 2, 5, 1, 3), 3), ((0, 3, 0, 5), 4), ((1, 7, 2), 3), ((2, 9, 4, 4), 2)]
    # These cases detect answers with uneven parts of 1, 1 and 3 sentences, or with 3 parts instead
    # of 4.
    cases += [((3, 5, 2, 4, 1), 3), ((4, 2, 6, 1, 3, 2), 4)]
    cases += extra_cases(3, lambda random: (tuple(map(int, random.randint(1, 9, 6))), 4), 6)
    batches = [(_SentenceBatch(lengths, parts, seed),) for seed, (lengths, parts) in enumerate(cases)]
    results = explain.run_cases(lambda batch: _run_training(answer, batch), batches, _right_params)
    results.check_results(_are_close_params, MEAN_MISTAKES, _describe_update)
    for (batch,), got, _ in results:
        _check_forward_calls(batch, got.recorder)


def _check_forward_calls(batch: _SentenceBatch, recorder: ForwardRecorder) -> None:
    """Raise Wrong unless there was one forward call per microbatch, with the right sizes."""
    count, parts, sizes = len(batch.lengths), batch.parts, recorder.batch_sizes
    allowed, least = math.ceil(count / parts), count // parts
    all_have_words = len(batch.microbatches(shard_bounds)) == parts  # the answer may skip parts without words
    en = f"the update of {count} sentences in {explain.count_in_english(parts, 'microbatch', 'es')} is right, but"
    ja = f"{count} 文を {parts} 個のマイクロバッチにした更新は正しいのですが、"
    check_faults(
        (max(sizes) > allowed, f"{en} {max(sizes)} went through the model at once, expected at most {allowed}",
         f"{ja}一度に {max(sizes)} 文がネットワークを通りました (多くても {allowed} 文のはず)"),
        (len(sizes) > parts, f"{en} they went through the model in {len(sizes)} parts, expected {parts}",
         f"{ja}{len(sizes)} 個に分けられました。{parts} 個のはずです"),
        (min(sizes) < least or (all_have_words and len(sizes) < parts),
         f"{en} the microbatches have {sizes} sentences: divide as evenly as possible, into {parts} microbatches of "
             f"at least {least}",
         f"{ja}文の数が {sizes} です。できるだけ均等に分けると、{least} 文以上のものが {parts} 個になります"),
        (all_have_words and recorder.overlapping_forwards, f"{en} {ACTIVATIONS_KEPT_EN}", f"{ja}{ACTIVATIONS_KEPT_JA}"),
    )  # fmt: skip


def _run_training(answer: Callable[..., Any], batch: _SentenceBatch) -> _SentenceUpdate:
    [ctx] = cpu_devices(1)
    net = softmax.make_net(softmax.initial_params(), [ctx], "add", flatten=False)
    x, y, real = (nd.array(each, ctx=ctx) for each in batch.arrays)
    with autograd.record():  # leave gradients in the network, as a previous batch would
        old_loss = net(x[:1]).sum()
    old_loss.backward()
    recorder, trainer = ForwardRecorder(net), softmax.make_trainer(net)
    answer(net, mean_loss, trainer, x, y, real, batch.parts)
    return _SentenceUpdate(softmax.read_params(net, ctx), recorder, trainer.optimizer.num_update)


def mean_loss(scores: nd.NDArray, labels: nd.NDArray, real: nd.NDArray) -> nd.NDArray:
    """Return the mean loss over the positions with ``real`` = 1, or nan if there are none."""
    losses = gluon.loss.SoftmaxCrossEntropyLoss()(scores.reshape((-1, CLASSES)), labels.reshape((-1,)))
    return (losses * real.reshape((-1,))).sum() / real.sum()


Weight = Callable[[_SentenceBatch, _Microbatch], float]
Formula = Callable[[_SentenceBatch, Cut], LayerParams]


def _right_params(batch: _SentenceBatch, cut: Cut = shard_bounds) -> LayerParams:
    return _params_by(lambda batch, part: 1 / batch.words)(batch, cut)


def _params_by(weight: Weight, old_gradients: Callable[[_SentenceBatch], float] = lambda _: 0) -> Formula:
    """Return a function (batch, cut) that computes the parameters after a weighted update.

    The update subtracts a weighted sum of gradients. ``weight(batch, part)``: the weight of a
    microbatch's gradient. ``old_gradients(batch)``: the weight of the gradients that the previous
    batch left.
    """

    def params(batch: _SentenceBatch, cut: Cut) -> LayerParams:
        after, (x, *_) = softmax.initial_params(), batch.arrays
        for part in batch.microbatches(cut):
            after = after.subtract(part.gradient, LR * weight(batch, part))
        left = LayerParams(np.tile(x[0].sum(axis=0), (CLASSES, 1)), np.full(CLASSES, float(x.shape[1])))
        return after.subtract(left, LR * old_gradients(batch))

    return params


def _are_close_params(got: _SentenceUpdate, want: LayerParams) -> bool:
    return got.params.is_close(want)


def _matches_params(formula: Formula) -> Callable[..., bool]:
    return lambda batch, got: any(_are_close_params(got, formula(batch, cut)) for cut in CUT_RULES)


_STALE = ("the update still contains the gradients of the previous batch", "前のバッチの勾配が残ったままです")
MEAN_MISTAKES: List[explain.Mistake] = [
    (lambda batch, got: bool(np.isnan(got.params.weight).any()),
     "a part without any word has the mean 0 / 0, which is nan, and nan times 0 is nan: skip such a part",
     "単語が 1 つもない部分の平均は 0 / 0 で nan です。nan に 0 を掛けても nan なので、その部分は飛ばしてください"),
    (lambda batch, got: got.updates in (batch.parts, len(batch.microbatches(shard_bounds))),
     "the parameters are updated after each part: call `trainer.step` once, after you have added up the gradients "
         "of all parts",
     "部分ごとにパラメータを更新しています。`trainer.step` は、全部の部分の勾配を足し終えてから 1 "
     "回だけ呼んでください"),
    *explain.formula_mistakes(_matches_params, [
        (_params_by(lambda batch, part: 0), "the parameters have not changed",
         "パラメータがまったく変わっていません"),
        (_params_by(lambda batch, part: 1 / batch.words, lambda batch: 1), *_STALE),
        (_params_by(lambda batch, part: 1 / batch.words, lambda batch: 1 / batch.words), *_STALE),
        (_params_by(lambda batch, part: 1 / part.words),
         "the means are added up, not averaged", "平均を足しただけです"),
        (_params_by(lambda batch, part: 1 / part.words / batch.parts),
         "that is a mean of means: a word in a part with few words counts more than others",
         "平均の平均なので、単語の少ない部分の 1 語の寄与が大きくなります"),
        (_params_by(lambda batch, part: part.sentences / len(batch.lengths) / part.words),
         "you weighted the parts by their sentences, but their means are over words: weight by words",
         "文の数で重みを付けています。平均されているのは単語です"),
        (_params_by(lambda batch, part: 1),
         "that is the update with the sum of all losses: divide by the words of the whole batch",
         "損失の合計による更新です。バッチ全体の単語数で割ってください"),
        (_params_by(lambda batch, part: 1 / batch.words / len(batch.lengths)),
         "`trainer.step` divides again, but the gradients already belong to a mean loss",
         "`trainer.step` がもう一度割っています。勾配は、すでに平均の損失の勾配です"),
        (_params_by(lambda batch, part: 1 / batch.words**2), "the sum is divided by the words twice",
         "合計を単語数で 2 回割っています"),
        (_params_by(lambda batch, part: 1 / len(batch.lengths)),
         "the sum is divided by the sentences, not by the words", "単語数ではなく文の数で割っています"),
        (_params_by(lambda batch, part: part.is_last / batch.words), "only the last part counts",
         "最後の部分しか効いていません"),
    ]),
]  # fmt: skip


def _describe_update(batch: _SentenceBatch, got: _SentenceUpdate, want: LayerParams) -> TextPair:
    """Describe a wrong update by the distance that the weights moved, in English and Japanese."""
    moved, expected = (softmax.weight_distance(each, softmax.initial_params()) for each in (got.params, want))
    words = ", ".join(map(str, batch.lengths))
    return (
        f"sentences of {words} words in {explain.count_in_english(batch.parts, 'microbatch', 'es')}: the weights moved "
        f"by {moved:.4g}, expected {expected:.4g}, as with the mean over all words at once",
        f"{words} 語の文をマイクロバッチ {batch.parts} 個で: 重みが {moved:.4g} 動きました。"
        f"全部の単語の平均を一度に使ったときの {expected:.4g} になるはずです",
    )


# --- 06-4: the physical GPU numbers of gpu:0, gpu:0,2 and gpu:* in a process


@exercise("06-4")
def check_physical_gpu_numbers(answer: Callable[[str, "str | None", int], List[int]]) -> None:
    """Find the machine's GPUs that gpu:0, gpu:0,2 and gpu:* refer to in a process."""
    cases = [("gpu:1", None, 4), ("gpu:0,2", None, 4), ("gpu:*", None, 4), ("gpu:*", "2,3", 4)]
    cases += [(spec, "3,4,5,6,7", 8) for spec in ("gpu:0", "gpu:1,2", "gpu:*")]
    cases += [("gpu:*", "7,5", 8), ("gpu:1,0", "6,2,4", 8)]
    random = case_rng(4)
    for _ in range(8):
        gpus = random.permutation(8)[: random.randint(2, 8)].tolist()
        requested = random.permutation(len(gpus))[: random.randint(1, len(gpus) + 1)].tolist()
        cases.append(("gpu:" + ",".join(map(str, requested)), ",".join(map(str, gpus)), 8))
    for spec, visible, count in cases:
        got, call = answer(spec, visible, count), f"machine_numbers({spec!r}, {visible!r}, {count})"
        if not isinstance(got, Iterable) or isinstance(got, str):
            raise explain.wrong_return(got, call, "a list of numbers", "番号のリスト")
        gpus = list(range(count)) if visible is None else [int(number) for number in visible.split(",")]
        requested = list(range(len(gpus))) if spec == "gpu:*" else [int(name) for name in spec[4:].split(",")]
        got, want = list(got), [gpus[name] for name in requested]
        if got != want:
            raise counterexample(*explain.wrong_value_texts(call, repr(got), want), pick_explanation(
                (list(map(str, got)) == list(map(str, want)), "return numbers, not strings",
                 "文字列ではなく数値が必要です"),
                (got == requested,
                 "those are the numbers inside the process: CUDA_VISIBLE_DEVICES maps them to other GPUs",
                 "それはプロセスの中での番号です。CUDA_VISIBLE_DEVICES によって別の GPU に割り当てられます"),
                (got == list(range(count)), "the process sees only the GPUs in CUDA_VISIBLE_DEVICES",
                 "CUDA_VISIBLE_DEVICES にあるものしか見えません"),
                (sorted(map(str, got)) == sorted(map(str, want)), "the numbers are in another order", "順番が違います"),
            ))  # fmt: skip


# --- 06-5: the images of each device in each round


Rounds = List[List[Tuple[int, int, int]]]  # (device, first image, last + 1)


@exercise("06-5")
def check_microbatch_rounds(answer: Callable[[int, int, int], Rounds]) -> None:
    """Plan the images of each device in each round."""
    cases = [(4, 1, 1), (4, 2, 1), (8, 2, 2), (6, 2, 3), (7, 2, 1), (7, 2, 2), (10, 3, 2)]
    randint = case_rng(5).randint
    random_cases = [(int(randint(1, 200)), int(randint(1, 9)), int(randint(1, 9))) for _ in range(12)]
    for images, devices, microbatches in [*cases, (3, 2, 2), (1, 2, 2), (5, 4, 3), *random_cases]:
        call = f"rounds({images}, {devices}, {microbatches})"
        returned = answer(images, devices, microbatches)
        try:
            got = [[(int(device), int(a), int(b)) for device, a, b in each] for each in returned]
        except (TypeError, ValueError):
            texts = (
                "a list of rounds, each a list of (device, begin, end)",
                "(デバイス, 始め, 終わり) のリストのリスト",
            )
            raise explain.wrong_return(returned, call, *texts) from None
        _check_round_parts(CaseText(call, call), got, images)
        _check_device_shares(CaseText(call, call), got, images, devices, microbatches)


def _check_round_parts(case: CaseText, got: Rounds, images: int) -> None:
    """Raise Wrong unless each image is in one part and no device has two parts in a round."""
    use_counts, outside_parts = np.zeros(images, int), []
    for number, parts in enumerate(got):
        case.check_faults(
            (any(end <= begin for _, begin, end in parts), f"a part of round {number} is empty: {parts}",
             f"ラウンド {number} に空の部分があります: {parts}"),
            (len({device for device, _, _ in parts}) < len(parts),
             f"a device has two parts in round {number}, {parts}: both would be in its memory at once",
             f"ラウンド {number} で 1 台のデバイスに 2 個の部分があります: {parts}。"
             "これでは両方がメモリに載ってしまいます"),
        )  # fmt: skip
        for _, begin, end in parts:
            use_counts[max(begin, 0) : end] += 1
        outside_parts += [part for part in parts if part[1] < 0 or part[2] > images]
    first, place = [*outside_parts, None][0], int(np.argmax(use_counts != 1))
    case.check_faults(
        (outside_parts, f"{first} goes beyond the batch of {images} images",
         f"{first} は {images} 枚のバッチからはみ出しています"),
        (use_counts[place] != 1, f"image {place} is used {use_counts[place]} times, expected once",
         f"画像 {place} が使われた回数は {use_counts[place]} 回です。ちょうど 1 回のはずです"),
    )  # fmt: skip


def _check_device_shares(case: CaseText, got: Rounds, images: int, devices: int, microbatches: int) -> None:
    """Raise Wrong unless the images are divided evenly, first by device and then by round.

    In each round, all devices that have images left must work.
    """
    shards = dict(enumerate(shard_bounds(images, devices)))
    for device in sorted({part[0] for parts in got for part in parts} | set(shards)):
        device_parts = [part[1:] for parts in got for part in parts if part[0] == device]
        begin, end = shards.get(device, (0, 0))
        size = end - begin
        expected = [(begin + a, begin + b) for a, b in shard_bounds(size, microbatches)]
        case.check_faults(
            (sum(b - a for a, b in device_parts) != size
             or (device_parts and (device_parts[0][0], device_parts[-1][1]) != (begin, end)),
             f"device {device} gets {device_parts}, expected images {begin} to {end}: divide the images over the "
                 "devices as evenly as possible",
             f"デバイス {device} の担当分が {device_parts} です。{begin} から {end} までのはずです "
             "(できるだけ均等に分けます)"),
            (device_parts != expected,
             f"device {device} has its {size} images in the parts {device_parts}, expected {expected}: "
                 f"{min(microbatches, size)} parts, as even as possible",
             f"デバイス {device} の {size} 枚が {device_parts} に分けられています。{expected} のはずです "
             f"({min(microbatches, size)} 個に、できるだけ均等に)"),
        )  # fmt: skip
    counts = [min(microbatches, end - begin) for begin, end in shards.values()]
    faults = [
        (len(got) != counts[0], f"there are {len(got)} rounds: {got}", f"ラウンドが {len(got)} 回あります: {got}")
    ]
    faults += [
        (len(parts) < sum(count > number for count in counts),
         f"in round {number} only {parts} work, although another device has parts left: the devices should work in "
             "parallel",
         f"ラウンド {number} で動くのが {parts} だけです。画像の残っているデバイスは同時に動かします")
        for number, parts in enumerate(got)
    ]  # fmt: skip
    case.check_faults(*faults)


# --- The guesses


# fmt: off
register_guess("06-a",
    DictForm(NumberForm(0, example=2, factor=1.1), "parameters", "optimizer_state", "activations", "total"),
    "if the batch grows from 128 to 512 images, by what factor does each row grow?",
    "128 枚から 512 枚にすると、それぞれの行は何倍になるか")
register_guess("06-b", NumberForm(0, example=0.01, factor=30),
    "how large is the difference between the gradients of the parts and of the whole batch?",
    "部分に分けた勾配は、バッチ全体の勾配とどれだけ違うか")
register_guess("06-c", NumberForm(0, example=10, factor=1.5),
    "how many MiB more does the whole batch need than 64 microbatches?",
    "バッチ全体のピークは、最も小さいマイクロバッチより何 MiB 高いか")
register_guess("06-d", ChoiceForm(32, 16, 1), "how many images does each GPU process at a time with microbatch 2?",
    "microbatch が 2 のとき、各 GPU は一度に何枚を計算するか")
register_guess("06-e", NumberForm(0, example=2, factor=1.25),
    "how many times as long do 64 microbatches take as the whole batch?",
    "64 個のマイクロバッチの時間はバッチ全体の何倍か")
register_guess("06-f", NumberForm(0, 1, example=0.2, within=0.01), "what is the running mean after four microbatches?",
    "4 個のマイクロバッチの後、移動平均はいくつか")
register_guess("06-g", DictForm(ChoiceForm(16, 64, 512), "images/s", "accuracy"),
    "which batch size leads to the most images/s, and which to the highest accuracy?",
    "1 秒あたりの枚数と正解率は、それぞれどのサイズが最もよいか")
