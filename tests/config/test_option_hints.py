"""Options of other scripts are answered with ours, and no option that a command lacks is named."""

import doctest
import importlib
import inspect

import mxnet as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet.gluon import nn

from gluonlab import BucketedTrainer, Loader, TrainConfig, frame, load_dataset, load_run, make_kvstore, train
from gluonlab.config import option_hints
from gluonlab.config.option_hints import OPTION_BY_ALIAS, unknown_option_message
from gluonlab.errors import ConfigError
from gluonlab.study.compare_devices import compare
from gluonlab.study.learning_rate_finder import find_learning_rate


def options_of(place):
    main = importlib.import_module(place).main
    return {name for param in main.params for name in [*param.opts, *param.secondary_opts]}


RUN, LAUNCH = options_of("gluonlab.run"), options_of("gluonlab.launch.__main__")


@pytest.mark.parametrize("theirs", OPTION_BY_ALIAS)
def test_what_another_script_says_is_known_here_by_the_name_in_the_table(theirs):
    assert theirs not in RUN | LAUNCH, "it is one of ours"
    assert OPTION_BY_ALIAS[theirs] in RUN | LAUNCH
    for spelt in (theirs, theirs.replace("-", "_").replace("__", "--", 1), theirs.upper()):
        assert f"did you mean {OPTION_BY_ALIAS[theirs]!r}?" in unknown_option_message(spelt, RUN | LAUNCH)


@given(st.text("abcdeglmnoprstuvw-_", min_size=1, max_size=20).map("--".__add__))
def test_a_guess_is_an_option_of_the_command(given):
    few = ["--json", "--out", "--help"]
    said = unknown_option_message(given, few)
    assert said.startswith(f"unknown option {given!r}: ")
    assert said.endswith("see --help") or any(said.endswith(f"did you mean {n!r}?") for n in few)


def test_the_example_is_true():
    assert doctest.testmod(option_hints).failed == 0
    assert doctest.testmod(option_hints).attempted == 2


@pytest.mark.parametrize(("given", "meant"), [("--skip", "--skip-bad"), ("--che", None), ("--ch", None)])
def test_the_beginning_of_one_name_stands_for_it(given, meant):
    names = ["--skip-bad", "--channels", "--check-replicas", "--checkpoint-every", "--chart"]
    hint = f"did you mean {meant!r}?" if meant else "see --help"
    assert unknown_option_message(given, names).endswith(hint)


def call_trainer(**given):
    net = nn.Dense(1, in_units=1)
    net.initialize()
    return BucketedTrainer(net.collect_params(), "sgd", **given)


def call_loader(**given):
    return Loader(load_dataset("digits").test, [mx.cpu()], 8, **given)


@pytest.mark.parametrize(
    ("call", "name", "said"),
    [
        (train, "ctx", "train has no argument 'ctx': give the setting, train(TrainConfig(dev"),
        (train, "learning_rate", "give the setting, train(TrainConfig(lr=...))"),
        (train, "batch_size", "give the setting, train(TrainConfig(batch_size=...))"),
        (train, "epochs", "give the setting, train(TrainConfig(epochs=...))"),
        (train, "data", "train has no argument 'data': did you mean 'dataset'?"),
        (train, "network", "give net, a HybridBlock"),
        (train, "callback", "did you mean 'callbacks'?"),
        (train, "xyz", "unknown argument of train 'xyz': choose autoresume, callbacks, "),
        (call_trainer, "ctx", "are those of the parameters, net.initialize(ctx="),
        (call_trainer, "lr", "give optimizer_params={'learning_rate': ...}"),
        (call_trainer, "learning_rate", "give optimizer_params={'learning_rate': ...}"),
        (call_trainer, "weight_decay", "give optimizer_params={'wd': ...}"),
        (call_trainer, "kv_store", "did you mean 'kvstore'?"),
        (call_trainer, "batch_size", "give it to step(batch_size)"),
        (call_loader, "ctx", "give the devices as ctxs"),
        (call_loader, "batch_size", "give global_batch_size, the images of a step"),
        (call_loader, "shufle", "did you mean 'shuffle'?"),
        (lambda **given: make_kvstore("ring", **given), "devices", "give the devices as ctxs"),
    ],
)
def test_an_argument_as_others_name_it_is_answered_with_ours(call, name, said):
    with pytest.raises(ConfigError) as raised:
        call(**{name: 1})
    assert said in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("call", [train, lambda given: compare(given, [1]), lambda given: find_learning_rate(given, 9)])
@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ("digits", "a str: give settings as"),
        ({"gpus": 2}, r"a dict: give settings as \w+\(TrainConfig\(\*\*settings\)"),
        (TrainConfig, "the class itself: give"),
        (nn.Dense(1), "a Dense: .*net=..."),
    ],
)
def test_what_is_no_config_gets_one_line(call, given, kind):
    with pytest.raises(ConfigError, match=f"^the config of [a-z_]+ is {kind}") as raised:
        call(given)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: train(strategy="layers"), "is a str: TrainConfig.split=.* names one"),
        (lambda: train(reporter=print), "is a builtin_function_or_method: give a Reporter"),
        (lambda: train(group=2), "is a int: gluonlab launch makes one"),
        (lambda: train(resume=True), "is a bool: give a run's folder"),
        (lambda: load_run(3), "the folder of a run is a int: give its path"),
        (lambda: frame(None), "a run is a NoneType: give its folder"),
    ],
)
def test_arguments_of_another_kind_get_one_line(call, said, empty_cwd):
    with pytest.raises(ConfigError, match=said):
        call()
    assert not list(empty_cwd.iterdir())


def test_signatures_are_still_to_be_read():
    assert list(inspect.signature(make_kvstore).parameters) == ["name", "ctxs", "topology"]
    assert "net" in inspect.signature(train).parameters
