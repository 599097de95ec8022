"""A topology as a JSON file, written by hand or by ``bench links --save``.

By hand: devices, switches, and the wires between them. A pair takes the way with the fewest wires,
then the widest, through switches, as devices do not forward::

    {"name": "four V100", "devices": 4, "gpu": "V100", "latency_s": 1e-5,
     "lane_bytes_per_s": 25e9, "reduce_bytes_per_s": 3e11,
     "switches": ["PCIe", {"name": "CPU", "bytes_per_s": 20e9}],
     "links": [{"between": [0, 1], "lanes": 2}, {"between": [2, 3], "lanes": 2},
               {"between": [0, "PCIe"], "bytes_per_s": 12e9},
               {"between": [1, "PCIe"], "bytes_per_s": 12e9},
               {"from": 2, "to": "CPU", "bytes_per_s": 12e9}, ...],
     "groups": [[0, 1], [2, 3]], "note": "where the figures come from"}

========================  ========================================================================
key                       what it says
========================  ========================================================================
devices                   how many there are, numbered from 0; at most 256
name, note                how tables call it (by default as the file); where its figures come from
gpu                       the kind of all GPUs, which predictions need: V100, T4, ...
latency_s                 seconds of every message, whatever its bytes
reduce_bytes_per_s        how fast a device adds; left out: additions take no time
shared_reduce_...         how fast all devices add together, where they share a memory; there
                          a step's additions into one chunk are one
switches                  names; with ``bytes_per_s``, all that passes it shares this speed
links                     ``from`` and ``to``, or ``between`` two, a link in each direction; and
                          ``bytes_per_s``, or ``lanes`` times the file's ``lane_bytes_per_s``;
                          perhaps a ``name``, and a ``latency_s`` of its own
routes                    of pairs that go otherwise: ``from``, ``to``, the names of ``links``, all
                          of which a message passes, and perhaps a ``latency_s``
groups, hosts             devices that are close to each other; devices of each host
========================  ========================================================================

Links without ends are for routes alone. `write_topology` writes all routes.

``bench allreduce --synthesise m.json --out found.json`` writes a file of schedules with the
topology that they were found for, under the key ``topology``. It is a topology, too, for which the
kvstore ``synthesised`` sums by these schedules: when it is read, they are proved, and compared with
its links.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    DefaultDict,
    Dict,
    List,
    Mapping,
    NamedTuple,
    NoReturn,
    Optional,
    Sequence,
    Set,
    Tuple,
    TypeVar,
    Union,
)

from gluonlab.collectives.schedule import FILE_FORMAT
from gluonlab.collectives.topology import INFINITE, Link, Pair, Route, Topology, pairs_of
from gluonlab.errors import DataError, ScheduleError, unknown
from gluonlab.files.atomic_files import read_bounded, write_text

if TYPE_CHECKING:
    from gluonlab.collectives.synthesis.schedule_search import SynthesizedSchedule

SUFFIX = ".json"
LARGEST_BYTES = 16 * 2**20
HOW = (
    "give a file of a topology, as docs/topologies.md shows one, or a known "
    "machine's name, such as p3.16xlarge"
)
AGAIN = "seek them again, with bench allreduce --synthesise FILE --out NEW"


def is_file_name(name: Any) -> bool:
    """Whether a topology of this name is a file: whatever ends in .json."""
    return str(name).lower().endswith(SUFFIX)


def read_topology(path: Union[str, Path]) -> Topology:
    """The topology that the file says. Raises ScheduleError, in one line, for any mistake in it."""
    try:
        text = read_bounded(Path(path), LARGEST_BYTES)
    except DataError as error:
        raise ScheduleError(f"topology {error}: {HOW}") from None
    except OSError as error:
        why = error.strerror or error
        raise ScheduleError(f"topology {path} cannot be read ({why}): {HOW}") from None
    return _parsed(text, f"topology {path}", Path(path).stem)


def _parsed(text: Union[str, bytes], where: str, name: str) -> Topology:
    try:
        content = json.loads(text, parse_constant=_no_number, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        why = " ".join(str(error).split())[:80]
        raise ScheduleError(f"{where} is no JSON ({why}): {HOW}") from None
    if isinstance(content, dict) and content.get("format") == FILE_FORMAT:
        return _with_schedules(where, content, name)
    return Reader(where, content, name).topology()


def _with_schedules(where: str, content: Dict[str, Any], name: str) -> Topology:
    """The topology of a file of schedules, and these, if they are right and for its links."""
    if "topology" not in content:
        raise ScheduleError(
            f"{where}: it has schedules without their topology: {HOW}, or what bench allreduce "
            "--synthesise m.json --out FILE has written"
        )
    topology = Reader(f"{where}: topology", content["topology"], name).topology()
    if content.get("devices") != topology.world_size:
        raise ScheduleError(
            f"{where}: its schedules are for {shown(content.get('devices'))} devices, and its "
            f"topology has {topology.world_size}: {AGAIN}"
        )
    from gluonlab.collectives.synthesis import precomputed_schedules
    from gluonlab.collectives.synthesis.flow_network import lanes_of

    held = precomputed_schedules.parsed(where, content)
    if set(held.lanes.wires) != set(lanes_of(topology).wires):
        raise ScheduleError(f"{where}: its schedules are for other links than it has: {AGAIN}")
    return replace(topology, schedules=tuple(found.schedule for found in held.front))


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _once(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    """An object whose keys are all there once, where Python would silently take the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {shown(twice)} is there twice")
    return found


def write_topology(topology: Topology, path: Union[str, Path]) -> None:
    """Write a file, as a whole, of which `read_topology` makes the same topology again.

    Raises OutputError, and ScheduleError for what has no place in a file: more than 256 devices,
    infinite speeds of links, different links of one name, names that are not on one line, and
    schedules, which `with_schedules` writes.
    """
    if topology.schedules:
        raise ScheduleError(f"{topology.name}: a file of its links has no place for its schedules")
    text = _as_text(topology)
    _parsed(text, f"{topology.name}, as a file", "")  # what cannot be read is not written
    write_text(Path(path), text)


def with_schedules(topology: Topology, front: "Sequence[SynthesizedSchedule]") -> str:
    """The text of a file of schedules found for ``topology``, which `read_topology` reads."""
    from gluonlab.collectives.synthesis import precomputed_schedules
    from gluonlab.collectives.synthesis.flow_network import lanes_of

    return precomputed_schedules.written(
        [topology.name], lanes_of(topology), front, topology=_as_text(topology)
    )


def _as_text(topology: Topology) -> str:
    """JSON with a line for each link and each route."""
    routes, everyone = topology.routes, (tuple(range(topology.world_size)),)
    links = dict.fromkeys(link for route in routes.values() for link in route.links)
    latencies = Counter(route.latency_s for route in routes.values())
    usual = latencies.most_common(1)[0][0] if latencies else 0.0
    left_out = {
        "gpu": "",
        REDUCE: INFINITE,
        SHARED: INFINITE,
        "groups": everyone,
        "hosts": everyone,
    }
    optional = {key: getattr(topology, key) for key in left_out}
    head = {
        "format": FORMAT, "name": topology.name, "note": topology.note,
        "devices": topology.world_size, LATENCY: usual,
        **{key: value for key, value in optional.items() if value != left_out[key]},
    }  # fmt: skip
    lists: Dict[str, Sequence[Any]] = {"links": [link._asdict() for link in links]}
    lists["routes"] = [
        {
            "from": src, "to": dst, "links": [link.name for link in route.links],
            **({} if route.latency_s == usual else {LATENCY: route.latency_s}),
        }
        for (src, dst), route in routes.items()
    ]  # fmt: skip
    blocks = [f'"{key}": [\n  ' + ",\n  ".join(map(_dumped, lists[key])) + "\n]" for key in lists]
    return ",\n".join([_dumped(head)[:-1], *blocks]) + "}\n"


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# --- what the JSON content says

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
        if not isinstance(value, str):
            raise ScheduleError(f"{where}: {shown(value)} is no link: give the name of one")
        if value not in self._links:
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


# --- the keys of a JSON object that a person has written, each checked as it is taken

LONGEST_NAME, LONGEST_TEXT = 100, 4000  # characters
# What can be: within it no price overflows. The least, the most, and an example.
SPEEDS, SECONDS = (1, 1e18, "25e9"), (0, 1e6, "1e-5")
_T = TypeVar("_T")


class Fields:
    """One JSON object; ``where``: the file, and the object's place in it, for error messages.

    Raises ScheduleError for what is no object, and for keys that are not ``known``; its methods
    raise it for values that are not what they should be, and for keys that are missing.
    """

    def __init__(self, where: str, content: Any, known: Sequence[str]) -> None:
        self.where = where
        if not isinstance(content, dict):
            self.refuse(f"{shown(content)} is no object: give {{...}} with {', '.join(known)}")
        for key in content:
            if key not in known:
                self.refuse(unknown("key", key[:LONGEST_NAME], known))
        self._content: Mapping[str, Any] = content

    def __contains__(self, key: str) -> bool:
        return key in self._content

    def refuse(self, why: str) -> NoReturn:
        """Raise the ScheduleError that says why, and where it stands."""
        raise ScheduleError(f"{self.where}: {why}")

    def value(self, key: str, wanted: str) -> Any:
        """What stands under ``key``; ``wanted``: what to give where nothing does."""
        if key not in self._content:
            self.refuse(f"{key} is missing: give {wanted}")
        return self._content[key]

    def number(self, key: str, otherwise: Optional[float] = None, *, zero: bool = False) -> float:
        """A number of bytes/s, or of seconds, which may be ``zero``.

        ``otherwise``: where the key is left out.
        """
        if otherwise is not None and key not in self._content:
            return otherwise
        least, most, example = SECONDS if zero else SPEEDS
        wanted = f"a number from {least:g} to {most:g}"
        value = self.value(key, wanted)
        try:
            number = float(value) if type(value) in (int, float) else math.nan
        except OverflowError:
            number = math.nan
        if not least <= number <= most:
            self.refuse(f"{key} is {shown(value)}: give {wanted}, such as {example}")
        return number

    def count(self, key: str, most: int) -> int:
        """A whole number from 1 to ``most``."""
        value = self.value(key, f"a whole number, 1 to {most}")
        if not (type(value) is int and 1 <= value <= most):
            self.refuse(f"{key} is {shown(value)}: give a whole number, 1 to {most}")
        return value

    def text(self, key: str, otherwise: str, longest: int = LONGEST_NAME) -> str:
        """Text on one line, or ``otherwise``, where the key is left out."""
        value = self._content.get(key, otherwise)
        if not (isinstance(value, str) and value.isprintable() and len(value) <= longest):
            self.refuse(
                f"{key} is {shown(value)}: give text on one line, up to {longest} characters"
            )
        return value

    def items(self, key: str, read: Callable[[str, Any], _T], most: int) -> List[_T]:
        """A list of up to ``most``, empty where the key is left out.

        ``read(where, item)`` makes each.
        """
        value = self._content.get(key, [])
        if not isinstance(value, list):
            self.refuse(f"{key} is {shown(value)}: give a list, [...]")
        if len(value) > most:
            self.refuse(f"{key} has {len(value)} entries: give up to {most}")
        return [read(f"{self.where}: {key}[{place}]", item) for place, item in enumerate(value)]


def shown(value: Any) -> str:
    """A value of a file in an error message, where it need not be whole."""
    text = repr(value) if isinstance(value, (str, int, float, type(None))) else str(type(value))
    if isinstance(value, (dict, list)):
        text = ("an object" if isinstance(value, dict) else "a list") + f" of {len(value)}"
    return text if len(text) <= 60 else f"{text[:40]}..."


# --- routes over wires: of all ways the one with the fewest hops, then the widest
#
# Switches forward, and devices do not: a message from one device to another passes none in between.

Node = Union[int, str]  # a device, by its number, or a switch


class Wire(NamedTuple):
    """One direction of a wire from node to node, and the latency of a message that passes it."""

    src: Node
    dst: Node
    link: Link
    latency_s: float


class _WirePath(NamedTuple):
    """Some wires one after the other."""

    links: Tuple[Link, ...] = ()
    latency_s: float = 0.0
    bytes_per_s: float = INFINITE

    def on(self, wire: Wire, buses: Mapping[Node, Link]) -> _WirePath:
        """The way that goes on along ``wire``, and through what it leads to."""
        links = [wire.link, *([buses[wire.dst]] if wire.dst in buses else [])]
        slowest = min(link.bytes_per_s for link in links)
        return _WirePath(
            (*self.links, *links),
            max(self.latency_s, wire.latency_s),
            min(self.bytes_per_s, slowest),
        )


def shortest_routes(
    world_size: int, wires: Sequence[Wire], buses: Mapping[Node, Link]
) -> Dict[Pair, Route]:
    """A route for every pair of devices that wires lead from and to; the others have none.

    ``buses``: the link that every message through a switch passes, of those that have one. A
    message's latency is the largest on its way: it is started once. Of ways that are alike, it is
    that whose wires come first.
    """
    leaving: DefaultDict[Node, List[Wire]] = defaultdict(list)
    for wire in wires:
        leaving[wire.src].append(wire)
    routes = {}
    for src in range(world_size):
        for dst, way in _ways(src, leaving, buses).items():
            routes[src, dst] = Route(way.links, way.latency_s)
    return routes


def _ways(
    src: int, leaving: Mapping[Node, Sequence[Wire]], buses: Mapping[Node, Link]
) -> Dict[int, _WirePath]:
    """The best way from ``src`` to every device that it reaches: breadth first."""
    found: Dict[int, _WirePath] = {}
    reached: Dict[Node, _WirePath] = {src: _WirePath()}
    ends: Set[Node] = {src}
    while reached:
        longer: Dict[Node, _WirePath] = {}
        for node, way in reached.items():
            for wire in leaving.get(node, ()):
                if wire.dst not in ends:
                    on = way.on(wire, buses)
                    if wire.dst not in longer or on.bytes_per_s > longer[wire.dst].bytes_per_s:
                        longer[wire.dst] = on
        ends.update(longer)
        found.update({node: way for node, way in longer.items() if isinstance(node, int)})
        reached = {node: way for node, way in longer.items() if isinstance(node, str)}
    return found
