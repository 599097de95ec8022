"""What a job asks for, whatever scheduler gets it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Optional, Tuple

from gluonlab.errors import ConfigError

# a name that Slurm, LSF, Kubernetes (RFC 1035, and "-0" to come) and SageMaker all take
NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
QUEUE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:-]*")
IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")


@dataclass(frozen=True)
class JobRequest:
    """Processes, what each of them has, and the words that each of them runs with.

    ``words``: what follows ``--``: the options of python -m gluonlab.run, or a program.
    ``launcher``: what stands before it, such as Horovod's settings. ``gpus`` and ``threads`` are
    each process's, ``memory_mb`` is each host's (each pod's, in Kubernetes). ``queue``: LSF's
    queue, Slurm's partition; None leaves it to the cluster. ``image``: for Kubernetes and
    SageMaker. ``instance``, ``bucket``, ``role``: SageMaker's; None leaves the template's. Raises
    ConfigError for what no scheduler could give.
    """

    words: Tuple[str, ...]
    processes: int = 2
    processes_per_host: int = 1
    gpus: int = 1
    threads: int = 20
    memory_mb: int = 128000
    minutes: int = 60
    backend: str = "dist_sync"
    name: str = "gluonlab-train"
    queue: Optional[str] = None
    image: Optional[str] = None
    instance: Optional[str] = None
    bucket: Optional[str] = None
    role: Optional[str] = None
    python: str = "python"
    launcher: Tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field, least in (
            ("processes", 1), ("processes_per_host", 1), ("gpus", 0), ("threads", 1),
            ("memory_mb", 1), ("minutes", 1),
        ):  # fmt: skip
            if not least <= getattr(self, field) <= 10**9:
                raise ConfigError(
                    f"{field} = {getattr(self, field)}: a whole number from {least} on is possible"
                )
        for field, form, example in (
            ("name", NAME, "gluonlab-resnet18: at most 40 small letters, digits and hyphens"),
            ("queue", QUEUE, "waic-medium"),
            ("image", IMAGE, "registry.example/gluonlab:1"),
            ("instance", QUEUE, "ml.g5.12xlarge"),
            ("bucket", QUEUE, "my-bucket"),
            ("role", IMAGE, "arn:aws:iam::111122223333:role/gluonlab-notebook"),
        ):
            given = getattr(self, field)
            if given is not None and form.fullmatch(given) is None:
                raise ConfigError(f"{field} = {given!r}: write something like {example}")
        for word in (self.python, self.backend, *self.launcher, *self.words):
            if "\0" in word or any("\ud800" <= letter <= "\udfff" for letter in word):
                raise ConfigError(f"{word!r} cannot stand in a file of text: leave it out")

    @property
    def hosts(self) -> int:
        """On how many hosts the processes are: the last may have fewer than the others."""
        return -(-self.processes // self.processes_per_host)

    @property
    def on_a_host(self) -> int:
        """The most processes that one host has."""
        return min(self.processes, self.processes_per_host)

    @property
    def command(self) -> List[str]:
        """What each process is started with: it finds its rank and its group by itself."""
        launch = [self.python, "-m", "gluonlab.launch", "--backend", self.backend]
        return [*launch, *self.launcher, "--", *self.words]


def bash_line(words: List[str]) -> str:
    """The words as one line of bash, whatever is in them: no line ends within a word."""
    return " ".join(map(_bash_word, words))


def _bash_word(word: str) -> str:
    if word and re.fullmatch(r"[A-Za-z0-9_@%+=:,./-]+", word):
        return word
    if all(letter.isprintable() for letter in word):
        return "'" + word.replace("'", "'\"'\"'") + "'"
    return "$'" + "".join(map(_ansi_c, word)) + "'"


def _ansi_c(letter: str) -> str:
    """A letter within bash's $'...'; bytes, since \\u would depend on the locale."""
    if letter in "\\'":
        return f"\\{letter}"
    if letter.isprintable():
        return letter
    return "".join(f"\\{byte:03o}" for byte in letter.encode())
