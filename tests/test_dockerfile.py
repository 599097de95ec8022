"""The Dockerfile, as far as it can be tested without a container engine."""

import json
import re
import subprocess

import pytest
from support.processes import REPOSITORY

DOCKERFILE = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")


def write_program(folder, name, line):
    (folder / name).write_text(f"#!/bin/sh\n{line}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("architecture", "packages"),
    [
        ("amd64", {"libgomp1", "openssh-client", "libquadmath0"}),
        ("arm64", {"libgomp1", "openssh-client", "libopenblas0", "liblapacke"}),  # no libquadmath0 in Debian
    ],
)
def test_the_image_has_the_libraries_of_its_architecture(tmp_path, architecture, packages):
    """The command runs with programs that print what they are asked for, in place of Debian's."""
    [command] = re.findall(r"^RUN (case .*?[^\\])$", DOCKERFILE, re.M | re.S)
    write_program(tmp_path, "dpkg", f"echo {architecture}")
    write_program(tmp_path, "rm", "")
    write_program(tmp_path, "apt-get", 'echo "$@"')
    result = subprocess.run(
        ["/bin/sh", "-e", "-c", command],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    update, install = result.stdout.splitlines()
    assert (result.returncode, result.stderr, update) == (0, "", "update")
    command, *options = install.split()
    assert command == "install" and {word for word in options if not word.startswith("-")} == packages


def test_the_development_container_is_built_for_the_architecture_of_its_host():
    container = json.loads((REPOSITORY / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    assert container["build"] == {"dockerfile": "../Dockerfile", "context": "..", "args": {"BUILD": "cpu"}}
    assert "--platform" not in re.sub(r"^#.*", "", DOCKERFILE, flags=re.M) and "platform" not in json.dumps(container)
    assert f" {container['remoteUser']} " in DOCKERFILE
