"""Lists of hosts as schedulers write them: Slurm's ranges in brackets, LSF's pairs and files."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Iterator, List, Mapping, NamedTuple, Tuple

from gluonlab.errors import ConfigError

MOST_HOSTS = 65536
MOST_SLOTS = 4096  # of one host: whoever says more means something else
# what may be given to a program such as ssh: never an option
HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:%-]{0,254}")
BRACKETS = re.compile(r"\[([^\[\]]*)\]")
RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


class HostSlots(NamedTuple):
    """A host, and for how many processes there is room on it."""

    host: str
    slots: int


def slurm_hosts(text: str, variable: str) -> List[str]:
    """The hosts of Slurm's notation, in its order: ``n[001-003,07],gpu-5``.

    Source: https://slurm.schedmd.com/scontrol.html, "show hostnames". Raises ConfigError, which
    names ``variable``, for another form and for more than 65,536 hosts.
    """
    found: List[str] = []
    for part in _parts(text, variable):
        fixed = BRACKETS.split(part)  # prefix, ranges, between, ranges, ..., suffix
        ranges = [_numbers(between, text, variable) for between in fixed[1::2]]
        for numbers in itertools.product(*ranges):
            found.append("".join(itertools.chain(*zip(fixed[::2], (*numbers, "")))))
            if len(found) > MOST_HOSTS:
                raise _not_a_list(text, variable)
    return [checked_host(host, variable) for host in found]


def _parts(text: str, variable: str) -> Iterator[str]:
    """What stands between the commas outside of brackets."""
    depth, begin = 0, 0
    for end, character in enumerate(f"{text},"):
        depth += (character == "[") - (character == "]")
        if not 0 <= depth <= 1:
            raise _not_a_list(text, variable)
        if character == "," and depth == 0:
            yield text[begin:end]
            begin = end + 1
    if depth:
        raise _not_a_list(text, variable)


def _numbers(ranges: str, text: str, variable: str) -> List[str]:
    """``001-003,07`` -> ``["001", "002", "003", "07"]``; as wide as the first number."""
    numbers: List[str] = []
    for part in ranges.split(","):
        found = RANGE.fullmatch(part)
        if found is None:
            raise _not_a_list(text, variable)
        first, last = int(found[1]), int(found[2] or found[1])
        if not first <= last < first + MOST_HOSTS:
            raise _not_a_list(text, variable)
        numbers += [str(number).zfill(len(found[1])) for number in range(first, last + 1)]
    return numbers


def slurm_counts(text: str) -> List[int]:
    """Slurm's tasks of each node: ``2(x3),1`` -> ``[2, 2, 2, 1]``; empty for another form."""
    counts: List[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"([0-9]{1,5})(?:\(x([0-9]{1,5})\))?", part.strip())
        if found is None or not 1 <= int(found[1]) <= MOST_SLOTS:
            return []
        counts += [int(found[1])] * int(found[2] or 1)
        if len(counts) > MOST_HOSTS:
            return []
    return counts


def lsf_hosts(environ: Mapping[str, str]) -> Tuple[str, List[HostSlots]]:
    """The hosts of an LSF job in LSF's order, and the variable that told them; ("", []) of none.

    A host may come several times. Source:
    https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=variables-environment-set-job-execution
    """
    if environ.get("LSB_MCPU_HOSTS"):
        words = environ["LSB_MCPU_HOSTS"].split()
        if len(words) % 2:
            raise _not_a_list(environ["LSB_MCPU_HOSTS"], "LSB_MCPU_HOSTS")
        pairs = zip(words[::2], words[1::2])
        found = [HostSlots(host, _slots(count, "LSB_MCPU_HOSTS")) for host, count in pairs]
        return "LSB_MCPU_HOSTS", _checked(found, "LSB_MCPU_HOSTS")
    if environ.get("LSB_DJOB_HOSTFILE"):
        file = environ["LSB_DJOB_HOSTFILE"]
        try:
            lines = Path(file).read_text(encoding="utf-8-sig").split()
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"LSB_DJOB_HOSTFILE={file}, which names the job's hosts, cannot be read ({error}): "
                "give the hosts with --hosts"
            ) from None
        return "LSB_DJOB_HOSTFILE", _checked(
            [HostSlots(host, 1) for host in lines], "LSB_DJOB_HOSTFILE"
        )
    hosts = environ.get("LSB_HOSTS", "").split()
    slots = _checked([HostSlots(host, 1) for host in hosts], "LSB_HOSTS")
    return ("LSB_HOSTS" if hosts else ""), slots


def lsf_place(task: int, hosts: List[HostSlots]) -> Tuple[int, int]:
    """The number on its host, and the number of tasks there, of the task with this number, from 0.

    blaunch starts one task in each slot, host by host; ``task`` must be less than all slots.
    """
    before = {host: 0 for host, _ in hosts}
    for host, slots in hosts:
        if 0 <= task < slots:
            return before[host] + task, dict(merged(hosts))[host]
        before[host] += slots
        task -= slots
    raise IndexError(task)


def merged(hosts: List[HostSlots]) -> List[HostSlots]:
    """Each host once, in the order in which they first come, with all its slots."""
    slots = {host: 0 for host, _ in hosts}
    for host, count in hosts:
        slots[host] += count
    return [HostSlots(host, count) for host, count in slots.items()]


def checked_host(host: str, variable: str) -> str:
    """``host``, if it can be a host's name; else ConfigError."""
    if HOST.fullmatch(host) is None:
        raise ConfigError(f"{variable} names {host!r}, which cannot be a host: set it anew")
    return host


def _checked(hosts: List[HostSlots], variable: str) -> List[HostSlots]:
    if sum(slots for _, slots in hosts) > MOST_HOSTS * 16:
        raise ConfigError(f"{variable} names more slots than a job can have: set it anew")
    return [HostSlots(checked_host(host, variable), slots) for host, slots in hosts]


def _slots(text: str, variable: str) -> int:
    if re.fullmatch(r"[0-9]{1,5}", text) is None or not 1 <= int(text) <= MOST_SLOTS:
        raise ConfigError(
            f"{variable} gives a host {text!r} slots: a number from 1 to {MOST_SLOTS} is possible"
        )
    return int(text)


def _not_a_list(text: str, variable: str) -> ConfigError:
    return ConfigError(
        f"{variable}={text!r} is no list of hosts, such as node[001-003,07],gpu-5 or 'a 2 b 2', of "
        f"at most {MOST_HOSTS}: set it anew, or give the hosts with --hosts"
    )
