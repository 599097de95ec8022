"""pip accepts the install commands that errors print, with this Python."""

import importlib.metadata
import re
import shutil

import pytest
from support.environments import INSTALLED, VirtualEnvironment

from gluonlab.engine.mxnet_and_cuda_libraries import (
    cuda_build_advice,
    has_cuda_build,
    pip_install_choices,
    pip_install_command,
)

VERSIONS = [(3, minor) for minor in range(8, 15)]


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: f"3.{version[1]}")
@pytest.mark.parametrize(("extra", "distribution"), [("cpu", "mxnet"), ("cu112", "mxnet-cu112")])
def test_a_command_installs_the_extras_and_the_mxnet_of_setup_py(version, extra, distribution):
    metadata = importlib.metadata.metadata("gluonlab")
    requirements = metadata.get_all("Requires-Dist")
    command = pip_install_command(extra, version)
    assert command in pip_install_choices(version, "linux", "x86_64")
    extras = re.findall(r"gluonlab\[(\w+)\]", command)
    assert set(extras) <= set(metadata.get_all("Provides-Extra"))
    named = re.findall(r"\bmxnet[-\w]*==[\d.]+", command)
    required = {need for need in requirements if re.search(rf"extra == .{extra}\b", need)}
    assert any(need.startswith(f"{distribution}==") for need in required)
    if version < (3, 13):
        assert (extras, named) == ([extra], [])
    else:
        assert "--no-deps" in command
        assert any(need.startswith(tuple(named)) for need in required)
        of_extras = {need for need in requirements if any(re.search(rf"extra == .{name}\b", need) for name in extras)}
        assert {need.split(";")[0].strip() for need in required if "nvidia" in need} == {
            need.split(";")[0].strip() for need in of_extras
        }


@pytest.mark.parametrize(
    ("platform", "expected", "missing"),
    [
        (("linux", "x86_64"), "gluonlab[cu112]", "container"),
        (("linux", "aarch64"), "gluonlab[cpu]", "cu112"),
        (("darwin", "x86_64"), "gluonlab[cpu]", "cu112"),
        (("darwin", "arm64"), "Linux container", "pip"),  # there is no wheel
    ],
)
def test_the_choices_are_the_wheels_of_the_platform(platform, expected, missing):
    choices = pip_install_choices((3, 11), *platform)
    assert expected in choices and missing not in choices


@pytest.mark.parametrize(
    ("platform", "is_available"),
    [(("linux", "x86_64"), True), (("linux", "aarch64"), False), (("darwin", "x86_64"), False)],
)
def test_the_cuda_build_is_recommended_only_where_there_is_one(platform, is_available):
    assert has_cuda_build(*platform) is is_available
    assert ("pip" in cuda_build_advice(*platform)) is is_available
    assert ("only for Linux on x86-64" in cuda_build_advice(*platform)) is not is_available


@pytest.mark.long
@pytest.mark.parametrize(
    ("extra", "expected"), [("cpu", ["mxnet-1"]), ("cu112", ["mxnet-cu112-1", "nvidia-cudnn-cu11-8"])]
)
def test_pip_takes_the_command_where_there_is_no_mxnet(tmp_path, extra, expected):
    environment = VirtualEnvironment(tmp_path, without=["mxnet"])
    [info] = INSTALLED.glob("gluonlab-*.dist-info")
    shutil.copytree(info, environment.site / info.name)
    output = ""
    for command in pip_install_command(extra).split(" && "):
        words = command.replace("'", "").split()
        process = environment.run_python("-m", *words, "--dry-run", "--disable-pip-version-check")
        assert process.returncode == 0, process.stderr
        output += process.stdout
    for distribution in expected:
        assert distribution in re.sub(r"_", "-", output)
