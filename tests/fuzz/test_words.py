"""Settings, command lines, devices and sizes that nobody would write on purpose."""

import dataclasses
import importlib
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fuzzing import VALUES, WORDS, allow_gluonlab_errors, fuzz_property

from gluonlab.config import TrainConfig
from gluonlab.config import option_checks as types
from gluonlab.config.train_config import option_name
from gluonlab.data import load_dataset
from gluonlab.data.sets.packed_folder import pack_dataset
from gluonlab.devices import devices
from gluonlab.errors import GluonlabError, GluonlabWarning
from gluonlab.inference.input_images import find_pictures
from gluonlab.inference.loaded_network import load_run
from gluonlab.optimizers import optimizer_states
from gluonlab.runs.run_reader import read_runs
from gluonlab.runs.run_writer import RunDirectory
from gluonlab.training.evaluate_run import evaluate_run

FIELDS = [field.name for field in dataclasses.fields(TrainConfig)]
CHECKS = {
    "whole": types.whole_number_check(0, 2**32), "real": types.real_number_check(0),
    "share": types.real_number_check(0, below=1), "bytes": types.check_size_in_bytes,
    "epochs": types.check_epoch_list, "compress": types.check_compression_setting,
    "colors": types.check_color_normalization, "text": types.check_text,
    "devices": types.check_device_names,
}  # fmt: skip
COMMANDS = ("bench", "data", "doctor", "exercises", "launch", "predict", "labs", "report", "scratch", "study")


@fuzz_property
@given(st.dictionaries(st.sampled_from(FIELDS), VALUES, min_size=1, max_size=3))
def test_any_setting_is_taken_or_refused(settings):
    with allow_gluonlab_errors("settings"):
        TrainConfig(**settings)


@fuzz_property
@given(st.sampled_from(sorted(CHECKS)), VALUES)
def test_any_size_is_taken_or_refused(check, value):
    with allow_gluonlab_errors("sizes"):
        CHECKS[check]("--option", value)


@fuzz_property
@given(WORDS | st.lists(WORDS, max_size=3) | VALUES)
def test_any_device_is_taken_or_refused(spec):
    with allow_gluonlab_errors("devices"), warnings.catch_warnings():
        warnings.simplefilter("ignore", GluonlabWarning)  # CPU devices stand in
        devices(spec)


@fuzz_property
@given(st.lists(WORDS | st.sampled_from([option_name(name) for name in FIELDS]), max_size=6))
def test_run_refuses_any_words_with_status_2_and_one_line(ended, empty_cwd, words):
    from gluonlab.run import main

    with allow_gluonlab_errors("words of run"):
        status, out, err = ended(main, "--lr", "never", *words)
        helped = {"--help", "--help-all", "-h"} & set(words)
        assert helped or (status, out, err.count("\n")) == (2, "", 1), err
        assert helped or (err[:-1].isprintable() and len(err) < 4000)
        assert list(empty_cwd.iterdir()) == []


@fuzz_property
@pytest.mark.parametrize("command", COMMANDS)
@given(st.lists(WORDS, max_size=3))
def test_other_commands_refuse_any_words_with_one_line(command, ended, empty_cwd, words):
    place = command if command == "predict" else f"{command}.__main__"  # that one is no package
    main = importlib.import_module(f"gluonlab.{place}").main
    with allow_gluonlab_errors(f"words of {command}"):
        status, out, err = ended(main, *words, "--never")
        assert (status, out, err.count("\n")) == (2, "", 1), err
        assert err[:-1].isprintable() and len(err) < 4000
        assert list(empty_cwd.iterdir()) == []


PLACES = {
    "data": lambda place: load_dataset("mnist", place),
    "folder": lambda place: load_dataset(f"folder:{place}"),
    "records": lambda place: load_dataset(f"record:{place}.rec"),
    "list": lambda place: load_dataset(f"list:{place}.csv"),
    "imagenette": lambda place: load_dataset("imagenette2-320", place),
    "packed": lambda place: pack_dataset(load_dataset("digits"), f"file/{place}"),
    "run": lambda place: RunDirectory.create(place, "x"),
    "runs": lambda place: read_runs([Path(place)]),
    "evaluation": lambda place: evaluate_run(place),
    "prediction": lambda place: load_run(place),
    "pictures": lambda place: find_pictures([place]),
    "states": lambda place: optimizer_states.read_states(place),
}


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("place", ["a\0b", "a" * 5000, "a/" * 3000, "a\ud800", "loop", "file/x"])
def test_an_impossible_path_is_refused(kind, place, empty_cwd):
    (empty_cwd / "loop").symlink_to("loop")
    (empty_cwd / "file").touch()
    with pytest.raises(GluonlabError):
        PLACES[kind](place)
    assert {path.name for path in empty_cwd.iterdir()} == {"loop", "file"}
