"""What launcher and agents say has one of a few forms, and lines of processes stay whole."""

import asyncio
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gluonlab.errors import GluonlabError
from gluonlab.launch.agent_messages import (
    AGENT_MESSAGES,
    LAUNCHER_MESSAGES,
    LINE_PIECE_BYTES,
    BadMessage,
    parse_message,
    read_lines,
    receive_messages,
)

GOOD = {
    "agent": [
        {"here": "h1", "pid": 7, "addresses": {"10.0.0.1": "eth0"}},
        {"here": "h1", "pid": 7, "addresses": {}, "rank": 1, "size": 2, "seen_by": "10.0.0.2"},
        {"beat": True}, {"port": 9000}, {"taken": "Address already in use"}, {"all_ended": True},
        {"of": "rank 0", "stream": "out", "line": "epoch 1 \u00e9\x1b"}, {"came": 15},
        {"stopped": "rank 0", "seconds": 1.5}, {"ended": "rank 0", "status": -9},
        {"ended": "rank 0", "status": 2, "why": "error: no"},
    ],
    "launcher": [
        {"beat": True}, {"patience": 15.0}, {"port": 0}, {"printed": 10}, {"end": True},
        {"start": "rank 0", "words": ["\udcff"], "folder": "/\udcfe", "environment": {"A": ""}},
        {"signal": 2, "to": ["rank 0"]}, {"done": 130},
    ],
}  # fmt: skip
FORMS = {"agent": AGENT_MESSAGES, "launcher": LAUNCHER_MESSAGES}
each_side = pytest.mark.parametrize("side", FORMS)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from([2**31, -1, 1e999, "out", "rank 0", "\0", "\ud800", "A=B"])
)  # fmt: skip
VALUES = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(st.text(max_size=3), SCALARS)
NAMES = sorted({key for messages in GOOD.values() for each in messages for key in each})


def line(message):
    return json.dumps(message).encode() + b"\n"


@each_side
def test_what_each_side_says_is_read_as_it_was(side):
    for message in GOOD[side]:
        assert parse_message(line(message), FORMS[side]) == message
    assert {key for message in GOOD[side] for key in message} >= set(FORMS[side])


@each_side
def test_what_lacks_a_key_has_one_too_many_or_another_type_is_none(side):
    for message in GOOD[side]:
        spoilt = [{**message, "more": 1}]
        for key, value in message.items():
            spoilt += [{**message, key: other} for other in (None, [value], {"a": value})]
            if key not in ("rank", "size", "seen_by", "why"):
                spoilt.append({k: v for k, v in message.items() if k != key})
        for each in spoilt:
            with pytest.raises(BadMessage, match=r"^has said what is no message: '"):
                parse_message(line(each), FORMS[side])


@pytest.mark.parametrize(
    ("side", "text"),
    [
        ("agent", b'{"here": "h", "pid": 1, "addresses": {}, "rank": Infinity, "size": 2}'),
        ("agent", b'{"here": "h", "pid": 1, "addresses": {}, "rank": NaN, "size": 2}'),
        ("agent", b'{"here": "h", "pid": 1, "addresses": {}, "rank": 1.0, "size": 2}'),
        ("agent", b'{"here": "h", "pid": true, "addresses": {}}'),
        ("agent", b'{"stopped": "rank 0", "seconds": 1e999}'),
        ("agent", b'{"of": "rank 0", "stream": "out", "line": "\\ud800"}'),
        ("agent", b'{"ended": "rank 0", "status": ' + b"9" * 9999 + b"}"),
        ("agent", b"[" * 100_000),
        ("agent", b'{"gone": "h"}'),
        ("launcher", b'{"start": "x", "words": ["\\u0000"], "folder": "", "environment": {}}'),
        ("launcher", b'{"start": "x", "words": [], "folder": "", "environment": {"A=B": ""}}'),
        ("launcher", b'{"signal": 9, "to": []}'),
        ("launcher", b'{"done": 256}'),
        ("launcher", b"Welcome"),
        ("launcher", b"\xff\x1b[2J"),
        ("launcher", b"[]"),
        ("launcher", b""),
    ],
)  # fmt: skip
def test_nonsense_is_one_line_that_speaks_to_no_terminal(side, text):
    with pytest.raises(BadMessage) as raised:
        parse_message(text + b"\n", FORMS[side])
    assert str(raised.value).isprintable() and len(str(raised.value)) < 700


@each_side
@given(message=st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=4), VALUES, max_size=4))
def test_any_object_is_a_message_or_is_refused(side, message):
    try:
        parse_message(line(message), FORMS[side])
    except BadMessage as error:
        assert isinstance(error, GluonlabError) and str(error).isprintable()


def read(data, forms, cuts):
    """What comes of these bytes, which arrive in pieces: the messages, and how it ended."""

    async def reading():
        reader, found = asyncio.StreamReader(limit=200), []
        for begin, end in zip([0, *cuts], [*cuts, len(data)]):
            reader.feed_data(data[begin:end])
        reader.feed_eof()
        try:
            async for message in receive_messages(reader, forms):
                found.append(message)
        except BadMessage as error:
            return found, error
        return found, None

    return asyncio.run(reading())


@each_side
@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=3).map(sorted))
@example(data=b'{"beat": true}\n{"beat": true}\n{"be', cuts=[3])
@example(data=b"Welcome to h1", cuts=[])
@example(data=b"x" * 300, cuts=[])
def test_any_bytes_end_as_a_connection_does_or_with_one_line(side, data, cuts):
    found, error = read(data, FORMS[side], [min(cut, len(data)) for cut in cuts])
    assert all(parse_message(line(message), FORMS[side]) == message for message in found)
    if data.startswith(b'{"beat"'):
        assert found == [{"beat": True}] * 2 and error is None  # the third was cut off
    if data == b"Welcome to h1":
        assert error.line == "Welcome to h1"


TEXT = st.text(st.sampled_from("ab\n\u00e9\u20ac\U0001f600"), max_size=60)


def in_lines(data, longest, size=7):
    """The lines of these bytes, which come in pieces of this size."""

    async def reading():
        reader = asyncio.StreamReader()
        for begin in range(0, len(data), size):
            reader.feed_data(data[begin : begin + size])
        reader.feed_eof()
        return [line async for line in read_lines(reader, longest)]

    return asyncio.run(reading())


@given(TEXT, st.integers(4, 20), st.integers(1, 9))
@example("a" * 3 + "\U0001f600" * 5, 4, 3)
def test_all_is_there_in_pieces_of_whole_letters(text, longest, size):
    found = in_lines(text.encode(), longest, size)
    assert "".join(found) == text.replace("\n", "")
    assert all(len(line.encode()) <= longest for line in found)
    if all(len(line.encode()) <= longest for line in text.split("\n")):
        assert found == text.split("\n")[: len(found)] and "".join(text.split("\n")[len(found) :]) == ""


@given(st.binary(max_size=80), st.integers(1, 9))
def test_bytes_that_are_no_text_are_shown_in_part(data, longest):
    found = in_lines(data, longest)
    assert len(found) <= len(data) + 1 and all(len(line) <= longest for line in found)


def test_a_letter_on_the_edge_of_a_piece_stays_whole():
    text = "x" * (LINE_PIECE_BYTES - 1) + "\u00e9" + "y" * 10
    assert in_lines(text.encode(), LINE_PIECE_BYTES, LINE_PIECE_BYTES) == [
        "x" * (LINE_PIECE_BYTES - 1),
        "\u00e9" + "y" * 10,
    ]
