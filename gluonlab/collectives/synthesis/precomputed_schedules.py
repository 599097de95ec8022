"""Reads the stored schedules for known machines and for devices behind one switch.

A file contains schedules and the links they were made for. The schedules are used for every
topology with the same links, even if the devices are numbered differently. All schedules are
verified after they are read.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from gluonlab.collectives.algorithms import ACROSS_HOSTS, make_schedule, nest_over_hosts
from gluonlab.collectives.cost_model import find_best_order, select_cheapest
from gluonlab.collectives.schedule import (
    ADD,
    ALL_GATHER,
    ALLREDUCE,
    COPY,
    FILE_FORMAT,
    REDUCE_SCATTER,
    Schedule,
    Step,
    Transfer,
)
from gluonlab.collectives.synthesis.flow_network import FlowNetwork, SharedLink, find_isomorphism, flow_network_or_none
from gluonlab.collectives.synthesis.schedule_search import SynthesizedSchedule
from gluonlab.collectives.topology import Topology, switch
from gluonlab.collectives.verify_schedule import verify
from gluonlab.errors import ScheduleError

SYNTHESIZED = "synthesized"
FOLDER = Path(__file__).with_name("found")
MAX_HOSTS = 4  # for more hosts, the prices of all choices take many seconds


class StoredSchedules(NamedTuple):
    """The content of a file: names of machines, their links, and the schedules found for them."""

    machines: Tuple[str, ...]
    network: FlowNetwork
    front: Tuple[SynthesizedSchedule, ...]


def find_stored_schedules(topology: Topology) -> List[SynthesizedSchedule]:
    """Return the stored schedules for the links of ``topology``, in order of increasing steps.

    Rank r of each schedule is device r of the topology.
    """
    stored = _read_all(topology.world_size) if len(topology.hosts) == 1 else ()
    network = flow_network_or_none(topology) if stored else None
    for content in stored if network else ():
        permutation = find_isomorphism(content.network, network) if network else None
        if permutation is not None:
            return [entry._replace(schedule=entry.schedule.placed(permutation)) for entry in content.front]
    return []


def uniform_switch(world_size: int) -> Topology:
    """Return a topology with all devices behind one switch, for devices with unknown links."""
    return switch(world_size, 1e-5, 1e10, 1e11)


def choose_schedules(topology: Topology) -> List[Schedule]:
    """Return synthesized schedules for a topology, from the topology's file or from stored files.

    If no file contains the topology's links, the schedules for a switch are used, in the device
    order from `find_best_order`. If there are several equal groups of devices, combinations of the
    schedules for each group are added. If there are several hosts, the schedules for one host are
    combined (`make_schedules_over_hosts`). Raises ScheduleError for more devices than any stored
    file covers, and for more hosts than `MAX_HOSTS`.
    """
    if topology.schedules:
        return list(topology.schedules)
    if len(topology.hosts) > 1:
        return make_schedules_over_hosts(topology)
    if topology.world_size == 1:
        return [Schedule(SYNTHESIZED, ALLREDUCE, 1, 1, (0,), ())]
    stored = [entry.schedule for entry in find_stored_schedules(topology)]
    if stored:
        return stored
    for_switch = [entry.schedule for entry in find_stored_schedules(uniform_switch(topology.world_size))]
    if not for_switch:
        names = [
            f"{name} ({content.network.world_size} devices)" for content in _read_all(None) for name in content.machines
        ]
        raise ScheduleError(
            f"{SYNTHESIZED}: there is no stored schedule for the {topology.world_size} devices of "
            f"{topology.name}: choose {', '.join(names)}, or a topology with the same links as one of "
            "these machines"
        )
    placed = [schedule.placed(find_best_order(schedule, topology)) for schedule in for_switch]
    groups = topology.groups
    if len(groups) == 1 or len({len(group) for group in groups}) > 1:
        return placed
    over_groups = make_schedules_over_groups(topology)
    return select_cheapest([*placed, *over_groups], topology)


def to_file_text(
    machine_names: Sequence[str], network: FlowNetwork, front: Sequence[SynthesizedSchedule], **more: str
) -> str:
    """Return the text of a file of schedules: JSON with a line for each link, and for each step.

    ``more``: additional keys, with their values as JSON text.
    """
    head = {"format": FILE_FORMAT, "machines": list(machine_names), "devices": network.world_size}
    links = [
        {"lanes": link.lanes, "pairs": [f"{src}>{dst}" for src, dst in link.pairs]} for link in network.shared_links
    ]
    lists = {"wires": _json_list(map(json.dumps, links)), "front": _json_list(map(_schedule_text, front))}
    return _json_object(head, **lists, **more)


def _schedule_text(entry: SynthesizedSchedule) -> str:
    """Return the JSON of one schedule, with its rounds, lower bound and optimality."""
    head = {
        "rounds": entry.rounds,
        "bound": entry.bound,
        "status": "proved optimal" if entry.is_optimal else "best found",
        "owner": list(entry.schedule.owner),
    }
    steps = (json.dumps(_chunks_by_pair(step)) for step in entry.schedule.steps)
    return _json_object(head, steps=_json_list(steps)).strip()


def _json_object(head: Dict[str, Any], **lists: str) -> str:
    parts = [json.dumps(head)[:-1], *(f'"{name}": {text}' for name, text in lists.items())]
    return ",\n ".join(parts) + "}\n"


def _json_list(texts: Iterable[str]) -> str:
    return "[\n  " + ",\n  ".join(texts) + "\n]"


def read_schedules(path: Path) -> StoredSchedules:
    """Return a file's verified content. Raise ScheduleError for a damaged file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged_file_error(str(path), error) from None
    return parse_schedules(str(path), content)


def parse_schedules(where: str, content: Any) -> StoredSchedules:
    """Return the verified content of a file's JSON; ``where`` names the file in error messages."""
    try:
        if content["format"] != FILE_FORMAT:
            raise ValueError(f"its format is {content['format']!r}")
        world_size = int(content["devices"])
        links = tuple(
            SharedLink(tuple(_parse_pair(text) for text in link["pairs"]), int(link["lanes"]))
            for link in content["wires"]
        )
        front = tuple(_parse_schedule(world_size, entry) for entry in content["front"])
        names = tuple(str(name) for name in content["machines"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise _damaged_file_error(where, error) from None
    pairs = tuple(sorted({pair for link in links for pair in link.pairs}))
    network = FlowNetwork(world_size, pairs, links, 0.0, 0.0, 0.0, 0, 0)
    for entry in front:
        try:
            verify(entry.schedule)
        except ScheduleError as error:
            raise ScheduleError(f"{where}: {error}") from None
    return StoredSchedules(names, network, front)


def _damaged_file_error(where: str, error: Exception) -> ScheduleError:
    reason = " ".join(str(error).split())[:80]
    return ScheduleError(f"{where} is not a valid file of schedules ({reason})")


@lru_cache(maxsize=None)
def _read_all(world_size: Optional[int]) -> Tuple[StoredSchedules, ...]:
    number = "*" if world_size is None else f"{world_size}-*"
    return tuple(read_schedules(path) for path in sorted(FOLDER.glob(f"{number}.json")))


def _parse_schedule(world_size: int, entry: Dict[str, Any]) -> SynthesizedSchedule:
    """Return the schedule that an entry of the list ``front`` in a file describes."""
    owner = tuple(int(rank) for rank in entry["owner"])
    steps = tuple(
        tuple(
            Transfer(*_parse_pair(pair), int(chunk), op)
            for op in (ADD, COPY)
            for pair, chunks in step.get(op, {}).items()
            for chunk in chunks
        )
        for step in entry["steps"]
    )
    schedule = Schedule(SYNTHESIZED, ALLREDUCE, world_size, len(owner), owner, steps)
    return SynthesizedSchedule(schedule, float(entry["rounds"]), float(entry["bound"]))


def _chunks_by_pair(step: Step) -> Dict[str, Dict[str, List[int]]]:
    """Return a step's chunks as a file stores them: by operation, then by pair, such as ``0>1``."""
    chunks: Dict[str, Dict[str, List[int]]] = {}
    for src, dst, chunk, op in sorted(step):
        chunks.setdefault(op, {}).setdefault(f"{src}>{dst}", []).append(chunk)
    return chunks


def _parse_pair(text: str) -> Tuple[int, int]:
    src, dst = text.split(">")
    return int(src), int(dst)


# --- schedules over several hosts, or groups of one host, composed of stored schedules
#
# The stored schedules for one host are close to a proven bound. Combinations are only verified to
# be correct; the lower bound shows how good they are.

# These algorithms are also tried within hosts: with a single owner, fewer messages pass a NIC.
SINGLE_OWNER = ("star", "tree")
# Numbers of parts of the buffer that follow each other, a step apart. One part would leave the
# links of some groups idle.
PIPELINES = (1, 2, 4, 8, 16, 32)
MAX_TRANSFERS = 20_000  # of a pipeline


def make_schedules_over_hosts(topology: Topology) -> List[Schedule]:
    """Return allreduces over all hosts, each made from a schedule for a single host.

    The schedule for a host is split: its sums run before the allreduce across hosts, and its copies
    run after it. Raises ScheduleError for more than `MAX_HOSTS` hosts, and for hosts of different
    sizes.
    """
    if len(topology.hosts) > MAX_HOSTS or len({len(host) for host in topology.hosts}) > 1:
        raise ScheduleError(
            f"{SYNTHESIZED}: schedules exist only for 2 to {MAX_HOSTS} hosts with equal numbers of devices, and "
            f"not for the {len(topology.hosts)} hosts of {topology.name}: choose algorithm hierarchical"
        )
    return _combine_parts(topology, topology.hosts)


def make_schedules_over_groups(topology: Topology) -> List[Schedule]:
    """Return allreduces over a host's groups.

    Each allreduce is returned as several pipelines, with different numbers of parts.
    """
    return [
        pipeline_parts(schedule, parts)
        for schedule in _combine_parts(topology, topology.groups)
        for parts in PIPELINES
        if parts * schedule.transfers <= MAX_TRANSFERS
    ]


def pipeline_parts(schedule: Schedule, parts: int) -> Schedule:
    """Return a pipeline of ``schedule``.

    The buffer is divided into parts, each of which starts one step after the previous part.

    While the sums of one part use the links between groups, the sums of the next part still use the
    links within groups. So all links work at once for large buffers. Everything that a device sends
    to another device in a step is one message.
    """
    steps: List[List[Transfer]] = [[] for _ in range(len(schedule.steps) + parts - 1)]
    for part in range(parts):
        for number, step in enumerate(schedule.steps, part):
            steps[number] += (t._replace(chunk=t.chunk + part * schedule.chunks) for t in step)
    chunks, owner = parts * schedule.chunks, parts * schedule.owner
    return replace(schedule, chunks=chunks, owner=owner, steps=tuple(map(tuple, steps)))


def _combine_parts(topology: Topology, parts: Sequence[Sequence[int]]) -> List[Schedule]:
    """Return allreduces of the entire topology, made from schedules for one part.

    Each allreduce sums within each part, then across parts, and then copies within each part.
    ``parts``: the devices of each host or group.
    """
    first_part = topology.subset(parts[0])
    single = [make_schedule(algorithm, first_part.world_size) for algorithm in SINGLE_OWNER]
    placed = [schedule.placed(find_best_order(schedule, first_part)) for schedule in single]
    across_parts = [make_schedule(algorithm, len(parts)) for algorithm in ACROSS_HOSTS]
    devices = list(chain(*parts))
    combined = []
    for schedule in [*choose_schedules(first_part), *placed]:
        scatter, gather = split_halves(schedule)
        combined += [nest_over_hosts(SYNTHESIZED, scatter, across, gather).placed(devices) for across in across_parts]
    return combined


def split_halves(schedule: Schedule) -> Tuple[Schedule, Schedule]:
    """Split an allreduce into a reduce_scatter (its sums) and an all_gather (its copies).

    The reduce_scatter contains all sums, even if the allreduce copies some chunks before it sums
    others.
    """
    scatter = replace(schedule, collective=REDUCE_SCATTER, steps=_steps_with_op(schedule, ADD))
    return scatter, replace(schedule, collective=ALL_GATHER, steps=_steps_with_op(schedule, COPY))


def _steps_with_op(schedule: Schedule, op: str) -> Tuple[Step, ...]:
    steps = (tuple(t for t in step if t.op == op) for step in schedule.steps)
    return tuple(step for step in steps if step)
