"""docs/own-training.md: every block runs, in order, and the tables name what there is."""

import re
from pathlib import Path

import pytest

from gluonlab import frame
from gluonlab.training.callbacks import EVENT_METHODS, LOSS_DELAY
from gluonlab.training.stop_consensus import STOP_DELAY

PAGE = (Path(__file__).parents[2] / "docs" / "own-training.md").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore::gluonlab.errors.GluonlabWarning")
def test_every_block_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    names = {}
    for block in blocks:
        exec(block, names)
    said = capsys.readouterr().out
    assert len(blocks) == 14
    assert names["score"].accuracy == frame(tmp_path / "own").val_accuracy.iloc[-1]
    assert re.search(r"^{'worst class': [\d.]+, 'top 2': [\d.]+}$", said, re.M)
    assert 0 < names["forecast"].history[-1].metrics["brier"] < 2
    assert "epoch 2 of 2: accuracy 0." in said
    assert "needs a notebook; see logged/curves.png for the curves after the run" in said
    assert len(names["epochs"]) == 2 and (tmp_path / "epochs.csv").read_text().count("\n") == 3
    assert set(names["steps"].run) == {"logged"} and list((tmp_path / "logged/tensorboard").iterdir())
    assert re.search(r"^StopsAtLoss: the loss is 0.\d\d at step \d+$", said, re.M)
    assert re.search(r"^\d+ 0\.\d+ EarlyStopping: no better validation accuracy in 2", said, re.M)
    assert re.search(r"^accuracy 0\.\d{3}$", said, re.M)


def test_the_table_names_all_methods_and_the_delays_are_those_of_the_code():
    rows = re.findall(r"^\| `(on_\w+)`", PAGE, re.M)
    assert tuple(rows) == EVENT_METHODS
    assert f"{LOSS_DELAY} steps after a step" in PAGE and f"at most {STOP_DELAY} steps later" in " ".join(PAGE.split())
