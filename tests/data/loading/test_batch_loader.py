"""Each image occurs once per epoch; streamed and resident shards are equal, for any sizes."""

import os
import signal
import threading
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.devices import contexts

from gluonlab.data import ArraySplit, Loader
from gluonlab.data.loading.augmentation import Mixup
from gluonlab.data.loading.prefetch import prefetch
from gluonlab.errors import DataError


def numbered_split(n):
    """Return n images whose label, and whose pixels in base 256, are their number."""
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
    loader = Loader(numbered_split(n), contexts(k), batch, seed, **options)
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
        Loader(numbered_split(n), contexts(k), batch, seed, raw=raw, prefetch=0, resident_bytes=b)
        for b in RESIDENT.values()
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
    loaders = (Loader(numbered_split(40), contexts(k), 8, seed, prefetch=k) for k, seed in ((1, 7), (3, 7), (1, 8)))
    one, same_seed, other = ([labels_of(loader), labels_of(loader)] for loader in loaders)
    assert one[0] != one[1]
    assert one == same_seed
    assert one[0] != other[0]


@given(st.integers(1, 30), st.integers(1, 12), st.lists(st.integers(1, 3), min_size=1, max_size=3))
@settings(max_examples=20, deadline=None)
def test_shards_do_not_depend_on_the_division_into_workers(n, batch, counts):
    """Also with different numbers of devices. By default, all workers have equally many."""

    def shards(k, *workers, **more):
        batches = list(Loader(numbered_split(n), contexts(k), batch, 3, *workers, **more))
        return [[y.asnumpy().tolist() for y in ys] for _, ys in batches]

    for told, each in ((counts, counts), (None, [2] * len(counts))):
        parts = [shards(own, rank, len(counts), device_counts=told) for rank, own in enumerate(each)]
        assert [[*chain(*of_ranks)] for of_ranks in zip(*parts)] == shards(sum(each))


def test_a_split_that_is_larger_than_any_array_of_mxnet_streams():
    """2**31 elements and more, in the memory of one."""
    split = ArraySplit(np.broadcast_to(np.uint8(7), (14_300, 3, 224, 224)), np.zeros(14_300, np.int32))
    assert split.images.size > 2**31
    loader = Loader(split, contexts(2), 4, resident_bytes=2**33, raw=True, prefetch=0)
    assert not loader.is_resident
    xs, _ = next(iter(loader))
    assert [x.shape for x in xs] == [(2, 3, 224, 224)] * 2
    assert (xs[1].asnumpy() == 7).all()


class TenImages:
    """A split whose batches a function reads."""

    image_shape = (1, 1, 2)

    def __init__(self, batch):
        self.batch = batch

    def __len__(self):
        return 10


def prefetch_threads():
    return [thread for thread in threading.enumerate() if thread.name == "gluonlab-prefetch"]


def test_an_error_while_reading_ahead_reaches_the_reader():
    def fail(indices):
        if 7 in indices:
            raise OSError("unreadable image")
        return numbered_split(10).batch(indices)

    with pytest.raises(OSError, match="unreadable image"):
        list(Loader(TenImages(fail), contexts(1), 2, shuffle=False, prefetch=3))
    assert not prefetch_threads()


class RecordingSplit(TenImages):
    """Records which readings are started, awaited and cancelled, by the first label of the batch."""

    def __init__(self, unreadable=None):
        super().__init__(batch=pytest.fail)  # it is read ahead
        self.events, self.unreadable = [], unreadable

    def firsts(self, kind):
        return [first for name, first in self.events if name == kind]

    def start_reading(self, indices, seeds=None):
        first = indices[0]

        def result():
            self.events.append(("result", first))
            if first == self.unreadable:
                raise DataError("no image")
            return numbered_split(10).batch(indices)

        self.events.append(("start", first))
        return SimpleNamespace(result=result, cancel=lambda: self.events.append(("cancel", first)))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_read_ahead_splits_start_each_batch_one_batch_early(prefetch):
    split = RecordingSplit()
    batches = list(Loader(split, contexts(1), 4, shuffle=False, prefetch=prefetch))
    assert [ys[0].asnumpy().tolist() for _, ys in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    start, result = "start", "result"
    assert split.events == [(start, 0), (start, 4), (result, 0), (start, 8), (result, 4), (result, 8)]


@pytest.mark.parametrize("prefetch", [0, 1])
def test_leaving_the_loop_early_cancels_started_readings(prefetch):
    split = RecordingSplit()
    batches = iter(Loader(split, contexts(1), 2, shuffle=False, prefetch=prefetch))
    next(batches)
    batches.close()
    assert split.firsts("start") == split.firsts("result") + split.firsts("cancel")
    assert split.firsts("cancel")


@pytest.mark.parametrize("prefetch", [0, 1])
def test_an_error_cancels_the_readings_of_partners(prefetch):
    """The first of two workers mixes images 0, 1 with 3, 2, then 4, 5 (unreadable) with 7, 6, then 8 with 9."""
    split = RecordingSplit(unreadable=4)
    options = dict(shuffle=False, prefetch=prefetch, mixup=Mixup(1))
    with pytest.raises(DataError, match="no image"):
        list(Loader(split, contexts(1), 4, 0, 0, 2, **options))
    assert (split.firsts("start"), split.firsts("result")) == ([0, 3, 4, 7, 8, 9], [0, 3, 4])
    assert {7, 8, 9} <= set(split.firsts("cancel"))


def test_one_thread_prefetches_for_all_epochs_and_loaders():
    """MXNet keeps 5 MB for each thread that has changed images: 200 epochs would take a gigabyte."""
    threads = []

    def read(indices):
        threads.append(threading.current_thread())
        return numbered_split(10).batch(indices)

    for _ in range(3):
        loader = Loader(TenImages(read), contexts(1), 2, prefetch=2)
        for _ in range(2):
            assert sum(len(ys[0]) for _, ys in loader) == 10
    assert (len(threads), len(set(threads))) == (30, 1)


def test_two_prefetches_run_independently():
    assert list(zip(prefetch(iter(range(9)), 1), prefetch(iter(range(11, 20)), 1))) == [(i, 11 + i) for i in range(9)]


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
    batches = iter(Loader(numbered_split(50), contexts(1), 2, prefetch=2))
    next(batches)
    assert prefetch_threads()
    batches.close()
    assert not prefetch_threads()
