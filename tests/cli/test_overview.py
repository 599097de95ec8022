"""--help fits a terminal of 80 columns and 24 lines, and --help-all tells the rest."""

import click
import pytest
from support.all_commands import COMMAND_FUNCTIONS, COMMAND_GROUPS, call_command, command_options

import gluonlab
import gluonlab.__main__ as program
from gluonlab.cli.command import LINES, command

WIDTH = 80


@pytest.fixture
def helped(capsys, monkeypatch):
    """``helped(words, option)``: the lines that are printed on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))

    def help_of(words, option="--help"):
        try:
            call_command(words, option)
        except SystemExit as ended:
            assert ended.code == 0
        said = capsys.readouterr()
        assert said.err == ""
        return said.out.splitlines()

    return help_of


@pytest.mark.parametrize("words", COMMAND_GROUPS)
@pytest.mark.parametrize("other", ["-h", "--help-all", "help"])
def test_a_group_has_one_help_however_it_is_asked_for(words, other, helped):
    assert helped(words, other) == helped(words)


@pytest.mark.parametrize("words", [words for words in COMMAND_GROUPS if words])
def test_help_with_a_name_is_the_help_of_that_command(words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    name = next(iter(COMMAND_GROUPS[words]))
    said = []
    for asked in (["help", name], [name, "--help"]):
        with pytest.raises(SystemExit) as ended:
            call_command(words, *asked)
        assert ended.value.code == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != ""


def test_the_version_is_that_of_the_package(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["gluonlab", "--version"])
    program.main()
    assert capsys.readouterr().out == f"gluonlab {gluonlab.__version__}\n"


def shown(command):
    return [each for each in command_options(command) if each.help and each.opts != ["--help-all"]]


def names_in(lines):
    """The options at the beginning of lines, where --help explains them."""
    words = " ".join(line for line in lines if line.startswith("  -")).replace(",", " ").split()
    return {word for word in words if word.startswith("-")}


@pytest.mark.parametrize("words", [*COMMAND_GROUPS, *COMMAND_FUNCTIONS])
def test_help_fits_a_screen(words, helped):
    lines = helped(words)
    assert len(lines) <= LINES and max(map(len, lines)) <= WIDTH


@pytest.mark.parametrize("words", COMMAND_FUNCTIONS)
def test_help_explains_all_options_or_says_what_does(words, helped):
    command, lines, all_lines = COMMAND_FUNCTIONS[words], helped(words), helped(words, "--help-all")
    every = {each.opts[0] for each in shown(command)}
    assert every <= names_in(all_lines)
    if command.most_used:
        assert f"{command.name} --help-all explains all {len(every)} options" in " ".join(lines)
        assert every & names_in(lines) == set(command.most_used)
    else:
        assert lines == all_lines


@pytest.mark.parametrize("words", [words for words in COMMAND_FUNCTIONS if COMMAND_FUNCTIONS[words].most_used])
def test_only_what_does_not_fit_has_an_overview(words, helped):
    assert len(helped(words, "--help-all")) > LINES


def test_help_waits_neither_for_numpy_nor_for_mxnet(python):
    names = ["run", "predict", "doctor.__main__", "launch.__main__", "report.__main__"]
    names += ["study.__main__", "bench.__main__"]
    imports = "; ".join(f"import gluonlab.{name}" for name in names)
    loaded = python("-c", f"import sys; {imports}; print({{'mxnet', 'numpy'}} & set(sys.modules))")
    assert loaded.stdout.strip() == "set()", loaded.stderr


def test_an_option_of_several_names_is_chosen_by_its_first_and_counts_once(capsys):
    @command("made-up", most_used="--size --quick")
    @click.option("--size", "--large", "-s", help="How large; in pixels.")
    @click.option("--quick/--slow", "-q/-l", help="How fast.")
    @click.option("--other", "-o", help="Something else.")
    def main(**options):
        """A command."""

    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    explained = [line.split("  ")[1:] for line in said.splitlines() if line.startswith("  -")]
    assert [names.split()[0].strip(",") for names, *_ in explained] == ["-s", "-q"]
    assert "--other" not in said
    # size, quick, other, --debug and --help
    assert "made-up --help-all explains all 5 options." in said
