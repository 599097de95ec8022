"""Lists of names fit a terminal of 80 columns, and lose no word."""

from hypothesis import example, given
from hypothesis import strategies as st
from support.examples import examples

from gluonlab.config.listing import COLUMN, WIDTH, columns, entry

words = st.text("abc-/:%", min_size=1, max_size=30)
names = st.text("abc-", min_size=1, max_size=40)


@examples(40)
@given(
    names,
    st.lists(
        st.lists(words | st.text("x", min_size=70, max_size=90), max_size=20).map(" ".join),
        max_size=4,
    ),
)
@example("name", ["a" * (WIDTH - COLUMN)])
@example("a" * (COLUMN - 2), ["b"])
def test_every_word_comes_in_its_turn_within_80_columns(name, paragraphs):
    lines = entry(name, *paragraphs)
    assert " ".join(lines).split() == [name, *" ".join(paragraphs).split()]
    # a word that is longer than a line stands alone
    assert all(len(line) <= WIDTH or " " not in line for line in lines)
    assert all(line == line.rstrip() for line in lines)
    assert lines[0].startswith(f"  {name}")
    assert all(line.startswith(" " * COLUMN) or len(line) >= WIDTH for line in lines[1:])


def test_what_belongs_together_is_not_parted():
    lines = entry("name", "a" * (WIDTH - COLUMN - 6) + " 92.1\N{NO-BREAK SPACE}%")
    assert lines[1].strip() == "92.1 %"


@given(st.lists(st.text("abc-", min_size=1, max_size=60), min_size=1, max_size=150))
def test_columns_hold_every_name_once_and_are_read_downwards(many):
    lines = columns(many)
    rows = [line.split() for line in lines]
    read = [row[place] for place in range(max(map(len, rows))) for row in rows if place < len(row)]
    assert read == many
    assert all(len(line) <= WIDTH and line == line.rstrip() for line in lines)
    # no fewer lines would do: the names of one line less do not fit side by side
    for height in range(1, len(lines)):
        parts = [many[first : first + height] for first in range(0, len(many), height)]
        assert sum(max(map(len, part)) for part in parts) + 2 * (len(parts) - 1) > WIDTH
