"""Evaluation is exact: every image counts once, whatever the devices and the batches."""

import math
import threading
import time
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mxnet import nd
from support.devices import contexts

from gluonlab.data import ArraySplit, Loader
from gluonlab.engine.cpu_threads import EngineCallback, push_engine_operation
from gluonlab.parallel.strategy import ScoredImages
from gluonlab.training.evaluate import BATCHES_AHEAD, COLUMNS, evaluate, format_confusion, write_confusion_picture

HANGS_S = 60  # bounds a wait for batches that never come


def lookup_network(scores, k):
    """Return a network on k devices whose scores are known.

    The four bytes of an image contain the row of ``scores`` (N, classes) that the image gets.
    """
    base = nd.array([1, 256, 65536, 0])

    def score(batch):
        for device, (x, y) in enumerate(zip(batch.xs, batch.ys)):
            rows = nd.dot(x.reshape((len(x), 4)).astype("float32"), base.as_in_context(x.context))
            shard_scores = nd.array(scores, ctx=x.context).take(rows)
            loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()(shard_scores, y).sum()
            yield ScoredImages(device, loss, shard_scores, y)

    return SimpleNamespace(score=score, outputs=contexts(k))


def make_split(labels):
    images = np.arange(len(labels), dtype="<u4").view(np.uint8).reshape(-1, 1, 2, 2)
    return ArraySplit(images, labels.astype(np.int32))


def evaluate_scores(scores, labels, k, batch=5, confusion=True, **more):
    loader = Loader(make_split(labels), contexts(k), batch, shuffle=False, raw=True, **more)
    return evaluate(lookup_network(scores, k), loader, scores.shape[1], confusion=confusion)


@settings(max_examples=25)
@given(
    size=st.integers(1, 40),
    classes=st.integers(2, 9),
    batch=st.integers(1, 45),
    k=st.integers(1, 3),
    values=st.integers(1, 20),
    resident=st.sampled_from([0, 2**20]),
    seed=st.integers(0, 2**16),
)
def test_counts_are_numpys_over_any_split_and_number_of_devices(size, classes, batch, k, values, resident, seed):
    """Few different values make ties, of which the first class wins, as in argmax."""
    random = np.random.RandomState(seed)
    scores, labels = (random.randint(0, values, (size, classes)).astype("float32"), random.randint(0, classes, size))
    result = evaluate_scores(scores, labels, k, batch, resident_bytes=resident)
    order = np.argsort(-scores, axis=1, kind="stable")
    rank = (order == labels[:, None]).argmax(axis=1)
    matrix = np.zeros((classes, classes), int)
    np.add.at(matrix, (labels, order[:, 0]), 1)
    correct, in_top5 = (rank == 0).sum(), (rank < 5).sum() if classes > 5 else None
    assert (result.images, result.correct, result.in_top5) == (size, correct, in_top5)
    assert np.array_equal(result.confusion, matrix)
    assert (result.accuracy, result.top5_accuracy) == (correct / size, None if in_top5 is None else in_top5 / size)


def test_the_number_of_reads_does_not_grow_with_the_number_of_batches(monkeypatch):
    """The host waits once for each device and number."""
    reads, read = [], nd.NDArray.asnumpy
    monkeypatch.setattr(nd.NDArray, "asnumpy", lambda array: reads.append(0) or read(array))
    labels = np.arange(60) % 10
    for batch in (60, 3):
        reads.clear()
        evaluate_scores(np.eye(10)[labels], labels, 2, batch, confusion=False)
        assert len(reads) == 4


@pytest.mark.cpu_only("it puts a function into the queue of a CPU device")
def test_few_batches_wait_for_a_slow_network_whatever_the_size_of_the_split():
    """Each batch holds its images, so all of a large split could be in memory.

    Some do wait: the first batch is finished only when they are queued.
    """
    labels, handed_out, ahead, callbacks, some_wait = np.arange(40) % 10, [], [], [], threading.Event()

    def work_slowly(*_):
        if not ahead:
            some_wait.wait(HANGS_S)
        ahead.append(len(handed_out) - len(ahead))
        time.sleep(0.01)

    def score(batch):
        for device, (x, y) in enumerate(zip(batch.xs, batch.ys)):
            loss = x.astype("float32").sum()
            callbacks.append(EngineCallback(work_slowly))
            push_engine_operation(callbacks[-1], loss, b"slow")
            yield ScoredImages(device, loss, y.one_hot(10), y)

    def batches():
        for batch in Loader(make_split(labels), contexts(1), 1, raw=True):
            handed_out.append(batch)
            if len(handed_out) == BATCHES_AHEAD + 1:
                some_wait.set()
            yield batch

    assert evaluate(SimpleNamespace(score=score, outputs=contexts(1)), batches(), 10).correct == 40
    assert len(ahead) == 40 and max(ahead) == BATCHES_AHEAD + 1


# --- the table and the picture


@given(st.integers(1, 14), st.integers(0, 10**5), st.booleans(), st.integers(0, 1000))
@example(14, 99, True, 0)
def test_a_table_fits_a_terminal_and_contains_every_number(classes, largest, named, seed):
    matrix = np.random.RandomState(seed).randint(0, largest + 1, (classes, classes))
    names = [("class with a long name %d" if named else "%d") % label for label in range(classes)]
    lines = format_confusion(matrix, names).splitlines()
    assert max(map(len, lines)) <= COLUMNS
    if lines[0].startswith("rows: "):  # the numbers of classes are aligned, and all cells
        assert not named or len({line.index(" class ") for line in lines[2:]}) == 1
        assert len({len(line) for line in lines[1:]}) == 1
    if classes <= (14 if largest <= 99 else 10) and largest <= 9999:
        rows = [line.split()[-classes - 1 :] for line in lines[2:]]
        assert [[0 if cell == "." else int(cell) for cell in row[:-1]] for row in rows] == matrix.tolist()


def test_a_table_reads_like_this():
    matrix = np.array([[8, 2, 0], [0, 10, 0], [0, 0, 0]])
    assert format_confusion(matrix, ("cat", "dog", "a very long name")).splitlines() == [
        "rows: true classes; columns: predicted classes",
        "                 0   1   2   right",
        "0 cat            8   2   .   80.0%",
        "1 dog            .  10   .  100.0%",
        "2 a very long    .   .   .       -",
    ]


def test_of_many_classes_the_most_frequent_confusions_are_told():
    matrix = np.eye(40, dtype=int) * 9
    assert format_confusion(matrix, [str(label) for label in range(40)]) == "no image was misclassified"
    matrix[3, 5], matrix[7, 1] = 1, 4
    assert format_confusion(matrix, [f"c{label}" for label in range(40)]).splitlines() == [
        "most frequent confusions",
        "  c7 taken for c1: 4 of 13",
        "  c3 taken for c5: 1 of 10",
    ]


@pytest.mark.parametrize("classes", [1, 2, 10, 30])
def test_the_picture_is_a_png_whose_diagonal_is_dark(tmp_path, classes):
    from matplotlib.image import imread

    names = [f"name {label}" for label in range(classes)]
    write_confusion_picture(np.eye(classes, dtype=int) * 7, names, tmp_path / "confusion.png")
    picture = imread(tmp_path / "confusion.png")[..., :3]
    dark = (picture[..., 0] < 0.2) & (picture[..., 2] > 0.3)  # the darkest of the blues
    rows, columns = np.nonzero(dark)
    heights, widths = ((rows - rows.min()) / np.ptp(rows), (columns - columns.min()) / np.ptp(columns))
    assert dark.sum() > 0.5 * np.ptp(rows) * np.ptp(columns) / classes
    assert np.abs(heights - widths).max() <= 1.05 / classes  # within the cells of the diagonal


STRANGE = ("costs $5", "$5 to $9 $", r"$\frac{$", "two\nlines", "no text \udcff", "tab\there")


def test_classes_of_any_name_are_shown_as_they_are_written(tmp_path):
    matrix = np.eye(len(STRANGE), dtype=int) * 7
    write_confusion_picture(matrix, STRANGE, tmp_path / "confusion.png")
    assert (tmp_path / "confusion.png").read_bytes().startswith(b"\x89PNG")
    rows = format_confusion(matrix, STRANGE).splitlines()[2:]
    expected = ["costs $5", "$5 to $9 $", r"$\frac{$", r"two\nlines", r"no text \udc", r"tab\there"]
    assert [row[2:14].rstrip() for row in rows] == expected
    many = [*STRANGE, *map(str, range(40))]
    text = format_confusion(np.roll(np.eye(len(many), dtype=int), 1, axis=1), many)
    assert r"  two\nlines taken for no text \udcff: 1 of 1" in text.splitlines() and text.encode()


# --- scores that are no numbers

SPECIAL = st.sampled_from([0.0, 1.0, 2.0, 3.0, math.nan, math.inf, -math.inf])


@settings(max_examples=15)
@given(st.integers(2, 7), st.integers(1, 3), st.data())
def test_only_finite_scores_are_right_and_the_diagonal_counts_the_right_ones(classes, k, data):
    rows = st.lists(SPECIAL, min_size=classes, max_size=classes)
    scores = np.array(data.draw(st.lists(rows, min_size=1, max_size=12)), "float32")
    labels = np.array([data.draw(st.integers(0, classes - 1)) for _ in scores])
    result = evaluate_scores(scores, labels, k)
    decided = np.isfinite(scores.max(axis=1))  # for numpy, NaN is the largest score
    order = np.argsort(-np.where(decided[:, None], scores, 0), axis=1, kind="stable")
    rank = np.where(decided & np.isfinite(scores[np.arange(len(labels)), labels]), 0, classes)
    rank += (order == labels[:, None]).argmax(axis=1)
    matrix = np.zeros((classes, classes), int)
    np.add.at(matrix, (labels[decided], order[decided, 0]), 1)
    assert result.correct == (rank == 0).sum() == matrix.trace()
    assert result.in_top5 == ((rank < min(5, classes)).sum() if classes > 5 else None)
    assert np.array_equal(result.confusion, matrix)


FALLING = np.arange(6, 0, -1, dtype="float32")[None].repeat(6, axis=0)
TWO_FINITE = np.full((8, 7), -math.inf, "float32")
TWO_FINITE[:7, :2] = [2, 1]


@pytest.mark.parametrize(
    ("scores", "labels", "expected"),
    [
        (np.full((5, 6), math.nan, "float32"), np.zeros(5, int), (0, 0, 0)),
        (FALLING, np.arange(6), (1, 5, 6)),  # class 0 is the best everywhere, 5 is the sixth
        # an infinitely small score is neither among the first five nor the best
        (TWO_FINITE, np.array([0, 1, 2, 3, 4, 5, 6, 0]), (1, 2, 7)),
    ],
)
def test_only_the_first_five_finite_scores_count(scores, labels, expected):
    result = evaluate_scores(scores, labels, 2)
    assert (result.correct, result.in_top5, result.confusion.sum()) == expected


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_loss_is_the_mean_over_all_images_of_all_batches(k):
    random = np.random.RandomState(0)
    scores, labels = random.normal(0, 3, (23, 4)), random.randint(0, 4, 23)
    expected = np.mean(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(23), labels])
    assert evaluate_scores(scores, labels, k).loss == pytest.approx(expected, rel=1e-5)
