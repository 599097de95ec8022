"""With GLUONLAB_TEST_DEVICES=gpu tests are tried on few examples, and by algorithms that repeat
their bits.
"""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from support.device_use import MOST_EXAMPLES, TESTS, WITHOUT_DEVICES
from support.devices import CHOICE

from gluonlab.gpu.arithmetic import arithmetic

GPUS = CHOICE.asked == "gpu"
TRIED = {"with settings": 0, "without": 0}


@settings(max_examples=40)
@given(st.integers())
def test_a_property_is_tried_on_no_more_examples_than_it_asks_for(_):
    TRIED["with settings"] += 1
    assert TRIED["with settings"] <= (MOST_EXAMPLES if GPUS else 40)


@given(st.integers())
def test_a_property_that_asks_for_no_number_is_tried_on_few_as_well(_):
    TRIED["without"] += 1
    assert TRIED["without"] <= (MOST_EXAMPLES if GPUS else settings.default.max_examples)


def test_convolutions_repeat_their_bits():
    assert arithmetic().deterministic == GPUS


def test_modules_without_devices_are_there():
    """A renamed module would be run on GPUs again, without a word."""
    parts = [Path(name) for name in WITHOUT_DEVICES.split()]
    modules = [Path(TESTS, part.parent, f"test_{part.name}.py") for part in parts]
    assert [str(module) for module in modules if not module.is_file()] == []
