"""Files with bytes changed, cut out or put in anywhere: what reads them must say so, or read what
is left.
"""

from hypothesis import strategies as st


def corrupt_bytes(data, content, places=3, junk=()):
    """``content`` with one to so many places of up to 4 bytes replaced; ``junk``: what may come in
    there beside any bytes.
    """
    content = bytearray(content)
    for _ in range(data.draw(st.integers(1, places))):
        place, length = data.draw(st.integers(0, len(content))), data.draw(st.integers(0, 4))
        some = st.binary(min_size=length, max_size=length) | st.binary(max_size=9)
        content[place : place + length] = data.draw(some | st.sampled_from(junk) if junk else some)
    return bytes(content)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.floats()
    | st.text(max_size=5)
    | st.integers(-1, 3)
    | st.sampled_from([10**400, -(10**400), 2**53, 1e308, 1e-320, "\ud800", 0, 2**31]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)


@st.composite
def mutated_json(draw, value):
    """The JSON value with another one somewhere in it, or something left out."""
    if not isinstance(value, (dict, list)) or not value:
        return draw(JSON_VALUES)
    copy = value.copy()
    place = draw(st.sampled_from(sorted(copy) if isinstance(copy, dict) else range(len(copy))))
    if draw(st.integers(0, 4)) == 0:
        del copy[place]
    else:
        copy[place] = draw(mutated_json(copy[place]))
    return copy
