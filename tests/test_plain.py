"""Text of unknown origin: without effect on a terminal, in one folder, on one line."""

from hypothesis import given
from hypothesis import strategies as st

from gluonlab.plain import LONGEST_LINE, decimals, is_plain_name, one_line, plain_name, printable

ANY = st.text(st.characters(), max_size=40) | st.text("./\\-a\0\n\x1b\u202e ", max_size=12)


@given(ANY)
def test_what_is_shown_has_no_effect_and_keeps_its_meaning(text):
    shown = printable(text)
    assert shown.isprintable()
    if text.isprintable():
        assert shown == text
    elif "\\" not in text:
        assert shown.encode("latin-1", "backslashreplace").decode("unicode_escape") == text


@given(ANY)
def test_a_name_is_one_part_of_a_path_and_remains_itself(text):
    name = plain_name(text, "folder")
    assert name and "/" not in name and len(name) <= 100 and name.isascii() and name.isprintable()
    assert plain_name(name, "folder") == name
    assert not is_plain_name(text) or ({"/", "\0"}.isdisjoint(text) and text not in (".", ".."))


@given(st.text(max_size=20).flatmap(lambda text: st.sampled_from([text, text * 500, text + " "])))
def test_an_error_is_one_line_of_bounded_length(text):
    shown = one_line(text)
    assert shown.isprintable() and len(shown) <= LONGEST_LINE + 3


def test_the_beginning_and_the_end_of_a_long_value_are_shown():
    shown = one_line(f"unknown kvstore {'a' * 5000 + 'b'!r}: choose ring\nor tree")
    assert shown.startswith("unknown kvstore 'aaa") and len(shown) < 400
    assert shown.endswith("aaab': choose ring or tree")


@given(st.floats(), st.integers(0, 6))
def test_a_number_is_what_python_writes_and_never_minus_zero(value, places):
    shown, usual = decimals(value, places), f"{value:.{places}f}"
    assert shown == usual or (float(usual) == 0 and shown == f"{0:.{places}f}")
    assert not (shown.startswith("-") and float(shown) == 0)
