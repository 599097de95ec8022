"""Every command that README and docs show exists, and runs; every block of Python runs.

`OTHERS` and `OWN_PYTHON` are pages with tests of their own.
"""

import os
import shlex
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.pages import PAGES, ROOT, block_commands, check_command, read_blocks, read_shown_program

import options_page

TIME_LIMIT_S = 300  # of each command
TRAINING_COMMANDS = ("run", "scratch", "compare")
# the launcher starts the python of this PATH
OWN_PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
OTHERS = {"faq.md", "data.md"}
OWN_PYTHON = {"data.md", "own-training.md", "faq.md", "exactness.md"}
PYTHON_PAGES = [page for page in PAGES if read_blocks(page, "python") and page.name not in OWN_PYTHON]
NOT_GLUONLABS = {"git", "make", "pip", "cd", ".", "eval", "docker", "export", "cp", "srun"}

# Commands that are only parsed: the reason, and words of such commands.
ONLY_PARSED = {
    "needs GPUs": ["gpu:", "float16", "--gpu-self-test", "--nvml"],
    "needs a network": ["download", "--check-downloads"],
    "needs a data set that was downloaded": ["verify", "mnist", "cifar10", "imagenette2-320", "runs/long"],
    "needs an interrupted run; tests/run/test_endings.py": ["resume"],
    "needs parameters of one's own": ["--pretrained"],
    "needs three hosts": ["h0:0,h1:2,h2:2"],
    "takes minutes on two cores": ["resnet50", "gluoncv:", "find-batch-size"],
    "measures for minutes": [
        "1KiB:64MiB",
        "choose",
        "frameworks",
        "scaling",
        "batch-size",
        "learning-rate",
        "strategies",
    ],
    "searches for minutes": ["solve", "f.json"],
    "is for developers; tests/performance_model runs it": ["tools/prediction"],
    "compares what was measured": ["before.json"],
    "reads notebooks that were handed in; tests/labs/test_grade.py": ["grade"],
    "reads what another program gives it": ["-"],
}


def page_blocks(page):
    """Return the blocks with commands."""
    return [*read_blocks(page, ""), *read_blocks(page, "sh")]


COMMANDS = sorted(
    {
        (page.name, command)
        for page in PAGES
        if page.name not in OTHERS
        for block in page_blocks(page)
        for command in block_commands(block)
        if "..." not in command
    }
)


def subcommand(words):
    """Return the name of a command, such as ``run`` for ``gluonlab run`` or ``python -m gluonlab.run``."""
    return words[1] if words[0] == "gluonlab" else " ".join(words[1:3]).rpartition("gluonlab.")[2]


def reason_not_to_run(command):
    """Return the reason why a command is not run, or None."""
    words = shlex.split(command)
    if words[0] in NOT_GLUONLABS:
        return "is not gluonlab's"
    for reason, parts in ONLY_PARSED.items():
        if any(_is_marked(word, part) for part in parts for word in words[1:]):
            return reason
    return None


def _is_marked(word, part):
    """Return whether a part marks a word. Names of options are marked only by options."""
    if part == "-":
        return word == part
    return part in word and (part.startswith("--") or not word.startswith("--"))


def run(words, folder):
    python = [sys.executable, "-m", "gluonlab"] if words[0] == "gluonlab" else [sys.executable]
    return subprocess.run(
        [*python, *words[1:]],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": OWN_PATH},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=TIME_LIMIT_S,
    )


def test_the_page_of_all_options_is_made_of_the_commands():
    """If this fails, run .venv/bin/python tools/options_page.py."""
    assert options_page.PAGE.read_text(encoding="utf-8") == options_page.make_page()


def test_there_are_commands():
    assert len(COMMANDS) >= 80 and len({name for name, _ in COMMANDS}) >= 20


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_a_command_is_understood(page, command):
    check_command(shlex.split(command))


def test_every_reason_is_needed():
    used = {reason_not_to_run(command) for _, command in COMMANDS} - {None, "is not gluonlab's"}
    assert used == set(ONLY_PARSED)


def draw_pictures(folder):
    """Draw pictures of two classes, dark and bright."""
    random = np.random.RandomState(0)
    for label, kind in enumerate(("cats", "dogs")):
        (folder / "pictures" / kind).mkdir(parents=True)
        for number in range(20):
            pixels = random.randint(0, 100, (32, 32, 3)) + 150 * label
            Image.fromarray(pixels.astype("uint8")).save(folder / "pictures" / kind / f"{number}.png")


def draw_picture(folder, name):
    Image.fromarray(np.full((40, 32, 3), 200, dtype="uint8")).save(folder / name)


def train_run(folder, name):
    command = f"python -m gluonlab.run --gpus 2 --epochs 1 --checkpoint-every 1epoch --out {name}"
    done = run(command.split(), folder)
    assert done.returncode == 0, done.stderr


def split_pictures(folder):
    """Draw the pictures in train and val."""
    draw_pictures(folder)
    (folder / "pictures").rename(folder / "train")
    shutil.copytree(folder / "train", folder / "pictures" / "val")
    (folder / "train").rename(folder / "pictures" / "train")


def run_block(block, folder):
    """Run a block of Python as a program in a folder."""
    subprocess.run([sys.executable, "-c", block.code], cwd=folder, check=True, timeout=TIME_LIMIT_S)


MADE = {
    "pictures": draw_pictures,
    "pictures in train and val": split_pictures,
    **{name: partial(draw_picture, name=name) for name in ("new.png", "a.png", "b.jpg")},
    **{name: partial(train_run, name=name) for name in ("runs/NAME", "digits")},
    "photos": lambda folder: run_block(read_blocks(ROOT / "docs" / "slow-run.md", "python")[0], folder),
    "train.py": lambda folder: (folder / "train.py").write_text(read_shown_program("train.py")),
    "docs/classify.py": lambda folder: shutil.copytree(ROOT / "docs", folder / "docs"),
}


def test_the_program_without_mxnet_is_the_one_that_the_page_shows():
    program = (ROOT / "docs" / "classify.py").read_text(encoding="utf-8")
    programs = [block.code for block in read_blocks(ROOT / "docs" / "predict.md", "python")]
    assert program[program.index('"""', 3) + 3 :].lstrip("\n") in programs


@pytest.mark.long  # .ci/run also runs it
def test_the_first_hour_runs_as_it_is_printed(tmp_path):
    """At most twelve commands, in order."""
    blocks = read_blocks(ROOT / "docs" / "first-hour.md", "sh")
    assert sum(len(block_commands(block)) for block in blocks) <= 12
    for block in blocks:
        for name in block.made_before:
            MADE[name](tmp_path)
        for command in block_commands(block) if block.not_run is None else ():
            done = run(shlex.split(command), tmp_path)
            assert done.returncode == 0, (command, done.stderr)
    assert done.stdout.split()[:2] == ["new.png", "dogs"]  # a bright picture


@pytest.mark.long  # some minutes together
@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in {*OTHERS, "first-hour.md"}], ids=lambda p: p.name
)
def test_the_commands_of_a_page_run_in_order(page, tmp_path):
    """Commands without a number of epochs train for one epoch."""
    failures = []
    for block in page_blocks(page):
        for made in block.made_before:
            MADE[made](tmp_path)
        for command in block_commands(block) if block.not_run is None else ():
            words = shlex.split(command)
            if "..." in command or reason_not_to_run(command) is not None:
                continue
            trains = subcommand(words) in TRAINING_COMMANDS and not {"--help", "--list"} & set(words)
            done = run([*words, "--epochs", "1"] if trains and "epochs" not in command else words, tmp_path)
            # the doctor exits with 1 for a fault of this machine, which is also an answer
            if done.returncode not in ((0, 1) if subcommand(words) == "doctor" else (0,)):
                failures.append((command, done.returncode, done.stderr[-500:]))
    assert failures == []


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::gluonlab.errors.GluonlabWarning")
@pytest.mark.parametrize("page", PYTHON_PAGES, ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in read_blocks(page, "python"):
        for name in block.made_before:
            MADE[name](tmp_path)
        if block.not_run is None:
            exec(compile(block.code, page.name, "exec"), names)
