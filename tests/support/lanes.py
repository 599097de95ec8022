"""Wires between devices that all reach each other: drawn at random, or hard for a search."""

from hypothesis import strategies as st

from gluonlab.collectives.topology import Link, Route, Topology, all_pairs

SPEED, LATENCY = 1e9, 1e-5
SLOW_SHARE = 0.01  # of a lane: what pairs without a wire of their own have, too slow to be used


@st.composite
def mesh_topologies(draw, most=5, lanes=3):
    """A ring of wires both ways, some more at random, each of 1 to ``lanes`` lanes."""
    p = draw(st.integers(2, most))
    wired = {frozenset((rank, (rank + 1) % p)) for rank in range(p)}
    others = sorted({frozenset(pair) for pair in all_pairs(p)} - wired, key=sorted)
    wired |= set(draw(st.lists(st.sampled_from(others), unique=True))) if others else set()
    speeds = {pair: SPEED * draw(st.integers(1, lanes)) for pair in sorted(wired, key=sorted)}
    routes = {}
    for src, dst in all_pairs(p):
        speed = speeds.get(frozenset((src, dst)), SLOW_SHARE * SPEED)
        routes[src, dst] = Route((Link(f"{src} to {dst}", speed),), LATENCY)
    return Topology("mesh", p, routes, 10 * SPEED)


@st.composite
def unequal_topologies(draw, most=6):
    """All pairs have a wire, of any speed that a measurement may give."""
    p = draw(st.integers(2, most))
    speed = st.floats(SPEED, 100 * SPEED)
    routes = {
        (src, dst): Route((Link(f"{src} to {dst}", draw(speed)),), LATENCY)
        for src, dst in all_pairs(p)
    }
    return Topology("unlike", p, routes, 10 * SPEED)


def two_cliques(size):
    """Two sets of devices that are all neighbours, with a single wire from one set to the other."""
    routes = {
        (src, dst): Route((Link(f"{src} to {dst}", SPEED * (1 if near else SLOW_SHARE)),), LATENCY)
        for src, dst in all_pairs(2 * size)
        for near in [src // size == dst // size or {src, dst} == {0, size}]
    }
    return Topology("cliques", 2 * size, routes, 10 * SPEED)
