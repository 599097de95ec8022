"""What a shell offers is what --help lists; beyond that, files."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.all_commands import COMMAND_FUNCTIONS, COMMAND_GROUPS
from support.processes import clean_environment

import gluonlab.__main__ as program
from gluonlab.cli.command import SHELLS, Completion, completion_script


def offered(words, begun, shell="bash"):
    """What the program answers, as lists of the parts of a line."""
    with pytest.MonkeyPatch.context() as patch:
        variables = {"_GLUONLAB_COMPLETE": f"{shell}_complete"}
        variables["COMP_WORDS"] = " ".join(["gluonlab", *words, begun])
        variables["COMP_CWORD"] = str(len(words) + 1)
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["gluonlab"])
        said = []
        patch.setattr("builtins.print", lambda text, **how: said.append(text))
        with pytest.raises(SystemExit) as ended:
            program.main()
    assert ended.value.code == 0 and len(said) == 1
    return [line.split(",", 1) for line in said[0].splitlines()]


def options(command):
    """The options of a command's --help."""
    # click keeps the option --help that it makes for the first context
    context = click.Context(command, **command.context_settings)
    shown = [param for param in command.get_params(context) if param.get_help_record(context)]
    names = {name for each in shown for name in [*each.opts, *each.secondary_opts]}
    return {name for name in names if name.startswith("-")}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(COMMAND_FUNCTIONS)), st.data())
def test_the_options_that_begin_so_are_offered(words, data):
    command, words = COMMAND_FUNCTIONS[words], words.split()
    name = data.draw(st.sampled_from(sorted(options(command) - {"-h"})))
    begun = name[: data.draw(st.integers(2, len(name)))]
    found = offered(words, begun)
    assert {kind for kind, _ in found} == {"plain"}
    assert {each for _, each in found} == {each for each in options(command) if each.startswith(begun)}


@pytest.mark.parametrize("words", COMMAND_GROUPS)
@pytest.mark.parametrize("begun", ["", "c", "l", "re"])
def test_the_commands_that_begin_so_are_offered(words, begun):
    names = [name for name in COMMAND_GROUPS[words] if name.startswith(begun)]
    expected = [["plain", name] for name in names] or [["file", begun]]
    assert offered(words.split(), begun) == expected


@pytest.mark.parametrize("words", [("run", "--out"), ("run", "--images"), ("labs",)])
def test_where_a_value_stands_a_file_is_offered(words):
    assert offered(words, "a/b") == [["file", "a/b"]]


def test_what_is_no_question_is_none(monkeypatch):
    for value in ("", "tcsh_complete", "bash_source", "bash"):
        monkeypatch.setenv("_GLUONLAB_COMPLETE", value)
        assert Completion.from_environment() is None


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_asks_in_its_own_way(shell):
    assert f"_GLUONLAB_COMPLETE={shell}_complete" in completion_script(shell)


def test_bash_completes_with_the_script(tmp_path):
    """By the real bash, and the real program under its name in PATH."""
    (tmp_path / "gluonlab").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gluonlab "$@"\n')
    (tmp_path / "gluonlab").chmod(0o755)
    asks = """eval "$(gluonlab completion bash)"
    COMP_WORDS=(gluonlab run --gp) COMP_CWORD=2
    _gluonlab_completion gluonlab; echo "${COMPREPLY[@]}"
    """
    environment = clean_environment(PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    command = [shutil.which("bash"), "--norc", "-c", asks]
    done = subprocess.run(command, env=environment, cwd=Path.cwd(), check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("--gpus\n", "")
