"""Mistakes on the command line and in files of settings: few lines, which name what was meant.

The mistakes are made of what the commands take, so that a new option is among them.
"""

import dataclasses
import json
import random

import click
import pytest
from support.all_commands import COMMAND_FUNCTIONS, COMMAND_GROUPS, call_command, command_options

from gluonlab.config import TrainConfig, option_name
from gluonlab.errors import DataError
from gluonlab.inference.input_images import find_pictures

LINES = 3
NEEDED = {"launch": ["--backend", "dist_sync", "-n", "2"]}  # before anything else is looked at


def told(said):
    """What a mistake prints, checked: few lines, one of them the error, no traceback."""
    status, out, err = said
    assert (status, out) == (2, ""), err
    assert err.count("\n") <= LINES and "Traceback" not in err and "Error" not in err, err
    assert err.startswith("error: ") and len(err) < 1000
    return "".join(err.splitlines(keepends=True)[:2])


@pytest.fixture
def wrong(capsys, empty_cwd):
    """``wrong(words, *arguments)``: the first two lines of what that mistake prints."""

    def end(words, *arguments):
        with pytest.raises(SystemExit) as raised:
            call_command(words, *arguments)
        said = capsys.readouterr()
        assert list(empty_cwd.iterdir()) == []
        return told((raised.value.code, said.out, said.err))

    return end


def left_out(name, at):
    return f"--{name[:at]}{name[at + 1 :]}"


def doubled(name, at):
    return f"--{name[:at]}{name[at]}{name[at:]}"


def swapped(name, at):
    return f"--{name[: at - 1]}{name[at]}{name[at - 1]}{name[at + 1 :]}"


def shouted(name, at):
    return f"--{name.upper()}"


def underscored(name, at):
    return f"--{name.replace('-', '_')}" if "-" in name else f"--{name}_"


def joined(name, at):
    return f"--{name.replace('-', '')}" if "-" in name else f"--{name[0]}-{name[1:]}"


def one_dash(name, at):
    return f"-{name}"


def en_dash(name, at):
    return f"\N{EN DASH}{name}"


def em_dash(name, at):
    return f"\N{EM DASH}{name}"


def two_en_dashes(name, at):
    return f"\N{EN DASH}\N{EN DASH}{name}"


def with_value(name, at):
    return f"\N{EN DASH}{name}=2"


SLIPS = (
    left_out, doubled, swapped, shouted, underscored, joined, one_dash, en_dash, em_dash,
    two_en_dashes, with_value,
)  # fmt: skip


def slips(words, count):
    """Of each option of a command: itself, and ``count`` ways to write it wrongly."""
    draw = random.Random(words)
    names = [
        name
        for each in command_options(COMMAND_FUNCTIONS[words])
        for name in [*each.opts, *each.secondary_opts]
        if name.startswith("--") and not each.hidden
    ]
    for name in names:
        for make in draw.sample(SLIPS, count):
            made = make(name[2:], draw.randrange(1, len(name) - 2))
            if made not in names:
                yield name, made


@pytest.mark.parametrize("words", COMMAND_FUNCTIONS)
@pytest.mark.parametrize("count", [1, pytest.param(len(SLIPS), marks=pytest.mark.long)], ids=["one", "all"])
def test_a_misspelt_option_is_answered_with_the_right_one(words, count, wrong):
    tried = list(slips(words, count))
    assert tried
    for name, given in tried:
        assert repr(name) in wrong(words, *NEEDED.get(words, []), given, "2"), given


KEYS = [option_name(field.name)[2:] for field in dataclasses.fields(TrainConfig)]


@pytest.fixture
def file(tmp_path):
    """``file(ending, key, value)``: the path of a file of settings that holds this one."""

    def write(ending, key, value):
        path, value = tmp_path / f"settings.{ending}", json.dumps(value)
        text = f"{json.dumps(key)} = {value}" if ending == "toml" else f'{{"{key}": {value}}}'
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


@pytest.mark.parametrize("slip", [left_out, doubled, swapped, shouted, joined])
def test_a_misspelt_key_of_a_file_is_answered_with_the_right_one(slip, wrong, file):
    draw = random.Random(slip.__name__)
    for key in filter(lambda key: len(key) > 2, KEYS):
        given, ending = slip(key, draw.randrange(1, len(key)))[2:], draw.choice(["toml", "json"])
        if given.replace("_", "-") not in KEYS:
            said = wrong("run", "--config", file(ending, given, 2))
            assert f"{given!r}: did you mean {key!r}?" in said.replace("_", "-"), given


@pytest.mark.parametrize("value", [{}, [[[1]]], 2**200, "\0", ""], ids=repr)
def test_a_value_that_no_key_takes_names_file_and_key(value, wrong, file):
    for number, key in enumerate(KEYS):
        path = file(("toml", "json")[number % 2], key, value)
        assert f"--config {path}: {key} " in wrong("run", "--config", path)


@pytest.mark.parametrize("words", COMMAND_GROUPS)
def test_a_misspelt_command_is_answered_with_the_right_one(words, wrong):
    draw = random.Random(words)
    for name in COMMAND_GROUPS[words]:
        for make in (left_out, doubled, swapped):
            given = make(name, draw.randrange(1, len(name)))[2:]
            assert given in COMMAND_GROUPS[words] or f"did you mean {name!r}?" in wrong(words, given)


THEIRS = {  # by PyTorch, Horovod, gluon-cv, Keras and MXNet's examples
    "--num-epochs": "--epochs", "--max_epochs": "--epochs", "--batch_size": "--batch-size",
    "--per_device_batch_size": "--batch-size", "--learning-rate": "--lr", "--ngpu": "--gpus",
    "--num_gpus": "--gpus", "--gpu-ids": "--devices", "--no-cuda": "--devices",
    "--opt": "--optimizer",
    "--optim": "--optimizer", "--nesterov": "--optimizer", "--weight_decay": "--wd",
    "--kv-store": "--kvstore", "--gc-type": "--compress", "--fp16-allreduce": "--compress",
    "--batches-per-allreduce": "--microbatches", "--use-amp": "--dtype", "--arch": "--model",
    "--save-frequency": "--checkpoint-every", "--early-stopping": "--patience",
    "--load-epoch": "--resume", "--log-dir": "--out", "--lr-step-epochs": "--lr-decay-epochs",
    "--lr-factor": "--lr-decay", "--manual-seed": "--seed", "--clip-grad": "--clip-norm",
    "--num_workers": "--decoders", "--input-size": "--image-size", "--cfg": "--config",
    "-np": "-n", "--nproc_per_node": "-n", "--nnodes": "--hosts",
}  # fmt: skip


@pytest.mark.parametrize("given", THEIRS)
def test_what_other_tools_call_it_is_answered_with_what_it_is_called_here(given, wrong):
    words = "launch" if THEIRS[given] in ("-n", "--hosts") else "run"
    said = wrong(words, *NEEDED.get(words, []), given, "2")
    assert f"did you mean {THEIRS[given]!r}?" in said
    assert words == "launch" or len(said) <= 81


@pytest.mark.parametrize("given", ["--print-freq", "--dropout", "--wandb", "-n", "--xyzzy"])
def test_where_nothing_is_alike_nothing_is_guessed(given, wrong):
    assert wrong("run", given, "2").endswith("see --help\n")


NUMBERS = ("N", "RATE", "SECONDS", "E", "M", "WD", "NORM", "ALPHA", "FACTOR", "SHARE", "PIXELS",
           "PORT", "MB", "MS", "STEPS", "BYTES", "RATIO", "SIZE", "SIZES", "PERIOD")  # fmt: skip
NO_NUMBERS = ["1e-3x", "0;1", "\N{ARABIC-INDIC DIGIT ONE}", "-1", "2.5.1", "1_0", "", "nan", "--",
              "\N{MINUS SIGN}1", "1e999"]  # fmt: skip
# what an option is looked at with, or only after; those without are taken as they are
BESIDE = {
    "launch --fusion-threshold-mb": ["--backend", "horovod", "-n", "2"],
    "launch --cycle-time-ms": ["--backend", "horovod", "-n", "2"],
    "launch --min-workers": ["--backend", "dist_sync", "-n", "2", "--restart", "1", "--", "--out", "x"],
    "data download": ["mnist"],
    "predict": ["RUN", "a.png"],
    "data pack": ["folder:x", "--out", "y"],
    "exercises grade": ["x.ipynb"],
    "bench compare": ["a", "b"],
    "study speedup": ["--gpus", "2"],
}
NUMERIC = [
    (words, each.opts[0])
    for words in COMMAND_FUNCTIONS
    for each in command_options(COMMAND_FUNCTIONS[words])
    if not each.is_flag and each.metavar in NUMBERS
]


@pytest.mark.parametrize(("words", "option"), NUMERIC, ids=map(" ".join, NUMERIC))
def test_what_is_no_number_is_named_with_its_option(words, option, wrong):
    beside = BESIDE.get(f"{words} {option}", BESIDE.get(words, NEEDED.get(words, [])))
    draw = random.Random(words + option)
    if option in beside:  # launch -n
        beside = [word for word in beside if word not in (option, "2")]
    for given in draw.sample(NO_NUMBERS, 3):
        assert option in wrong(words, option, given, *beside), given


def test_a_decimal_comma_is_answered_with_a_point(wrong):
    assert wrong("run", "--lr", "0,1") == ("error: --lr 0,1: give a number above 0, with a point: 0.1\n")


def test_of_an_option_that_is_given_twice_the_last_counts(wrong):
    """As in other programs: a script's own options can be followed by "$@"."""
    assert "--gpus 0" in wrong("run", "--gpus", "2", "--gpus", "0")


@pytest.mark.parametrize("words", [["--kvstore", "\u201cring\u201d"], ["--out=\u201cr\u201d"],
                                   ["--out", "\u201cmy", "run\u201d"]])  # fmt: skip
def test_quotes_of_a_word_processor_are_named(words, wrong):
    assert "quote of a word processor" in wrong("run", *words)


@pytest.mark.parametrize(
    ("option", "given", "meant"),
    [
        ("--model", "lennet", "lenet"),
        ("--dataset", "cifar-10", "cifar10"),
        ("--kvstore", "rign", "ring"),
        ("--optimizer", "sdg", "sgd"),
        ("--split", "layer", "layers"),
        ("--dtype", "flaot16", "float16"),
        ("--lr-schedule", "cosin", "cosine"),
        ("--topology", "p3.16xlrge", "p3.16xlarge"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_right_one(option, given, meant, wrong):
    beside = ["--kvstore", "ring", "--gpus", "2"] if option == "--topology" else []
    assert meant in wrong("run", option, given, *beside)


@pytest.mark.parametrize("words", COMMAND_GROUPS)
@pytest.mark.parametrize("given", ["\u2014help", "\u2013help", "-help"])
def test_a_group_knows_its_only_option_by_other_dashes(words, given, wrong):
    assert "did you mean '--help'?" in wrong(words, given)


def arguments_of(words):
    return [each for each in COMMAND_FUNCTIONS[words].params if isinstance(each, click.Argument)]


@pytest.mark.parametrize("words", [words for words in COMMAND_FUNCTIONS if arguments_of(words)])
def test_a_missing_argument_is_named_with_the_way_to_write_it(words, wrong):
    """By click, or, where several may be left out, by the command itself."""
    names = [each.human_readable_name for each in arguments_of(words)]
    said = wrong(words)
    if arguments_of(words)[0].required:
        assert said == (
            f"error: {names[0]} is missing: write {COMMAND_FUNCTIONS[words].name} {' '.join(names)}; see --help\n"
        )
    assert "Missing" not in said


def test_a_missing_option_is_named_with_what_it_may_be(wrong):
    said = wrong("launch", "-n", "2")
    assert said.startswith("error: --backend NAME is missing (")
    assert all(name in said for name in ("dist_sync", "dist_async", "horovod"))


@pytest.mark.parametrize("words", COMMAND_GROUPS)
def test_an_option_before_the_command_is_told_so(words, wrong):
    said = wrong(words, "--gpus", "2")
    assert "unexpected '--gpus': write a command before it, " in said
    assert "COMMAND --gpus" in said and all(name in said for name in COMMAND_GROUPS[words])


def test_an_empty_name_of_an_image_is_called_empty():
    with pytest.raises(DataError, match="an image's name is empty, as that of an unset variable"):
        find_pictures(["", "a.png"])
