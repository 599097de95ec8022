"""The topology that measured copies make: a link for each pair, and links that several share.

Whether copies share a link shows when they are made at once: together they are slower than alone.
Asked are both directions of a pair; the copies out of a device, and into one, first those of pairs
that are equally fast, which may go the same way; and all pairs, of one speed and together. What is
shared otherwise, as the way up from a PCIe switch by the devices below it, is not told apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean, median
from typing import Dict, Iterator, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np

from gluonlab.collectives.topology import Link, Pair, Route, Topology


class Fit(NamedTuple):
    """A message of n bytes takes ``latency_s`` + n / ``bytes_per_s`` seconds.

    ``off``: by how much of itself the worst of the times differs from that.
    """

    latency_s: float
    bytes_per_s: float
    off: float

    def seconds(self, size_bytes: float) -> float:
        """What a message of such a size takes."""
        return self.latency_s + size_bytes / self.bytes_per_s


def fit(seconds: Mapping[int, Sequence[float]]) -> Fit:
    """The line with the least squares of relative errors through the medians over rounds.

    ``seconds``: of each size in bytes, two or more, those of all rounds. Relative, as errors of a
    clock and of a busy machine grow with what they measure: absolute squares would leave the
    latency to the errors of the largest size. Medians, as single rounds are disturbed. Neither part
    is negative; where the largest size takes hardly longer than the smallest, half of its time
    counts as moving.
    """
    times = {size: median(rounds) for size, rounds in seconds.items()}
    one, size = np.array([[1 / t, size / t] for size, t in times.items()]).T  # of a and b
    scales = np.linalg.norm([one, size], axis=1)  # the one is some 10^6 times the other
    columns = np.stack([one, size], axis=1) / scales
    latency_s, s_per_byte = np.linalg.lstsq(columns, np.ones(len(times)), rcond=None)[0] / scales
    if latency_s < 0:
        latency_s, s_per_byte = 0.0, size.sum() / scales[1] ** 2
    largest = max(times)
    if s_per_byte < times[largest] / largest / 1000:  # or negative
        s_per_byte = times[largest] / largest / 2
        latency_s = times[largest] / 2
    found = Fit(float(latency_s), float(1 / s_per_byte), 0.0)
    off = max(abs(found.seconds(size) / t - 1) for size, t in times.items())
    return found._replace(off=off)


def alike(values: Sequence[float], within: float) -> List[float]:
    """The values, those that differ by less than this factor replaced by their median.

    Differences below the noise are none: the best order of devices must not follow from them.
    From the smallest on, a class reaches up to ``within`` times its smallest value.
    """
    classes: List[List[int]] = []
    for place in sorted(range(len(values)), key=lambda place: values[place]):
        if not classes or values[place] > within * values[classes[-1][0]]:
            classes.append([])
        classes[-1].append(place)
    found = list(values)
    for members in classes:
        for place in members:
            found[place] = median(values[member] for member in members)
    return found


# --- what copies share

ALIKE = 1.1  # speeds and latencies that differ by less than this factor are the same
# copies that take longer at once than is explained, by more than this factor, share a link: what
# they lose to neighbours and to the host's one thread is less
SLOWER = 4 / 3
BOTH, OUT, INTO = "both directions of a pair", "copies out of a device", "copies into a device"
ALL, SHIFT = "all pairs", "from each device to the one some places further on"

Group = Tuple[str, Tuple[Pair, ...]]  # what copies have in common, and which they are


@dataclass(frozen=True)
class DeviceMeasurement:
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


def at_once(pairs: Mapping[Pair, Fit]) -> List[Group]:
    """The copies to be made at once, and what they have in common; ``pairs``: each alone.

    Of all that have it in common, and of those of them that are equally fast.
    """
    world_size = 1 + max(src for src, _ in pairs)
    wholes: List[Group] = []
    for device in range(world_size):
        wholes.append((OUT, tuple(pair for pair in pairs if pair[0] == device)))
        wholes.append((INTO, tuple(pair for pair in pairs if pair[1] == device)))
    for step in range(1, world_size):
        shift = [(device, (device + step) % world_size) for device in range(world_size)]
        wholes.append((SHIFT, tuple(shift)))
    wholes.append((ALL, tuple(pairs)))
    speeds = {pair: fit.bytes_per_s for pair, fit in levelled(pairs).items()}
    groups: List[Group] = [(BOTH, ((a, b), (b, a))) for a, b in pairs if a < b]
    for kind, whole in wholes if world_size > 2 else []:
        equal = [tuple(p for p in whole if speeds[p] == each) for each in set(speeds.values())]
        groups += [(kind, some) for some in [*equal, whole] if len(some) > 1]
    return list(dict.fromkeys(groups))


class Shared(NamedTuple):
    """A link that all of ``pairs`` pass; ``kind``: what their copies have in common."""

    kind: str
    link: Link
    pairs: Tuple[Pair, ...]


def topology_of(measured: DeviceMeasurement, name: str, note: str, gpu: str = "") -> Topology:
    """The topology. Every route is the pair's own link, then those that it shares."""
    fits = levelled(measured.pairs)
    links = {
        pair: [Link("{} to {}".format(*pair), _round(fits[pair].bytes_per_s))] for pair in fits
    }
    for shared in shared_links(measured):
        for pair in shared.pairs:
            links[pair].append(shared.link)
    routes = {pair: Route(tuple(links[pair]), _round(fits[pair].latency_s)) for pair in fits}
    adds = _round(min(alike(measured.adds, ALIKE)))
    return Topology(name, measured.world_size, routes, adds, note=note, gpu=gpu)


def shared_links(measured: DeviceMeasurement) -> List[Shared]:
    """The links that several pairs share.

    A link is there where copies made at once are slower than the links found so far explain: first
    those of pairs that are equally fast. Priced with it, they take as long as was measured.
    """
    fits = levelled(measured.pairs)
    found: List[Shared] = []
    for kind in (BOTH, OUT, INTO):
        groups = [pairs for what, pairs in measured.together if what == kind]
        for equal in (True, False):
            asked = [pairs for pairs in groups if equal == _equally_fast(pairs, fits)]
            slower = [pairs for pairs in asked if _is_slower(measured, (kind, pairs), fits, found)]
            speeds = alike([_carried(measured, (kind, pairs), fits) for pairs in slower], ALIKE)
            for pairs, speed in zip(slower, speeds):
                name = _name(kind, pairs, measured.world_size)
                found.append(Shared(kind, Link(name, _round(speed)), pairs))
    everyone = [group for group in measured.together if group[0] == ALL]
    for group in sorted(everyone, key=lambda group: not _equally_fast(group[1], fits)):
        found += _bus(measured, group, fits, found)
    return found


def _bus(
    measured: DeviceMeasurement, group: Group, fits: Mapping[Pair, Fit], found: Sequence[Shared]
) -> Iterator[Shared]:
    """One link for all pairs of the group, if it explains why they are slow.

    It carries what the best of steps gets through. Links of only some pairs would slow all of them,
    too, but would let others of these steps pass.
    """
    if _is_slower(measured, group, fits, found):
        pairs, size = group[1], measured.size_bytes
        steps = [(kind, some) for kind, some in measured.together if kind == SHIFT]
        own = [(kind, some) for kind, some in steps if set(some) <= set(pairs)]
        most = max(_carried(measured, each, fits) for each in [group, *own])
        alone = (
            "" if len(pairs) == len(fits) else f" of {fits[pairs[0]].bytes_per_s / 1e9:.4g} GB/s"
        )
        bus = Shared(f"{ALL}{alone}", Link(f"{ALL}{alone}", _round(most)), pairs)
        without_s = _explained_s(pairs, fits, size, found)
        if _explained_s(pairs, fits, size, [bus]) > SLOWER * without_s:
            yield bus


def _is_slower(
    measured: DeviceMeasurement, group: Group, fits: Mapping[Pair, Fit], found: Sequence[Shared]
) -> bool:
    explained_s = _explained_s(group[1], fits, measured.size_bytes, found)
    return measured.together[group] > SLOWER * explained_s


def _carried(measured: DeviceMeasurement, group: Group, fits: Mapping[Pair, Fit]) -> float:
    """bytes/s of a link by which all copies of the group would take what they took."""
    pairs = group[1]
    each_s = measured.together[group] / len(pairs)
    moving_s = max(each_s - mean(fits[pair].latency_s for pair in pairs), each_s / 2)
    # one alone passes it at its own speed
    return max(measured.size_bytes / moving_s, *(fits[pair].bytes_per_s for pair in pairs))


def levelled(pairs: Mapping[Pair, Fit]) -> Dict[Pair, Fit]:
    """The fits, with the same figures where they are `alike`."""
    latencies = alike([each.latency_s for each in pairs.values()], ALIKE)
    speeds = alike([each.bytes_per_s for each in pairs.values()], ALIKE)
    same = zip(pairs, latencies, speeds)
    return {pair: Fit(latency_s, speed, 0.0) for pair, latency_s, speed in same}


def _equally_fast(pairs: Sequence[Pair], fits: Mapping[Pair, Fit]) -> bool:
    return len({fits[pair].bytes_per_s for pair in pairs}) == 1


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


def _name(kind: str, pairs: Sequence[Pair], world_size: int) -> str:
    """``0 and 1``, ``out of 0``, or ``into 0 from 5 6`` where they are not all."""
    src, dst = pairs[0]
    if kind == BOTH:
        return f"{src} and {dst}"
    name, others = (f"out of {src}", "to") if kind == OUT else (f"into {dst}", "from")
    if len(pairs) == world_size - 1:
        return name
    return f"{name} {others} " + " ".join(str(pair[kind == OUT]) for pair in pairs)


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
