"""gluonlab run finds user errors before it loads MXNet, where it can."""

import json
import os
from pathlib import Path

from support.commands import file_names

TESTS = Path(__file__).resolve().parents[1]
# each with the beginning of its line
MISTAKES = {
    "--out old": "--out old is not empty: use a new folder",
    "--out file": "--out file is a file: use a new or empty folder",
    "--out file/below": "--out file/below cannot be written (Not a directory)",
    "--out file --autoresume": "--out file is a file: use a new or empty folder",
    "compare 1,2 --out old": "--out old is not empty: use a new folder",
    "find-lr --steps 100 --out old": "--out old is not empty: use a new folder",
    "evaluate none": "none is not a folder: use the directory of a finished run",
    "evaluate none --lr 1": "--lr has no effect on an evaluation",
    "evaluate old": "old contains no config.json: use the directory of a finished run",
    "resume none": "none is not a folder: use a run directory of gluonlab run",
    "resume old": "old contains no config.json: use a run directory of gluonlab run",
    "--dataset nosuch": "unknown data set 'nosuch': choose",
    "--kvstore rng": "unknown kvstore 'rng': choose",
    "--topology none.json": "topology",
    "--topology p3.8xlarge --kvstore local": "topology 'p3.8xlarge': kvstore 'local' is built in",
}
PROGRAM = """\
import contextlib, io, json, sys
import gluonlab
sys.modules["mxnet"] = None  # its import raises
from support.commands import call_run
results = {}
for words in json.loads(sys.argv[1]):
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        try:
            call_run(words.split())
        except SystemExit as ending:
            results[words] = [ending.code, errors.getvalue()]
print(json.dumps(results))
"""


def test_user_errors_are_found_without_loading_mxnet(tmp_path, python):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "of-mine").touch()
    (tmp_path / "file").touch()
    result = python("-c", PROGRAM, json.dumps([*MISTAKES]), PYTHONPATH=f"{TESTS}{os.pathsep}{TESTS.parent}")
    assert result.returncode == 0, result.stderr
    results = json.loads(result.stdout)
    assert results.keys() == MISTAKES.keys()
    for words, (status, err) in results.items():
        assert (status, err.count("\n")) == (2, 1), (words, err)
        assert err.startswith(f"error: {MISTAKES[words]}"), (words, err)
    assert file_names(tmp_path) == ["file", "old"]
