"""The hosts that a launcher starts processes on, and which process goes to which of them."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence

from gluonlab.errors import ConfigError

LOCAL = ("localhost", "127.0.0.1")
MOST = 4096  # processes of a group


class Host(NamedTuple):
    """A host, as ssh calls it.

    ``slots``: how many processes train there; None: one, if not told. With 0 it has servers only.
    """

    name: str
    slots: Optional[int] = None

    @property
    def is_here(self) -> bool:
        """Whether it is this machine, so that nothing needs ssh."""
        return self.name in (*LOCAL, socket.gethostname())


HERE = Host("localhost")


def parse_hosts(text: str) -> List[Host]:
    """``h1,h2:4``: hosts with the number of their processes. Raises ConfigError."""
    return _checked([_host(each, f"--hosts {text}") for each in text.split(",")], "--hosts")


def read_hostfile(path: str) -> List[Host]:
    """A host a line: ``h1``, ``h1:4`` or Open MPI's ``h1 slots=4``; # begins a comment.

    Raises ConfigError.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError(
            f"--hostfile {path} cannot be read ({why}): give a file with a host on each line, "
            "such as h1 slots=4"
        ) from None
    found = []
    for number, line in enumerate(lines, start=1):
        words = line.split("#")[0].split()
        if words:
            where = f"--hostfile {path}, line {number}"
            if len(words) > 2 or (len(words) == 2 and not words[1].startswith("slots=")):
                raise ConfigError(
                    f"{where}: {' '.join(words)!r} is no host with its number of processes: write "
                    f"{words[0]} slots=4, and nothing more"
                )
            found.append(_host(":".join(words).replace(":slots=", ":", 1), where))
    if not found:
        raise ConfigError(f"--hostfile {path} names no host: write one a line, such as h1 slots=4")
    return _checked(found, f"--hostfile {path}")


def _host(text: str, where: str) -> Host:
    name, colon, slots = text.strip().partition(":")
    # what begins with - would be an option of ssh
    if not name or name[0] == "-" or not name.isprintable() or set(name) & set(" /\\'\"$`;&|<>"):
        raise ConfigError(f"{where}: {text!r} is no host: write NAME or NAME:PROCESSES, as h1:4")
    if ":" in slots or name[0] == "[":
        raise ConfigError(f"{where}: {text!r}: an IPv6 address has colons itself: give a name")
    if not colon:
        return Host(name)
    if not slots.isascii() or not slots.isdecimal() or not 0 <= int(slots[:9]) <= MOST:
        raise ConfigError(
            f"{where}: {text!r}: the number of processes is 0 to {MOST}, as in {name}:4"
        )
    return Host(name, int(slots))


def _checked(hosts: List[Host], where: str) -> List[Host]:
    seen: Dict[str, str] = {}  # as it is written
    for host in hosts:
        name = HERE.name if host.is_here else _of_machine(host.name)
        if name in seen:
            are = "this host" if host.is_here else "one host"
            twice = (
                f"{host.name} twice"
                if seen[name] == host.name
                else f"{seen[name]} and {host.name}, which are {are}"
            )
            raise ConfigError(
                f"{where} names {twice}: name it once, with all its processes, as in {host.name}:2"
            )
        seen[name] = host.name
    return hosts


def _of_machine(name: str) -> str:
    """A host's name without the user's, which ssh takes before @, and as all names of hosts are:
    in letters of either case.
    """
    return name.rpartition("@")[2].lower()


def place(processes: Optional[int], hosts: List[Host]) -> List[int]:
    """The host of each rank, by its place in ``hosts``, which are filled in their order.

    ``processes``: how many; None for as many as the hosts take. One host that tells no number takes
    all of them. Raises ConfigError where they find no place.
    """
    if len(hosts) == 1 and hosts[0].slots is None:
        return [0] * (processes or 1)
    places = [place for place, host in enumerate(hosts) for _ in range(_room(host))]
    if not places:
        raise ConfigError(f"the hosts take no process ({listed(hosts)}): give one a number from 1")
    if processes is not None and processes > len(places):
        raise ConfigError(
            f"-n {processes}: the hosts take {len(places)} ({listed(hosts)}): "
            f"give more of them, or larger numbers, as in {hosts[0].name}:{processes}"
        )
    return places[:processes]


def listed(hosts: Iterable[Host]) -> str:
    """``h1:1, h2:4``."""
    return ", ".join(f"{host.name}:{_room(host)}" for host in hosts)


def _room(host: Host) -> int:
    return 1 if host.slots is None else host.slots


def room(hosts: Iterable[Host]) -> int:
    """How many processes train on them, at most."""
    return sum(map(_room, hosts))


def server_hosts(hosts: List[Host], placed: Sequence[int]) -> List[int]:
    """Where servers are: on the hosts that are theirs, or else beside the workers."""
    own = [number for number, host in enumerate(hosts) if host.slots == 0]
    return own or sorted(set(placed))
