"""--out-file of a measurement: a file that cannot be written is refused before the measurement."""

import pytest

from gluonlab.bench.__main__ import main

PLACES = {
    "folder": "--out-file folder is a folder: use the path of a file",
    "nowhere/r.json": "--out-file nowhere/r.json: the folder nowhere does not exist: create it",
    "": "is a folder: use the path of a file",
    "a\0b": "it is not a valid file name",
}


NAMES = "strategies processes frameworks overhead optimize overlap images threads gradients checkpoints advice"


@pytest.mark.parametrize("name", NAMES.split())
@pytest.mark.parametrize("out", PLACES)
def test_a_place_that_cannot_be_written_is_refused_at_once(ended, empty_cwd, name, out):
    (empty_cwd / "folder").mkdir()
    status, printed, err = ended(main, name, "--out-file", out)
    assert (status, printed, err.count("\n")) == (2, "", 1) and PLACES[out] in err
    assert [path.name for path in empty_cwd.rglob("*")] == ["folder"]
