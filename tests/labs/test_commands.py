"""Commands that the labs print work as typed."""

import os
import re
import shlex
import subprocess
import sys

import pytest
from the_labs import LABS, REPOSITORY

from gluonlab_labs.outline import lines_with_fences


def commands_of(text, language):
    """The commands of the fences of this language, comments and prompts left out."""
    lines = list(enumerate(text.splitlines(), 1))
    fenced = [
        line for _, line, info in lines_with_fences(lines) if info == language and not line.lstrip().startswith("```")
    ]
    joined = re.sub(r"\\\n\s*", "", "\n".join(fenced))
    commands = (re.sub(r"^\$ ", "", line).strip() for line in joined.splitlines())
    return [line for line in commands if re.match(r"(python|make|pip|git|gluonlab) ", line)]


IN_LABS = sorted(
    {command for lab in LABS.values() for command in commands_of(lab.path.read_text(encoding="utf-8"), "sh")}
)


def run(words, folder):
    return subprocess.run(
        [sys.executable, *words[1:]],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )


@pytest.mark.parametrize("command", IN_LABS)
def test_a_command_of_a_lab_works_as_printed(command, tmp_path):
    words = shlex.split(command, comments=True)
    assert words[:2] == ["python", "-m"]
    assert not set("|;&<>$`") & set("".join(words))
    done = run(words, tmp_path)
    assert done.returncode == 0, done.stderr
