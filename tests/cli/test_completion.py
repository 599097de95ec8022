"""A shell completes the options and commands of --help, and otherwise files."""

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


def complete(words, prefix):
    """Return the completions of a line, as lists [kind, value]."""
    printed = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("_GLUONLAB_COMPLETE", "bash_complete")
        patch.setenv("COMP_WORDS", " ".join(["gluonlab", *words, prefix]))
        patch.setenv("COMP_CWORD", str(len(words) + 1))
        patch.setattr(sys, "argv", ["gluonlab"])
        patch.setattr("builtins.print", lambda text, **options: printed.append(text))
        with pytest.raises(SystemExit) as exit:
            program.main()
    assert exit.value.code == 0 and len(printed) == 1
    return [line.split(",", 1) for line in printed[0].splitlines()]


def options(command):
    """Return the options of a command's --help."""
    # click keeps the option --help that it makes for the first context
    context = click.Context(command, **command.context_settings)
    params = [param for param in command.get_params(context) if param.get_help_record(context)]
    return {name for param in params for name in [*param.opts, *param.secondary_opts] if name.startswith("-")}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(COMMAND_FUNCTIONS)), st.data())
def test_options_with_the_prefix_are_completed(words, data):
    command, words = COMMAND_FUNCTIONS[words], words.split()
    name = data.draw(st.sampled_from(sorted(options(command) - {"-h"})))
    prefix = name[: data.draw(st.integers(2, len(name)))]
    expected = [["plain", option] for option in options(command) if option.startswith(prefix)]
    assert sorted(complete(words, prefix)) == sorted(expected)


@pytest.mark.parametrize("words", COMMAND_GROUPS)
@pytest.mark.parametrize("prefix", ["", "c", "l", "re"])
def test_commands_with_the_prefix_are_completed(words, prefix):
    names = [name for name in COMMAND_GROUPS[words] if name.startswith(prefix)]
    assert complete(words.split(), prefix) == [["plain", name] for name in names] or [["file", prefix]]


@pytest.mark.parametrize("words", [("run", "--out"), ("run", "--images"), ("labs",)])
def test_a_value_is_completed_as_a_file(words):
    assert complete(words, "a/b") == [["file", "a/b"]]


@pytest.mark.parametrize("value", ["", "tcsh_complete", "bash_source", "bash"])
def test_other_values_of_the_environment_variable_request_no_completion(monkeypatch, value):
    monkeypatch.setenv("_GLUONLAB_COMPLETE", value)
    assert Completion.from_environment() is None


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_each_shell_names_the_shell(shell):
    assert f"_GLUONLAB_COMPLETE={shell}_complete" in completion_script(shell)


def test_bash_completes_with_the_script(tmp_path):
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
