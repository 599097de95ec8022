"""gluonlab run refuses what it can refuse without MXNet, before it loads it."""

import json
import subprocess
import sys

from support.pages import ROOT
from support.processes import clean_environment

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
class WithoutMXNet:
    def find_spec(self, name, path=None, target=None):
        if name == "mxnet":
            raise SystemError("MXNet is loaded")
sys.meta_path.insert(0, WithoutMXNet())
from gluonlab.run import main
found = {}
for words in json.load(sys.stdin):
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            main(words.split())
        except SystemExit as ending:
            found[words] = [ending.code, said.getvalue()]
print(json.dumps(found))
"""


def test_user_errors_are_found_without_loading_mxnet(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "of-mine").touch()
    (tmp_path / "file").touch()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path, env=clean_environment(PYTHONPATH=str(ROOT)), input=json.dumps([*MISTAKES]),
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for words, (status, said) in json.loads(done.stdout).items():
        assert (status, said.count("\n")) == (2, 1), (words, said)
        assert said.startswith(f"error: {MISTAKES[words]}"), (words, said)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "old"]
