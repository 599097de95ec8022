"""Random and difficult topologies of links, in which all devices reach each other."""

from hypothesis import strategies as st

from gluonlab.collectives.topology import Link, Route, Topology, all_pairs

SPEED, LATENCY = 1e9, 1e-5
SLOW_SHARE = 0.01  # speed between pairs without a direct link: too slow for any schedule


@st.composite
def mesh_topologies(draw, most=5, lanes=3):
    """Draw a bidirectional ring with some more links, each of 1 to ``lanes`` lanes."""
    p = draw(st.integers(2, most))
    linked_pairs = {frozenset((rank, (rank + 1) % p)) for rank in range(p)}
    other_pairs = sorted({frozenset(pair) for pair in all_pairs(p)} - linked_pairs, key=sorted)
    linked_pairs |= set(draw(st.lists(st.sampled_from(other_pairs), unique=True))) if other_pairs else set()
    speeds = {pair: SPEED * draw(st.integers(1, lanes)) for pair in sorted(linked_pairs, key=sorted)}
    routes = {}
    for src, dst in all_pairs(p):
        speed = speeds.get(frozenset((src, dst)), SLOW_SHARE * SPEED)
        routes[src, dst] = Route((Link(f"{src} to {dst}", speed),), LATENCY)
    return Topology("mesh", p, routes, 10 * SPEED)


@st.composite
def unequal_topologies(draw, most=6):
    """Draw links between all pairs, with speeds as measurements give them."""
    p = draw(st.integers(2, most))
    speed = st.floats(SPEED, 100 * SPEED)
    routes = {(src, dst): Route((Link(f"{src} to {dst}", draw(speed)),), LATENCY) for src, dst in all_pairs(p)}
    return Topology("unlike", p, routes, 10 * SPEED)


def two_cliques(size):
    """Return two fully connected sets of devices with a single link between the sets."""
    routes = {
        (src, dst): Route((Link(f"{src} to {dst}", SPEED * (1 if near else SLOW_SHARE)),), LATENCY)
        for src, dst in all_pairs(2 * size)
        for near in [src // size == dst // size or {src, dst} == {0, size}]
    }
    return Topology("cliques", 2 * size, routes, 10 * SPEED)
