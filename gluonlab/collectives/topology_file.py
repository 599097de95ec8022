"""A topology as a JSON file, written by hand or by ``bench links --save``.

By hand: devices, switches, and the wires between them. A pair takes the way with the fewest wires,
then the widest, through switches, as devices do not forward (`paths`)::

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
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Sequence, Tuple, Union

from gluonlab.collectives.fields import SCHEDULES, shown
from gluonlab.collectives.links import INFINITE, Topology
from gluonlab.collectives.topology_reader import (
    FORMAT,
    LATENCY,
    REDUCE,
    SHARED,
    Reader,
)
from gluonlab.errors import DataError, ScheduleError
from gluonlab.files.whole import read_bounded, write_text

if TYPE_CHECKING:
    from gluonlab.collectives.synthesis.front import Found

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
    if isinstance(content, dict) and content.get("format") == SCHEDULES:
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
    from gluonlab.collectives.synthesis import stored  # which needs numpy, unlike the doctor
    from gluonlab.collectives.synthesis.lanes import lanes_of

    held = stored.parsed(where, content)
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


def with_schedules(topology: Topology, front: "Sequence[Found]") -> str:
    """The text of a file of schedules found for ``topology``, which `read_topology` reads."""
    from gluonlab.collectives.synthesis import stored
    from gluonlab.collectives.synthesis.lanes import lanes_of

    return stored.written([topology.name], lanes_of(topology), front, topology=_as_text(topology))


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
        "format": FORMAT,
        "name": topology.name,
        "note": topology.note,
        "devices": topology.world_size,
        LATENCY: usual,
        **{key: value for key, value in optional.items() if value != left_out[key]},
    }
    written = [
        {
            "from": src,
            "to": dst,
            "links": [link.name for link in route.links],
            **({} if route.latency_s == usual else {LATENCY: route.latency_s}),
        }
        for (src, dst), route in routes.items()
    ]
    lists: Dict[str, Sequence[Any]] = {"links": [link._asdict() for link in links]}
    lists["routes"] = written
    blocks = [f'"{key}": [\n  ' + ",\n  ".join(map(_dumped, lists[key])) + "\n]" for key in lists]
    return ",\n".join([_dumped(head)[:-1], *blocks]) + "}\n"


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
