"""The topology that measured copies make: a link for each pair, and links that several share.

Whether copies share a link shows when they are made at once: together they are slower than alone.
Asked are both directions of a pair, all copies out of a device and into one, and all pairs at once.
What is shared by some copies only, as the way up from a switch of PCIe, is not told apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean
from typing import Dict, List, Mapping, NamedTuple, Sequence, Tuple

from gluonlab.bench.links.fit import Fit, alike
from gluonlab.collectives.links import Link, Pair, Route, Topology
from gluonlab.collectives.routes import pairs_of

ALIKE = 1.1  # speeds and latencies that differ by less than this factor are the same
# copies that take longer at once than is explained, by more than this factor, share a link: what
# they lose to neighbours and to the host's one thread is less
SLOWER = 4 / 3
BOTH, OUT = "both directions of a pair", "all copies out of a device"
INTO, ALL = "all copies into a device", "all pairs"


Group = Tuple[str, Tuple[Pair, ...]]  # what copies have in common, and which they are


@dataclass(frozen=True)
class Measured:
    """What was measured of ``world_size`` devices.

    ``pairs``: of each (src, dst) alone. ``adds``: bytes/s that each device adds. ``together``:
    seconds of copies of ``size_bytes`` each that are made at once, by what they have in common and
    the pairs themselves (`at_once`).
    """

    world_size: int
    pairs: Mapping[Pair, Fit]
    adds: Sequence[float]
    size_bytes: int
    together: Mapping[Group, float]


def at_once(world_size: int) -> List[Group]:
    """The copies that are made at once: what they have in common, and which they are."""
    pairs, devices = pairs_of(world_size), range(world_size)
    groups: List[Group] = [(BOTH, ((a, b), (b, a))) for a, b in pairs if a < b]
    if world_size > 2:
        groups += [(OUT, tuple(pair for pair in pairs if pair[0] == one)) for one in devices]
        groups += [(INTO, tuple(pair for pair in pairs if pair[1] == one)) for one in devices]
        groups.append((ALL, tuple(pairs)))
    return groups


class Shared(NamedTuple):
    """A link that all of ``pairs`` pass; ``kind``: what their copies have in common."""

    kind: str
    link: Link
    pairs: Tuple[Pair, ...]


def topology_of(measured: Measured, name: str, note: str, gpu: str = "") -> Topology:
    """The topology. Every route is the pair's own link, then those that it shares."""
    fits = _levelled(measured)
    links = {
        pair: [Link("{} to {}".format(*pair), _round(fits[pair].bytes_per_s))] for pair in fits
    }
    for shared in shared_links(measured):
        for pair in shared.pairs:
            links[pair].append(shared.link)
    routes = {pair: Route(tuple(links[pair]), _round(fits[pair].latency_s)) for pair in fits}
    adds = _round(min(alike(measured.adds, ALIKE)))
    return Topology(name, measured.world_size, routes, adds, note=note, gpu=gpu)


def shared_links(measured: Measured) -> List[Shared]:
    """The links that several pairs share.

    A link is there where copies made at once are slower than the links found so far explain, which
    are first those of few pairs. Priced with it, they take as long as was measured.
    """
    fits, size = _levelled(measured), measured.size_bytes
    found: List[Shared] = []
    for kind in (BOTH, OUT, INTO, ALL):
        slower = {
            pairs: seconds
            for (what, pairs), seconds in measured.together.items()
            if what == kind and seconds > SLOWER * _explained_s(pairs, fits, size, found)
        }
        speeds = []
        for pairs, seconds in slower.items():
            each_s = seconds / len(pairs)
            moving_s = max(each_s - mean(fits[pair].latency_s for pair in pairs), each_s / 2)
            # one alone passes it at its own speed
            speeds.append(max(size / moving_s, *(fits[pair].bytes_per_s for pair in pairs)))
        for pairs, speed in zip(slower, alike(speeds, ALIKE)):
            found.append(Shared(kind, Link(_name(kind, pairs), _round(speed)), pairs))
    return found


def _levelled(measured: Measured) -> Dict[Pair, Fit]:
    """The fits, with the same figures where they are `alike`."""
    fits = measured.pairs.values()
    latencies = alike([each.latency_s for each in fits], ALIKE)
    speeds = alike([each.bytes_per_s for each in fits], ALIKE)
    same = zip(measured.pairs, latencies, speeds)
    return {pair: Fit(latency_s, speed, 0.0) for pair, latency_s, speed in same}


def _explained_s(
    pairs: Sequence[Pair], fits: Mapping[Pair, Fit], size: int, found: Sequence[Shared]
) -> float:
    """Seconds of copies made at once, as a step is priced: the busiest link decides."""
    busiest_s = max(fits[pair].seconds(size) for pair in pairs)
    for shared in found:
        passing = set(pairs) & set(shared.pairs)
        latencies_s = sum(fits[pair].latency_s for pair in passing)
        busiest_s = max(busiest_s, latencies_s + len(passing) * size / shared.link.bytes_per_s)
    return busiest_s


def _name(kind: str, pairs: Sequence[Pair]) -> str:
    src, dst = pairs[0]
    return {BOTH: f"{src} and {dst}", OUT: f"out of {src}", INTO: f"into {dst}", ALL: ALL}[kind]


def _round(value: float) -> float:
    """To four digits, as no measurement has more."""
    return float(f"{value:.4g}")


def in_words(shared: Sequence[Shared]) -> List[str]:
    """A sentence for each kind of link that is shared; one where none is."""
    sentences = []
    for kind in dict.fromkeys(each.kind for each in shared):
        speeds = [each.link.bytes_per_s / 1e9 for each in shared if each.kind == kind]
        least, most = f"{min(speeds):.4g}", f"{max(speeds):.4g}"
        span = least if least == most else f"{least} to {most}"
        sentences.append(f"{kind} share {span} GB/s")
    return sentences or ["copies that are made at once share no link"]
