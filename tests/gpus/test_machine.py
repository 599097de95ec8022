"""The simulated machine itself: what a real GPU would punish, it finds; what is right, it lets
pass. CUDA's own calls, no MXNet.
"""

import ctypes
import json
import threading

import numpy as np
import pytest
from gpus.commands import run_python
from gpus.cuda_calls import (
    ALREADY_ENABLED,
    CUDA,
    NO_PEERS,
    OUT_OF_MEMORY,
    CudaError,
    Memory,
    event,
    launch_unknown,
    memory,
    no_peer_access,
    stream,
)
from gpus.machines import P3_16XLARGE, V100, v100s
from gpus.simulated import bytes_in_use, faults, forget_faults
from hypothesis import given
from hypothesis import strategies as st

NUMBERS = np.arange(16, dtype="float32")


def write_numbers(target, numbers=NUMBERS):
    with stream(target.device) as writer:
        writer.copy(target, numbers, len(numbers))


def test_new_memory_is_full_of_nan():
    with memory(16) as new, stream() as reader:
        assert np.isnan(reader.read(new, 16)).all()


def test_what_is_queued_on_a_stream_happens_in_order_and_later():
    with memory(16) as target, stream() as first, stream() as other:
        first.hold()
        first.copy(target, NUMBERS, 16)
        assert np.isnan(other.read(target, 16)).all()  # another stream waits for nobody
        first.release()
        first.synchronize()
        assert (other.read(target, 16) == NUMBERS).all()


def test_a_stream_that_waits_for_an_event_reads_what_was_written_and_one_that_does_not_reads_nan():
    for waits in (True, False):
        with memory(16) as written_late, memory(16) as copied, stream() as writer, stream() as reader, event() as done:
            writer.hold()
            writer.copy(written_late, NUMBERS, 16)
            writer.record(done)
            if waits:
                reader.wait_for(done)
            reader.copy(copied, written_late, 16)
            if not waits:
                reader.synchronize()
            writer.release()
            writer.synchronize()
            assert (reader.read(copied, 16) == NUMBERS).all() == waits


def test_an_event_that_was_never_recorded_holds_nobody_up():
    with memory(16) as target, stream() as reader, event() as never:
        reader.wait_for(never)
        reader.fill(target, 0, 16)
        assert (reader.read(target, 16) == 0).all()


@pytest.mark.parametrize("blocking", [True, False])
def test_the_default_stream_waits_for_streams_but_for_those_that_are_non_blocking(blocking):
    with memory(16) as target, stream(blocking=blocking) as other:
        other.hold()
        other.fill(target, 0, 16)
        read = np.full(16, 7, "float32")
        reading = threading.Thread(
            target=lambda: CUDA.cudaMemcpyAsync(
                ctypes.c_void_p(read.ctypes.data), target.address, ctypes.c_size_t(64), 4, None
            )
        )
        reading.start()
        reading.join(0.05 if blocking else 20)
        assert reading.is_alive() == blocking
        other.release()
        reading.join(20)
        assert np.isnan(read).all() != blocking


def test_memory_of_the_host_is_read_before_the_call_returns_and_written_before_it_returns():
    with memory(16) as target, stream() as other:
        numbers = NUMBERS.copy()
        other.hold()
        other.copy(target, numbers, 16)
        numbers[:] = -1
        other.release()
        read = np.zeros(16, "float32")
        other.copy(read, target, 16)
        assert (read == NUMBERS).all()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5000), st.booleans()), max_size=12))
def test_bytes_in_use_are_those_that_were_allocated_and_not_freed(blocks):
    before = [bytes_in_use(device) for device in range(4)]
    kept = []
    for device, count, is_freed in blocks:
        block = Memory(count, device)
        block.free() if is_freed else kept.append(block)
    for device in range(4):
        assert bytes_in_use(device) - before[device] == sum(block.bytes for block in kept if block.device == device)
    for block in kept:
        block.free()
    assert [bytes_in_use(device) for device in range(4)] == before


def test_more_memory_than_a_gpu_has_is_refused():
    with pytest.raises(CudaError) as refused:
        Memory(V100[2] // 4 + 1)
    assert refused.value.number == OUT_OF_MEMORY


def test_freed_memory_is_no_longer_there(take_faults):
    gone = Memory(16)
    write_numbers(gone)
    gone.free()
    with stream() as reader:
        reader.fill(gone, 0, 16)
    [fault] = take_faults()
    assert "memory of gpu 0 that is freed" in fault


def test_memory_is_freed_once(take_faults):
    gone = Memory(16)
    gone.free()
    gone.free()
    assert take_faults() == ["memory is freed twice"]


def test_work_that_goes_beyond_its_memory_is_a_fault(take_faults):
    with memory(16) as short, stream() as writer:
        writer.fill(short.address_of(1), 0, 15)
        assert take_faults() == []
        writer.fill(short.address_of(1), 0, 16)
    [fault] = take_faults()
    assert "64 bytes, of which there are fewer in its block" in fault


@given(size=st.integers(1, 40), more=st.integers(1, 8))
def test_not_a_byte_behind_a_block_belongs_to_it(size, more):
    address = ctypes.c_void_p()
    CUDA.cudaSetDevice(0)
    CUDA.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(size))
    for expected, count in ((size, 0), (size + more, 1)):
        CUDA.cudaMemsetAsync(address, 0, ctypes.c_size_t(expected), None)
        result = faults()
        forget_faults()
        assert len(result) == count
    CUDA.cudaFree(address)


def test_a_gpu_reaches_no_other_ones_memory_without_peer_access(take_faults):
    with no_peer_access(2, 3), memory(16, device=3) as others, stream(device=2) as writer:
        writer.fill(others, 0, 16)
    [fault] = take_faults()
    assert fault == "illegal access: cudaMemsetAsync on gpu 2 reaches memory of gpu 3 without peer access"


def test_memory_of_the_host_is_no_gpus(take_faults):
    with stream() as writer:
        host = np.zeros(16, "float32")
        writer.fill(host, 0, 16)
    [fault] = take_faults()
    assert "pageable memory of the host" in fault


def test_a_kernel_belongs_on_a_stream_of_its_gpu_and_a_copy_on_any(take_faults):
    with memory(16, device=1) as target, stream(device=0) as other:
        CUDA.cudaSetDevice(1)
        CUDA.cudaMemsetAsync(target.address, 0, ctypes.c_size_t(64), other.handle)
        assert take_faults() == []
        with event() as done:
            CUDA.cudaEventRecord(done, other.handle)
    [fault] = take_faults()
    assert fault == "cudaEventRecord on gpu 1 is given a stream of gpu 0"


def test_an_unknown_kernel_is_named(take_faults):
    launch_unknown()
    [fault] = take_faults()
    assert fault == "unknown kernel: void mxnet::op::no_such_kernel<float>(int, float*)"


def test_an_unknown_kernel_is_a_fault_where_nothing_is_computed_too(tmp_path):
    process = run_script(v100s(1, computes=False), tmp_path, "launch_unknown()")
    assert process.returncode == 86 and "unknown kernel: void mxnet::op::no_such_kernel" in process.stderr


IMPORTS = """
from cuda_calls import *
from simulated import counters
"""


def run_script(machine, folder, script):
    """Run a script that may call CUDA on a machine; return the finished process."""
    return run_python(machine, folder, "-c", IMPORTS + script)


COPY_BETWEEN = """
a, b, s = Memory(16, 0), Memory(16, 1), Stream(0)
{enable}
s.copy(b, a, 16); s.synchronize()
told = counters()
print(told["copies_direct"], told["bytes_direct"], told["copies_staged"], told["bytes_staged"])
"""
ENABLE = "CUDA.cudaSetDevice(0); CUDA.cudaDeviceEnablePeerAccess(1, 0)"


def test_copies_between_gpus_are_direct_with_peer_access_and_staged_without(tmp_path):
    assert run_script(v100s(2), tmp_path, COPY_BETWEEN.format(enable=ENABLE)).stdout.split() == ["1", "64", "0", "0"]
    assert run_script(v100s(2), tmp_path, COPY_BETWEEN.format(enable="")).stdout.split() == ["0", "0", "1", "64"]


def test_a_process_with_faults_that_nobody_asked_for_does_not_end_well_and_names_them(tmp_path):
    promising = v100s(2, promises_peers=True)
    process = run_script(promising, tmp_path, COPY_BETWEEN.format(enable=""))
    assert process.returncode == 86
    assert "a copy from gpu 0 to gpu 1 goes through the host, as no peer access is enabled" in process.stderr
    assert run_script(promising, tmp_path, COPY_BETWEEN.format(enable=ENABLE)).returncode == 0


def test_only_gpus_with_a_link_are_peers_on_a_p3_16xlarge(tmp_path):
    script = """
def enabled(a, b):
    CUDA.cudaSetDevice(a)
    try: CUDA.cudaDeviceEnablePeerAccess(b, 0)
    except CudaError as error: return error.number
    return 0
print([[enabled(a, b) for b in range(8)] for a in range(8)])
print(enabled(0, 3))
"""
    report, again = run_script(P3_16XLARGE, tmp_path, script).stdout.splitlines()
    result = {(a, b): number for a, row in enumerate(json.loads(report)) for b, number in enumerate(row)}
    assert {pair for pair, number in result.items() if number == 0} == {
        pair for a, b in P3_16XLARGE.nvlinks for pair in ((a, b), (b, a))
    }
    assert {number for number in result.values() if number} == {NO_PEERS}
    assert int(again) == ALREADY_ENABLED


def test_delays_change_no_result_of_what_is_ordered(tmp_path):
    script = """
import numpy as np
blocks = [Memory(64, d) for d in (0, 1, 0, 1)]
streams = [Stream(0), Stream(1)]
numbers = np.arange(64, dtype="float32")
streams[0].copy(blocks[0], numbers, 64)
done = ctypes.c_void_p(); CUDA.cudaEventCreateWithFlags(ctypes.byref(done), 2)
for step in range(40):
    here, there = step % 2, (step + 1) % 2
    streams[here].record(done); streams[there].wait_for(done)
    streams[there].copy(blocks[there], blocks[here], 64)
assert (streams[0].read(blocks[0], 64) == numbers).all()
"""
    for seed in range(3):
        process = run_script(v100s(2, delay_us=300, seed=seed), tmp_path, script)
        assert process.returncode == 0, process.stderr


def test_counters_count(tmp_path):
    """In a process of its own: they count what all of its threads do."""
    script = """
import json
import numpy as np
before = counters()
with memory(16) as target, stream() as writer:
    writer.fill(target, 0, 16)
    writer.copy(target, np.arange(16, dtype="float32"), 16)
    writer.synchronize()
print(json.dumps({name: count - before[name] for name, count in counters().items()}))
"""
    report = json.loads(run_script(v100s(1), tmp_path, script).stdout)
    assert {name: count for name, count in report.items() if count} == {
        "allocations": 1, "frees": 1, "memsets": 1, "copies_from_pageable": 1,
        "bytes_from_host": 64, "stream_synchronizations": 2,
    }  # fmt: skip
