"""cuRAND on simulated GPUs: numbers of the right distribution, from seeds, alike on all devices."""

import ctypes

import numpy as np
import pytest
from gpus.cuda_calls import memory, stream
from hypothesis import given
from hypothesis import strategies as st

DEFAULT_KIND = 100  # CURAND_RNG_PSEUDO_DEFAULT
ODD_NUMBER_OF_NORMALS = 105  # CURAND_STATUS_LENGTH_NOT_MULTIPLE


def generate(call, *arguments, count=1000, seed=7, offset=0, device=0, times=1):
    """What a generator gives that begins anew; of several calls the last."""
    curand = ctypes.CDLL("libcurand.so.10")
    generator = ctypes.c_void_p()
    with stream(device) as own, memory(count, device) as numbers:
        assert curand.curandCreateGenerator(ctypes.byref(generator), DEFAULT_KIND) == 0
        curand.curandSetStream(generator, own.handle)
        curand.curandSetPseudoRandomGeneratorSeed(generator, ctypes.c_ulonglong(seed))
        curand.curandSetGeneratorOffset(generator, ctypes.c_ulonglong(offset))
        for _ in range(times):
            status = getattr(curand, call)(generator, numbers.address, ctypes.c_size_t(count), *arguments)
        result = own.read(numbers, count)
        own.synchronize()
        curand.curandDestroyGenerator(generator)
        return status, result


@given(
    seed=st.integers(0, 2**40),
    offset=st.integers(0, 99),
    call=st.sampled_from(["curandGenerate", "curandGenerateUniform"]),
)
def test_a_seed_gives_the_same_numbers_on_every_device_and_an_offset_later_ones(seed, offset, call):
    first, other = (generate(call, seed=seed, offset=offset, device=device)[1].tobytes() for device in (0, 3))
    assert first == other
    assert generate(call, seed=seed + 1, offset=offset)[1].tobytes() != first
    from_the_beginning = generate(call, seed=seed, count=1000 + offset)[1].tobytes()
    assert from_the_beginning[4 * offset :] == first
    assert generate(call, seed=seed, offset=offset, times=2)[1].tobytes() != first


def test_uniform_numbers_are_above_0_and_at_most_1():
    status, numbers = generate("curandGenerateUniform", count=100_000)
    assert status == 0 and numbers.min() > 0 and numbers.max() <= 1
    counts, _ = np.histogram(numbers, bins=10, range=(0, 1))
    assert (abs(counts - 10_000) < 5 * np.sqrt(9_000)).all()


def test_normal_numbers_have_their_mean_and_deviation():
    status, numbers = generate("curandGenerateNormal", ctypes.c_float(3), ctypes.c_float(2), count=100_000)
    assert status == 0
    assert abs(numbers.mean() - 3) < 0.05 and abs(numbers.std() - 2) < 0.05
    assert abs((abs(numbers - 3) < 2).mean() - 0.6827) < 0.01  # within one deviation


@pytest.mark.parametrize("count", [1, 7])
def test_normal_numbers_come_in_pairs(count):
    assert (
        generate("curandGenerateNormal", ctypes.c_float(0), ctypes.c_float(1), count=count)[0] == ODD_NUMBER_OF_NORMALS
    )
