"""The links that a message passes between two devices.

A link is one direction of a wire: messages that pass the same link share it, and a wire that works
both ways is two links.
"""

from __future__ import annotations

from typing import Iterator, List, Mapping, NamedTuple, Sequence, Tuple

Pair = Tuple[int, int]  # (src, dst)


class Link(NamedTuple):
    """One direction of a wire, or a bus that all directions share."""

    name: str
    bytes_per_s: float


class Route(NamedTuple):
    """The links that a message passes, all at once, and the latency of every message."""

    links: Tuple[Link, ...]
    latency_s: float

    @property
    def bytes_per_s(self) -> float:
        """The speed of the slowest link on the way."""
        return min(link.bytes_per_s for link in self.links)


Links = Tuple[Link, ...]  # part of a route


class Ways(Mapping[Pair, Route]):
    """The routes between many devices by their ways: out of the sender, then into the receiver.

    A route is made when it is asked for: among 1,024 devices there are a million. ``out`` and
    ``into``: the links of every device, with ``latency_s``. ``near``: the routes of pairs that go
    another way.
    """

    def __init__(
        self,
        out: Sequence[Links],
        into: Sequence[Links],
        latency_s: float,
        near: Mapping[Pair, Route],
    ) -> None:
        self.out, self.into, self.latency_s, self.near = out, into, latency_s, near

    def __getitem__(self, pair: Pair) -> Route:
        if pair in self.near:
            return self.near[pair]
        src, dst = pair
        if src == dst or not (0 <= src < len(self.out) and 0 <= dst < len(self.out)):
            raise KeyError(pair)
        return Route((*self.out[src], *self.into[dst]), self.latency_s)

    def __iter__(self) -> Iterator[Pair]:
        return iter(pairs_of(len(self.out)))

    def __len__(self) -> int:
        return len(self.out) * (len(self.out) - 1)

    def subset(self, devices: Sequence[int]) -> Ways:
        """The routes between the listed devices; device i is the i-th of them."""
        place = {device: i for i, device in enumerate(devices)}
        near = {
            (place[src], place[dst]): route
            for (src, dst), route in self.near.items()
            if src in place and dst in place
        }
        out, into = ([ways[device] for device in devices] for ways in (self.out, self.into))
        return Ways(out, into, self.latency_s, near)

    @property
    def alike(self) -> bool:
        """Whether devices may change places: each link on the way is one's own, or everybody's."""
        ways = [(*out, *into) for out, into in zip(self.out, self.into)]
        return (
            not self.near
            and len({tuple(link.bytes_per_s for link in way) for way in ways}) == 1
            and all(len(set(links)) in (1, len(ways)) for links in zip(*ways))
        )

    def samples(self) -> List[Route]:
        """Routes that pass every way, where there is more than one device."""
        pairs = ((device, (device + 1) % len(self.out)) for device in range(len(self.out)))
        far = [Route((*self.out[src], *self.into[dst]), self.latency_s) for src, dst in pairs]
        return [*self.near.values(), *far]


def pairs_of(world_size: int) -> List[Pair]:
    """All (src, dst)."""
    return [(src, dst) for src in range(world_size) for dst in range(world_size) if src != dst]
