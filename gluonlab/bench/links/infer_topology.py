"""Infers a topology from measured copies: a link for each pair, and links that pairs share.

Copies that share a link are slower when they run at the same time than when they run alone. The
copies in each of these groups are measured at the same time:

- both directions of a pair
- all copies out of a device, and all copies into a device
- one copy out of each device and one copy into each device ("shift")
- all pairs

If a group contains pairs of different speeds, the equally fast pairs are also measured separately,
because they may share a path. Other shared links, such as the uplink of a PCIe switch, are not
found.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean, median
from typing import Dict, Iterator, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np

from gluonlab.collectives.topology import Link, Pair, Route, Topology


class LinkFit(NamedTuple):
    """A linear model: a copy of n bytes takes ``latency_s`` + n / ``bytes_per_s`` seconds.

    ``worst_error``: the model's largest relative error for the measured times.
    """

    latency_s: float
    bytes_per_s: float
    worst_error: float

    def seconds(self, size_bytes: float) -> float:
        """Return how many seconds a copy of this size takes."""
        return self.latency_s + size_bytes / self.bytes_per_s


def fit_link(seconds: Mapping[int, Sequence[float]]) -> LinkFit:
    """Fit latency and bandwidth to median times, by least squares on relative errors.

    ``seconds``: {size in bytes: seconds in each round}, for at least two sizes.

    The errors are relative, because measurement errors grow with the time. With absolute errors,
    the errors at the largest size would determine the latency. Neither the latency nor the time for
    the bytes is ever negative. If the largest size takes hardly longer than the smallest, half of
    the time for the largest size counts as time for the bytes.
    """
    times = {size: median(rounds) for size, rounds in seconds.items()}
    ones, size = np.array([[1 / time, size / time] for size, time in times.items()]).T
    # the two columns differ by a factor of about 10^6
    scales = np.linalg.norm([ones, size], axis=1)
    columns = np.stack([ones, size], axis=1) / scales
    latency_s, s_per_byte = np.linalg.lstsq(columns, np.ones(len(times)), rcond=None)[0] / scales
    if latency_s < 0:
        latency_s, s_per_byte = 0.0, size.sum() / scales[1] ** 2
    largest = max(times)
    if s_per_byte < times[largest] / largest / 1000:  # or negative
        s_per_byte = times[largest] / largest / 2
        latency_s = times[largest] / 2
    link = LinkFit(float(latency_s), float(1 / s_per_byte), 0.0)
    error = max(abs(link.seconds(size) / time - 1) for size, time in times.items())
    return link._replace(worst_error=error)


def merge_similar(values: Sequence[float], within: float) -> List[float]:
    """Return the values, each replaced by the median of similar values.

    Without this step, noise would determine the best order of devices. The sorted values are
    divided into classes. A class contains values up to ``within`` times its smallest value.
    """
    classes: List[List[int]] = []
    for index in sorted(range(len(values)), key=lambda index: values[index]):
        if not classes or values[index] > within * values[classes[-1][0]]:
            classes.append([])
        classes[-1].append(index)
    merged = list(values)
    for members in classes:
        for index in members:
            merged[index] = median(values[member] for member in members)
    return merged


# --- what copies share

SIMILARITY_FACTOR = 1.1  # speeds and latencies that differ by less than this factor are the same
# If copies at the same time take longer than known links explain, by more than this factor, they
# share another link. Other delays, such as the single thread of the host, are smaller.
SLOWDOWN_FACTOR = 4 / 3
BOTH, OUT, INTO = "both directions of a pair", "copies out of a device", "copies into a device"
ALL, SHIFT = "all pairs", "from each device to the one some places further on"


class CopyGroup(NamedTuple):
    """Copies made at the same time. ``kind``: BOTH, OUT, INTO, SHIFT or ALL."""

    kind: str
    pairs: Tuple[Pair, ...]


@dataclass(frozen=True)
class DeviceMeasurement:
    """The measured copies between ``world_size`` devices.

    ``pairs``: the fit for each pair (src, dst), measured alone. ``adds``: bytes/s that each device
    adds. ``together``: for each group from `list_simultaneous_groups`, the seconds that its copies
    take when they run at the same time. Each copy has ``size_bytes`` bytes.
    """

    world_size: int
    pairs: Mapping[Pair, LinkFit]
    adds: Sequence[float]
    size_bytes: int
    together: Mapping[CopyGroup, float]


def list_simultaneous_groups(pairs: Mapping[Pair, LinkFit]) -> List[CopyGroup]:
    """Return the groups of copies to measure at the same time.

    A group contains all copies of one kind, such as all copies out of a device, or only the copies
    of this kind that are equally fast. ``pairs``: the fit for each pair, measured alone.
    """
    world_size = 1 + max(src for src, _ in pairs)
    whole_groups: List[CopyGroup] = []
    for device in range(world_size):
        whole_groups.append(CopyGroup(OUT, tuple(pair for pair in pairs if pair[0] == device)))
        whole_groups.append(CopyGroup(INTO, tuple(pair for pair in pairs if pair[1] == device)))
    for step in range(1, world_size):
        shift = [(device, (device + step) % world_size) for device in range(world_size)]
        whole_groups.append(CopyGroup(SHIFT, tuple(shift)))
    whole_groups.append(CopyGroup(ALL, tuple(pairs)))
    speeds = {pair: fit.bytes_per_s for pair, fit in merge_similar_fits(pairs).items()}
    groups = [CopyGroup(BOTH, ((a, b), (b, a))) for a, b in pairs if a < b]
    for kind, all_members in whole_groups if world_size > 2 else []:
        equal = [tuple(p for p in all_members if speeds[p] == speed) for speed in set(speeds.values())]
        groups += [CopyGroup(kind, members) for members in [*equal, all_members] if len(members) > 1]
    return list(dict.fromkeys(groups))


class InferredSharedLink(NamedTuple):
    """A link that all of ``pairs`` share. ``kind``: the kind of group, such as BOTH."""

    kind: str
    link: Link
    pairs: Tuple[Pair, ...]


def build_topology(measured: DeviceMeasurement, name: str, note: str, gpu: str = "") -> Topology:
    """Return the topology of the measured links: one link per pair, and shared links."""
    fits = merge_similar_fits(measured.pairs)
    links = {pair: [Link("{} to {}".format(*pair), _round_to_four_digits(fits[pair].bytes_per_s))] for pair in fits}
    for shared in find_shared_links(measured):
        for pair in shared.pairs:
            links[pair].append(shared.link)
    routes = {pair: Route(tuple(links[pair]), _round_to_four_digits(fits[pair].latency_s)) for pair in fits}
    adds = _round_to_four_digits(min(merge_similar(measured.adds, SIMILARITY_FACTOR)))
    return Topology(name, measured.world_size, routes, adds, note=note, gpu=gpu)


def find_shared_links(measured: DeviceMeasurement) -> List[InferredSharedLink]:
    """Infer which links several pairs share, from copies that slow each other down.

    A link is added if a group's copies take longer than the links found so far predict. The
    bandwidth of the new link is chosen so that the cost model predicts the measured time. Within
    each kind of group, groups of equally fast pairs are tried first.
    """
    fits = merge_similar_fits(measured.pairs)
    shared: List[InferredSharedLink] = []
    for kind in (BOTH, OUT, INTO):
        groups = [group for group in measured.together if group.kind == kind]
        for equal in (True, False):
            candidates = [group for group in groups if equal == _equally_fast(group.pairs, fits)]
            slower = [group for group in candidates if _is_slower_than_explained(measured, group, fits, shared)]
            speeds = merge_similar([_shared_bandwidth(measured, group, fits) for group in slower], SIMILARITY_FACTOR)
            for (_, pairs), speed in zip(slower, speeds):
                name = _link_name(kind, pairs, measured.world_size)
                shared.append(InferredSharedLink(kind, Link(name, _round_to_four_digits(speed)), pairs))
    all_pairs_groups = [group for group in measured.together if group.kind == ALL]
    for group in sorted(all_pairs_groups, key=lambda group: not _equally_fast(group.pairs, fits)):
        shared += _find_bus(measured, group, fits, shared)
    return shared


def _find_bus(
    measured: DeviceMeasurement,
    group: CopyGroup,
    fits: Mapping[Pair, LinkFit],
    known_links: Sequence[InferredSharedLink],
) -> Iterator[InferredSharedLink]:
    """Yield one link shared by all pairs in the group, if such a link explains their slow copies.

    The link's bandwidth is the highest bandwidth measured in this group, or in a shift within the
    group. If only some pairs shared a slow link, the group would also be slow, but a shift would be
    faster.
    """
    if _is_slower_than_explained(measured, group, fits, known_links):
        pairs, size = group.pairs, measured.size_bytes
        shifts = [other for other in measured.together if other.kind == SHIFT and set(other.pairs) <= set(pairs)]
        bandwidth = max(_shared_bandwidth(measured, candidate, fits) for candidate in [group, *shifts])
        speed_text = "" if len(pairs) == len(fits) else f" of {fits[pairs[0]].bytes_per_s / 1e9:.4g} GB/s"
        name = f"{ALL}{speed_text}"
        bus = InferredSharedLink(name, Link(name, _round_to_four_digits(bandwidth)), pairs)
        without_s = _predict_seconds(pairs, fits, size, known_links)
        if _predict_seconds(pairs, fits, size, [bus]) > SLOWDOWN_FACTOR * without_s:
            yield bus


def _is_slower_than_explained(
    measured: DeviceMeasurement,
    group: CopyGroup,
    fits: Mapping[Pair, LinkFit],
    known_links: Sequence[InferredSharedLink],
) -> bool:
    """Return whether the group's copies took longer than their fits and the known links predict."""
    explained_s = _predict_seconds(group.pairs, fits, measured.size_bytes, known_links)
    return measured.together[group] > SLOWDOWN_FACTOR * explained_s


def _shared_bandwidth(measured: DeviceMeasurement, group: CopyGroup, fits: Mapping[Pair, LinkFit]) -> float:
    """Return the bytes/s of a shared link that would explain the group's measured time."""
    pairs = group.pairs
    each_s = measured.together[group] / len(pairs)
    moving_s = max(each_s - mean(fits[pair].latency_s for pair in pairs), each_s / 2)
    # the common link is not slower than a single copy alone
    return max(measured.size_bytes / moving_s, *(fits[pair].bytes_per_s for pair in pairs))


def merge_similar_fits(pairs: Mapping[Pair, LinkFit]) -> Dict[Pair, LinkFit]:
    """Return the fits after making similar latencies equal, and similar speeds equal."""
    latencies = merge_similar([link.latency_s for link in pairs.values()], SIMILARITY_FACTOR)
    speeds = merge_similar([link.bytes_per_s for link in pairs.values()], SIMILARITY_FACTOR)
    merged = zip(pairs, latencies, speeds)
    return {pair: LinkFit(latency_s, speed, 0.0) for pair, latency_s, speed in merged}


def _equally_fast(pairs: Sequence[Pair], fits: Mapping[Pair, LinkFit]) -> bool:
    return len({fits[pair].bytes_per_s for pair in pairs}) == 1


def _predict_seconds(
    pairs: Sequence[Pair], fits: Mapping[Pair, LinkFit], size: int, shared_links: Sequence[InferredSharedLink]
) -> float:
    """Predict how many seconds simultaneous copies take, from the time of the busiest link."""
    busiest_s = max(fits[pair].seconds(size) for pair in pairs)
    for shared in shared_links:
        passing = set(pairs) & set(shared.pairs)
        latencies_s = sum(fits[pair].latency_s for pair in passing)
        busiest_s = max(busiest_s, latencies_s + len(passing) * size / shared.link.bytes_per_s)
    return busiest_s


def _link_name(kind: str, pairs: Sequence[Pair], world_size: int) -> str:
    """Return the name of a shared link: ``0 and 1``, ``out of 0`` or ``into 0 from 5 6``.

    The last form is for a link shared by only some of the pairs.
    """
    src, dst = pairs[0]
    if kind == BOTH:
        return f"{src} and {dst}"
    name, others = (f"out of {src}", "to") if kind == OUT else (f"into {dst}", "from")
    if len(pairs) == world_size - 1:
        return name
    return f"{name} {others} " + " ".join(str(pair[kind == OUT]) for pair in pairs)


def _round_to_four_digits(value: float) -> float:
    return float(f"{value:.4g}")


def describe_shared_links(shared: Sequence[InferredSharedLink]) -> List[str]:
    """Return a sentence for each kind of shared link, or a sentence that no link is shared."""
    sentences = []
    for kind in dict.fromkeys(link.kind for link in shared):
        speeds = [link.link.bytes_per_s / 1e9 for link in shared if link.kind == kind]
        lowest, highest = f"{min(speeds):.4g}", f"{max(speeds):.4g}"
        speed_range = lowest if lowest == highest else f"{lowest} to {highest}"
        sentences.append(f"{kind} share {speed_range} GB/s")
    return sentences or ["simultaneous copies share no link"]
