"""What the commands of all measurements share: options, devices, records, and how they end."""

from __future__ import annotations

import os
import re
import secrets
import textwrap
import time
from collections import Counter
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
)

import click

from gluonlab.bench.harness.machine_info import BUSY_CORES, HERE, Others, about, describe_machine
from gluonlab.bench.harness.measurement_record import Record, Series
from gluonlab.bench.harness.table_format import WIDTH
from gluonlab.config.option_types import whole_number_check
from gluonlab.errors import ConfigError, DeviceError, warn
from gluonlab.files.atomic_files import check_file, check_new, new_file
from gluonlab.host import resources

if TYPE_CHECKING:
    import mxnet as mx


# --- --devices: what is measured on


@dataclass(frozen=True)
class MeasuredOn:
    """The kind and numbers of the devices, and ``words`` that name them to people and in records.

    ``asked``: whether --devices names them.
    """

    kind: str
    numbers: Tuple[int, ...]
    words: str
    asked: bool = False

    @property
    def on_gpus(self) -> bool:
        """Whether they are GPUs."""
        return self.kind == "gpu"

    def first(self, count: int) -> str:
        """The first ``count`` of them, as `gluonlab.devices.devices` takes them."""
        if not self.asked:
            return f"cpu*{count}"
        return f"{self.kind}:{','.join(map(str, self.numbers[:count]))}"

    def options(self, count: int) -> Dict[str, str]:
        """The options of a worker's job that name the devices; empty for CPU devices by default."""
        return {"devices": self.first(count)} if self.asked else {}

    def title(self) -> Dict[str, str]:
        """The devices in a record's options: two records are compared if they have the same."""
        return {"devices": self.words} if self.asked else {}

    def counts(self, wanted: Sequence[int]) -> List[int]:
        """Those of ``wanted`` that there are devices for, and the number of all."""
        there = len(self.numbers)
        return sorted({*(count for count in wanted if count <= there), there})


def cpu_devices(count: int) -> MeasuredOn:
    """The first ``count`` CPU devices, which each row sets up itself."""
    return MeasuredOn("cpu", tuple(range(count)), f"{count} CPU devices")


def measured_on(spec: str) -> MeasuredOn:
    """The devices that --devices names; MXNet is loaded to find them. Raises DeviceError."""
    from gluonlab.devices import devices

    try:
        ctxs = devices(spec)
    except DeviceError as error:
        raise DeviceError(f"--devices {error}") from None
    numbers = tuple(ctx.device_id for ctx in ctxs)
    return MeasuredOn(ctxs[0].device_type, numbers, in_words(ctxs), asked=True)


def in_words(ctxs: "Sequence[mx.Context]") -> str:
    """``gpu(0) gpu(1): 2 x Tesla T4; no two GPUs ...``: which they are, and how they copy."""
    from gluonlab.devices import describe
    from gluonlab.gpu.cuda import peers_in_words

    kinds = ", ".join(f"{count} x {name}" for name, count in Counter(gpu_names(ctxs)).items())
    what = describe(ctxs) + (f": {kinds}" if kinds else "")
    return "; ".join(filter(None, [what, peers_in_words(ctxs)]))


def gpu_names(ctxs: "Sequence[Any]") -> List[str]:
    """NVML's name of each GPU; empty for CPU devices, and where NVML reports none."""
    from gluonlab.collectives.named_topologies import nvml_numbers
    from gluonlab.gpu import nvml

    if any(ctx.device_type != "gpu" for ctx in ctxs):
        return []
    by_number = {gpu.index: gpu.name for gpu in nvml.known().gpus}
    return [by_number[number] for number in nvml_numbers(ctxs) or []]


# --- a measurement from beginning to end

Title = Tuple[str, Mapping[str, Any]]  # a measurement's name and its options


class Session:
    """Begin it, measure, then `record` the numbers."""

    def __init__(self) -> None:
        self.turns = secrets.token_hex(8)
        self._began, self._clock = time.time(), time.monotonic()
        self._load, self._others = os.getloadavg()[0], Others()

    def record(
        self,
        title: Title,
        rounds: int,
        series: Sequence[Series],
        checkout: Path = HERE,
        **more: Any,
    ) -> Record:
        """The numbers of the gluonlab in ``checkout`` with what they depend on, and ``more``."""
        found = {
            **about(checkout),
            "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._began)),
            "seconds": round(time.monotonic() - self._clock, 1),
            "load": round(self._load, 2),
            "others": round(self._others.cores(), 2),
            **more,
        }
        return Record(*title, rounds, self.turns, found, tuple(series))

    def warn_if_busy(self) -> None:
        """Warn when the machine had other work meanwhile, which makes every rate lower."""
        others = self._others.cores()
        if others > BUSY_CORES:
            message = (
                f"other processes kept {others:.1f} of {resources.available_cores()} cores busy: "
                "measure again when they are idle"
            )
            warn(message)


# --- schedules that are drawn instead


class Drawing(NamedTuple):
    """What makes each form of a drawing; ``page`` takes the language."""

    text: Callable[[], str]
    picture: Callable[[], str]
    page: Callable[[str], str]


def drawn(drawing: Drawing, out: Optional[str], language: Optional[str]) -> str:
    """What to print: the text, or where the file is that --out names.

    That is one picture if its name ends in .svg, else a page to step through. Raises ConfigError
    for a ``language`` without a page, OutputError for a file that exists or cannot be written.
    """
    path = None if out is None else Path(out)
    is_page = path is not None and path.suffix.lower() != ".svg"
    if language is not None and not is_page:
        raise ConfigError(
            "--language is for a page: give --out FILE.html for one, or leave it out; "
            "texts and pictures are English"
        )
    if path is None:
        return drawing.text()
    check_new("--out", path)
    content = drawing.page(language or "en") if is_page else drawing.picture()
    with new_file("--out", path) as temporary:
        temporary.write_text(content, encoding="utf-8")
    return f"written to {path}: open it in a browser"


def number_of_devices(spec: str) -> int:
    """How many devices --devices names; a plain number, or cpu*N, needs none to exist."""
    from gluonlab.devices import MAX_CPU_DEVICES, devices

    number = re.fullmatch(r"\s*(?:cpu\s*\*)?\s*([+-]?[0-9]+)\s*", spec.lower())
    if number:
        return int(whole_number_check(1, MAX_CPU_DEVICES)("--devices", number[1]))
    return len(devices(spec))


# --- options of commands

INTERRUPTED = "the unfinished measurement is not kept"  # what every command says of Ctrl-C
_T = TypeVar("_T")
Option = Callable[[Callable[..., None]], Callable[..., None]]


def option(name: str, metavar: str, help: str, default: Optional[str] = None) -> Option:
    """An option with a value, which is text until a measurement checks it."""
    shown = default is not None
    return click.option(name, metavar=metavar, default=default, show_default=shown, help=help)


JSON = click.option(
    "--json", "as_json", is_flag=True, help="print JSON, and nothing else, on standard output"
)
OUT = option("--out", "FILE", "write the record, as --json prints it, into a file")
ON = option("--devices", "SPEC", "measure on gpu:* gpu:0,2 cpu:0,1, ...  [default: CPU devices]")


class Asked(NamedTuple):
    """The options that all measurements have."""

    rounds: int
    as_json: bool
    out: Optional[str]

    def record(
        self, title: Title, measured: Callable[[int], _T], series: Callable[[_T], List[Series]]
    ) -> Tuple[_T, Record]:
        """What ``measured(rounds)`` gives, and its record. Warns if the machine had other work."""
        session = Session()
        found = measured(self.rounds)
        record = session.record(title, self.rounds, series(found))
        session.warn_if_busy()
        return found, record

    def say(self, record: Record, text: str, on: Optional[MeasuredOn] = None) -> None:
        """Print the record or ``text``, after the machine, and write it where --out says."""
        devices = "" if on is None else f"\n{textwrap.fill(f'devices: {on.words}', WIDTH)}"
        told = record.as_json() if self.as_json else f"{describe_machine()}{devices}\n\n{text}\n"
        click.echo(told, nl=False)
        if self.out is not None:
            record.write(Path(self.out))


def measurement(rounds: int) -> Option:
    """``@measurement(5)`` adds the options of `Asked` to a command's function.

    It gets an Asked, and its own options by name. ``rounds``: how many by default.
    """
    how_often = option("--rounds", "N", "measurements of each row", str(rounds))

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def run(
            rounds: str,
            as_json: bool,
            out: Optional[str],
            **own: Any,
        ) -> None:
            count = whole_number_check(1)("--rounds", rounds)
            if out is not None:
                check_file("--out", Path(out))  # before it measures for minutes
            function(Asked(count, as_json, out), **own)

        decorated: Callable[..., None] = how_often(JSON(OUT(run)))
        return decorated

    return decorate
