"""The devices of the tests: deterministic algorithms on GPUs, and modules without devices."""

from pathlib import Path

from support.device_use import TESTS, WITHOUT_DEVICES
from support.devices import CHOICE

from gluonlab.gpu.math_modes import resolve_arithmetic


def test_convolutions_repeat_their_bits():
    assert resolve_arithmetic().deterministic == (CHOICE.requested_kind == "gpu")


def test_modules_without_devices_are_there():
    """Check the list, because a renamed module would silently run on GPUs again."""
    parts = [Path(name) for name in WITHOUT_DEVICES.split()]
    modules = [Path(TESTS, part.parent, f"test_{part.name}.py") for part in parts]
    assert [str(module) for module in modules if not module.is_file()] == []
