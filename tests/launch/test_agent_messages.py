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
    BadMessage,
    parse_message,
    read_lines,
    receive_messages,
)

GOOD = {
    "agent": [
        {"hostname": "h1", "pid": 7, "addresses": {"10.0.0.1": "eth0"}},
        {"hostname": "h1", "pid": 7, "addresses": {}, "rank": 1, "size": 2, "launcher_address": "10.0.0.2"},
        {"heartbeat": True}, {"port": 9000}, {"port_error": "Address already in use"}, {"all_ended": True},
        {"process": "rank 0", "stream": "out", "line": "epoch 1 \u00e9\x1b"}, {"signal": 15},
        {"process": "rank 0", "suspended_s": 1.5}, {"process": "rank 0", "exit_status": -9},
        {"process": "rank 0", "exit_status": 2, "error": "error: no"},
    ],
    "launcher": [
        {"heartbeat": True}, {"patience": 15.0}, {"port": 0}, {"printed": 10}, {"end": True},
        {"start": "rank 0", "words": ["\udcff"], "folder": "/\udcfe", "environment": {"A": ""}},
        {"signal": 2, "processes": ["rank 0"]}, {"exit_status": 130},
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


def encode_message(message):
    return json.dumps(message).encode() + b"\n"


@each_side
def test_only_messages_with_exactly_the_keys_and_types_of_a_form_are_read(side):
    assert {key for message in GOOD[side] for key in message} >= set(FORMS[side])
    for message in GOOD[side]:
        assert parse_message(encode_message(message), FORMS[side]) == message
        spoiled = [{**message, "more": 1}]
        for key, value in message.items():
            spoiled += [{**message, key: other} for other in (None, [value], {"a": value})]
            if key not in ("rank", "size", "launcher_address", "error"):
                spoiled.append({k: v for k, v in message.items() if k != key})
        for bad_message in spoiled:
            with pytest.raises(BadMessage, match=r"^sent an invalid message: '"):
                parse_message(encode_message(bad_message), FORMS[side])


@pytest.mark.parametrize(
    ("side", "text"),
    [
        ("agent", b'{"hostname": "h", "pid": 1, "addresses": {}, "rank": Infinity, "size": 2}'),
        ("agent", b'{"hostname": "h", "pid": 1, "addresses": {}, "rank": NaN, "size": 2}'),
        ("agent", b'{"hostname": "h", "pid": 1, "addresses": {}, "rank": 1.0, "size": 2}'),
        ("agent", b'{"hostname": "h", "pid": true, "addresses": {}}'),
        ("agent", b'{"process": "rank 0", "suspended_s": 1e999}'),
        ("agent", b'{"process": "rank 0", "stream": "out", "line": "\\ud800"}'),
        ("agent", b'{"process": "rank 0", "exit_status": ' + b"9" * 9999 + b"}"),
        ("agent", b"[" * 100_000),
        ("agent", b'{"loss_reason": "h"}'),
        ("launcher", b'{"start": "x", "words": ["\\u0000"], "folder": "", "environment": {}}'),
        ("launcher", b'{"start": "x", "words": [], "folder": "", "environment": {"A=B": ""}}'),
        ("launcher", b'{"signal": 9, "processes": []}'), ("launcher", b'{"exit_status": 256}'),
        ("launcher", b"Welcome"), ("launcher", b"\xff\x1b[2J"), ("launcher", b"[]"), ("launcher", b""),
    ],
)  # fmt: skip
def test_nonsense_is_one_short_printable_line(side, text):
    with pytest.raises(BadMessage) as raised:
        parse_message(text + b"\n", FORMS[side])
    assert str(raised.value).isprintable() and len(str(raised.value)) < 700


@each_side
@given(message=st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=4), VALUES, max_size=4))
def test_any_object_is_a_message_or_is_refused(side, message):
    try:
        parse_message(encode_message(message), FORMS[side])
    except BadMessage as error:
        assert isinstance(error, GluonlabError) and str(error).isprintable()


def receive_all(data, forms, cuts):
    """Return the messages in ``data``, which arrives in pieces, and the error after them, if any."""

    async def receive():
        reader, messages = asyncio.StreamReader(limit=200), []
        for start, end in zip([0, *cuts], [*cuts, len(data)]):
            reader.feed_data(data[start:end])
        reader.feed_eof()
        try:
            async for message in receive_messages(reader, forms):
                messages.append(message)
        except BadMessage as error:
            return messages, error
        return messages, None

    return asyncio.run(receive())


@each_side
@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=3).map(sorted))
@example(data=b'{"heartbeat": true}\n{"heartbeat": true}\n{"he', cuts=[3])
@example(data=b"Welcome to h1", cuts=[])
@example(data=b"x" * 300, cuts=[])
def test_any_bytes_are_messages_up_to_the_first_error(side, data, cuts):
    messages, error = receive_all(data, FORMS[side], [min(cut, len(data)) for cut in cuts])
    assert all(parse_message(encode_message(message), FORMS[side]) == message for message in messages)
    if data.startswith(b'{"heartbeat"'):
        assert messages == [{"heartbeat": True}] * 2 and error is None  # the third was cut off
    if data == b"Welcome to h1":
        assert error.line == "Welcome to h1"


TEXT = st.text(st.sampled_from("ab\n\u00e9\u20ac\U0001f600"), max_size=60)


def split_into_lines(data, longest, size=7):
    """Return the lines of ``data``, which arrives in pieces of ``size`` bytes."""

    async def read():
        reader = asyncio.StreamReader()
        for start in range(0, len(data), size):
            reader.feed_data(data[start : start + size])
        reader.feed_eof()
        return [line async for line in read_lines(reader, longest)]

    return asyncio.run(read())


@given(TEXT, st.integers(4, 20), st.integers(1, 9))
@example("a" * 3 + "\U0001f600" * 5, 4, 3)
@example("x" * 9 + "\u00e9" + "y" * 5, 10, 9)  # a letter on the edge of a piece
def test_long_lines_are_cut_between_letters_and_lose_nothing(text, longest, size):
    lines, written = split_into_lines(text.encode(), longest, size), text.split("\n")
    assert "".join(lines) == "".join(written)
    assert all(len(line.encode()) <= longest for line in lines)
    if all(len(line.encode()) <= longest for line in written):
        assert lines == written[: len(lines)] and "".join(written[len(lines) :]) == ""


@given(st.binary(max_size=80), st.integers(1, 9))
def test_bytes_that_are_not_text_are_shown_in_part(data, longest):
    lines = split_into_lines(data, longest)
    assert len(lines) <= len(data) + 1 and all(len(line) <= longest for line in lines)
