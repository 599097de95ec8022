"""The routes of many messages as a table of numbered links, for what looks at millions of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Tuple

import numpy as np

from gluonlab.collectives.routes import Link, Pair, Route, Ways

NONE = -1  # in a table: no link, as the route has fewer


@dataclass(frozen=True)
class Wires:
    """The links between some pairs of devices.

    ``links``: each once. ``bytes_per_s``: theirs, (links,). ``passed``: the numbers of the links of
    every pair's route, in order, NONE among them, (pairs, longest). ``latency_s``: (pairs,).
    """

    links: Tuple[Link, ...]
    bytes_per_s: Any
    passed: Any
    latency_s: Any


def wires_of(routes: Mapping[Pair, Route], src: Any, dst: Any) -> Wires:
    """The routes from ``src`` to ``dst``, (pairs,) each. Raises KeyError for pairs without one."""
    numbers: Dict[Link, int] = {}
    pairs = list(zip(src.tolist(), dst.tolist()))
    if isinstance(routes, Ways):
        out, into = _table(routes.out, numbers), _table(routes.into, numbers)
        passed, latency_s = np.hstack([out[src], into[dst]]), np.full(len(src), routes.latency_s)
        alone = [place for place, pair in enumerate(pairs) if pair in routes.near]
    else:
        passed, latency_s = np.zeros((len(src), 0), np.int64), np.zeros(len(src))
        alone = [*range(len(pairs))]
    own = [routes[pairs[place]] for place in alone]
    links = _table((route.links for route in own), numbers)
    missing = max(0, links.shape[1] - passed.shape[1])
    passed = np.pad(passed, ((0, 0), (0, missing)), constant_values=NONE)
    passed[alone] = NONE
    passed[alone, : links.shape[1]] = links
    latency_s[alone] = [route.latency_s for route in own]
    speeds = np.array([link.bytes_per_s for link in numbers], float)
    return Wires(tuple(numbers), speeds, passed, latency_s)


def _table(ways: Iterable[Sequence[Link]], numbers: Dict[Link, int]) -> Any:
    """The numbers of the links of every way, (ways, longest); what has none yet gets the next."""
    rows: List[List[int]] = [[numbers.setdefault(at, len(numbers)) for at in way] for way in ways]
    longest = max(map(len, rows), default=0)
    padded = [row + [NONE] * (longest - len(row)) for row in rows]
    return np.array(padded, np.int64).reshape(len(rows), longest)
