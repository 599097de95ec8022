"""The commands that cures tell a user to type: pip takes them, under this Python."""

import importlib.metadata
import re
import shutil

import pytest
from support.environments import INSTALLED, VirtualEnvironment

from gluonlab.engine.mxnet_installation import pip_install_choices, pip_install_command

VERSIONS = [(3, minor) for minor in range(8, 15)]


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: f"3.{version[1]}")
@pytest.mark.parametrize(("extra", "distribution"), [("cpu", "mxnet"), ("cu112", "mxnet-cu112")])
def test_a_command_names_what_the_package_does(version, extra, distribution):
    """The extras that setup.py has, and MXNet at the version that it asks for."""
    metadata = importlib.metadata.metadata("gluonlab")
    command = pip_install_command(extra, version)
    assert command in pip_install_choices(version)
    extras = re.findall(r"gluonlab\[(\w+)\]", command)
    assert set(extras) <= set(metadata.get_all("Provides-Extra"))
    named = re.findall(r"\bmxnet[-\w]*==[\d.]+", command)
    asked = {need for need in metadata.get_all("Requires-Dist") if re.search(rf"extra == .{extra}\b", need)}
    assert any(need.startswith(f"{distribution}==") for need in asked)
    if version < (3, 13):
        assert (extras, named) == ([extra], [])
    else:
        assert "--no-deps" in command
        assert [need for need in asked if need.startswith(tuple(named))]
        with_cuda = {need.split(";")[0].strip() for need in asked if "nvidia" in need}
        brought = {
            need.split(";")[0].strip()
            for need in metadata.get_all("Requires-Dist")
            if any(re.search(rf"extra == .{name}\b", need) for name in extras)
        }
        assert with_cuda == brought


@pytest.mark.long
@pytest.mark.parametrize(
    ("extra", "brings"), [("cpu", ["mxnet-1"]), ("cu112", ["mxnet-cu112-1", "nvidia-cudnn-cu11-8"])]
)
def test_pip_takes_the_command_where_there_is_no_mxnet(tmp_path, extra, brings):
    """As pip resolves it, without installing: with MXNet's metadata it finds no numpy on 3.13."""
    environment = VirtualEnvironment(tmp_path, without=["mxnet"])
    [info] = INSTALLED.glob("gluonlab-*.dist-info")
    shutil.copytree(info, environment.site / info.name)
    would = ""
    for command in pip_install_command(extra).split(" && "):
        words = command.replace("'", "").split()
        ended = environment.run_python("-m", *words, "--dry-run", "--disable-pip-version-check")
        assert ended.returncode == 0, ended.stderr
        would += ended.stdout
    for distribution in brings:
        assert distribution in re.sub(r"_", "-", would)
