"""Options of other scripts are answered with ours, and no option that a command lacks is named."""

import doctest
import importlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluonlab.config import other_names
from gluonlab.config.other_names import HERE, unknown_option


def options_of(place):
    main = importlib.import_module(place).main
    return {name for param in main.params for name in [*param.opts, *param.secondary_opts]}


RUN, LAUNCH = options_of("gluonlab.run"), options_of("gluonlab.launch.__main__")


@pytest.mark.parametrize("theirs", HERE)
def test_what_another_script_says_is_known_here_by_the_name_in_the_table(theirs):
    assert theirs not in RUN | LAUNCH, "it is one of ours"
    assert HERE[theirs] in RUN | LAUNCH
    for spelt in (theirs, theirs.replace("-", "_").replace("__", "--", 1), theirs.upper()):
        assert f"did you mean {HERE[theirs]!r}?" in unknown_option(spelt, RUN | LAUNCH)


@given(st.text("abcdeglmnoprstuvw-_", min_size=1, max_size=20).map("--".__add__))
def test_a_guess_is_an_option_of_the_command(given):
    few = ["--json", "--out", "--help"]
    said = unknown_option(given, few)
    assert said.startswith(f"unknown option {given!r}: ")
    assert said.endswith("see --help") or any(said.endswith(f"did you mean {n!r}?") for n in few)


@pytest.mark.parametrize(
    ("words", "guess"),
    [
        (["--gpu", "2"], "--gpus"),
        (["--learning-rate", "0.1"], "--lr"),
        (["--num_epochs=3"], "--epochs"),
        (["--Batch-Size", "3"], "--batch-size"),
        (["--weight-decay", "3"], "--wd"),
    ],
)
def test_the_hint_alone_fits_a_line_of_80_columns(ended, words, guess, empty_cwd):
    from gluonlab.run import main

    status, out, said = ended(main, *words)
    assert (status, out) == (2, "")
    assert said.count("\n") == 1 and len(said) <= 80
    assert said.endswith(f"did you mean {guess!r}?\n")


def test_the_example_is_true():
    assert doctest.testmod(other_names).failed == 0
    assert doctest.testmod(other_names).attempted == 2


@pytest.mark.parametrize(
    ("given", "meant"), [("--skip", "--skip-bad"), ("--che", None), ("--ch", None)]
)
def test_the_beginning_of_one_name_stands_for_it(given, meant):
    names = ["--skip-bad", "--channels", "--check-replicas", "--checkpoint-every", "--chart"]
    hint = f"did you mean {meant!r}?" if meant else "see --help"
    assert unknown_option(given, names).endswith(hint)
