"""Pickles of gluon.Trainer are read without running them. Hostile pickles are refused."""

import os
import pickle
import subprocess
import time
import tracemalloc

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from support.damage import corrupt_bytes
from support.examples import examples

from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.errors import GluonlabError, KVStoreError
from gluonlab.optimizers.optimizer_states import read_states
from gluonlab.optimizers.read_gluon_states import read_gluon_states


class UsersSchedule:
    """A schedule that is not a class of MXNet, with lists and NumPy's numbers in it."""

    def __init__(self):
        self.base_lr, self.rates, self.by_name = np.float64(0.1), [np.float32(0.5), 2], {"a": (1, None)}

    def __call__(self, step):
        return 0.1 / (1 + step)


def write_files(protocol=None):
    """Return {name: (content, states, optimizer)} of files that gluon.Trainer writes."""
    result = {}
    for optimizer, params in {
        "sgd": {"momentum": 0.9}, "plain": {}, "adam": {"lr_scheduler": UsersSchedule()},
        "lamb": {}, "nadam": {}, "lbsgd": {},
        "rmsprop": {"centered": True, "lr_scheduler": mx.lr_scheduler.CosineScheduler(10)},
        "lars": {"momentum": 0.9},
    }.items():  # fmt: skip
        net = nn.Dense(3, in_units=2)
        net.initialize()
        name = "sgd" if optimizer == "plain" else optimizer
        trainer = gluon.Trainer(net.collect_params(), name, params, kvstore=None)
        for _ in range(3):
            with autograd.record():
                loss = net(nd.ones((4, 2))).sum()
            loss.backward()
            trainer.step(4)
        updater = trainer._updaters[0]
        content = pickle.dumps((updater.states, trainer.optimizer), protocol)
        result[optimizer] = (content, updater.states, trainer.optimizer)
    return result


def flatten_state(state):
    if state is None or isinstance(state, nd.NDArray):
        return [] if state is None else [state]
    return [array for part in state for array in flatten_state(part)]


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_files_of_gluons_trainer_are_read(protocol):
    for name, (content, states, optimizer) in write_files(protocol).items():
        result = read_gluon_states(content)
        assert result.optimizer == type(optimizer).__name__ and result.num_update == 3
        assert result.updates == {0: 3, 1: 3} and result.arrays.keys() == states.keys(), name
        for position, state in states.items():
            expected = flatten_state(state)
            assert len(expected) == len(result.arrays[position])
            assert all(np.array_equal(a.asnumpy(), b.asnumpy()) for a, b in zip(expected, result.arrays[position]))
        for number, value in result.scalars.items():
            assert value == getattr(optimizer, number)
    assert "m_schedule" in read_gluon_states(write_files()["nadam"][0]).scalars


def test_states_without_an_optimizer_are_read():
    _, states, _ = write_files()["adam"]
    assert read_gluon_states(pickle.dumps(states)).optimizer is None


def test_arrays_of_the_version_of_set_np_are_read():
    # MXNet's own functions refuse them in this mode.
    content, states, _ = write_files()["adam"]
    result = read_gluon_states(content.replace(b"\xc9\xfa\x93\xf9", b"\xca\xfa\x93\xf9"))
    assert [arrays[0].shape for arrays in result.arrays.values()] == [state[0].shape for state in states.values()]


class Calls:
    """An object whose pickle calls ``function(*arguments)``."""

    def __init__(self, function, *arguments, state=None):
        self.what = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        return self.what


def push_name(module, name):
    """Return the instructions that push a function by its name."""
    texts = [text.encode() for text in (module, name)]
    return b"".join(b"\x8c" + bytes([len(text)]) + text for text in texts) + b"\x93"


def hostile_pickles(marker):
    """Yield harmful pickles; those that call something make the file ``marker``."""
    touch = f"touch {marker}"
    code = f"open({str(marker)!r}, 'w')"
    array = pickle.dumps(nd.ones((3,)))
    for what in (
        Calls(os.system, touch), Calls(eval, code), Calls(exec, code),
        Calls(subprocess.call, ["touch", str(marker)]),
        Calls(getattr, Calls(__import__, "os"), "system"), Calls(open, str(marker), "w"),
        Calls(bytearray, 10**12), Calls(nd.NDArray, None, True),
        Calls(nd.NDArray, None, state={"handle": bytearray(b"12345678" * 100)}),
        Calls(nd.NDArray, None, state={"handle": 5}),
        Calls(nd.NDArray, None, state={"handle": None}), Calls(nd.ones, (10**9,)),
        Calls(nd.NDArray, None, state=({}, {"handle": 1})), Calls(mx.nd.load, str(marker)),
        Calls(type, "A", (), {}), Calls(np.zeros, 10**12),
        Calls(pickle.loads, pickle.dumps(Calls(os.system, touch))),
    ):  # fmt: skip
        yield pickle.dumps(what)
        yield pickle.dumps({0: what})
        yield pickle.dumps(({0: nd.ones((3,))}, what))
        yield pickle.dumps(({0: [what] * 3}, UsersSchedule()))
    # os.system as the class of an object, as its __new__, as a state that is set
    yield (b"\x80\x04" + push_name("posix", "system") + b"\x8c" + bytes([len(touch)]) + touch.encode() + b"\x85\x81.")
    yield (b"\x80\x04" + push_name("posix", "system") + b"}\x8c\x01a" + push_name("builtins", "eval") + b"sb.")
    yield b"\x80\x04}" + push_name("builtins", "dict") + b")\x81}b\x86."
    yield b"\x80\x04Pnumber\n."  # persistent
    yield (b"\x80\x02cposix\nsystem\nX" + len(touch).to_bytes(4, "little") + touch.encode() + b"\x85R.")
    yield b"\x80\x04(S'" + touch.encode() + b"'\niposix\nsystem\n."
    yield b"\x80\x04\x82\x01."  # a registered extension
    # a key of nested tuples, which crashes Python
    yield b"\x80\x04})" + b"\x85" * 100_000 + b"K\x01s."
    yield b"\x80\x04})" + b"\x94\x85h\x00\x86" * 60 + b"K\x01s."
    yield b"\x80\x04})" + b"2\x86" * 60 + b"K\x01s."
    yield b"\x80\x04K\x01r\xff\xff\xff\x7f."  # a memo of two thousand million
    yield b"\x80\x04\x96" + (2**40).to_bytes(8, "little") + b"."  # a bytearray of a terabyte
    yield b"\x80\x04\x8e" + (2**63).to_bytes(8, "little") + b"."
    yield b"\x80\x04\x95" + (2**62).to_bytes(8, "little") + b"}."
    yield b"\x80\x04" + b"(" * 100_000 + b"."
    yield b"\x80\x04]" + b"\x94" * 100_000 + b"."
    yield b"\x80\x04\x8a\xff" + b"\x7f" * 255 + b"."
    yield b"\x80\x04}K\x00]" + b"(" + b"h\x00" * 1000 + b"e."
    yield b"\x80\x04K\x00" + array[2:-1] + b"\x86."  # a number and an array
    deep = nd.ones((3,))
    for _ in range(30):
        deep = (deep, deep)
    yield from map(pickle.dumps, ({0: deep}, {-1: None}, {2**70: None}, {0: [None] * 1000}, ({}, {}), []))
    yield from (b"\x80", b"\x80\x04.", b"\x80\x04R.", b"\x80\x04}b.")


def test_hostile_pickles_do_nothing_and_are_refused_in_one_line(tmp_path):
    marker, path = tmp_path / "done", tmp_path / "states"
    net = nn.Dense(3, in_units=2)
    net.initialize()
    trainer = BucketedTrainer(net.collect_params(), "adam")
    count = 0
    for content in hostile_pickles(marker):
        path.write_bytes(content)
        with pytest.raises(KVStoreError) as caught:
            trainer.load_states(str(path))
            raise AssertionError(content[:300])
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
        assert not marker.exists(), content[:100]
        count += 1
    assert count > 80


def test_arrays_that_share_memory_in_the_file_are_refused(tmp_path):
    array = pickle.dumps(nd.ones((2**16,)), 4)
    start = array.index(b"\x95") + 9  # behind the frame's length
    content = b"\x80\x04}(" + b"K\x00" + array[start:-1] + b"u."
    assert read_gluon_states(content).arrays[0][0].size == 2**16
    shared = [nd.ones((2**16,))] * 10
    content = pickle.dumps({position: tuple(shared) for position in range(1000)})
    with pytest.raises(ValueError, match="an array twice"):
        read_gluon_states(content)


@pytest.mark.long
def test_reading_a_pickle_needs_limited_memory():
    tracemalloc.start()
    with pytest.raises(ValueError):
        read_gluon_states(b"\x80\x04" + b"]" * 8_000_000 + b".")
    assert tracemalloc.get_traced_memory()[1] < 2**28
    tracemalloc.stop()


INSTRUCTIONS = [bytes([code]) for code in b"}]()(tusaeRb\x81\x93h\x94q.N0\x85\x86\x87\x95G\x8aKMJ"] + [
    push_name("posix", "system")
]


@pytest.fixture(scope="module")
def contents():
    return [content for content, _, _ in write_files().values()]


@examples(24, 5_000)
@given(st.data())
def test_damaged_pickles_are_read_or_refused(contents, data):
    content = corrupt_bytes(data, data.draw(st.sampled_from(contents)), 4, INSTRUCTIONS)
    begin = time.process_time()
    try:
        result = read_gluon_states(content)
    except ValueError as error:
        assert "\n" not in str(error) and len(str(error)) < 300
    else:
        read = [array for arrays in result.arrays.values() for array in arrays]
        assert all(isinstance(array, nd.NDArray) for array in read)
    assert time.process_time() - begin < 60


@settings(max_examples=100)
@given(st.lists(st.sampled_from(INSTRUCTIONS) | st.binary(min_size=1, max_size=3), max_size=40))
def test_programs_made_of_instructions_are_read_or_refused(program):
    try:
        read_gluon_states(b"\x80\x04" + b"".join(program) + b".")
    except ValueError as error:
        assert "\n" not in str(error)


def test_another_pickle_raises_a_gluonlab_error(tmp_path):
    (tmp_path / "states").write_bytes(pickle.dumps("states"))
    with pytest.raises(
        GluonlabError, match=r"cannot be read as optimizer states \(the pickle does not contain states by parameter"
    ):
        read_states(str(tmp_path / "states"))
