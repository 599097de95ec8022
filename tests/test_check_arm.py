"""tools/check_arm.py refuses systems without an emulator, in one line, and registers the emulator only if needed."""

import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[1] / "tools"
sys.path.insert(0, str(TOOLS))

import check_arm  # noqa: E402


@pytest.fixture
def suitable(monkeypatch):
    """A system on which the emulation could run."""
    monkeypatch.setattr(check_arm.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(check_arm.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(check_arm.os, "geteuid", lambda: 0)
    monkeypatch.setattr(check_arm, "DEBIAN_VERSION", Path(sys.executable))
    monkeypatch.setattr(check_arm, "QEMU", sys.executable)


def refusal():
    with pytest.raises(SystemExit) as exit_:
        check_arm.check_system()
    assert "\n" not in exit_.value.code
    return exit_.value.code


def test_a_suitable_system_is_accepted(suitable):
    assert check_arm.check_system() is None


def test_each_missing_part_is_named_with_what_to_do(suitable, monkeypatch, tmp_path):
    monkeypatch.setattr(check_arm, "QEMU", str(tmp_path / "qemu"))
    assert "apt-get install qemu-user-static" in refusal()
    monkeypatch.setattr(check_arm.os, "geteuid", lambda: 1000)
    assert "needs root" in refusal()
    monkeypatch.setattr(check_arm, "DEBIAN_VERSION", tmp_path / "none")
    assert "needs Debian" in refusal()
    monkeypatch.setattr(check_arm.platform, "machine", lambda: "aarch64")
    assert "use make test" in refusal()


def test_a_registered_emulator_is_left_alone(monkeypatch, tmp_path):
    (tmp_path / "register").touch()
    (tmp_path / check_arm.HANDLER).write_text("enabled")
    monkeypatch.setattr(check_arm, "BINFMT", tmp_path)
    with check_arm.emulate_programs():
        pass
    assert (tmp_path / "register").read_text() == ""
    assert (tmp_path / check_arm.HANDLER).read_text() == "enabled"


def test_an_emulator_that_the_program_registers_is_removed_again(monkeypatch, tmp_path):
    (tmp_path / "register").touch()
    monkeypatch.setattr(check_arm, "BINFMT", tmp_path)
    with pytest.raises(KeyboardInterrupt), check_arm.emulate_programs():
        assert (tmp_path / "register").read_text().startswith(":qemu-aarch64:M::\\x7fELF")
        raise KeyboardInterrupt
    assert (tmp_path / check_arm.HANDLER).read_text() == "-1"  # removes the entry from the kernel


def test_requirements_are_those_of_arm():
    names = {requirement.split("=")[0].split("<")[0].split(">")[0] for requirement in check_arm.wheel_requirements()}
    assert {"mxnet", "scipy-openblas32", "numpy", "pytest"} <= names
    assert not {"cykooz.resizer", "mxnet-cu112", "ruff"} & names


def test_a_failed_command_shows_its_output(capsys):
    with pytest.raises(SystemExit, match="exited with status 3: see the lines above"):
        check_arm.run_quietly([sys.executable, "-c", "print('why'); raise SystemExit(3)"])
    assert capsys.readouterr().err == "why\n"
