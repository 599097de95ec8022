"""Lists of names fit a terminal of 80 columns, and lose no word."""

from hypothesis import example, given
from hypothesis import strategies as st

from gluonlab.config.listing import COLUMN, WIDTH, entry

words = st.text("abc-/:%", min_size=1, max_size=30)
names = st.text("abc-", min_size=1, max_size=40)


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
