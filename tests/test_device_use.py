"""With GLUONLAB_TEST_DEVICES=gpu tests compute by algorithms that repeat their bits."""

from pathlib import Path

from support.device_use import TESTS, WITHOUT_DEVICES
from support.devices import CHOICE

from gluonlab.gpu.math_modes import resolve_arithmetic


def test_convolutions_repeat_their_bits():
    assert resolve_arithmetic().deterministic == (CHOICE.requested_kind == "gpu")


def test_modules_without_devices_are_there():
    """A renamed module would be run on GPUs again, without a word."""
    parts = [Path(name) for name in WITHOUT_DEVICES.split()]
    modules = [Path(TESTS, part.parent, f"test_{part.name}.py") for part in parts]
    assert [str(module) for module in modules if not module.is_file()] == []
