"""gluonlab run finds user errors before it loads MXNet, where it can."""

import json

from support.commands import file_names

# each with the beginning of its line
MISTAKES = {
    "--out old": "--out old is not empty: give a new folder",
    "--out file": "--out file is a file: give a folder that is new or empty",
    "--out file/below": "--out file/below cannot be written (Not a directory)",
    "--out file --autoresume": "--out file is a file: give a folder",
    "--compare 1,2 --out old": "--out old is not empty: give a new folder",
    "--find-lr 100 --out old": "--out old is not empty: give a new folder",
    "--evaluate none": "--evaluate none is no folder: give the folder of a finished run",
    "--evaluate none --lr 1": "--lr has no effect with --evaluate",
    "--evaluate old": "--evaluate old holds no config.json: give the folder of a finished run",
    "--resume none": "--resume none is no folder: give the folder of a run",
    "--resume old": "--resume old holds no config.json: give the folder of a run",
    "--dataset nosuch": "unknown data set 'nosuch': choose",
    "--kvstore rng": "unknown kvstore 'rng': choose",
    "--topology none.json": "topology",
    "--topology p3.8xlarge --kvstore local": "topology 'p3.8xlarge': kvstore 'local' is built in",
}
PROGRAM = """\
import contextlib, io, json, sys
import gluonlab
sys.modules["mxnet"] = None  # its import raises
from gluonlab.run import main
results = {}
for words in json.loads(sys.argv[1]):
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        try:
            main(words.split())
        except SystemExit as ending:
            results[words] = [ending.code, errors.getvalue()]
print(json.dumps(results))
"""


def test_user_errors_are_found_without_loading_mxnet(tmp_path, python):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "of-mine").touch()
    (tmp_path / "file").touch()
    result = python("-c", PROGRAM, json.dumps([*MISTAKES]))
    assert result.returncode == 0, result.stderr
    results = json.loads(result.stdout)
    assert results.keys() == MISTAKES.keys()
    for words, (status, err) in results.items():
        assert (status, err.count("\n")) == (2, 1), (words, err)
        assert err.startswith(f"error: {MISTAKES[words]}"), (words, err)
    assert file_names(tmp_path) == ["file", "old"]
