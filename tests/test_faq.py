"""docs/faq.md: twenty-one short answers, with commands that exist and run."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from support.pages import check_command

from gluonlab.errors import UsageError

PAGE = Path(__file__).resolve().parent.parent / "docs" / "faq.md"
MAX_LINES = 10  # of an answer's text
TIME_LIMIT_S = 180  # of each command
NOT_RUN = "# not run, needs "
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
REPORTS = "Programs from public reports\n"  # a list after the answers, see tests/reports
_, *ANSWERS, LAST = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.M)


def page_blocks(kind):
    return [code for language, code in BLOCK.findall("".join(ANSWERS)) if language == kind]


def page_commands(not_run):
    """Return the commands of the page that run here, or those that are only parsed."""
    lines = [line for code in page_blocks("sh") for line in code.splitlines()]
    if not_run:
        return [line[len(NOT_RUN) :].split(": ", 1)[1] for line in lines if line.startswith(NOT_RUN)]
    return [line for line in lines if not line.startswith("#")]


RUN, PARSED = page_commands(not_run=False), page_commands(not_run=True)
CHEAP = [line for line in RUN if "allreduce draw" in line or "allreduce simulate" in line]  # they load only schedules


def run(line, folder):
    program, *words = shlex.split(line)
    assert program == "gluonlab"
    called = [sys.executable, "-m", "gluonlab", *words]
    return subprocess.run(called, cwd=folder, capture_output=True, text=True, timeout=TIME_LIMIT_S)


def test_there_are_twenty_one_questions_with_short_answers_and_something_to_run():
    assert len(ANSWERS) == 21 and LAST.startswith(REPORTS)
    for answer in ANSWERS:
        title, *lines = filter(None, BLOCK.sub("", answer).splitlines())
        assert title.endswith("?") and 1 <= len(lines) <= MAX_LINES and BLOCK.search(answer), title


@pytest.mark.parametrize("line", RUN + PARSED)
def test_every_option_of_every_command_exists(line):
    check_command(shlex.split(line))


@pytest.mark.parametrize("bad", ["run --no-such 1", "run --gpus x", "launch -n 2 -- --no-such 1"])
def test_an_option_that_does_not_exist_is_found(bad):
    with pytest.raises((click.UsageError, UsageError)):
        check_command(shlex.split(f"gluonlab {bad}"))


@pytest.mark.parametrize("code", page_blocks("python"), ids=range(len(page_blocks("python"))))
def test_python_prints_the_promised_lines(code, capsys):
    promised = re.findall(r"^# prints: (.*)$", code, re.M)
    exec(compile(code, str(PAGE), "exec"), {})
    assert promised and capsys.readouterr().out.splitlines() == promised


@pytest.mark.parametrize("line", CHEAP)
def test_cheap_commands_run(line, tmp_path):
    assert run(line, tmp_path).returncode == 0


@pytest.mark.long
@pytest.mark.parametrize("line", [line for line in RUN if line not in CHEAP])
def test_every_command_runs(line, tmp_path):
    done = run(line, tmp_path)
    # the doctor exits with 1 for a fault of this machine, which is also an answer
    assert done.returncode in ((0, 1) if "doctor" in line else (0,)), done.stderr
    assert "Traceback" not in done.stderr
