"""What the JSON content of a topology's file says: `topology_file` has the keys."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

from gluonlab.collectives.fields import LONGEST_TEXT, SPEEDS, Fields, shown
from gluonlab.collectives.links import INFINITE, Link, Pair, Route, Topology
from gluonlab.collectives.paths import Node, Wire, shortest_routes
from gluonlab.collectives.routes import pairs_of
from gluonlab.errors import ScheduleError, unknown

FORMAT = 1
MOST_DEVICES, MOST_LANES = 256, 10**6
MOST_ENTRIES = MOST_DEVICES**2  # of links, and of routes
LATENCY, REDUCE, SHARED = "latency_s", "reduce_bytes_per_s", "shared_reduce_bytes_per_s"
LANE, SPEED = "lane_bytes_per_s", "bytes_per_s"
KEYS = (
    "format", "name", "note", "devices", "gpu", LATENCY, LANE, REDUCE, SHARED, "switches", "links",
    "routes", "groups", "hosts",
)  # fmt: skip
OF_LINK = ("name", "from", "to", "between", SPEED, "lanes", LANE, LATENCY)
OF_ROUTE = ("from", "to", "links", LATENCY)


class Reader:
    """The parts of a file, one after the other; whatever is wrong raises ScheduleError.

    ``where``: the file, for messages; ``name``: the topology's, where the content gives none.
    """

    def __init__(self, where: str, content: Any, name: str) -> None:
        self._fields = fields = Fields(where, content, KEYS)
        if "format" in fields:
            fields.count("format", FORMAT)
        self._name = fields.text("name", name).strip() or name
        self._devices = fields.count("devices", MOST_DEVICES)
        self._links: Dict[str, Link] = {}
        self._switches: List[str] = []
        self._buses: Dict[Node, Link] = {}
        self._wires: Dict[Tuple[Node, Node], Wire] = {}

    def topology(self) -> Topology:
        """All of it."""
        fields = self._fields
        fields.items("switches", self._switch, MOST_ENTRIES)
        fields.items("links", self._link, MOST_ENTRIES)
        routes = shortest_routes(self._devices, list(self._wires.values()), self._buses)
        routes.update(self._written_routes())
        for src, dst in pairs_of(self._devices):
            if (src, dst) not in routes:
                fields.refuse(
                    f"no way leads from device {src} to device {dst}: link them, or both to a "
                    "switch, as devices do not forward, or give the pair one of the routes"
                )
        return Topology(
            self._name,
            self._devices,
            {pair: routes[pair] for pair in pairs_of(self._devices)},
            reduce_bytes_per_s=fields.number(REDUCE, INFINITE),
            shared_reduce_bytes_per_s=fields.number(SHARED, INFINITE),
            groups=self._parts("groups"),
            note=fields.text("note", "", LONGEST_TEXT),
            hosts=self._parts("hosts"),
            gpu=fields.text("gpu", ""),
        )

    # --- switches and links

    def _switch(self, where: str, item: Any) -> None:
        fields = Fields(where, {"name": item} if isinstance(item, str) else item, ("name", SPEED))
        name = self._given_name(fields)
        if name in self._switches:
            fields.refuse(f"two switches are called {name!r}: give each a name of its own")
        self._switches.append(name)
        if SPEED in fields:
            self._buses[name] = self._new(fields, name, fields.number(SPEED))

    def _link(self, where: str, item: Any) -> None:
        fields = Fields(where, item, OF_LINK)
        speed, ends = self._speed(fields), self._ends(fields)
        name = self._given_name(fields) if "name" in fields or not ends else ""
        if not ends:
            self._new(fields, name, speed)
        for src, dst in ends:
            if src == dst or (src, dst) in self._wires:
                why = "leads nowhere" if src == dst else "is the second one: give one more lanes"
                fields.refuse(f"the link from {shown(src)} to {shown(dst)} {why}")
            direction = f"{name} {src} to {dst}".strip()
            link = self._new(fields, name if name and len(ends) == 1 else direction, speed)
            self._wires[src, dst] = Wire(src, dst, link, self._latency(fields))

    def _ends(self, fields: Fields) -> List[Tuple[Node, Node]]:
        """Both directions of a link ``between`` two, the one of a link that has ``from`` and
        ``to``, or none.
        """
        alone = [key for key in ("from", "to") if key in fields]
        if "between" not in fields and not alone:
            if LATENCY in fields:
                fields.refuse(f"{LATENCY} is for links with ends, from and to, and for routes")
            return []
        if "between" not in fields:
            wanted = "a device's number, or a switch's name"
            src, dst = (
                self._node(f"{fields.where}: {key}", fields.value(key, wanted))
                for key in ("from", "to")
            )
            return [(src, dst)]
        both = fields.items("between", self._node, 2)
        if alone or len(both) < 2:
            fields.refuse("between names two ends, as [0, 1], and stands for from and to")
        return [(both[0], both[1]), (both[1], both[0])]

    def _speed(self, fields: Fields) -> float:
        if "lanes" not in fields:
            if LANE in fields:
                fields.refuse(f"{LANE} is for lanes: give their number, or {SPEED}")
            return fields.number(SPEED)
        if SPEED in fields:
            fields.refuse(f"give {SPEED} or lanes, not both")
        lanes = fields.count("lanes", MOST_LANES)
        speed = lanes * (fields if LANE in fields else self._fields).number(LANE)
        most = SPEEDS[1]
        return speed if speed <= most else fields.refuse(
            f"{lanes} lanes have {speed:g} bytes/s together: {most:g} are the most"
        )  # fmt: skip

    def _latency(self, fields: Fields) -> float:
        """That of a link or route, or the file's."""
        return (fields if LATENCY in fields else self._fields).number(LATENCY, zero=True)

    def _new(self, fields: Fields, name: str, speed: float) -> Link:
        if name in self._links:
            fields.refuse(f"two links are called {name!r}: give each a name of its own")
        self._links[name] = Link(name, speed)
        return self._links[name]

    def _given_name(self, fields: Fields) -> str:
        fields.value("name", "one, or a link's ends, from and to")
        name = fields.text("name", "")
        return name if name.strip() else fields.refuse(f"name is {name!r}: give one")

    def _node(self, where: str, value: Any) -> Node:
        """A device by its number, or a switch by its name."""
        if not isinstance(value, str):
            return self._device(where, value, " and no switch" if self._switches else "")
        if value not in self._switches:
            why = unknown("switch", value[:60], self._switches) if self._switches else (
                f"{shown(value)} is none of the switches, as the file has none"
            )  # fmt: skip
            raise ScheduleError(f"{where}: {why}; devices are numbers without quotes")
        return value

    def _device(self, where: str, value: Any, nor: str = "") -> int:
        if not (type(value) is int and 0 <= value < self._devices):
            raise ScheduleError(
                f"{where}: {shown(value)} is no device{nor}: choose 0 to {self._devices - 1}"
            )
        return value

    # --- routes and parts

    def _written_routes(self) -> Dict[Pair, Route]:
        routes: Dict[Pair, Route] = {}

        def add(where: str, item: Any) -> None:
            fields = Fields(where, item, OF_ROUTE)
            src, dst = (
                self._device(f"{where}: {key}", fields.value(key, "a device's number"))
                for key in ("from", "to")
            )
            names = fields.items("links", self._known_link, MOST_ENTRIES)
            if src == dst or not names:
                fields.refuse(
                    f"from {src} to {dst} over {len(names)} links: give two devices, and the names "
                    "of all links on the way"
                )
            if (src, dst) in routes:
                fields.refuse(f"it is the second one from {src} to {dst}: give one")
            routes[src, dst] = Route(tuple(names), self._latency(fields))

        self._fields.items("routes", add, MOST_ENTRIES)
        return routes

    def _known_link(self, where: str, value: Any) -> Link:
        if not (isinstance(value, str) and value in self._links):
            if not isinstance(value, str):
                raise ScheduleError(f"{where}: {shown(value)} is no link: give the name of one")
            raise ScheduleError(f"{where}: {unknown('link', value[:60], self._links)}")
        return self._links[value]

    def _parts(self, key: str) -> Tuple[Tuple[int, ...], ...]:
        """Groups or hosts, in which every device is once; none where the key is left out."""

        def members(where: str, item: Any) -> Tuple[int, ...]:
            if not (isinstance(item, list) and item):
                raise ScheduleError(f"{where}: {shown(item)} is no list of devices, as [0, 1]")
            return tuple(self._device(where, each) for each in item)

        parts = tuple(self._fields.items(key, members, self._devices))
        found = sorted(device for part in parts for device in part)
        if parts and found != list(range(self._devices)):
            self._fields.refuse(
                f"{key}: give every device, 0 to {self._devices - 1}, once, as [[0, 1], [2, 3]]"
            )
        return parts
