"""--out of a measurement: what cannot be written is refused before anything is measured."""

import pytest

from gluonlab.bench.__main__ import COMMANDS, main

WITH_ROUNDS = [
    name
    for name, made in COMMANDS.items()
    if {"rounds", "out", "as_json"} <= {each.name for each in made.params} and name != "allreduce"
]


@pytest.mark.parametrize("name", WITH_ROUNDS)
@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("folder", "--out folder is a folder: give the name of a file"),
        ("nowhere/r.json", "--out nowhere/r.json: there is no folder nowhere: make it"),
        ("", "is a folder: give the name of a file"),
        ("a\0b", "that is no name for a file"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_at_once(ended, empty_cwd, name, out, said):
    (empty_cwd / "folder").mkdir()
    status, printed, err = ended(main, name, "--out", out)
    assert (status, printed, err.count("\n")) == (2, "", 1) and said in err
    assert [path.name for path in empty_cwd.rglob("*")] == ["folder"]


def test_there_are_such_measurements():
    assert {"peers", "host", "splits", "checkpoints"} <= set(WITH_ROUNDS)
