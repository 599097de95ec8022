"""Options as services write them, which give every one a value."""

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluonlab.run import main

FLAGS = {
    name: option
    for option in main.params
    if isinstance(option, click.Option) and option.is_flag and not option.is_eager
    for name in [*option.opts, *option.secondary_opts]
}
BY_DEFAULT = main.make_context("run", []).params


def read(*words):
    """What is not as it would be without these words."""
    found = main.make_context("run", list(words)).params
    return {name: value for name, value in found.items() if value != BY_DEFAULT[name]}


@given(st.lists(st.tuples(st.sampled_from(sorted(FLAGS)), st.booleans()), max_size=4))
def test_a_flag_takes_true_and_false(asked):
    """As JSON and Python write them: hyperparameters of a SageMaker job become such words."""
    words, alone = [], []
    for name, value in asked:
        words += [name, str(value) if len(name) % 2 else str(value).lower()]
        option = FLAGS[name]
        opposite = option.secondary_opts if name in option.opts else option.opts
        alone += [name] if value else opposite
    assert read(*words, "--gpus", "2") == read(*alone, "--gpus", "2")


def test_other_values_are_none_of_a_flag(capsys):
    for words in (["--flip", "yes"], ["--flip", "true", "true"], ["--gpus", "2", "true"]):
        with pytest.raises(click.UsageError, match="unexpected extra argument"):
            read(*words)
    assert read("--out", "true") == {"out": "true"}
