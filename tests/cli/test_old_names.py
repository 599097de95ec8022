"""Old names of options and commands, and names that other tools use, still work."""

import click
import pytest
from support.all_commands import COMMAND_FUNCTIONS, call_command, command_options

from gluonlab.cli.command import Completion
from gluonlab.cli.run_commands import COMMANDS as RUN_COMMANDS
from gluonlab.config.option_hints import SYNONYMS
from gluonlab.config.renamed_settings import RENAMED_KVSTORES
from gluonlab.run import main as run

PARAMS = {
    words: {name: option for option in command_options(command) for name in (*option.opts, *option.secondary_opts)}
    for words, command in COMMAND_FUNCTIONS.items()
}


def parse(words, *arguments):
    """Return the parameters of a command that are given on its command line."""
    command = COMMAND_FUNCTIONS[words]
    context = click.Context(command, **command.context_settings)
    required = {param.name for param in command.params if isinstance(param, click.Argument) and param.required}
    for param in command.params:
        param.required = False
    try:
        command.parse_args(context, list(arguments))
    finally:
        for param in command.params:
            param.required = param.name in required
    return context.params


def example(words, name):
    """Return a value for an option, or no value for a flag."""
    option = PARAMS[words][name]
    return [] if option.is_flag else ["name.json"]


ACCEPTED = [
    (words, synonym, name)
    for words in COMMAND_FUNCTIONS
    for synonym, name in SYNONYMS.items()
    if name in PARAMS[words] and synonym not in {*PARAMS[words], *COMMAND_FUNCTIONS[words].renamed}
    and name != "--config"  # which reads its file
]  # fmt: skip
RENAMED = [
    (words, old, new)
    for words in COMMAND_FUNCTIONS
    for old, new in COMMAND_FUNCTIONS[words].renamed.items()
    if new.split()[0] in PARAMS[words]
]


@pytest.mark.parametrize(("words", "synonym", "name"), ACCEPTED)
def test_a_name_of_another_tool_is_accepted_silently(words, synonym, name, capsys):
    value = example(words, name)
    expected = parse(words, name, *value)
    assert parse(words, synonym, *value) == expected != parse(words)
    if value:
        assert parse(words, f"{synonym}={value[0]}") == expected
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("words", "old", "new"), RENAMED)
def test_an_old_name_works_with_one_line_of_warning(words, old, new, capsys):
    """Only its own option is set, and the warning names the current form."""
    value = [] if " " in new else example(words, new)
    expected = parse(words, *new.split(), *value)
    assert capsys.readouterr() == ("", "")
    assert parse(words, *old.split(), *value) == expected != parse(words)
    assert capsys.readouterr() == ("", f"warning: {old} is now {new}\n")


@pytest.mark.parametrize("words", COMMAND_FUNCTIONS)
def test_neither_help_nor_completion_shows_an_old_name(words, capsys, monkeypatch):
    command = COMMAND_FUNCTIONS[words]
    hidden = {*SYNONYMS, *command.moved, *(old for old in command.renamed if " " not in old)} - {*PARAMS[words]}
    with pytest.raises(SystemExit):
        call_command(words, "--help-all")
    shown = capsys.readouterr().out.replace(",", " ").replace("=", " ").split()
    assert not hidden & set(shown)
    monkeypatch.setenv("_GLUONLAB_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"gluonlab {words} --")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) + 1))
    with pytest.raises(SystemExit):
        Completion.from_environment().print_options(command, [])
    completed = {line.partition(",")[2] for line in capsys.readouterr().out.splitlines()}
    assert "--help" in completed and not hidden & completed


MOVED = {  # old form of gluonlab run -> the command and its words
    "--evaluate RUN --quiet --gpus 2": "evaluate RUN --gpus 2",
    "--gpus 2 --resume=RUN --epochs 9 --quiet": "resume RUN --gpus 2 --epochs 9 --quiet",
    "--json --compare 1,2 --out --list": "compare 1,2 --json --out --list",
    "--find-lr 50 --gpus 2 --quiet": "find-lr --steps 50 --gpus 2",
    "--find-batch-size 1G --json": "find-batch-size 1G --json",
    "--list --json --quiet": "list --json",
    "--gpus 2 --evaluate": "evaluate --gpus 2",
}
USAGES = {
    "evaluate": "RUN_DIR", "resume": "RUN_DIR", "compare": "N,N", "find-lr": "--steps N",
    "find-batch-size": "BYTES", "list": "",
}  # fmt: skip


@pytest.mark.parametrize("old", MOVED)
def test_an_old_form_of_run_calls_the_command_with_one_line_of_warning(old, capsys, monkeypatch):
    name, *expected = MOVED[old].split()
    calls = []
    option = run.moved[f"--{name}"]
    monkeypatch.setattr(run, "moved", {**run.moved, f"--{name}": option._replace(call=calls.append)})
    run.main(old.split())
    assert calls == [expected]
    usage = f"gluonlab {name} {USAGES[name]}".strip()
    assert capsys.readouterr() == ("", f"warning: --{name} is now a command: {usage}\n")
    assert option.call == RUN_COMMANDS[name].main


def test_values_are_not_old_forms(capsys, empty_cwd):
    with pytest.raises(SystemExit):
        run.main(["--out", "--list", "--epochs", "0"])
    assert capsys.readouterr().err == "error: --epochs 0: must be a whole number of at least 1\n"


ALGORITHMS = [  # command, arguments with an old name of an algorithm, title of the warning
    ("allreduce draw", "{} --topology p3.16xlarge", ""),
    ("allreduce simulate", "p3.16xlarge --algorithms {} --bytes 1KiB", "--algorithms "),
    ("allreduce simulate", "p3.16xlarge --algorithms=ring,{} --bytes 1KiB", "--algorithms "),
]


@pytest.mark.parametrize("old", RENAMED_KVSTORES)
@pytest.mark.parametrize(("words", "arguments", "title"), ALGORITHMS)
def test_an_old_name_of_an_algorithm_works_with_one_line_of_warning(words, arguments, title, old, capsys):
    new = RENAMED_KVSTORES[old]
    printed = []
    for name in (new, old):
        with pytest.raises(SystemExit) as exited:
            call_command(words, *arguments.format(name).split())
        assert not exited.value.code
        printed.append(capsys.readouterr())
    assert printed == [(printed[0].out, ""), (printed[0].out, f"warning: {title}{old} is now {new}\n")]


def test_values_and_words_of_another_program_are_not_translated(capsys):
    assert parse("run", "--out", "--learning-rate")["out"] == "--learning-rate"
    assert parse("launch", "-np", "2", "--", "python", "x.py", "-np", "3")["words"] == ("python", "x.py", "-np", "3")
    assert capsys.readouterr() == ("", "")


RENAMED_COMMANDS = {
    "bench scaling": "bench processes", "bench splits": "bench strategies", "study splits": "study strategies",
}  # fmt: skip


@pytest.mark.parametrize("old", RENAMED_COMMANDS)
def test_an_old_name_of_a_command_works_with_one_line_of_warning(old, capsys):
    with pytest.raises(SystemExit):
        call_command(old, "--help")
    printed = capsys.readouterr()
    assert printed.out.startswith(f"Usage: gluonlab {RENAMED_COMMANDS[old]} ")
    assert printed.err == f"warning: gluonlab {old} is now gluonlab {RENAMED_COMMANDS[old]}\n"
