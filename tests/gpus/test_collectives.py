"""NCCL's collectives on simulated GPUs: right numbers of all types, and faults for what would hang
or differ.
"""

import json
from contextlib import ExitStack
from functools import reduce as folded

import numpy as np
from gpus import nccl_calls
from gpus.commands import run_python
from gpus.cuda_calls import memory, stream
from gpus.machines import v100s
from hypothesis import given
from hypothesis import strategies as st

DEVICES = st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True)
FOLDS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


class Ranks:
    """A communicator, a stream and memory for each rank."""

    def __init__(self, stack, devices, values):
        self.communicators = stack.enter_context(nccl_calls.communicators(devices))
        self.streams = [stack.enter_context(stream(device)) for device in devices]
        words = max(1, -(-values[0].nbytes // 4))  # of 4 bytes, which memory and copies count
        self.memories = [stack.enter_context(memory(words, device)) for device in devices]
        self.results = [stack.enter_context(memory(words, device)) for device in devices]
        for own, place, value in zip(self.streams, self.memories, values):
            padded = np.zeros(words, "float32")
            padded.view("uint8")[: value.nbytes] = value.view("uint8")
            own.copy(place, padded, words)
        self.words, self.dtype, self.count = words, values[0].dtype, len(values[0])

    def each(self):
        return enumerate(zip(self.communicators, self.streams, self.memories, self.results))

    def read(self, rank, place):
        words = self.streams[rank].read(place, self.words)
        return words.view("uint8")[: self.count * self.dtype.itemsize].view(self.dtype)


@given(
    devices=DEVICES, count=st.integers(1, 9), dtype=st.sampled_from(sorted(nccl_calls.TYPES)),
    operation=st.sampled_from(sorted(FOLDS)), in_place=st.booleans(), data=st.data(),
)  # fmt: skip
def test_reductions_and_broadcasts_of_all_types(devices, count, dtype, operation, in_place, data):
    root = data.draw(st.integers(0, len(devices) - 1))
    values = [np.random.RandomState(rank).randint(1, 4, count).astype(dtype) for rank in range(len(devices))]
    with ExitStack() as stack:
        ranks = Ranks(stack, devices, values)
        places = ranks.memories if in_place else ranks.results
        with nccl_calls.group():
            for rank, (communicator, own, send, _) in ranks.each():
                receive = places[rank].address if rank == root else None
                assert nccl_calls.reduce(send.address, receive, count, dtype, operation, root, communicator, own) == 0
        expected = folded(FOLDS[operation], values)
        np.testing.assert_array_equal(ranks.read(root, places[root]), expected)
        with nccl_calls.group():
            for rank, (communicator, own, _, _) in ranks.each():
                assert nccl_calls.broadcast(places[rank].address, count, dtype, root, communicator, own) == 0
        for rank in range(len(devices)):
            np.testing.assert_array_equal(ranks.read(rank, places[rank]), expected)


def test_ranks_that_call_different_things_are_found(take_faults):
    with ExitStack() as stack:
        ranks = Ranks(stack, [0, 1], [np.ones(4, "float32")] * 2)
        with nccl_calls.group():
            for rank, (communicator, own, place, _) in ranks.each():
                nccl_calls.broadcast(place.address, 4 - rank, "float32", 0, communicator, own)
        for own in ranks.streams:
            own.synchronize()
    assert any("differs from what other ranks call" in fault for fault in take_faults())


def test_memory_of_another_gpu_is_no_rank_s_own(take_faults):
    with ExitStack() as stack:
        ranks = Ranks(stack, [4, 6], [np.ones(4, "float32")] * 2)
        with nccl_calls.group():
            for rank, (communicator, own, _, _) in ranks.each():
                nccl_calls.broadcast(ranks.memories[1 - rank].address, 4, "float32", 0, communicator, own)
    assert any("illegal access: ncclBcast" in fault for fault in take_faults())


LEAVES_ONE_OUT = """
import json
import simulated
import nccl_calls
from cuda_calls import memory, stream
with nccl_calls.communicators([0, 1]) as ranks, stream(0) as own, memory(4) as place:
    nccl_calls.broadcast(place.address, 4, "float32", 0, ranks[0], own)
    own.synchronize()
print(json.dumps(simulated.faults()))
simulated.forget_faults()
"""


def test_a_rank_that_does_not_come_is_named(tmp_path):
    process = run_python(v100s(2, patience_s=0.1), tmp_path, "-c", LEAVES_ONE_OUT)
    assert json.loads(process.stdout) == ["ncclBcast of rank 0 waits for ever, as it is not called by rank 1"]
