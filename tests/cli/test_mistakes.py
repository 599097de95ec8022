"""Mistakes on the command line and in files of settings: few lines, which name the right word.

The mistakes are generated from the options of the commands, so that a new option is among them.
"""

import dataclasses
import json
import random

import click
import pytest
from support.all_commands import COMMAND_FUNCTIONS, COMMAND_GROUPS, call_command, command_options

from gluonlab.config import TrainConfig, option_name
from gluonlab.config.option_hints import SYNONYMS
from gluonlab.errors import DataError
from gluonlab.inference.input_images import find_pictures

LINES = 3
NEEDED = {"launch": ["--backend", "dist_sync", "-n", "2"]}  # before anything else is looked at


@pytest.fixture
def wrong(capsys, empty_cwd):
    """``wrong(words, *arguments)`` returns the first two lines of the error; checks that it is short."""

    def end(words, *arguments):
        with pytest.raises(SystemExit) as raised:
            call_command(words, *arguments)
        out, err = capsys.readouterr()
        assert (raised.value.code, out, list(empty_cwd.iterdir())) == (2, "", []), err
        assert err.count("\n") <= LINES and "Traceback" not in err and "Error" not in err, err
        assert err.startswith("error: ") and len(err) < 1000
        return "".join(err.splitlines(keepends=True)[:2])

    return end


def left_out(name, at):
    return f"--{name[:at]}{name[at + 1 :]}"


def doubled(name, at):
    return f"--{name[:at]}{name[at]}{name[at:]}"


def swapped(name, at):
    return f"--{name[: at - 1]}{name[at]}{name[at - 1]}{name[at + 1 :]}"


def upper(name, at):
    return f"--{name.upper()}"


def underscored(name, at):
    return f"--{name.replace('-', '_')}" if "-" in name else f"--{name}_"


def joined(name, at):
    return f"--{name.replace('-', '')}" if "-" in name else f"--{name[0]}-{name[1:]}"


DASHES = ("-{}", "\N{EN DASH}{}", "\N{EM DASH}{}", "\N{EN DASH}\N{EN DASH}{}", "\N{EN DASH}{}=2")
SLIPS = (left_out, doubled, swapped, upper, underscored, joined)
SLIPS += tuple(lambda name, at, form=form: form.format(name) for form in DASHES)


def draw_slips(words, count):
    """Yield each option of a command with ``count`` misspellings, but no other accepted name."""
    draw = random.Random(words)
    names = [
        name
        for option in command_options(COMMAND_FUNCTIONS[words])
        for name in [*option.opts, *option.secondary_opts]
        if name.startswith("--") and not option.hidden
    ]
    for name in names:
        for misspell in draw.sample(SLIPS, count):
            misspelled = misspell(name[2:], draw.randrange(1, len(name) - 2))
            if misspelled not in names and SYNONYMS.get(misspelled) != name:
                yield name, misspelled


@pytest.mark.parametrize("words", COMMAND_FUNCTIONS)
@pytest.mark.parametrize("count", [1, pytest.param(len(SLIPS), marks=pytest.mark.long)], ids=["one", "all"])
def test_a_misspelled_option_is_answered_with_the_right_one(words, count, wrong):
    slips = list(draw_slips(words, count))
    assert slips
    for name, given in slips:
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


@pytest.mark.parametrize("slip", [left_out, doubled, swapped, upper, joined])
def test_a_misspelled_key_of_a_file_is_answered_with_the_right_one(slip, wrong, file):
    draw = random.Random(slip.__name__)
    for key in filter(lambda key: len(key) > 2, KEYS):
        given, ending = slip(key, draw.randrange(1, len(key)))[2:], draw.choice(["toml", "json"])
        if given.replace("_", "-") not in KEYS:
            message = wrong("run", "--config", file(ending, given, 2))
            assert f"{given!r}: did you mean {key!r}?" in message.replace("_", "-"), given


@pytest.mark.parametrize("value", [{}, [[[1]]], 2**200, "\0", ""], ids=repr)
def test_a_value_that_no_key_takes_names_file_and_key(value, wrong, file):
    for number, key in enumerate(KEYS):
        path = file(("toml", "json")[number % 2], key, value)
        assert f"--config {path}: {key} " in wrong("run", "--config", path)


@pytest.mark.parametrize("words", COMMAND_GROUPS)
def test_a_misspelled_command_is_answered_with_the_right_one(words, wrong):
    draw = random.Random(words)
    for name in COMMAND_GROUPS[words]:
        for make in (left_out, doubled, swapped):
            given = make(name, draw.randrange(1, len(name)))[2:]
            assert given in COMMAND_GROUPS[words] or f"did you mean {name!r}?" in wrong(words, given)


THEIRS = {  # by PyTorch, Horovod, gluon-cv, Keras and MXNet's examples; tests/cli/test_old_names.py has the accepted
    "--max_epochs": "--epochs", "--batch_size": "--batch-size", "--per_device_batch_size": "--batch-size",
    "--num_gpus": "--gpus", "--gpu-ids": "--devices", "--no-cuda": "--devices", "--nesterov": "--optimizer",
    "--weight_decay": "--wd", "--gc-type": "--compress", "--fp16-allreduce": "--compress",
    "--batches-per-allreduce": "--microbatches", "--use-amp": "--dtype", "--save-frequency": "--checkpoint-every",
    "--early-stopping": "--patience", "--gamma": "--lr-decay", "--clip-grad": "--clip-norm",
    "--num_workers": "--workers", "--input-size": "--image-size", "--model-dir": "--out",
    "--nproc_per_node": "-n", "--nnodes": "--hosts",
}  # fmt: skip


@pytest.mark.parametrize("given", THEIRS)
def test_an_option_of_another_tool_is_answered_with_the_one_here(given, wrong):
    words = "launch" if THEIRS[given] in ("-n", "--hosts") else "run"
    message = wrong(words, *NEEDED.get(words, []), given, "2")
    assert f"did you mean {THEIRS[given]!r}?" in message
    assert words == "launch" or len(message) <= 81


@pytest.mark.parametrize("given", ["--print-freq", "--dropout", "--wandb", "-n", "--xyzzy"])
def test_without_a_similar_option_nothing_is_guessed(given, wrong):
    assert wrong("run", given, "2").endswith("see --help\n")


NUMBERS = ("N", "RATE", "SECONDS", "E", "M", "WD", "NORM", "ALPHA", "FACTOR", "SHARE", "FRACTION", "PIXELS",
           "PORT", "MB", "MS", "STEPS", "BYTES", "RATIO", "SIZE", "SIZES", "PERIOD")  # fmt: skip
NO_NUMBERS = ["1e-3x", "0;1", "\N{ARABIC-INDIC DIGIT ONE}", "-1", "2.5.1", "1_0", "", "nan", "--",
              "\N{MINUS SIGN}1", "1e999"]  # fmt: skip
# other arguments that a command needs before it checks an option
BESIDE = {
    "launch --fusion-threshold-mb": ["--backend", "horovod", "-n", "2"],
    "launch --cycle-time-ms": ["--backend", "horovod", "-n", "2"],
    "launch --min-np": ["--backend", "horovod", "-n", "2", "--max-restarts", "1", "--", "--out", "x"],
    "allreduce draw": ["ring"],
    "allreduce simulate": ["p3.16xlarge"],
    "allreduce solve": ["p3.8xlarge"],
    "data download": ["mnist"],
    "predict": ["RUN", "a.png"],
    "evaluate": ["RUN"],
    "resume": ["RUN"],
    "compare": ["1,2"],
    "find-batch-size": ["1G"],
    "data pack": ["folder:x", "--out", "y"],
    "exercises grade": ["x.ipynb"],
    "bench compare": ["a", "b"],
    "study speedup": ["--gpus", "2"],
}
NUMERIC = [
    (words, option.opts[0])
    for words in COMMAND_FUNCTIONS
    for option in command_options(COMMAND_FUNCTIONS[words])
    if not option.is_flag and option.metavar in NUMBERS
]


@pytest.mark.parametrize(("words", "option"), NUMERIC, ids=map(" ".join, NUMERIC))
def test_an_invalid_number_is_named_with_its_option(words, option, wrong):
    beside = BESIDE.get(f"{words} {option}", BESIDE.get(words, NEEDED.get(words, [])))
    draw = random.Random(words + option)
    if option in beside:  # launch -n
        beside = [word for word in beside if word not in (option, "2")]
    for given in draw.sample(NO_NUMBERS, 3):
        assert option in wrong(words, option, given, *beside), given


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--lr 0,1", "error: --lr 0,1: must be a number greater than 0: write a decimal point, 0.1\n"),
        ("--gpus 2 --gpus 0", "--gpus 0"),  # the last one counts: scripts append "$@"
        ("--kvstore \u201cring\u201d", "quotes from a word processor"),
        ("--out=\u201cr\u201d", "quotes from a word processor"),
        ("--out \u201cmy run\u201d", "quotes from a word processor"),
    ],
)
def test_decimal_commas_repeated_options_and_typographic_quotes_are_named(arguments, message, wrong):
    assert message in wrong("run", *arguments.split())


@pytest.mark.parametrize(
    ("option", "given", "meant"),
    [
        ("--model", "lennet", "lenet"),
        ("--dataset", "cifar-10", "cifar10"),
        ("--kvstore", "rign", "ring"),
        ("--optimizer", "sdg", "sgd"),
        ("--strategy", "layer", "layers"),
        ("--dtype", "flaot16", "float16"),
        ("--lr-schedule", "cosin", "cosine"),
        ("--topology", "p3.16xlrge", "p3.16xlarge"),
    ],
)
def test_a_misspelled_name_is_answered_with_the_right_one(option, given, meant, wrong):
    beside = ["--kvstore", "ring", "--gpus", "2"] if option == "--topology" else []
    assert meant in wrong("run", option, given, *beside)


@pytest.mark.parametrize("words", COMMAND_GROUPS)
@pytest.mark.parametrize("given", ["\u2014help", "\u2013help", "-help"])
def test_a_group_knows_its_only_option_by_other_dashes(words, given, wrong):
    assert "did you mean '--help'?" in wrong(words, given)


def arguments_of(words):
    return [param for param in COMMAND_FUNCTIONS[words].params if isinstance(param, click.Argument)]


@pytest.mark.parametrize("words", [words for words in COMMAND_FUNCTIONS if arguments_of(words)])
def test_a_missing_argument_is_named_with_the_usage(words, wrong):
    """By click, or, if several arguments are optional, by the command itself."""
    names = [argument.human_readable_name for argument in arguments_of(words)]
    message = wrong(words)
    if arguments_of(words)[0].required:
        usage = f"{COMMAND_FUNCTIONS[words].name} {' '.join(names)}"
        assert message == f"error: {names[0]} is missing: write {usage}; see --help\n"
    assert "Missing" not in message


@pytest.mark.parametrize("words", COMMAND_GROUPS)
def test_an_option_before_the_command_is_refused(words, wrong):
    message = wrong(words, "--gpus", "2")
    assert "unexpected '--gpus': write a command before this option, as in " in message
    assert "COMMAND --gpus" in message and all(name in message for name in COMMAND_GROUPS[words])


def test_an_empty_name_of_an_image_is_called_empty():
    with pytest.raises(
        DataError, match="the path of an image is an empty string, perhaps because a shell variable is unset"
    ):
        find_pictures(["", "a.png"])
