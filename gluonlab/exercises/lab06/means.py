"""06-3: microbatches of sentences, whose loss gives only the mean over the words that are there."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np
from mxnet import autograd, gluon, nd

from gluonlab.data.loading.shards import shard_bounds
from gluonlab.exercises.cases import draws, more
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.shared.arrays import cpus
from gluonlab.exercises.shared.calls import KEPT_EN, KEPT_JA, Calls
from gluonlab.exercises.shared.counterexamples import check, wrong
from gluonlab.exercises.shared.diagnosis import Mistake, Results, explains, results
from gluonlab.exercises.shared.softmax_regression import (
    CLASSES,
    FEATURES,
    LR,
    Values,
    make_trainer,
    some_values,
)

Array = Any  # of numpy


ENDS = ("larger first", "larger last", "rest to the last")


class _Sentences(NamedTuple):
    """A batch: ``lengths``, how many words each sentence has; ``parts``: its microbatches.

    ``ends``: one of ENDS, how sentences that do not divide evenly are divided.
    """

    lengths: Tuple[int, ...]
    parts: int
    seed: int
    ends: str = "larger first"

    @property
    def real(self) -> Array:
        """1 for a word and 0 for padding: (sentences, places)."""
        places = np.arange(max(self.lengths))
        return (places < np.array(self.lengths)[:, None]).astype("float32")

    def words(self) -> Tuple[Array, Array]:
        """What the network is given, and its labels."""
        random, shape = draws([6, self.seed]), self.real.shape
        x = random.normal(0, 1, (*shape, FEATURES)).astype("float32")
        return x, random.randint(0, CLASSES, shape).astype("float32")

    def cuts(self) -> List[Tuple[int, int]]:
        """The microbatches: as even as can be, the larger ones first, unless ``ends`` says else."""
        count = len(self.lengths)
        if self.ends == "larger last":
            places = [count * part // self.parts for part in range(self.parts + 1)]
        elif self.ends == "rest to the last":
            places = [*(count // self.parts * part for part in range(self.parts)), count]
        else:
            return list(shard_bounds(count, self.parts))
        return list(zip(places, places[1:]))

    def counts(self) -> List[int]:
        """The words of each microbatch."""
        return [sum(self.lengths[begin:end]) for begin, end in self.cuts()]

    def gradients(self, begin: Values) -> List[Values]:
        """Of the sum of the losses of the words of each microbatch."""
        (x, y), real = self.words(), self.real > 0
        return [
            begin.gradient((x[a:b][real[a:b]], y[a:b][real[a:b]].astype(int)))
            for a, b in self.cuts()
        ]


@exercise("06-3")
def accumulate_means(answer: Callable[..., Any]) -> None:
    """One update by the mean over all words, from microbatches with means of their own."""
    cases = [((4, 4), 1), ((4, 4), 2), ((5, 1), 2), ((3, 6, 1), 2), ((2, 2, 0, 0), 2)]
    cases += [((6, 1, 4, 2, 5, 1, 3), 3), ((0, 3, 0, 5), 4), ((1, 7, 2), 3), ((2, 9, 4, 4), 2)]
    cases += [((3, 5, 2, 4, 1), 3), ((4, 2, 6, 1, 3, 2), 4)]  # 1, 1, 3 and 2, 2, 2 are not even
    cases += more(3, lambda random: (tuple(map(int, random.randint(1, 9, 6))), 4), 6)
    batches = [(_Sentences(lengths, parts, seed),) for seed, (lengths, parts) in enumerate(cases)]
    calls: List[Calls] = []
    updates: Dict[_Sentences, int] = {}
    found = results(
        lambda batch: _train(answer, batch, calls, updates), batches, lambda batch: _updated(batch)
    )
    mistaken = found.wrong(_near)
    if mistaken:
        raise _wrong_update(found, updates)
    for (batch,), call in zip(batches, calls):
        _check_calls(batch, call)


def _check_calls(batch: _Sentences, calls: Calls) -> None:
    """Raise Wrong unless the sentences went through the network in even microbatches."""
    count, parts, sizes = len(batch.lengths), batch.parts, calls.sizes
    allowed, least = math.ceil(count / parts), count // parts
    no_gap = all(batch.counts())  # a part without words may be left out, before or after forward
    en = f"the update of {count} sentences in {parts} microbatch{'es' * (parts > 1)} is right, but"
    ja = f"{count} 文を {parts} 個のマイクロバッチにした更新は正しいのですが、"
    check(
        (max(sizes) > allowed,
         f"{en} {max(sizes)} went through the network at once, expected at most {allowed}",
         f"{ja}一度に {max(sizes)} 文がネットワークを通りました (多くても {allowed} 文のはず)"),
        (len(sizes) > parts,
         f"{en} they went through the network in {len(sizes)} parts, expected {parts}",
         f"{ja}{len(sizes)} 個に分けられました。{parts} 個のはずです"),
        (min(sizes) < least or (no_gap and len(sizes) < parts),
         f"{en} the microbatches have {sizes} sentences; as even as can be, there are {parts} of "
         f"{least} or more",
         f"{ja}文の数が {sizes} です。できるだけ均等に分けると、{least} 文以上のものが "
         f"{parts} 個になります"),
        (no_gap and calls.kept_before_backward, f"{en} {KEPT_EN}", f"{ja}{KEPT_JA}"),
    )  # fmt: skip


def _train(
    answer: Callable[..., Any],
    batch: _Sentences,
    calls: List[Calls],
    updates: Dict[_Sentences, int],
) -> Values:
    """The parameters after the answer's update.

    Its ``calls`` of the network are added, and to ``updates`` how many it made.
    """
    [ctx], begin = cpus(1), some_values()
    net = gluon.nn.Dense(CLASSES, in_units=FEATURES, flatten=False)
    net.collect_params().setattr("grad_req", "add")
    net.initialize(ctx=[ctx])
    net.weight.set_data(nd.array(begin.weight))
    net.bias.set_data(nd.array(begin.bias))
    x, y = (nd.array(each, ctx=ctx) for each in batch.words())
    with autograd.record():  # what the batch before has left
        before = net(x[:1]).sum()
    before.backward()
    calls.append(Calls(net))
    trainer = make_trainer(net)
    answer(net, mean_loss, trainer, x, y, nd.array(batch.real, ctx=ctx), batch.parts)
    updates[batch] = trainer.optimizer.num_update
    params = (net.weight, net.bias)
    return Values(*(param.data(ctx).asnumpy().astype(np.float64) for param in params))


def mean_loss(scores: nd.NDArray, labels: nd.NDArray, real: nd.NDArray) -> nd.NDArray:
    """The mean of the losses (n, places) where ``real`` is 1; nan if it is nowhere."""
    losses = gluon.loss.SoftmaxCrossEntropyLoss()(
        scores.reshape((-1, CLASSES)), labels.reshape((-1,))
    )
    return (losses * real.reshape((-1,))).sum() / real.sum()


def _updated(batch: _Sentences) -> Values:
    return _weighted(batch, [1 / sum(batch.lengths)] * batch.parts)


def _weighted(batch: _Sentences, weights: Sequence[float]) -> Values:
    """The parameters after an update by the sums of the parts' losses, each with a weight."""
    begin = after = some_values()
    for gradient, weight in zip(batch.gradients(begin), weights):
        after = after.minus(gradient, LR * weight)
    return after


def _of_means(batch: _Sentences, factors: Sequence[float]) -> Values:
    """The same of the parts' means; a part without words has none, and adds nothing."""
    weights = [f / count if count else 0.0 for f, count in zip(factors, batch.counts())]
    return _weighted(batch, weights)


def _near(got: Any, want: Values) -> bool:
    return isinstance(got, Values) and got.near(want)


def _left_over(batch: _Sentences, divided: bool = False) -> Values:
    """With the gradients that were there before, those of a sum of scores; ``divided`` by words."""
    x, _ = batch.words()
    before = Values(np.tile(x[0].sum(axis=0), (CLASSES, 1)), np.full(CLASSES, float(x.shape[1])))
    return _updated(batch).minus(before, LR / (sum(batch.lengths) if divided else 1))


def _left_over_divided(batch: _Sentences) -> Values:
    return _left_over(batch, divided=True)


def _by(formula: Callable[[_Sentences], Values]) -> Callable[..., bool]:
    """A mistake that leads to these parameters, with one of the usual ways to cut a batch."""
    return lambda batch, got: any(_near(got, formula(batch._replace(ends=ends))) for ends in ENDS)


def _sizes(batch: _Sentences) -> List[int]:
    return [end - begin for begin, end in batch.cuts()]


OF_MEANS: List[Mistake] = [
    (lambda batch, got: bool(np.isnan(got.weight).any()),
     "a part without any word has the mean 0 / 0, which is nan, and nan times 0 is nan: "
     "leave such a part out",
     "単語が 1 つもない部分の平均は 0 / 0 で nan です。nan に 0 を掛けても nan なので、"
     "その部分は飛ばしてください"),
    (_by(lambda batch: some_values()),
     "the parameters have not changed at all", "パラメータがまったく変わっていません"),
    *((_by(left_over), "the gradients of the batch before are still in it",
       "前のバッチの勾配が残ったままです") for left_over in (_left_over, _left_over_divided)),
    (_by(lambda batch: _of_means(batch, [1.0] * batch.parts)),
     "the means are only added up", "平均を足しただけです"),
    (_by(lambda batch: _of_means(batch, [1 / batch.parts] * batch.parts)),
     "a mean of means: a word of a part with few words counts more than others",
     "平均の平均なので、単語の少ない部分の 1 語の寄与が大きくなります"),
    (_by(lambda batch: _of_means(batch, [each / len(batch.lengths) for each in _sizes(batch)])),
     "the parts are weighted by their sentences, but their means are over words",
     "文の数で重みを付けています。平均されているのは単語です"),
    (_by(lambda batch: _weighted(batch, [1.0] * batch.parts)),
     "that is the update by the sum of all losses: divide by the words of the whole batch",
     "損失の合計による更新です。バッチ全体の単語数で割ってください"),
    (_by(lambda batch: _weighted(
        batch, [1 / (sum(batch.lengths) * len(batch.lengths))] * batch.parts)),
     "`trainer.step` divides once more: the gradients are those of a mean already",
     "`trainer.step` がもう一度割っています。勾配は、すでに平均の損失の勾配です"),
    (_by(lambda batch: _weighted(batch, [1 / sum(batch.lengths) ** 2] * batch.parts)),
     "the sum is divided by the words twice", "合計を単語数で 2 回割っています"),
    (_by(lambda batch: _weighted(batch, [1 / len(batch.lengths)] * batch.parts)),
     "the sum is divided by the sentences, not by the words",
     "単語数ではなく文の数で割っています"),
    (_by(lambda batch: _weighted(
        batch, [0.0] * (batch.parts - 1) + [1 / sum(batch.lengths)])),
     "only the last part counts", "最後の部分しか効いていません"),
]  # fmt: skip


def _each_updates(updates: Mapping[_Sentences, int]) -> Mistake:
    """An update after each part, or after each that has words."""
    return (
        lambda batch, got: updates[batch] in (batch.parts, sum(map(bool, batch.counts()))),
        "the parameters are updated after each part: call `trainer.step` once, when the gradients "
        "of all parts have been added up",
        "部分ごとにパラメータを更新しています。`trainer.step` は、全部の部分の勾配を足し終えて"
        "から 1 回だけ呼んでください",
    )


def _wrong_update(found: Results, updates: Mapping[_Sentences, int]) -> Exception:
    """The counterexample of the first wrong update."""
    (batch,), got, want = next(each for each in found if not _near(each.got, each.want))
    begin = some_values()
    went, wanted = (float(np.linalg.norm(each.weight - begin.weight)) for each in (got, want))
    words = ", ".join(map(str, batch.lengths))
    return wrong(
        f"sentences of {words} words in {batch.parts} microbatch{'es' * (batch.parts > 1)}: "
        f"the weights moved by {went:.4g}, expected {wanted:.4g}, "
        "as with the mean over all words at once",
        f"{words} 語の文をマイクロバッチ {batch.parts} 個で: 重みが {went:.4g} 動きました。"
        f"全部の単語の平均を一度に使ったときの {wanted:.4g} になるはずです",
        explains(found, _near, OF_MEANS[0], _each_updates(updates), *OF_MEANS[1:]),
    )
