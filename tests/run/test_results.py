"""gluonlab run: its help, lists and results."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
from support.commands import QUICK_OPTIONS
from support.devices import contexts, runs_on_gpus
from support.run_files import read_metrics

from gluonlab.config import TrainConfig, option_name
from gluonlab.config.train_config import GROUPS
from gluonlab.data import DATASETS
from gluonlab.kvstores import KVSTORES
from gluonlab.models import MODELS
from gluonlab.optimizers import OPTIMIZERS

pytestmark = pytest.mark.filterwarnings("default::gluonlab.errors.GluonlabWarning")


def test_every_group_of_settings_is_a_heading_of_the_help_that_fits_a_screen(run):
    """Terminals of 80 columns and 24 lines."""
    status, out, err = run("--help-all")
    assert (status, err) == (0, "")
    assert [
        option for option in ("--autoresume", "--save-config", "--json", "--quiet", "--debug") if option not in out
    ] == []
    assert run("-h") == run("--help")
    sections = dict(re.findall(r"^([A-Z][\w ]+):\n((?:  .*\n)+)", out + "\n", re.MULTILINE))
    fields = dataclasses.fields(TrainConfig)
    groups = [*dict.fromkeys(field.metadata["group"] for field in fields)]
    assert [*map(str.lower, sections)] == [*groups, "options"] and groups == [*GROUPS]
    for field in fields:
        section = sections[field.metadata["group"].capitalize()]
        assert re.search(rf"^  (-\w, )?{option_name(field.name)}[ /\n]", section, re.MULTILINE)
    for section in sections.values():
        lines = section.splitlines()
        assert len(lines) <= 23 and max(map(len, lines)) <= 80  # with its heading, 24


def test_list_names_everything_that_can_be_chosen(run):
    status, out, err = run("list")
    assert (status, err) == (0, "")
    words = " ".join(out.split())
    for registry in (MODELS, DATASETS, KVSTORES, OPTIMIZERS):
        for name, kind in registry.items():
            assert f" {name} {kind.summary} " in words
            assert re.search(rf"^  {re.escape(name)}  *\w", out, re.M)
    assert max(map(len, out.splitlines())) <= 80


def test_json_is_one_document_and_nothing_else(run, empty_cwd):
    status, out, err = run(*QUICK_OPTIONS, "--json", "--out", "run", "--seed", "7")
    assert status == 0
    result = json.loads(out)
    assert result["devices"] == [str(ctx) for ctx in contexts(2)]
    assert (result["model"], result["epochs"], result["seed"]) == ("mlp", 1, 7)
    assert result["run_dir"] == "run"
    [epoch] = [line for line in read_metrics(Path("run")) if line["kind"] == "epoch"]
    assert result["val_accuracy"] == epoch["val_accuracy"] == result["history"][0]["val_accuracy"]
    assert err == ("" if runs_on_gpus() else "warning: no GPU on this machine: 2 CPU devices are used instead\n")


def test_quiet_prints_two_lines(run):
    status, out, _ = run(*QUICK_OPTIONS, "--quiet", "--out", "run")
    assert status == 0
    first, second = out.splitlines()
    accuracy = r"val accuracy [01]\.\d{4} \(top-5 [01]\.\d{4}\)"
    assert re.fullmatch(accuracy + r", [\d,]+ images/s, [\d.]+ s in all, [\d.]+% waiting for images", first)
    assert second == "written to run"


def test_a_run_prints_what_it_does_and_ends_with_the_same_two_lines(run):
    status, out, _ = run(*QUICK_OPTIONS, "--epochs", "2", "--out", "run")
    assert status == 0
    assert [len(re.findall(rf"^epoch {epoch}/2 ", out, re.M)) for epoch in (1, 2, 3)] == [1, 1, 0]
    for name in ("devices", "network", "data", "batch", "optimizer", "kvstore"):
        assert re.search(rf"^{name} ", out, re.M)
    assert out.splitlines()[-1] == "written to run"
