"""docs/labs.md: its commands for grading run one after the other, and write the files that they name."""

import re
import shlex

from support.stand_in_engine import install_fake_engine, read_calls
from test_commands import run
from test_grade import hand_in
from the_labs import REPOSITORY

from gluonlab.exercises.notebook_runners import GRADING_PAGE, IMAGE

_, TEXT = (REPOSITORY / GRADING_PAGE).read_text(encoding="utf-8").split("## Grade notebooks\n")
NOT_RUN = "# not run, needs Docker: "
LINES = [line for code in re.findall(r"^```sh\n(.*?)^```$", TEXT, re.M | re.S) for line in code.splitlines()]
COMMANDS = [line for line in LINES if not line.startswith("#")]


def test_the_commands_run_and_write_what_they_say(tmp_path, monkeypatch):
    engine = install_fake_engine(tmp_path / "engine", monkeypatch)
    hand_in(tmp_path / "in" / "ada" / "03.ipynb", "", lab="03")
    for line in COMMANDS:
        program, *words = shlex.split(line, comments=True)
        assert program == "gluonlab"
        done = run(["python", "-m", "gluonlab", *words], tmp_path)
        assert done.returncode == 0, (line, done.stderr)
    tables = {re.search(r"--out-file (\S+)|$", line)[1] or "grades.csv" for line in COMMANDS}
    made = {path.name for path in tmp_path.iterdir()} - {"engine", "in"}
    assert made == {*tables, "canvas.csv", "results", "results.json"}
    assert "Trainer (4711)" in (tmp_path / "canvas.csv").read_text(encoding="utf-8")
    assert len(read_calls(engine)) == 1


def test_the_image_that_is_built_is_the_one_that_is_run():
    [build] = [line[len(NOT_RUN) :] for line in LINES if line.startswith(NOT_RUN)]
    assert build == f"docker build --target grading -t {IMAGE} ."
    dockerfile = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
    assert build in dockerfile
    stages = dict(re.findall(r"^FROM \S+ AS (\w+)\n(.*?)(?=^FROM|\Z)", dockerfile, re.M | re.S))
    assert "make_venv.py /opt/venv cpu labs\n" in stages["grading"]
    assert "USER 65534:65534" in stages["grading"]
    assert list(stages)[-1] == "gluonlab"  # what is built if no target is named
