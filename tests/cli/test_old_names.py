"""Old names of options and commands, and names that other tools use, still work."""

import click
import pytest
from support.all_commands import COMMAND_FUNCTIONS, call_command, command_options

from gluonlab.cli.command import Completion
from gluonlab.config.option_hints import SYNONYMS

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
    hidden = {*SYNONYMS, *(old for old in command.renamed if " " not in old)} - {*PARAMS[words]}
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


def test_values_and_words_of_another_program_are_not_translated(capsys):
    assert parse("run", "--out", "--learning-rate")["out"] == "--learning-rate"
    assert parse("launch", "-np", "2", "--", "python", "x.py", "-np", "3")["words"] == ("python", "x.py", "-np", "3")
    assert capsys.readouterr() == ("", "")
