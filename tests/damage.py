"""Files with bytes changed, cut out or put in anywhere: what reads them must say so, or read what
is left.
"""

from hypothesis import strategies as st


def corrupted(data, content, places=3, junk=()):
    """``content`` with one to so many places of up to 4 bytes replaced; ``junk``: what may come in
    there beside any bytes.
    """
    content = bytearray(content)
    for _ in range(data.draw(st.integers(1, places))):
        place, length = data.draw(st.integers(0, len(content))), data.draw(st.integers(0, 4))
        some = st.binary(min_size=length, max_size=length) | st.binary(max_size=9)
        content[place : place + length] = data.draw(some | st.sampled_from(junk) if junk else some)
    return bytes(content)
