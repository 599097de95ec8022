"""--json prints one JSON document on standard output, and nothing else there."""

import ast
import json
from pathlib import Path

import pytest
from support.all_commands import COMMAND_FUNCTIONS, call_command, command_options

import gluonlab

# calls that take no time; all others are in the tests of their commands
CALLS = [
    ("run", "--list"),
    ("run", "--lr", "0.1", "--save-config", "a.toml"),
    ("data list",),
    ("exercises list",),
    ("bench pipeline", "--devices", "2"),
    ("bench efficiency", "--hosts", "2"),
    ("bench allreduce", "--simulate", "p3.16xlarge", "--sizes", "4B,1KiB", "--algorithms", "ring"),
    ("bench allreduce", "--simulate", "p3.16xlarge", "--hosts", "1:2", "--algorithms", "ring"),
    ("study speedup", "--predict", "p3.16xlarge", "--gpus", "2"),
]
OFFERED = {
    words
    for words in COMMAND_FUNCTIONS
    if any("--json" in each.opts for each in command_options(COMMAND_FUNCTIONS[words]))
}
WITHOUT = {  # what they print or write is a document already, or nothing that a program reads
    "completion", "data download", "data pack", "data path", "exercises grade", "labs", "launch",
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
