"""Lines of what processes print: whole, in order, none cut within a letter."""

import asyncio

from hypothesis import example, given
from hypothesis import strategies as st

from gluonlab.launch.messages import PIECE, lines_of

TEXT = st.text(st.sampled_from("ab\n\u00e9\u20ac\U0001f600"), max_size=60)


def read(data, longest, size=7):
    """The lines of these bytes, which come in pieces of this size."""

    async def reading():
        reader = asyncio.StreamReader()
        for begin in range(0, len(data), size):
            reader.feed_data(data[begin : begin + size])
        reader.feed_eof()
        return [line async for line in lines_of(reader, longest)]

    return asyncio.run(reading())


@given(TEXT, st.integers(4, 20), st.integers(1, 9))
@example("a" * 3 + "\U0001f600" * 5, 4, 3)
def test_all_is_there_in_pieces_of_whole_letters(text, longest, size):
    found = read(text.encode(), longest, size)
    assert "".join(found) == text.replace("\n", "")
    assert all(len(line.encode()) <= longest for line in found)
    if all(len(line.encode()) <= longest for line in text.split("\n")):
        assert (
            found == text.split("\n")[: len(found)]
            and "".join(text.split("\n")[len(found) :]) == ""
        )


@given(st.binary(max_size=80), st.integers(1, 9))
def test_bytes_that_are_no_text_are_shown_in_part(data, longest):
    found = read(data, longest)
    assert len(found) <= len(data) + 1 and all(len(line) <= longest for line in found)


def test_a_letter_on_the_edge_of_a_piece_stays_whole():
    text = "x" * (PIECE - 1) + "\u00e9" + "y" * 10
    assert read(text.encode(), PIECE, PIECE) == ["x" * (PIECE - 1), "\u00e9" + "y" * 10]
