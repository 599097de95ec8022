"""Text of unknown origin has no effect on terminals and paths; JSON, numbers, and wrapped lines."""

import doctest
import json
import math

from hypothesis import example, given
from hypothesis import strategies as st
from support.examples import examples

from gluonlab import plain_text
from gluonlab.plain_text import COLUMN, MAX_LINE, WIDTH, escape_unprintable, format_columns, one_line, wrap_entry

ANY = st.text(st.characters(), max_size=40) | st.text("./\\-a\0\n\x1b\u202e ", max_size=12)


@given(ANY)
def test_escaped_text_has_no_effect_on_a_terminal_and_keeps_its_meaning(text):
    result = escape_unprintable(text)
    assert result.isprintable()
    if text.isprintable():
        assert result == text
    elif "\\" not in text:
        assert result.encode("latin-1", "backslashreplace").decode("unicode_escape") == text


@given(ANY)
def test_a_name_is_one_part_of_a_path_and_remains_itself(text):
    name = plain_text.to_plain_name(text, "folder")
    assert name and "/" not in name and len(name) <= 100 and name.isascii() and name.isprintable()
    assert plain_text.to_plain_name(name, "folder") == name
    assert not plain_text.is_plain_name(text) or ({"/", "\0"}.isdisjoint(text) and text not in (".", ".."))


@given(st.text(max_size=20).flatmap(lambda text: st.sampled_from([text, text * 500, text + " "])))
def test_an_error_is_one_line_of_bounded_length(text):
    result = one_line(text)
    assert result.isprintable() and len(result) <= MAX_LINE + 3


def test_the_beginning_and_the_end_of_a_long_value_are_shown():
    result = one_line(f"unknown kvstore {'a' * 5000 + 'b'!r}: choose ring\nor tree")
    assert result.startswith("unknown kvstore 'aaa") and len(result) < 400
    assert result.endswith("aaab': choose ring or tree")


@given(st.floats(), st.integers(0, 6))
def test_a_number_is_what_python_writes_and_never_minus_zero(value, places):
    result, usual = plain_text.format_decimals(value, places), f"{value:.{places}f}"
    assert result == usual or (float(usual) == 0 and result == f"{0:.{places}f}")
    assert not (result.startswith("-") and float(result) == 0)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda value: st.lists(value) | st.dictionaries(st.text(), value),
    max_leaves=20,
)


def replace_nonfinite(value):
    """Return a JSON value with None for numbers that are not finite."""
    if isinstance(value, list):
        return [replace_nonfinite(item) for item in value]
    if isinstance(value, dict):
        return {key: replace_nonfinite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


@examples(40)
@given(PLAIN)
def test_json_is_one_line_and_read_as_written_except_numbers_that_are_not_finite(value):
    text = plain_text.json_text(value)
    assert "\n" not in text
    assert json.loads(text, parse_constant=lambda name: name) == replace_nonfinite(value)


def test_the_examples_are_true():
    assert doctest.testmod(plain_text) == (0, 3)


words = st.text("abc-/:%", min_size=1, max_size=30)
names = st.text("abc-", min_size=1, max_size=40)


@examples(40)
@given(names, st.lists(st.lists(words | st.text("x", min_size=70, max_size=90), max_size=20).map(" ".join), max_size=4))
@example("name", ["a" * (WIDTH - COLUMN)])
@example("a" * (COLUMN - 2), ["b"])
def test_every_word_comes_in_order_within_80_columns(name, paragraphs):
    lines = wrap_entry(name, *paragraphs)
    assert " ".join(lines).split() == [name, *" ".join(paragraphs).split()]
    assert all(len(line) <= WIDTH or " " not in line for line in lines)  # a longer word has its own line
    assert all(line == line.rstrip() for line in lines)
    assert lines[0].startswith(f"  {name}")
    assert all(line.startswith(" " * COLUMN) or len(line) >= WIDTH for line in lines[1:])


def test_a_no_break_space_is_not_broken():
    lines = wrap_entry("name", "a" * (WIDTH - COLUMN - 6) + " 92.1\N{NO-BREAK SPACE}%")
    assert lines[1].strip() == "92.1 %"


@given(st.lists(st.text("abc-", min_size=1, max_size=60), min_size=1, max_size=150))
def test_columns_hold_every_name_once_and_are_read_downwards(many):
    lines = format_columns(many)
    rows = [line.split() for line in lines]
    assert [row[column] for column in range(max(map(len, rows))) for row in rows if column < len(row)] == many
    assert all(len(line) <= WIDTH and line == line.rstrip() for line in lines)
    # no fewer lines would do: the names of one line less do not fit side by side
    for height in range(1, len(lines)):
        parts = [many[first : first + height] for first in range(0, len(many), height)]
        assert sum(max(map(len, part)) for part in parts) + 2 * (len(parts) - 1) > WIDTH
