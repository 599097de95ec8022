"""JSON for programs: one document, with null where a number is none."""

import doctest
import json
import math

from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from gluonlab import documents
from gluonlab.documents import json_text

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda each: st.lists(each) | st.dictionaries(st.text(), each),
    max_leaves=20,
)


def no_constant(name):
    raise AssertionError(f"{name} is no JSON")


def finite(value):
    """The value as another reader of JSON has it."""
    if isinstance(value, float) and (math.isnan(value) or math.isinf(value)):
        return None
    if isinstance(value, list):
        return [finite(each) for each in value]
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    return value


@examples(40)
@given(PLAIN)
def test_what_is_written_is_read_again_but_for_numbers_that_are_none(value):
    text = json_text(value)
    assert "\n" not in text
    assert json.loads(text, parse_constant=no_constant) == finite(value)


def test_the_example_is_true():
    assert doctest.testmod(documents) == (0, 1)
