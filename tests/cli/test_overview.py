"""--help fits a terminal of 80 columns and 24 lines, and --help-all explains the rest."""

import ast
import json
from pathlib import Path

import click
import pytest
from support.all_commands import COMMAND_FUNCTIONS, COMMAND_GROUPS, call_command, command_options

import gluonlab
import gluonlab.__main__ as program
from gluonlab.cli.command import LINES, command

WIDTH = 80


@pytest.fixture
def helped(capsys, monkeypatch):
    """``helped(words, *arguments)`` returns the lines of a help on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))

    def read_help(words, *arguments):
        try:
            call_command(words, *arguments or ["--help"])
        except SystemExit as exit:
            assert exit.code == 0
        out, err = capsys.readouterr()
        assert err == "" != out
        return out.splitlines()

    return read_help


@pytest.mark.parametrize("words", COMMAND_GROUPS)
def test_a_group_has_one_help_and_help_with_a_name_is_that_of_the_command(words, helped):
    for other in ("-h", "--help-all", "help"):
        assert helped(words, other) == helped(words)
    name = next(iter(COMMAND_GROUPS[words]))
    assert not words or helped(words, "help", name) == helped(words, name, "--help")


def test_the_version_is_that_of_the_package(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["gluonlab", "--version"])
    program.main()
    assert capsys.readouterr().out == f"gluonlab {gluonlab.__version__}\n"


def explained_options(lines):
    """Return the options at the beginning of lines, where --help explains them."""
    words = " ".join(line for line in lines if line.startswith("  -")).replace(",", " ").split()
    return {word for word in words if word.startswith("-")}


@pytest.mark.parametrize("words", [*COMMAND_GROUPS, *COMMAND_FUNCTIONS])
def test_help_fits_a_screen(words, helped):
    lines = helped(words)
    assert len(lines) <= LINES and max(map(len, lines)) <= WIDTH


@pytest.mark.parametrize("words", COMMAND_FUNCTIONS)
def test_help_explains_all_options_or_names_help_all(words, helped):
    command, lines, all_lines = COMMAND_FUNCTIONS[words], helped(words), helped(words, "--help-all")
    options = [option for option in command_options(command) if option.help]
    names = {option.opts[0] for option in options} - {"--help-all"}
    assert names <= explained_options(all_lines)
    if command.most_used:
        assert f"{command.name} --help-all explains all {len(names)} options" in " ".join(lines)
        assert names & explained_options(lines) == set(command.most_used)
        assert len(all_lines) > LINES  # else no overview is needed
    else:
        assert lines == all_lines


def test_help_waits_neither_for_numpy_nor_for_mxnet(python):
    names = ["run", "predict", *(f"{name}.__main__" for name in ("doctor", "launch", "report", "study", "bench"))]
    imports = "; ".join(f"import gluonlab.{name}" for name in names)
    result = python("-c", f"import sys; {imports}; print({{'mxnet', 'numpy'}} & set(sys.modules))")
    assert result.stdout.strip() == "set()", result.stderr


def test_an_option_of_several_names_is_chosen_by_its_first_and_counts_once(capsys):
    @command("made-up", most_used="--size --quick")
    @click.option("--size", "--large", "-s", help="How large; in pixels.")
    @click.option("--quick/--slow", "-q/-l", help="How fast.")
    @click.option("--other", "-o", help="Something else.")
    def main(**options):
        """A command."""

    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    explained = [line.split("  ")[1:] for line in out.splitlines() if line.startswith("  -")]
    assert [names.split()[0].strip(",") for names, *_ in explained] == ["-s", "-q"]
    assert "--other" not in out
    # size, quick, other, --debug and --help
    assert "made-up --help-all explains all 5 options." in out


# --- --json prints one JSON document on standard output, and nothing else there


# calls that take no time; all others are in the tests of their commands
CALLS = [
    ("list",),
    ("run", "--lr", "0.1", "--save-config", "a.toml"),
    ("data list",),
    ("exercises list",),
    ("bench pipeline", "--devices", "2"),
    ("bench efficiency", "--hosts", "2"),
    ("allreduce simulate", "p3.16xlarge", "--bytes", "4B,1KiB", "--algorithms", "ring"),
    ("allreduce simulate", "p3.16xlarge", "--hosts", "1:2", "--algorithms", "ring"),
    ("study speedup", "--predict", "p3.16xlarge", "--gpus", "2"),
]
OFFERED = {
    words
    for words in COMMAND_FUNCTIONS
    if any("--json" in each.opts for each in command_options(COMMAND_FUNCTIONS[words]))
}
WITHOUT = {  # what they print or write is a document already, or nothing that a program reads
    "allreduce draw", "completion", "data download", "data pack", "data path", "exercises grade", "labs", "launch",
}  # fmt: skip


@pytest.mark.parametrize("words", CALLS, ids=" ".join)
def test_it_is_one_document(words, capsys, empty_cwd):
    try:
        call_command(words[0], *words[1:], "--json")
    except SystemExit as ended:
        assert ended.code == 0
    out = capsys.readouterr().out
    assert out.endswith("\n") and json.loads(out, parse_constant=pytest.fail)


def test_every_command_that_prints_results_offers_it():
    assert set(COMMAND_FUNCTIONS) - OFFERED == WITHOUT


def test_no_command_prints_invalid_json():
    """Python's own encoder writes NaN, which other readers refuse."""
    printed = []
    for path in sorted(Path(gluonlab.__file__).parent.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "dumps" in text else ():
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if node.func.attr == "echo":
                printed += [path for argument in node.args if "attr='dumps'" in ast.dump(argument)]
    assert printed == []
