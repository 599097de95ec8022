"""Damaged inputs for fuzzing: bytes and JSON values with random changes."""

from hypothesis import strategies as st


def corrupt_bytes(data, content, places=3, junk=()):
    """Return ``content`` with random changes of up to 4 bytes at 1 to ``places`` positions.

    ``junk``: byte strings that may also be inserted.
    """
    content = bytearray(content)
    for _ in range(data.draw(st.integers(1, places))):
        start, length = data.draw(st.integers(0, len(content))), data.draw(st.integers(0, 4))
        replacements = st.binary(min_size=length, max_size=length) | st.binary(max_size=9)
        if junk:
            replacements |= st.sampled_from(junk)
        content[start : start + length] = data.draw(replacements)
    return bytes(content)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.floats()
    | st.text(max_size=5)
    | st.integers(-1, 3)
    | st.sampled_from([10**400, -(10**400), 2**53, 1e308, 1e-320, "\ud800", 0, 2**31]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@st.composite
def mutated_json(draw, value):
    """Draw a copy of a JSON value in which a part is replaced or missing."""
    if not isinstance(value, (dict, list)) or not value:
        return draw(JSON_VALUES)
    copy = value.copy()
    key = draw(st.sampled_from(sorted(copy) if isinstance(copy, dict) else range(len(copy))))
    if draw(st.integers(0, 4)) == 0:
        del copy[key]
    else:
        copy[key] = draw(mutated_json(copy[key]))
    return copy
