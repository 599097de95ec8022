"""What is printed to be typed works: the commands of the labs as they stand, those of the README
for one epoch.

Some can only be parsed here; they are in a table with the reason.
"""

import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from the_labs import LABS, REPOSITORY

from gluonlab_labs.outline import with_fences

READMES = sorted(REPOSITORY.glob("README*.md"))

# What of a README is parsed only: a word of the command, and why.
ONLY_PARSED = {
    "gpu:": "needs GPUs",
    "float16": "needs GPUs",
    "download": "needs a network",
    "verify": "needs a data set that was downloaded",
    "--network": "needs a network",
    "folder:": "needs images of one's own",
    "imagenette2-320": "needs a data set that was downloaded",
    "fashion-mnist": "needs a data set that was downloaded",
    "cifar10": "needs a data set that was downloaded",
    "--pretrained": "needs parameters of one's own",
    "gluoncv:": "takes minutes on two cores",
    "resnet": "takes minutes on two cores",
    "--find-batch-size": "takes a minute on two cores",
    "64MiB": "measures for minutes",
    "peers": "measures for minutes",
    "report": "reads runs that other commands have made; tests/report/test_report.py",
    "launch": "is one process of many; tests/sagemaker",
    "grade": "reads notebooks that were handed in; tests/labs/test_grade.py",
    "study": "measures for minutes",
}
MAKE = {  # the targets have tests or are the tests; make says whether they are there
    "make": "sets up environments",
    "pip": "sets up environments; tools/make_venv.py does the same",
    "git": "is not gluonlab's",
}


def commands_of(text, language):
    """The commands of the fences of this language, comments and prompts left out."""
    lines = list(enumerate(text.splitlines(), 1))
    fenced = [
        line
        for _, line, info in with_fences(lines)
        if info == language and not line.lstrip().startswith("```")
    ]
    joined = re.sub(r"\\\n\s*", "", "\n".join(fenced))
    commands = (re.sub(r"^\$ ", "", line).strip() for line in joined.splitlines())
    return [line for line in commands if re.match(r"(python|make|pip|git|gluonlab) ", line)]


def words_of(command):
    """The words of a command without its comment."""
    return shlex.split(command, comments=True)


def parsed(words):
    """The command that these words call, if it knows them all; raises what it says against them
    otherwise.
    """
    if words[0] == "make":
        done = subprocess.run(
            ["make", "-n", *words[1:]], cwd=REPOSITORY, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return
    if words[0] != "python":
        assert words[0] in MAKE
        return
    if words[1] != "-m":
        assert (REPOSITORY / words[1]).is_file()
        return
    name, rest = words[2], words[3:]
    try:
        module = importlib.import_module(f"{name}.__main__")
    except ModuleNotFoundError:
        module = importlib.import_module(name)
    if hasattr(module, "STUDIES"):
        module, rest = importlib.import_module(module.STUDIES[rest[0]][1]), rest[1:]
    command = module.main
    if hasattr(module, "COMMANDS"):
        command, rest = module.COMMANDS[rest[0]], rest[1:]
    if rest not in (["--help"], ["-h"]):
        command.make_context(name, list(rest))


IN_LABS = sorted(
    {
        command
        for lab in LABS.values()
        for command in commands_of(lab.path.read_text(encoding="utf-8"), "sh")
    }
)
PRINTED = [
    command
    for path in READMES
    for kind in ("", "sh")
    for command in commands_of(path.read_text(encoding="utf-8"), kind)
]
IN_READMES = sorted({shlex.join(words_of(command)) for command in PRINTED})


def reason(command):
    """Why a command of a README is not run; None if it is."""
    words = words_of(command)
    if words[0] in MAKE:
        return MAKE[words[0]]
    return next(
        (why for part, why in ONLY_PARSED.items() if any(part in word for word in words[2:])), None
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


def test_there_are_commands():
    assert len(IN_LABS) >= 5
    assert len(IN_READMES) >= 20


@pytest.mark.parametrize("command", IN_LABS)
def test_a_command_of_a_lab_works_as_printed(command, tmp_path):
    words = words_of(command)
    assert words[:2] == ["python", "-m"]
    assert not set("|;&<>$`") & set("".join(words))
    done = run(words, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", IN_READMES)
def test_a_command_of_the_readme_is_understood(command):
    parsed(words_of(command))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the README's commands run, one after the other, with a run named runs/NAME."""
    made = tmp_path_factory.mktemp("readme")
    done = run(
        ["python", "-m", "gluonlab.run", "--gpus", "2", "--epochs", "1", "--out", "runs/NAME"], made
    )
    assert done.returncode == 0, done.stderr
    return made


@pytest.mark.long  # three minutes together; make test-all
@pytest.mark.parametrize("command", [command for command in IN_READMES if reason(command) is None])
def test_a_command_of_the_readme_works(command, folder):
    words = words_of(command)
    trains = words[2] in ("gluonlab.run", "gluonlab.scratch") and not {
        "--help",
        "--list",
        "--evaluate",
    } & set(words)
    whole = not trains or "epochs" in command  # what is said of epochs may not fit a run of one
    done = run(words if whole else [*words, "--epochs", "1"], folder)
    assert done.returncode == 0, done.stderr


def test_every_reason_is_needed():
    """The table names nothing that the README no longer has; what is to come stands in issues, not
    here.
    """
    used = {why for why in map(reason, IN_READMES) if why}
    assert used <= {*ONLY_PARSED.values(), *MAKE.values()}
    assert Path(REPOSITORY / "README.md") in READMES
