"""--config equals the same options; the command line has priority; a mistake is one line."""

import dataclasses
import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.commands import read_error_line
from support.devices import device_spec
from support.examples import examples
from support.quick_runs import run_quickly

from gluonlab.cli.config_file import save_settings
from gluonlab.config import TrainConfig, option_name
from gluonlab.config import command_line as config_options
from gluonlab.config.command_line import EXCLUDED_SETTINGS
from gluonlab.errors import ConfigError, GluonlabError
from gluonlab.launch.__main__ import main as launch
from gluonlab.launch.check_launcher_arguments import validate_run_arguments
from gluonlab.launch.worker.__main__ import main as worker
from gluonlab.run import main
from gluonlab.study.__main__ import speedup_command

pytestmark = pytest.mark.filterwarnings("default::gluonlab.errors.GluonlabWarning")

FIELDS = {field.name: field for field in dataclasses.fields(TrainConfig)}
# a value -> others of its kind: a setting takes all of them if it takes the first
WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
KINDS = [
    (8, st.integers(8, 256)),
    (0.5, st.floats(0.001, 0.999)),
    (True, st.booleans()),
    ("a b!", WORDS.filter(str.strip)),
    ("5 steps", st.sampled_from(["5 steps", "10 minutes"])),
    ("3,7", st.sampled_from(["3,7", "1,20"])),
    ("2bit:0.25", st.floats(0.001, 8).map("2bit:{}".format)),
    ("imagenet", st.sampled_from(["imagenet", "0.5/0.25"])),
    ("onnx", st.just("onnx")),
    ("off", st.just("off")),
    ("5:loss", st.just("5:loss")),
    ("64M", st.sampled_from(["64M", "0"])),
]


def takes(name, value):
    try:
        FIELDS[name].metadata["check"](name, value)
        return True
    except ConfigError:
        return False


VALUES = {name: st.one_of([k for v, k in KINDS if takes(name, v)]) for name in FIELDS}
VALUES["export"] = st.sampled_from(["onnx", "mxnet"])
VALUES["devices"] |= st.lists(WORDS.filter(str.strip), min_size=1)
SETTINGS = st.lists(st.sampled_from(sorted(FIELDS)), unique=True, max_size=9).flatmap(
    lambda names: st.fixed_dictionaries({name: VALUES[name] for name in names})
)


def make_config(settings):
    """Return a TrainConfig; skip contradicting settings."""
    try:
        return TrainConfig(**settings)
    except ConfigError:
        assume(False)


def read(*words, command=main):
    """Return the settings of a command line."""
    params = command.make_context("run", list(words)).params
    settings = {name: value for name, value in params.items() if name in FIELDS}
    return TrainConfig(**config_options.given_settings(settings))


def to_arguments(settings):
    for name, value in settings.items():
        option = option_name(name)
        if FIELDS[name].metadata["check"].__name__ == "check_flag":
            yield from [option, str(value).lower()]
        else:
            yield f"{option}={value}"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """``file(ending)``: the path of a file that is not there."""
    folder = tmp_path_factory.mktemp("settings")

    def fresh(ending):
        path = folder / f"f.{ending}"
        path.unlink(missing_ok=True)
        return path

    return fresh


@pytest.mark.parametrize("ending", ["toml", "json"])
@examples(40)
@given(SETTINGS)
def test_saved_settings_are_read_again(file, ending, settings):
    config, path = make_config(settings), file(ending)
    save_settings(str(path), settings)
    assert read("--config", str(path)) == config
    if ending == "json":
        assert len(json.loads(path.read_text(encoding="utf-8"))) == len(settings)


@examples(40)
@given(SETTINGS, SETTINGS, st.booleans())
def test_the_command_line_has_priority(file, in_file, options, file_first):
    """Also over a setting that excludes its own, and with --x false over a flag in the file."""
    options = {name: value for name, value in options.items() if isinstance(value, (str, int, float))}
    make_config(in_file), make_config(options)
    kept = {k: v for k, v in in_file.items() if not {k, *EXCLUDED_SETTINGS.get(k, ())} & set(options)}
    expected, path = make_config({**kept, **options}), file("json")
    path.write_text(json.dumps(in_file))
    words, arguments = ["--config", str(path)], list(to_arguments(options))
    assert read(*(words + arguments if file_first else arguments + words)) == expected


@pytest.mark.parametrize("key", ["batch-size", "batch_size"])
def test_keys_have_dashes_or_underscores(file, key):
    path = file("toml")
    path.write_text(f"{key} = 7  # images\ndevice-cache-bytes = '1M'\nlr-decay-epochs = [1, 2]\n")
    result = read("--config", str(path))
    assert (result.batch_size, result.device_cache_bytes, result.lr_decay_epochs) == (7, 2**20, "1,2")


def test_a_runs_own_file_gives_the_same_run_again(run, tmp_path):
    first = run_quickly(tmp_path, devices=device_spec(1), seed=5, batch_size=90, wd=0.01, flip=True)
    config = str(first.run_dir / "config.json")
    status, out, _ = run("--config", config, "--json", "--out", "again")
    assert status == 0 and json.loads(out)["val_accuracy"] == first.summary()["val_accuracy"]
    parameters = [(folder / "parameters.params").read_bytes() for folder in (first.run_dir, Path("again"))]
    assert parameters[0] == parameters[1]
    # not the folder of the run, which is not empty
    assert read("--config", config).to_dict() == {**first.plan.config.to_dict(), "out": None}


def test_the_command_line_is_written_after_the_file(run):
    Path("a.toml").write_text('epochs = 3\nestimate_memory = true\nmodel = "mlp"\n')
    words = ["--config", "a.toml", "--epochs", "2", "--estimate-memory", "false", "--save-config", "b.toml"]
    assert run(*words) == (0, "written to b.toml; use it with --config b.toml\n", "")
    assert Path("b.toml").read_text() == 'model = "mlp"\nepochs = 2\n'


def test_old_keys_of_a_file_work_with_a_warning(run):
    old_kvstore = "kvstore = 'synthesised'\n"  # codespell:ignore synthesised
    Path("a.toml").write_text("split = 'channels'\nresident-bytes = 0\n" + old_kvstore)
    err = "warning: --config a.toml: split is now strategy\n"
    err += "warning: --config a.toml: resident-bytes is now device_cache_bytes\n"
    err += "warning: --config a.toml: kvstore synthesised is now synthesized\n"  # codespell:ignore synthesised
    assert run("--config", "a.toml", "--save-config", "b.toml", "--quiet") == (0, "", err)
    text = 'strategy = "tensor"\ndevice-cache-bytes = 0\nkvstore = "synthesized"\n'
    assert Path("b.toml").read_text() == text


def test_existing_files_and_invalid_text_are_not_written(run, empty_cwd):
    line = read_error_line(run("--out", os.fsdecode(b"\xff"), "--save-config", "a.toml"), empty_cwd)
    assert "--out" in line and "cannot store" in line
    Path("a.toml").write_text("epochs = 3\n")
    status, _, err = run("--save-config", "a.toml")
    assert status == 2 and "--save-config a.toml exists" in err
    assert Path("a.toml").read_text() == "epochs = 3\n"


DEEP = "[" * 200_000
# a file's name and its content -> what the line must say
LONG = "k" * 99
MISTAKES = {
    ("f.toml", "epoch = 5"): ["'epoch'", "did you mean 'epochs'?"],
    ("f.json", '{"learning-rate": 5}'): ["'learning-rate'", "did you mean 'lr'?"],
    ("f.toml", "zzqqzz = 5"): ["'zzqqzz'", "choose backward_bulk_size, "],
    ("f.toml", "epochs = 0"): ["epochs 0: must be a whole number of at least 1"],
    ("f.toml", 'batch-size = "x"'): ["batch-size x: must be a whole number of at least 1"],
    ("f.json", '{"epochs": 1.5}'): ["epochs 1.5: must be a whole number of at least 1"],
    ("f.toml", "epochs = true"): ["epochs True: must be a whole number"],
    ("f.toml", "epochs = [1]"): ["epochs [1]: must be a whole number"],
    ("f.toml", "epochs = 2026-01-01"): ["epochs is datetime.date(2026, 1, 1): use text, a number"],
    ("f.toml", "epochs = 0x" + "f" * 9000): ["epochs is too large a number"],
    ("f.toml", "[epochs]\na = 1"): ["epochs is a table: use"],
    ("f.toml", "lr = nan"): ["lr nan: must be a number greater than 0"],
    ("f.toml", "flip = 1"): ["flip 1: must be true or false"],
    ("f.json", '{"estimate_memory": "yes"}'): ['estimate_memory "yes": must be true or false'],
    ("f.json", '{"out": "\\u0000"}'): ["out is '\\x00'"],
    ("f.json", '{"out": "\\ud800"}'): ["out is '\\ud800'"],
    ("f.toml", "gpus = 1\ndevices = 'cpu'"): ["--gpus 1 and --devices cpu contradict"],
    ("f.toml", "batch-size = 1\nbatch_size = 2"): ["batch_size is set twice"],
    ("f.json", '{"lr": 1, "lr": 2}'): ["the key 'lr' occurs twice"],
    ("f.json", f'{{"{LONG}": 1, "{LONG}": 2}}'): [f"the key '{LONG[:20]}", "' occurs twice"],
    ("f.toml", "lr = 1\nlr = 2"): ["is not valid TOML", "overwrite"],
    ("f.toml", "quiet = true"): ["quiet is not a setting: use the option --quiet instead"],
    ("f.json", '{"lr": NaN}'): ["NaN is not a valid number"],
    ("f.json", "[1]"): ["must contain a JSON object of settings"],
    ("f.json", ""): ["is not valid JSON"],
    ("f.toml", "lr = " + DEEP[:9000]): ["is not valid TOML", "brackets"],
    ("f.json", DEEP): ["is not valid JSON"],
    ("f.toml", "a" + ".a" * 900 + " = 1"): ["[a] is a table: write the settings outside of tables"],
    ("f.toml", "[train]\nepochs = 5"): ["[train] is a table", "such as epochs = 5"],
    ("f.json", '{"data": {"epochs": 5}}'): ["[data] is a table"],
    ("f.toml", "#" * 2**19): ["is larger than the maximum of 16,384 bytes"],
    ("f.toml", b"lr = 1 # \xff"): ["byte 9 is not valid UTF-8", ".toml or .json"],
    ("f.yaml", "lr: 1"): ["ends in .toml or .json"],
    ("f.json", '{"config": {"lr": 1}}'): ["was not written by gluonlab run"],
    ("f.json", '{"config": {"lr": 1}, "compare": [1, 2]}'): ["belongs to a comparison"],
    ("f.json", '{"config": {"lr": 1}, "format": 99}'): ["has format 99"],
    ("f.toml", None): ["cannot be read (No such file or directory)"],
}


@pytest.mark.parametrize("case", MISTAKES, ids=lambda case: f"{case[0]} {str(case[1])[:30]!r}")
def test_a_mistake_in_a_file_is_one_line(run, tmp_path, empty_cwd, case):
    path, content = tmp_path / case[0], case[1]
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    line = read_error_line(run("--config", str(path)), empty_cwd)
    assert all(words in line for words in (f"--config {path}", *MISTAKES[case])) and len(line) < 3100


def test_folders_and_pipes_are_refused(run, tmp_path, empty_cwd):
    def read_error(path):
        return read_error_line(run("--config", str(path)), empty_cwd)

    assert read_error(tmp_path).endswith("for example one from --save-config")
    (tmp_path / "config.json").write_text("{}")
    assert f"it is a run directory: use its file {tmp_path / 'config.json'}" in read_error(tmp_path)
    (tmp_path / "folder.toml").mkdir()
    os.mkfifo(tmp_path / "pipe.toml")
    for name in ("folder", "pipe"):
        assert "cannot be read" in read_error(tmp_path / f"{name}.toml")


@pytest.mark.parametrize("command", [worker, speedup_command], ids=["worker", "speedup"])
def test_all_commands_with_these_options_take_a_file(file, command):
    path = file("toml")
    path.write_text("epochs = 3\nwd = 0.5\n")
    backend = ["--backend", "dist_sync"] * (command is worker)
    result = read("--config", str(path), "--wd", "0.25", *backend, command=command)
    assert (result.epochs, result.wd) == (3, 0.25)
    path.write_text("keep_checkpoints = 2")
    with pytest.raises(ConfigError, match="this command does not use keep_checkpoints: remove it"):
        read("--config", str(path), command=speedup_command)


def test_the_launcher_reads_the_file(file):
    """A run with --max-restarts needs a folder and checkpoints."""
    path = file("toml")
    words = ("--config", str(path))
    path.write_text("epochs = 3\n")
    with pytest.raises(ConfigError, match="--max-restarts 1 needs a directory from which to resume"):
        validate_run_arguments("dist_sync", words, 1, launch, worker)
    path.write_text("out = 'r'\n")
    more = (*words, "--checkpoint-every", "1 epoch")
    assert validate_run_arguments("dist_sync", words, 1, launch, worker) == more
    path.write_text("out = 'r'\ncheckpoint-every = 9\n")
    assert validate_run_arguments("dist_sync", words, 1, launch, worker) == words
    path.write_text("epoch = 1\n")
    with pytest.raises(ConfigError, match="did you mean 'epochs'"):
        validate_run_arguments("dist_sync", words, 0, launch, worker)


def test_a_comparison_and_an_evaluation_read_the_file(run, empty_cwd):
    path = empty_cwd.parent / "f.toml"
    path.write_text("gpus = 1\n")
    line = read_error_line(run("compare", "1,2", "--config", str(path)), empty_cwd)
    assert "this command does not use gpus: remove it" in line
    path.write_text("epochs = 1\n")
    line = read_error_line(run("evaluate", "r", "--config", str(path)), empty_cwd)
    assert "this command does not use epochs: remove it" in line


def test_an_unknown_setting_in_python_is_one_line():
    for make in (lambda: TrainConfig(epoch=5), lambda: TrainConfig().replace(epoch=5)):
        with pytest.raises(GluonlabError) as raised:
            make()
        assert str(raised.value) == "unknown setting 'epoch': did you mean 'epochs'?"


def test_toml_is_not_read_before_it_is_needed(python):
    code = "import gluonlab.run, sys; print({'tomllib', 'tomli'} & set(sys.modules))"
    assert python("-c", code).stdout == "set()\n"


if sys.version_info < (3, 11):  # later Pythons need no tomli

    def test_without_tomli_the_line_says_so(file, monkeypatch):
        path = file("toml")
        path.write_text("")
        monkeypatch.setitem(sys.modules, "tomli", None)
        with pytest.raises(ConfigError, match="pip install tomli, or use a JSON file"):
            read("--config", str(path))
