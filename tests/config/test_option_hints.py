"""Unknown options, arguments and settings are answered with gluonlab's own names."""

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
from gluonlab.study.compare_device_counts import compare
from gluonlab.study.learning_rate_finder import find_learning_rate

OPTIONS = {
    name
    for module in ("gluonlab.run", "gluonlab.launch.__main__")
    for param in importlib.import_module(module).main.params
    for name in [*param.opts, *param.secondary_opts]
}


@pytest.mark.parametrize("alias", OPTION_BY_ALIAS)
def test_an_option_of_another_script_is_answered_with_the_one_in_the_table(alias):
    assert alias not in OPTIONS and OPTION_BY_ALIAS[alias] in OPTIONS
    for spelling in (alias, alias.replace("-", "_").replace("__", "--", 1), alias.upper()):
        assert f"did you mean {OPTION_BY_ALIAS[alias]!r}?" in unknown_option_message(spelling, OPTIONS)


@given(st.text("abcdeglmnoprstuvw-_", min_size=1, max_size=20).map("--".__add__))
def test_a_guess_is_an_option_of_the_command(option):
    names = ["--json", "--out", "--help"]
    message = unknown_option_message(option, names)
    assert message.startswith(f"unknown option {option!r}: ")
    assert message.endswith(("see --help", *(f"did you mean {name!r}?" for name in names)))


def test_the_example_is_true():
    assert doctest.testmod(option_hints) == (0, 2)


@pytest.mark.parametrize(("option", "hint"), [("--skip", "did you mean '--skip-corrupt'?"), ("--ch", "see --help")])
def test_an_unambiguous_prefix_is_answered_with_the_name(option, hint):
    names = ["--skip-corrupt", "--tensor-parallel-mode", "--check-replicas", "--checkpoint-every", "--chart"]
    assert unknown_option_message(option, names).endswith(hint)


def call_trainer(**options):
    net = nn.Dense(1, in_units=1)
    net.initialize()
    return BucketedTrainer(net.collect_params(), "sgd", **options)


def call_loader(**options):
    return Loader(load_dataset("digits").test, [mx.cpu()], 8, **options)


@pytest.mark.parametrize(
    ("call", "name", "message"),
    [
        (train, "ctx", "train has no argument 'ctx': use the setting, train(TrainConfig(dev"),
        (train, "learning_rate", "use the setting, train(TrainConfig(lr=...))"),
        (train, "batch_size", "use the setting, train(TrainConfig(batch_size=...))"),
        (train, "data", "train has no argument 'data': did you mean 'dataset'?"),
        (train, "network", "use net, a HybridBlock"),
        (train, "xyz", "unknown argument of train 'xyz': choose autoresume, callbacks, "),
        (call_trainer, "ctx", "set them with net.initialize(ctx="),
        (call_trainer, "lr", "use optimizer_params={'learning_rate': ...}"),
        (call_trainer, "weight_decay", "use optimizer_params={'wd': ...}"),
        (call_trainer, "kv_store", "did you mean 'kvstore'?"),
        (call_trainer, "batch_size", "pass it to step(batch_size)"),
        (call_loader, "ctx", "pass the devices as ctxs"),
        (call_loader, "batch_size", "pass global_batch_size, the number of images in a step"),
        (call_loader, "shufle", "did you mean 'shuffle'?"),
        (lambda **options: make_kvstore("ring", **options), "devices", "pass the devices as ctxs"),
    ],
)
def test_an_argument_of_another_library_is_answered_with_gluonlabs(call, name, message):
    with pytest.raises(ConfigError) as raised:
        call(**{name: 1})
    assert message in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "call", [train, lambda config: compare(config, [1]), lambda config: find_learning_rate(config, 9)]
)
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("digits", "a str: pass settings as"),
        ({"gpus": 2}, r"a dict: pass settings as \w+\(TrainConfig\(\*\*settings\)"),
        (TrainConfig, "the class itself: pass"),
        (nn.Dense(1), "a Dense: .*net=..."),
    ],
)
def test_a_config_of_another_type_gets_one_line(call, config, message):
    with pytest.raises(ConfigError, match=f"^the config passed to [a-z_]+ is {message}[^\n]*$"):
        call(config)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: train(strategy="layers"),
            "does not accept the type str: pass a class or function, or use TrainConfig",
        ),
        (lambda: train(reporter=print), "does not accept the type builtin_function_or_method: pass a Reporter"),
        (lambda: train(group=2), "does not accept the type int: remove group, because gluonlab launch sets it"),
        (lambda: train(resume=True), "does not accept the type bool: pass a run directory"),
        (lambda: load_run(3), "the run directory has type int: pass its path"),
        (lambda: frame(None), r"frame\(\) needs run directories, not an object of type NoneType: pass the path of"),
    ],
)
def test_arguments_of_another_type_get_one_line(call, message, empty_cwd):
    with pytest.raises(ConfigError, match=message):
        call()
    assert not list(empty_cwd.iterdir())


def test_signatures_are_still_to_be_read():
    assert list(inspect.signature(make_kvstore).parameters) == ["name", "ctxs", "topology"]
    assert "net" in inspect.signature(train).parameters
