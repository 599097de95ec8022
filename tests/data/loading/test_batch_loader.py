"""Every image once per epoch, the same shards on both paths, whatever the sizes."""

import os
import signal
import threading
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.devices import contexts

from gluonlab.data import ArraySplit, Loader
from gluonlab.data.loading.augmentation import Mixup
from gluonlab.data.loading.batch_loader import prefetch
from gluonlab.errors import DataError


def split_of(n):
    """n images whose label, and whose pixels in base 256, are their number."""
    numbers = np.arange(n)
    pixels = np.stack([numbers % 256, numbers // 256], axis=1).astype(np.uint8).reshape(n, 1, 1, 2)
    return ArraySplit(pixels, numbers.astype(np.int32))


RESIDENT = {"streaming": 0, "resident": 2**20}
sizes = dict(n=st.integers(1, 60), batch=st.integers(1, 70), k=st.integers(1, 5), seed=st.integers(0, 2**32 - 1))


@pytest.mark.parametrize("budget", RESIDENT.values(), ids=list(RESIDENT))
@settings(max_examples=25, deadline=None)
@given(**sizes, shuffle=st.booleans())
def test_every_image_occurs_once_per_epoch_with_its_label(budget, n, batch, k, seed, shuffle):
    options = dict(shuffle=shuffle, raw=True, prefetch=1, resident_bytes=budget)
    loader = Loader(split_of(n), contexts(k), batch, seed, **options)
    assert loader.is_resident == bool(budget)
    for _ in range(2):
        seen = []
        batches = list(loader)
        assert len(batches) == len(loader) == -(-n // batch)
        for xs, ys in batches:
            assert [x.context for x in xs] == contexts(len(xs))
            for x, y in zip(xs, ys):
                pixels = x.asnumpy().reshape(-1, 2).astype(int)
                assert len(pixels) > 0
                assert np.array_equal(pixels[:, 0] + 256 * pixels[:, 1], y.asnumpy())
                seen += y.asnumpy().tolist()
        assert sorted(seen) == list(range(n))


@settings(max_examples=25, deadline=None)
@given(**sizes, raw=st.booleans())
def test_streaming_and_resident_shards_are_bit_identical(n, batch, k, seed, raw):
    streamed, resident = (
        Loader(split_of(n), contexts(k), batch, seed, raw=raw, prefetch=0, resident_bytes=b) for b in RESIDENT.values()
    )
    for _ in range(2):
        for (xs, ys), (us, vs) in zip(list(streamed), list(resident)):
            assert len(xs) == len(us)
            for a, b in zip(xs + ys, us + vs):
                assert a.context == b.context and a.dtype == b.dtype
                assert np.array_equal(a.asnumpy(), b.asnumpy())


def labels_of(loader):
    return [np.concatenate([y.asnumpy() for y in ys]).tolist() for _, ys in loader]


def test_the_order_depends_only_on_seed_and_epoch():
    a = Loader(split_of(40), contexts(1), 8, seed=7)
    b = Loader(split_of(40), contexts(3), 8, seed=7, prefetch=0)
    first, second = labels_of(a), labels_of(a)
    assert first != second
    assert [labels_of(b), labels_of(b)] == [first, second]
    assert labels_of(Loader(split_of(40), contexts(1), 8, seed=8)) != first


@given(st.integers(1, 30), st.integers(1, 12), st.lists(st.integers(1, 3), min_size=1, max_size=3))
@settings(max_examples=20, deadline=None)
def test_shards_do_not_depend_on_the_division_into_workers(n, batch, counts):
    """Also with different numbers of devices. By default, all workers have equally many."""

    def shards(k, *workers, **more):
        batches = list(Loader(split_of(n), contexts(k), batch, 3, *workers, **more))
        return [[y.asnumpy().tolist() for y in ys] for _, ys in batches]

    for told, each in ((counts, counts), (None, [2] * len(counts))):
        parts = [shards(own, rank, len(counts), device_counts=told) for rank, own in enumerate(each)]
        assert [[*chain(*of_ranks)] for of_ranks in zip(*parts)] == shards(sum(each))


def test_floats_are_the_bytes_divided_by_255():
    loader = Loader(split_of(300), contexts(1), 300, shuffle=False)
    (((x,), _),) = list(loader)
    assert x.dtype == np.float32
    np.testing.assert_allclose(x.asnumpy()[:256, 0, 0, 0], np.arange(256) / 255, rtol=1e-6)


def test_a_split_that_is_larger_than_any_array_of_mxnet_streams():
    """2**31 elements and more, in the memory of one."""
    split = split_of(2)
    split.images = np.broadcast_to(np.uint8(7), (14_300, 3, 224, 224))
    split.labels = np.zeros(14_300, np.int32)
    assert split.images.size > 2**31
    loader = Loader(split, contexts(2), 4, resident_bytes=2**33, raw=True, prefetch=0)
    assert not loader.is_resident
    xs, _ = next(iter(loader))
    assert [x.shape for x in xs] == [(2, 3, 224, 224)] * 2
    assert (xs[1].asnumpy() == 7).all()


class FailingSplit:
    image_shape = (1, 1, 2)

    def __len__(self):
        return 10

    def batch(self, indices):
        if 7 in indices:
            raise OSError("unreadable image")
        return split_of(10).batch(indices)


def prefetch_threads():
    return [thread for thread in threading.enumerate() if thread.name == "gluonlab-prefetch"]


def test_an_error_while_reading_ahead_reaches_the_reader():
    with pytest.raises(OSError, match="unreadable image"):
        list(Loader(FailingSplit(), contexts(1), 2, shuffle=False, prefetch=3))
    assert not prefetch_threads()


class RecordingSplit(FailingSplit):
    """A split that others read; notes what is begun, taken and given up, by the first label of the
    batch.
    """

    def __init__(self, wrong=None):
        self.noted, self.wrong = [], wrong

    def all(self, kind):
        return [first for what, first in self.noted if what == kind]

    def batch(self, indices):
        raise AssertionError("it is read ahead")

    def start_reading(self, indices, seeds=None):
        split, first = self, indices[0]
        split.noted.append(("begin", first))

        class Reading:
            def result(self):
                split.noted.append(("take", first))
                if first == split.wrong:
                    raise DataError("no image")
                return split_of(10).batch(indices)

            def cancel(self):
                split.noted.append(("give up", first))

        return Reading()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_read_ahead_splits_start_each_batch_one_batch_early(prefetch):
    split = RecordingSplit()
    batches = list(Loader(split, contexts(1), 4, shuffle=False, prefetch=prefetch))
    assert [ys[0].asnumpy().tolist() for _, ys in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    begin, take = "begin", "take"
    assert split.noted == [(begin, 0), (begin, 4), (take, 0), (begin, 8), (take, 4), (take, 8)]


@pytest.mark.parametrize("prefetch", [0, 1])
def test_leaving_the_loop_early_cancels_started_readings(prefetch):
    split = RecordingSplit()
    batches = iter(Loader(split, contexts(1), 2, shuffle=False, prefetch=prefetch))
    next(batches)
    batches.close()
    assert split.all("begin") == split.all("take") + split.all("give up")
    assert split.all("give up")


@pytest.mark.parametrize("prefetch", [0, 1])
def test_an_error_cancels_the_readings_of_partners(prefetch):
    """The first of two workers: images 0, 1 with 3, 2, then 4, 5 with 7, 6, which are wrong, and
    the last are 8 with 9.
    """
    split = RecordingSplit(wrong=4)
    options = dict(shuffle=False, prefetch=prefetch, mixup=Mixup(1))
    with pytest.raises(DataError, match="no image"):
        list(Loader(split, contexts(1), 4, 0, 0, 2, **options))
    assert (split.all("begin"), split.all("take")) == ([0, 3, 4, 7, 8, 9], [0, 3, 4])
    assert {7, 8, 9} <= set(split.all("give up"))


def test_one_thread_prefetches_for_all_epochs_and_loaders():
    """MXNet keeps 5 MB for each thread that has ever changed images: 200 epochs, or trainings one
    after the other, would take a gigabyte.
    """
    made_by = []

    class Noting(FailingSplit):
        def batch(self, indices):
            made_by.append(threading.current_thread())
            return split_of(10).batch(indices)

    for _ in range(3):
        loader = Loader(Noting(), contexts(1), 2, prefetch=2)
        for _ in range(2):
            assert sum(len(ys[0]) for _, ys in loader) == 10
    assert len(made_by) == 30
    assert len(set(made_by)) == 1


def test_two_prefetches_run_independently():
    assert list(zip(prefetch(iter(range(1, 9)), 1), prefetch(iter(range(11, 19)), 1))) == [
        (i, 10 + i) for i in range(1, 9)
    ]


def test_the_child_of_a_fork_starts_new_prefetch_threads():
    """It inherits no running thread, such as the idle one here."""
    assert list(prefetch(iter([1, 2, 3]), 1)) == [1, 2, 3]
    under_way = prefetch(iter(range(9)), 1)
    next(under_way)
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        under_way.close()
        os._exit(list(prefetch(iter([1, 2, 3]), 1)) != [1, 2, 3])
    assert os.waitpid(child, 0)[1] == 0


def test_leaving_the_loop_early_ends_the_thread():
    batches = iter(Loader(split_of(50), contexts(1), 2, prefetch=2))
    next(batches)
    assert prefetch_threads()
    batches.close()
    assert not prefetch_threads()
