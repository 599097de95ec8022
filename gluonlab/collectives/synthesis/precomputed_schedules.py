"""Schedules that were found before, as files: of known machines, and of a switch.

A file holds the wires that its schedules are for, so it serves every topology whose wires are the
same up to the devices' numbers. Everything read is checked.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from gluonlab.collectives.algorithms import ACROSS, make_schedule, nested
from gluonlab.collectives.cost_model import best_order, cheapest_for_some
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
from gluonlab.collectives.synthesis.flow_network import (
    Lanes,
    SharedLink,
    isomorphism,
    lanes_or_none,
)
from gluonlab.collectives.synthesis.schedule_search import SynthesizedSchedule
from gluonlab.collectives.topology import Topology, switch
from gluonlab.collectives.verify_schedule import check
from gluonlab.errors import ScheduleError

SYNTHESISED = "synthesised"
FOLDER = Path(__file__).with_name("found")
MOST_HOSTS = 4  # of more, the prices of all choices take many seconds


class Stored(NamedTuple):
    """What a file holds: of which machines, their wires, and what was found for these."""

    machines: Tuple[str, ...]
    lanes: Lanes
    front: Tuple[SynthesizedSchedule, ...]


def front_of(topology: Topology) -> List[SynthesizedSchedule]:
    """What is stored for the links of ``topology``, by rising number of steps; empty if nothing.

    Rank r of each schedule is device r of the topology.
    """
    known = _all(topology.world_size) if len(topology.hosts) == 1 else ()
    lanes = lanes_or_none(topology) if known else None
    for each in known if lanes else ():
        renaming = isomorphism(each.lanes, lanes) if lanes else None
        if renaming is not None:
            return [one._replace(schedule=one.schedule.placed(renaming)) for one in each.front]
    return []


def uniform(world_size: int) -> Topology:
    """What devices of unknown links are taken for: all behind one switch."""
    return switch(world_size, 1e-5, 1e10, 1e11)


def choices(topology: Topology) -> List[Schedule]:
    """The stored schedules for ``topology``: its own, where its file has some.

    Where nothing is stored for its links, they are those for a switch, placed by `best_order`, and
    those made of the ones for each of several groups of as many devices; over several hosts they
    are made of those for one (`hosts`). Raises ScheduleError for more devices
    than there are files for, and for more hosts than `MOST_HOSTS`.
    """
    if topology.schedules:
        return list(topology.schedules)
    if len(topology.hosts) > 1:
        return over_hosts(topology)
    if topology.world_size == 1:
        return [Schedule(SYNTHESISED, ALLREDUCE, 1, 1, (0,), ())]
    own = [found.schedule for found in front_of(topology)]
    if own:
        return own
    others = [found.schedule for found in front_of(uniform(topology.world_size))]
    if not others:
        names = [
            f"{name} ({each.lanes.world_size})" for each in _all(None) for name in each.machines
        ]
        raise ScheduleError(
            f"{SYNTHESISED}: no schedule is stored for the {topology.world_size} devices of "
            f"{topology.name}: there are some for {', '.join(names)}, and for others of as many "
            "devices"
        )
    placed = [schedule.placed(best_order(schedule, topology)) for schedule in others]
    groups = topology.groups
    if len(groups) == 1 or len({len(group) for group in groups}) > 1:
        return placed
    made = over_groups(topology)
    return cheapest_for_some([*placed, *made], topology)


def written(
    machine_names: Sequence[str], lanes: Lanes, front: Sequence[SynthesizedSchedule], **more: str
) -> str:
    """The text of a file: JSON with a line for each wire, and for each step.

    ``more``: the texts of values under other keys.
    """
    head = {"format": FILE_FORMAT, "machines": list(machine_names), "devices": lanes.world_size}
    wires = [
        {"lanes": wire.lanes, "pairs": [f"{src}>{dst}" for src, dst in wire.pairs]}
        for wire in lanes.wires
    ]
    lists = {"wires": _list(map(json.dumps, wires)), "front": _list(map(_as_text, front))}
    return _object(head, **lists, **more)


def _as_text(found: SynthesizedSchedule) -> str:
    head = {
        "rounds": found.rounds,
        "bound": found.bound,
        "status": "proved optimal" if found.optimal else "best found",
        "owner": list(found.schedule.owner),
    }
    steps = (json.dumps(_by_pair(step)) for step in found.schedule.steps)
    return _object(head, steps=_list(steps)).strip()


def _object(head: Dict[str, Any], **lists: str) -> str:
    parts = [json.dumps(head)[:-1], *(f'"{name}": {text}' for name, text in lists.items())]
    return ",\n ".join(parts) + "}\n"


def _list(texts: Iterable[str]) -> str:
    return "[\n  " + ",\n  ".join(texts) + "\n]"


def read(path: Path) -> Stored:
    """A file's content, checked. Raises ScheduleError for one that is damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(str(path), error) from None
    return parsed(str(path), content)


def parsed(where: str, content: Any) -> Stored:
    """What the JSON content of a file says, checked; ``where``: the file, for messages."""
    try:
        if content["format"] != FILE_FORMAT:
            raise ValueError(f"format {content['format']!r}")
        world_size = int(content["devices"])
        wires = tuple(
            SharedLink(tuple(_pair(text) for text in wire["pairs"]), int(wire["lanes"]))
            for wire in content["wires"]
        )
        front = tuple(_found(world_size, each) for each in content["front"])
        names = tuple(str(name) for name in content["machines"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise _damaged(where, error) from None
    pairs = tuple(sorted({pair for wire in wires for pair in wire.pairs}))
    lanes = Lanes(world_size, pairs, wires, 0.0, 0.0, 0.0, 0, 0)
    for found in front:
        try:
            check(found.schedule)
        except ScheduleError as error:
            raise ScheduleError(f"{where}: {error}") from None
    return Stored(names, lanes, front)


def _damaged(where: str, error: Exception) -> ScheduleError:
    why = " ".join(str(error).split())[:80]
    return ScheduleError(f"{where}: no file of schedules, or a damaged one ({why})")


@lru_cache(maxsize=None)
def _all(world_size: Optional[int]) -> Tuple[Stored, ...]:
    number = "*" if world_size is None else f"{world_size}-*"
    return tuple(read(path) for path in sorted(FOLDER.glob(f"{number}.json")))


def _found(world_size: int, each: Dict[str, Any]) -> SynthesizedSchedule:
    owner = tuple(int(rank) for rank in each["owner"])
    steps = tuple(
        tuple(
            Transfer(*_pair(pair), int(chunk), op)
            for op in (ADD, COPY)
            for pair, chunks in step.get(op, {}).items()
            for chunk in chunks
        )
        for step in each["steps"]
    )
    schedule = Schedule(SYNTHESISED, ALLREDUCE, world_size, len(owner), owner, steps)
    return SynthesizedSchedule(schedule, float(each["rounds"]), float(each["bound"]))


def _by_pair(step: Step) -> Dict[str, Dict[str, List[int]]]:
    found: Dict[str, Dict[str, List[int]]] = {}
    for src, dst, chunk, op in sorted(step):
        found.setdefault(op, {}).setdefault(f"{src}>{dst}", []).append(chunk)
    return found


def _pair(text: str) -> Tuple[int, int]:
    src, dst = text.split(">")
    return int(src), int(dst)


# --- over several hosts, or groups of one, made of what is stored for one of them
#
# What is stored for one host is proved to be near the bound. Of the whole nothing is proved but
# that it is right: `check` and the lower bound tell how good it is.

# Within hosts also these, whose chunks have one owner: fewer messages pass a network card.
ONE_OWNER = ("star", "tree")
# Parts of the buffer that follow each other, a step apart, over groups whose links the stages of
# one part leave idle
PIPELINES = (1, 2, 4, 8, 16, 32)
MOST_TRANSFERS = 20_000  # of a pipeline


def over_hosts(topology: Topology) -> List[Schedule]:
    """Allreduces of all hosts of ``topology``, each made of one that is stored for a host.

    That is cut into sums, which come first, and copies, in the end. Raises ScheduleError for more
    than `MOST_HOSTS`, and for hosts of different sizes.
    """
    if len(topology.hosts) > MOST_HOSTS or len({len(host) for host in topology.hosts}) > 1:
        raise ScheduleError(
            f"{SYNTHESISED}: over hosts, they are made for 2 to {MOST_HOSTS} of as many devices "
            f"each, not for the {len(topology.hosts)} of {topology.name}: choose hierarchical"
        )
    return _over(topology, topology.hosts)


def over_groups(topology: Topology) -> List[Schedule]:
    """The same over the groups of one host, each also as a `pipeline`."""
    return [
        pipeline(made, parts)
        for made in _over(topology, topology.groups)
        for parts in PIPELINES
        if parts * made.transfers <= MOST_TRANSFERS
    ]


def pipeline(schedule: Schedule, parts: int) -> Schedule:
    """The schedule for each of so many parts of the buffer, each a step after the one before.

    While the sums of one part pass the links between groups, those of the next are still made
    within groups: for large buffers all links work at once. What a device sends another for several
    parts in one step is one message.
    """
    steps: List[List[Transfer]] = [[] for _ in range(len(schedule.steps) + parts - 1)]
    for part in range(parts):
        for number, step in enumerate(schedule.steps, part):
            steps[number] += (t._replace(chunk=t.chunk + part * schedule.chunks) for t in step)
    return replace(
        schedule,
        chunks=parts * schedule.chunks,
        owner=parts * schedule.owner,
        steps=tuple(map(tuple, steps)),
    )


def _over(topology: Topology, parts: Sequence[Sequence[int]]) -> List[Schedule]:
    one = topology.subset(parts[0])
    single = [make_schedule(each, one.world_size) for each in ONE_OWNER]
    inner = [*choices(one), *(each.placed(best_order(each, one)) for each in single)]
    between = [make_schedule(each, len(parts)) for each in ACROSS]
    devices = list(chain(*parts))
    made = []
    for each in inner:
        scatter, gather = halves(each)
        made += [nested(SYNTHESISED, scatter, across, gather).placed(devices) for across in between]
    return made


def halves(schedule: Schedule) -> Tuple[Schedule, Schedule]:
    """An allreduce that sums every chunk up on its owner and then copies it, as two schedules.

    The sums of all chunks come first, also where some of them were on their way back before.
    """
    scatter = replace(schedule, collective=REDUCE_SCATTER, steps=_only(schedule, ADD))
    return scatter, replace(schedule, collective=ALL_GATHER, steps=_only(schedule, COPY))


def _only(schedule: Schedule, op: str) -> Tuple[Step, ...]:
    steps = (tuple(t for t in step if t.op == op) for step in schedule.steps)
    return tuple(step for step in steps if step)
