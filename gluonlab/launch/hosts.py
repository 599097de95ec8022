"""Parses lists of hosts, and assigns the processes of a group to the hosts."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence

from gluonlab.errors import ConfigError

LOCAL_NAMES = ("localhost", "127.0.0.1")
MAX_PROCESSES = 4096  # the largest number of processes of a group


class Host(NamedTuple):
    """A host's name for ssh, and the maximum number of workers on this host.

    ``slots`` is None if the user has not set a number. Such a host runs one worker, or all workers
    if it is the only host. A host with 0 slots runs only servers.
    """

    name: str
    slots: Optional[int] = None

    @property
    def is_local(self) -> bool:
        """Check if the host is this machine, for which no ssh is needed."""
        return self.name in (*LOCAL_NAMES, socket.gethostname())


LOCAL_HOST = Host("localhost")


def parse_hosts(text: str) -> List[Host]:
    """Parse a list of hosts with numbers of processes, such as ``h1,h2:4``. Raises ConfigError."""
    return _check_distinct([_parse_host(each, f"--hosts {text}") for each in text.split(",")], "--hosts")


def read_hostfile(path: str) -> List[Host]:
    """Read the hosts from a file with one host on each line. Raises ConfigError.

    A line is ``h1``, ``h1:4`` or, in Open MPI's format, ``h1 slots=4``. Comments begin with #.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not a text file"
        raise ConfigError(
            f"--hostfile {path} cannot be read ({why}): pass a file with one host per line, such as h1 slots=4"
        ) from None
    hosts = []
    for number, line in enumerate(lines, start=1):
        words = line.split("#")[0].split()
        if words:
            location = f"--hostfile {path}, line {number}"
            if len(words) > 2 or (len(words) == 2 and not words[1].startswith("slots=")):
                raise ConfigError(
                    f"{location}: {' '.join(words)!r} is not a host name with a number of slots: "
                    f"write {words[0]} slots=4"
                )
            hosts.append(_parse_host(":".join(words).replace(":slots=", ":", 1), location))
    if not hosts:
        raise ConfigError(f"--hostfile {path} contains no host: add one host per line, such as h1 slots=4")
    return _check_distinct(hosts, f"--hostfile {path}")


def _parse_host(text: str, source: str) -> Host:
    """Parse ``h1`` or ``h1:4``. ``source``: the option to name in the error. Raises ConfigError."""
    name, colon, slots = text.strip().partition(":")
    # A name that begins with - would be an option of ssh.
    if not name or name[0] == "-" or not name.isprintable() or set(name) & set(" /\\'\"$`;&|<>"):
        raise ConfigError(f"{source}: {text!r} is not a host: use NAME or NAME:PROCESSES, such as h1:4")
    if ":" in slots or name[0] == "[":
        raise ConfigError(f"{source}: {text!r} is an IPv6 address, which is not supported: use a host name")
    if not colon:
        return Host(name)
    if not slots.isascii() or not slots.isdecimal() or not 0 <= int(slots[:9]) <= MAX_PROCESSES:
        raise ConfigError(
            f"{source}: {text!r}: the number of processes must be from 0 to {MAX_PROCESSES}, as in {name}:4"
        )
    return Host(name, int(slots))


def _check_distinct(hosts: List[Host], source: str) -> List[Host]:
    """Return ``hosts``. Raises ConfigError if a host appears twice.

    ``source``: the option, with its file if there is one, for the error message
    """
    seen: Dict[str, str] = {}  # the written name by the normalized name
    for host in hosts:
        name = LOCAL_HOST.name if host.is_local else _normalize_hostname(host.name)
        if name in seen:
            description = "this host" if host.is_local else "the same host"
            names = (
                f"{host.name} twice"
                if seen[name] == host.name
                else f"{seen[name]} and {host.name}, which are {description}"
            )
            raise ConfigError(
                f"{source} contains {names}: list the host only once, with all its processes, as in {host.name}:2"
            )
        seen[name] = host.name
    return hosts


def _normalize_hostname(name: str) -> str:
    """Return the host of ``user@host`` or ``host``, in lower case."""
    return name.rpartition("@")[2].lower()


def assign_ranks(processes: Optional[int], hosts: List[Host]) -> List[int]:
    """Return the host of each rank, as an index into ``hosts``.

    Hosts are filled in the order of ``hosts``. A single host without a number of slots gets all
    processes. ``processes``: number of processes; None to use all slots. Raises ConfigError if the
    hosts have too few slots.
    """
    if len(hosts) == 1 and hosts[0].slots is None:
        return [0] * (processes or 1)
    assignment = [host_number for host_number, host in enumerate(hosts) for _ in range(_host_capacity(host))]
    if not assignment:
        raise ConfigError(
            f"the hosts have no slots for processes ({format_hosts(hosts)}): set at least one slot, as in "
            f"{hosts[0].name}:1"
        )
    if processes is not None and processes > len(assignment):
        raise ConfigError(
            f"-n {processes}: the hosts only have {len(assignment)} slots "
            f"({format_hosts(hosts)}): add hosts or increase the number of slots, as in "
            f"{hosts[0].name}:{processes}"
        )
    return assignment[:processes]


def format_hosts(hosts: Iterable[Host]) -> str:
    """Return the hosts and their numbers of workers as text, such as ``h1:1, h2:4``."""
    return ", ".join(f"{host.name}:{_host_capacity(host)}" for host in hosts)


def _host_capacity(host: Host) -> int:
    return 1 if host.slots is None else host.slots


def total_capacity(hosts: Iterable[Host]) -> int:
    """Return the maximum number of workers that these hosts can run."""
    return sum(map(_host_capacity, hosts))


def server_hosts(hosts: List[Host], placed: Sequence[int]) -> List[int]:
    """Return the hosts on which servers run, as indices into ``hosts``.

    These are the hosts with 0 slots or, if there are none, all hosts with workers. ``placed``: the
    host of each rank.
    """
    dedicated = [number for number, host in enumerate(hosts) if host.slots == 0]
    return dedicated or sorted(set(placed))
