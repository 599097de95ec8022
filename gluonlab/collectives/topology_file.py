"""Reads and writes topologies as JSON files, which users or ``bench links --save`` write.

A file written by hand lists devices, switches, and the wires between them. Each pair of devices
uses the path with the fewest wires, and among these the path with the highest bandwidth. Paths lead
through switches only, because devices do not forward messages::

    {"name": "four V100", "devices": 4, "gpu": "V100", "latency_s": 1e-5,
     "lane_bytes_per_s": 25e9, "reduce_bytes_per_s": 3e11,
     "switches": ["PCIe", {"name": "CPU", "bytes_per_s": 20e9}],
     "links": [{"between": [0, 1], "lanes": 2}, {"between": [2, 3], "lanes": 2},
               {"between": [0, "PCIe"], "bytes_per_s": 12e9},
               {"between": [1, "PCIe"], "bytes_per_s": 12e9},
               {"from": 2, "to": "CPU", "bytes_per_s": 12e9}, ...],
     "groups": [[0, 1], [2, 3]], "note": "where the figures come from"}

========================  ========================================================================
key                       meaning
========================  ========================================================================
devices                   number of devices, at most 256; they are numbered from 0
name, note                name in tables (default: the file's name); source of the figures
gpu                       kind of all GPUs, which predictions need: V100, T4, ...
latency_s                 seconds of every message, independent of its bytes
reduce_bytes_per_s        bytes/s that a device adds; default: additions take no time
shared_reduce_...         bytes/s that all devices add together, if they share a memory; several
                          additions into one chunk in a step are then counted as one
switches                  names; with ``bytes_per_s``, all traffic through the switch shares it
links                     ``from`` and ``to``, or ``between`` for a link in each direction;
                          ``bytes_per_s``, or ``lanes`` times the file's ``lane_bytes_per_s``;
                          optionally ``name`` and ``latency_s``
routes                    routes of pairs that use other paths: ``from``, ``to``, ``links`` (names
                          of all links that a message passes), and optionally ``latency_s``
groups, hosts             devices that are close to each other; devices of each host
========================  ========================================================================

Links without ends are only used by routes. `write_topology` writes all routes.

``allreduce solve m.json --out-file found.json`` writes a file of schedules, with their topology
under the key ``topology``. Such a file is also a topology. With this topology, the kvstore
``synthesized`` uses these schedules. When the file is read, the schedules are verified and compared
with the links.
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
from gluonlab.collectives.topology import INFINITE, Link, Pair, Route, Topology, all_pairs
from gluonlab.errors import DataError, ScheduleError, unknown
from gluonlab.files.atomic_files import read_bounded, write_text

if TYPE_CHECKING:
    from gluonlab.collectives.synthesis.schedule_search import SynthesizedSchedule

SUFFIX = ".json"
MAX_FILE_BYTES = 16 * 2**20
FILE_ADVICE = (
    "pass a topology file, as described in docs/topologies.md, or the name of a known machine, such as p3.16xlarge"
)
SEARCH_ADVICE = "search for schedules again with gluonlab allreduce solve FILE --out-file NEW"


def is_file_name(name: Any) -> bool:
    """Return whether ``name`` is the name of a topology file: it ends in .json."""
    return str(name).lower().endswith(SUFFIX)


def read_topology(path: Union[str, Path]) -> Topology:
    """Return the topology in a file.

    Raises ScheduleError, with a one-line message, for any mistake in the file.
    """
    try:
        text = read_bounded(Path(path), MAX_FILE_BYTES)
    except DataError as error:
        raise ScheduleError(f"topology {error}: {FILE_ADVICE}") from None
    except OSError as error:
        reason = error.strerror or error
        raise ScheduleError(f"topology {path} cannot be read ({reason}): {FILE_ADVICE}") from None
    return _parse_topology(text, f"topology {path}", Path(path).stem)


def _parse_topology(text: Union[str, bytes], where: str, name: str) -> Topology:
    """Parse the JSON text of a topology file or schedules file. Errors begin with ``where``."""
    try:
        content = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_refuse_repeated_keys)
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:80]
        raise ScheduleError(f"{where} is not valid JSON ({reason}): {FILE_ADVICE}") from None
    if isinstance(content, dict) and content.get("format") == FILE_FORMAT:
        return _parse_schedules_file(where, content, name)
    return TopologyReader(where, content, name).read_topology()


def _parse_schedules_file(where: str, content: Dict[str, Any], name: str) -> Topology:
    """Return the topology in a file of schedules, with the verified schedules."""
    if "topology" not in content:
        raise ScheduleError(
            f"{where}: the file contains schedules, but no topology: pass a file written by gluonlab "
            "allreduce solve m.json --out-file FILE"
        )
    topology = TopologyReader(f"{where}: topology", content["topology"], name).read_topology()
    if content.get("devices") != topology.world_size:
        raise ScheduleError(
            f"{where}: the schedules are for {format_value(content.get('devices'))} devices, but the "
            f"topology has {topology.world_size}: {SEARCH_ADVICE}"
        )
    from gluonlab.collectives.synthesis import precomputed_schedules
    from gluonlab.collectives.synthesis.flow_network import make_flow_network

    stored = precomputed_schedules.parse_schedules(where, content)
    if set(stored.network.shared_links) != set(make_flow_network(topology).shared_links):
        raise ScheduleError(f"{where}: the schedules were computed for different links: {SEARCH_ADVICE}")
    return replace(topology, schedules=tuple(entry.schedule for entry in stored.front))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a valid JSON number")


def _refuse_repeated_keys(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    """Return a JSON object as a dict. Raise ValueError for a repeated key.

    The json module itself silently keeps the last value.
    """
    content = dict(pairs)
    if len(content) < len(pairs):
        repeated, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {format_value(repeated)} appears twice")
    return content


def write_topology(topology: Topology, path: Union[str, Path]) -> None:
    """Write the topology to a file, atomically, so that `read_topology` returns an equal topology.

    Raises OutputError if writing fails. Raises ScheduleError for a topology that a file cannot
    contain: more than 256 devices, infinite speeds of links, different links with one name, or
    names of several lines. Also raises ScheduleError for a topology with schedules, because
    `schedules_file_text` writes such topologies.
    """
    if topology.schedules:
        raise ScheduleError(
            f"{topology.name}: a topology file cannot contain schedules: remove them with "
            "dataclasses.replace(topology, schedules=())"
        )
    text = _topology_text(topology)
    _parse_topology(text, f"topology {topology.name}", "")  # raises for a file that could not be read
    write_text(Path(path), text)


def schedules_file_text(topology: Topology, front: "Sequence[SynthesizedSchedule]") -> str:
    """Return the text of a file of schedules for ``topology``, which `read_topology` reads."""
    from gluonlab.collectives.synthesis import precomputed_schedules
    from gluonlab.collectives.synthesis.flow_network import make_flow_network

    return precomputed_schedules.to_file_text(
        [topology.name], make_flow_network(topology), front, topology=_topology_text(topology)
    )


def _topology_text(topology: Topology) -> str:
    """Return the topology as JSON, with a line for each link and each route."""
    routes, one_group = topology.routes, (tuple(range(topology.world_size)),)
    links = dict.fromkeys(link for route in routes.values() for link in route.links)
    latencies = Counter(route.latency_s for route in routes.values())
    common_latency = latencies.most_common(1)[0][0] if latencies else 0.0
    defaults = {"gpu": "", REDUCE: INFINITE, SHARED: INFINITE, "groups": one_group, "hosts": one_group}
    optional = {key: getattr(topology, key) for key in defaults}
    head = {
        "format": FORMAT, "name": topology.name, "note": topology.note,
        "devices": topology.world_size, LATENCY: common_latency,
        **{key: value for key, value in optional.items() if value != defaults[key]},
    }  # fmt: skip
    lists: Dict[str, Sequence[Any]] = {"links": [link._asdict() for link in links]}
    lists["routes"] = [
        {
            "from": src, "to": dst, "links": [link.name for link in route.links],
            **({} if route.latency_s == common_latency else {LATENCY: route.latency_s}),
        }
        for (src, dst), route in routes.items()
    ]  # fmt: skip
    blocks = [f'"{key}": [\n  ' + ",\n  ".join(map(_to_json, lists[key])) + "\n]" for key in lists]
    return ",\n".join([_to_json(head)[:-1], *blocks]) + "}\n"


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# --- the content of a file

FORMAT = 1
MAX_DEVICES, MAX_LANES = 256, 10**6
MAX_ENTRIES = MAX_DEVICES**2  # links, and routes
LATENCY, REDUCE, SHARED = "latency_s", "reduce_bytes_per_s", "shared_reduce_bytes_per_s"
LANE, SPEED = "lane_bytes_per_s", "bytes_per_s"
KEYS = (
    "format", "name", "note", "devices", "gpu", LATENCY, LANE, REDUCE, SHARED, "switches", "links",
    "routes", "groups", "hosts",
)  # fmt: skip
LINK_KEYS = ("name", "from", "to", "between", SPEED, "lanes", LANE, LATENCY)
ROUTE_KEYS = ("from", "to", "links", LATENCY)


class TopologyReader:
    """Reads a topology from the content of a JSON file. Raises ScheduleError for mistakes.

    ``where``: the file, for error messages. ``name``: the name of the topology if the content does
    not contain one.
    """

    def __init__(self, where: str, content: Any, name: str) -> None:
        self._fields = fields = JsonFields(where, content, KEYS)
        if "format" in fields:
            fields.count("format", FORMAT)
        self._name = fields.text("name", name).strip() or name
        self._devices = fields.count("devices", MAX_DEVICES)
        self._links: Dict[str, Link] = {}
        self._switches: List[str] = []
        self._buses: Dict[Node, Link] = {}
        self._wires: Dict[Tuple[Node, Node], Wire] = {}

    def read_topology(self) -> Topology:
        """Read all entries of the file, and return the topology."""
        fields = self._fields
        fields.items("switches", self._read_switch, MAX_ENTRIES)
        fields.items("links", self._read_link, MAX_ENTRIES)
        routes = shortest_routes(self._devices, list(self._wires.values()), self._buses)
        routes.update(self._read_routes())
        for src, dst in all_pairs(self._devices):
            if (src, dst) not in routes:
                fields.raise_error(
                    f"there is no route from device {src} to device {dst}: link them directly, link both to a "
                    'switch (devices do not forward), or list the pair under "routes"'
                )
        return Topology(
            self._name,
            self._devices,
            {pair: routes[pair] for pair in all_pairs(self._devices)},
            reduce_bytes_per_s=fields.number(REDUCE, INFINITE),
            shared_reduce_bytes_per_s=fields.number(SHARED, INFINITE),
            groups=self._read_partition("groups"),
            note=fields.text("note", "", MAX_TEXT_LENGTH),
            hosts=self._read_partition("hosts"),
            gpu=fields.text("gpu", ""),
        )

    # --- switches and links

    def _read_switch(self, where: str, item: Any) -> None:
        """Add a switch and, if it has a total speed, a link for its bus."""
        fields = JsonFields(where, {"name": item} if isinstance(item, str) else item, ("name", SPEED))
        name = self._read_name(fields)
        if name in self._switches:
            fields.raise_error(f"two switches are called {name!r}: use different names")
        self._switches.append(name)
        if SPEED in fields:
            self._buses[name] = self._add_link(fields, name, fields.number(SPEED))

    def _read_link(self, where: str, item: Any) -> None:
        """Add a link. If the link has ends, add a wire for each direction."""
        fields = JsonFields(where, item, LINK_KEYS)
        speed, ends = self._read_speed(fields), self._read_ends(fields)
        name = self._read_name(fields) if "name" in fields or not ends else ""
        if not ends:
            self._add_link(fields, name, speed)
        for src, dst in ends:
            if src == dst or (src, dst) in self._wires:
                problem = (
                    "has the same two ends: remove it"
                    if src == dst
                    else "is listed twice: list it once, with more lanes"
                )
                fields.raise_error(f"the link from {format_value(src)} to {format_value(dst)} {problem}")
            direction = f"{name} {src} to {dst}".strip()
            link = self._add_link(fields, name if name and len(ends) == 1 else direction, speed)
            self._wires[src, dst] = Wire(src, dst, link, self._read_latency(fields))

    def _read_ends(self, fields: JsonFields) -> List[Tuple[Node, Node]]:
        """Return (src, dst) for each direction of a link; empty for a link without ends."""
        single_ends = [key for key in ("from", "to") if key in fields]
        if "between" not in fields and not single_ends:
            if LATENCY in fields:
                fields.raise_error(
                    f'{LATENCY} is only for routes, and for links with "from" and "to" or "between": remove {LATENCY}'
                )
            return []
        if "between" not in fields:
            expected = "a device's number, or a switch's name"
            src, dst = (
                self._check_node(f"{fields.where}: {key}", fields.value(key, expected)) for key in ("from", "to")
            )
            return [(src, dst)]
        ends = fields.items("between", self._check_node, 2)
        if single_ends or len(ends) < 2:
            fields.raise_error('use "between" with two ends, such as [0, 1], and without "from" and "to"')
        return [(ends[0], ends[1]), (ends[1], ends[0])]

    def _read_speed(self, fields: JsonFields) -> float:
        """Return the bytes/s of a link, which the file states directly or as a number of lanes."""
        if "lanes" not in fields:
            if LANE in fields:
                fields.raise_error(
                    f'{LANE} is only for links with "lanes": add the number of lanes, or use {SPEED} instead'
                )
            return fields.number(SPEED)
        if SPEED in fields:
            fields.raise_error(f'{SPEED} and "lanes" contradict each other: remove one of them')
        lanes = fields.count("lanes", MAX_LANES)
        speed = lanes * (fields if LANE in fields else self._fields).number(LANE)
        max_speed = SPEEDS[1]
        return speed if speed <= max_speed else fields.raise_error(
            f"{lanes} lanes have {speed:g} bytes/s together: the maximum is {max_speed:g}"
        )  # fmt: skip

    def _read_latency(self, fields: JsonFields) -> float:
        """Return the latency of a link or route, by default the latency in the file."""
        return (fields if LATENCY in fields else self._fields).number(LATENCY, zero=True)

    def _add_link(self, fields: JsonFields, name: str, speed: float) -> Link:
        """Add and return a link. Raise ScheduleError if its name is already used."""
        if name in self._links:
            fields.raise_error(f"two links are called {name!r}: use different names")
        self._links[name] = Link(name, speed)
        return self._links[name]

    def _read_name(self, fields: JsonFields) -> str:
        fields.value("name", 'one, or the link\'s ends, "from" and "to"')
        name = fields.text("name", "")
        return name if name.strip() else fields.raise_error(f"name is {name!r}: it must not be blank")

    def _check_node(self, where: str, value: Any) -> Node:
        """Return ``value`` if it is a device number or a switch's name, else raise an error."""
        if not isinstance(value, str):
            return self._check_device(where, value, " or switch" if self._switches else "")
        if value not in self._switches:
            reason = unknown("switch", value[:60], self._switches) if self._switches else (
                f"{format_value(value)} is not a valid switch, because the file defines no switches"
            )  # fmt: skip
            raise ScheduleError(f"{where}: {reason}; write device numbers without quotes")
        return value

    def _check_device(self, where: str, value: Any, alternative: str = "") -> int:
        """Return ``value`` if it is a device's number, else raise ScheduleError."""
        if not (type(value) is int and 0 <= value < self._devices):
            raise ScheduleError(
                f"{where}: {format_value(value)} is not a valid device{alternative}: choose 0 to {self._devices - 1}"
            )
        return value

    # --- routes and parts

    def _read_routes(self) -> Dict[Pair, Route]:
        """Return the routes that the file lists, by pair of devices."""
        routes: Dict[Pair, Route] = {}

        def add_route(where: str, item: Any) -> None:
            """Add the route that an item of ``routes`` describes."""
            fields = JsonFields(where, item, ROUTE_KEYS)
            src, dst = (
                self._check_device(f"{where}: {key}", fields.value(key, "a device's number")) for key in ("from", "to")
            )
            links = fields.items("links", self._find_link, MAX_ENTRIES)
            if src == dst or not links:
                fields.raise_error(
                    f"the route from {src} to {dst} has {len(links)} links: set two different devices, and "
                    "the names of all links between them"
                )
            if (src, dst) in routes:
                fields.raise_error(f"there is a second route from {src} to {dst}: remove one of the two routes")
            routes[src, dst] = Route(tuple(links), self._read_latency(fields))

        self._fields.items("routes", add_route, MAX_ENTRIES)
        return routes

    def _find_link(self, where: str, value: Any) -> Link:
        """Return the link with the name ``value``. Raise ScheduleError for an unknown name."""
        if not isinstance(value, str):
            raise ScheduleError(f"{where}: {format_value(value)} is not the name of a link: write a name in quotes")
        if value not in self._links:
            raise ScheduleError(f"{where}: {unknown('link', value[:60], self._links)}")
        return self._links[value]

    def _read_partition(self, key: str) -> Tuple[Tuple[int, ...], ...]:
        """Return the groups or hosts; empty if ``key`` is missing.

        The groups or hosts must contain every device once.
        """

        def members(where: str, item: Any) -> Tuple[int, ...]:
            if not (isinstance(item, list) and item):
                raise ScheduleError(f"{where}: {format_value(item)} is not a list of devices, such as [0, 1]")
            return tuple(self._check_device(where, device) for device in item)

        parts = tuple(self._fields.items(key, members, self._devices))
        devices = sorted(device for part in parts for device in part)
        if parts and devices != list(range(self._devices)):
            self._fields.raise_error(
                f"{key}: list every device, 0 to {self._devices - 1}, exactly once, such as [[0, 1], [2, 3]]"
            )
        return parts


# --- the keys of a JSON object written by a person, each checked when it is read

MAX_NAME_LENGTH, MAX_TEXT_LENGTH = 100, 4000  # characters
# (minimum, maximum, example): within these limits no price overflows
SPEEDS, SECONDS = (1, 1e18, "25e9"), (0, 1e6, "1e-5")
_T = TypeVar("_T")


class JsonFields:
    """A JSON object whose values are checked when they are read.

    ``where``: the file and the object's position in it, for error messages. Raises ScheduleError if
    ``content`` is not an object, and for keys not in ``allowed_keys``. The methods raise
    ScheduleError for invalid values and missing keys.
    """

    def __init__(self, where: str, content: Any, allowed_keys: Sequence[str]) -> None:
        self.where = where
        if not isinstance(content, dict):
            self.raise_error(
                f"{format_value(content)} is not a JSON object: use {{...}} with the keys {', '.join(allowed_keys)}"
            )
        for key in content:
            if key not in allowed_keys:
                self.raise_error(unknown("key", key[:MAX_NAME_LENGTH], allowed_keys))
        self._content: Mapping[str, Any] = content

    def __contains__(self, key: str) -> bool:
        return key in self._content

    def raise_error(self, reason: str) -> NoReturn:
        """Raise a ScheduleError with the position in the file and the reason."""
        raise ScheduleError(f"{self.where}: {reason}")

    def value(self, key: str, expected: str) -> Any:
        """Return the value of ``key``.

        If the key is missing, the error message contains ``expected``, which describes the value.
        """
        if key not in self._content:
            self.raise_error(f"{key} is missing: add {expected}")
        return self._content[key]

    def number(self, key: str, default: Optional[float] = None, *, zero: bool = False) -> float:
        """Return a positive number, or 0 if ``zero`` allows it.

        ``default``: the result if the key is missing.
        """
        if default is not None and key not in self._content:
            return default
        minimum, maximum, example = SECONDS if zero else SPEEDS
        expected = f"a number from {minimum:g} to {maximum:g}"
        value = self.value(key, expected)
        try:
            number = float(value) if type(value) in (int, float) else math.nan
        except OverflowError:
            number = math.nan
        if not minimum <= number <= maximum:
            self.raise_error(f"{key} is {format_value(value)}: it must be {expected}, such as {example}")
        return number

    def count(self, key: str, maximum: int) -> int:
        """Return an integer from 1 to ``maximum``."""
        value = self.value(key, f"a whole number from 1 to {maximum}")
        if not (type(value) is int and 1 <= value <= maximum):
            self.raise_error(f"{key} is {format_value(value)}: it must be a whole number from 1 to {maximum}")
        return value

    def text(self, key: str, default: str, max_length: int = MAX_NAME_LENGTH) -> str:
        """Return text on one line, or ``default`` if the key is missing."""
        value = self._content.get(key, default)
        if not (isinstance(value, str) and value.isprintable() and len(value) <= max_length):
            self.raise_error(
                f"{key} is {format_value(value)}: it must be text on one line, with at most {max_length} characters"
            )
        return value

    def items(self, key: str, read: Callable[[str, Any], _T], max_count: int) -> List[_T]:
        """Return the converted items of a list, or an empty list if the key is missing.

        ``read(where, item)`` converts each item. ``max_count``: the maximum length of the list.
        """
        value = self._content.get(key, [])
        if not isinstance(value, list):
            self.raise_error(f"{key} is {format_value(value)}: it must be a list, [...]")
        if len(value) > max_count:
            self.raise_error(f"{key} has {len(value)} entries: the maximum is {max_count}")
        return [read(f"{self.where}: {key}[{index}]", item) for index, item in enumerate(value)]


def format_value(value: Any) -> str:
    """Return a value from a file as text for an error message, possibly shortened."""
    text = repr(value) if isinstance(value, (str, int, float, type(None))) else str(type(value))
    if isinstance(value, (dict, list)):
        text = ("an object" if isinstance(value, dict) else "a list") + f" of {len(value)}"
    return text if len(text) <= 60 else f"{text[:40]}..."


# --- routes over wires: the path with the fewest hops, then the highest bandwidth
#
# Switches forward messages, and devices do not: a path passes no devices in between.

Node = Union[int, str]  # a device, by its number, or a switch


class Wire(NamedTuple):
    """A wire in one direction between two nodes, and its latency."""

    src: Node
    dst: Node
    link: Link
    latency_s: float


class _WirePath(NamedTuple):
    """A path of consecutive wires."""

    links: Tuple[Link, ...] = ()
    latency_s: float = 0.0
    bytes_per_s: float = INFINITE

    def extend(self, wire: Wire, buses: Mapping[Node, Link]) -> _WirePath:
        """Return the path, extended by ``wire`` and by the bus of the switch at the wire's end."""
        links = [wire.link, *([buses[wire.dst]] if wire.dst in buses else [])]
        bytes_per_s = min(link.bytes_per_s for link in links)
        return _WirePath((*self.links, *links), max(self.latency_s, wire.latency_s), min(self.bytes_per_s, bytes_per_s))


def shortest_routes(world_size: int, wires: Sequence[Wire], buses: Mapping[Node, Link]) -> Dict[Pair, Route]:
    """Return a route for every pair of devices that wires connect.

    ``buses``: the link that every message through a switch passes, for switches that have such a
    link. The latency of a message is the largest latency on its path, because the message is
    started once. If several paths are equally good, the path whose wires are listed earlier is
    used.
    """
    wires_from: DefaultDict[Node, List[Wire]] = defaultdict(list)
    for wire in wires:
        wires_from[wire.src].append(wire)
    routes = {}
    for src in range(world_size):
        for dst, path in _find_best_paths(src, wires_from, buses).items():
            routes[src, dst] = Route(path.links, path.latency_s)
    return routes


def _find_best_paths(
    src: int, wires_from: Mapping[Node, Sequence[Wire]], buses: Mapping[Node, Link]
) -> Dict[int, _WirePath]:
    """Return the best path from ``src`` to every device that it reaches.

    The search is breadth first.
    """
    paths: Dict[int, _WirePath] = {}
    frontier: Dict[Node, _WirePath] = {src: _WirePath()}
    visited: Set[Node] = {src}
    while frontier:
        next_frontier: Dict[Node, _WirePath] = {}
        for node, path in frontier.items():
            for wire in wires_from.get(node, ()):
                if wire.dst not in visited:
                    extended = path.extend(wire, buses)
                    if wire.dst not in next_frontier or extended.bytes_per_s > next_frontier[wire.dst].bytes_per_s:
                        next_frontier[wire.dst] = extended
        visited.update(next_frontier)
        paths.update({node: path for node, path in next_frontier.items() if isinstance(node, int)})
        frontier = {node: path for node, path in next_frontier.items() if isinstance(node, str)}
    return paths
