"""Code that all measurement commands share: options, devices, records and output."""

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
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, TypeVar

import click

from gluonlab.bench.harness.machine_info import CHECKOUT, OtherProcessLoad, describe_environment, describe_machine
from gluonlab.bench.harness.measurement_record import Record, Series
from gluonlab.bench.harness.table_format import WIDTH
from gluonlab.config.option_checks import whole_number_check
from gluonlab.errors import ConfigError, DeviceError
from gluonlab.files.atomic_files import check_new_path, check_output_file, new_file

if TYPE_CHECKING:
    import mxnet as mx


# --- --devices: the devices to measure


@dataclass(frozen=True)
class MeasuredDevices:
    """The devices to measure.

    ``kind``: "gpu" or "cpu". ``description``: text for tables and records. ``named_by_user``:
    whether --devices names the devices; otherwise they are default CPU devices.
    """

    kind: str
    numbers: Tuple[int, ...]
    description: str
    named_by_user: bool = False

    @property
    def on_gpus(self) -> bool:
        """Return whether the devices are GPUs."""
        return self.kind == "gpu"

    def device_spec(self, count: int) -> str:
        """Return the first ``count`` devices, as text for `gluonlab.devices.devices`."""
        if not self.named_by_user:
            return f"cpu*{count}"
        return f"{self.kind}:{','.join(map(str, self.numbers[:count]))}"

    def job_options(self, count: int) -> Dict[str, str]:
        """Return the job option that names the first ``count`` devices.

        The dictionary is empty for default CPU devices.
        """
        return {"devices": self.device_spec(count)} if self.named_by_user else {}

    def record_options(self) -> Dict[str, str]:
        """Return the option for a record that names the devices; empty for default CPU devices.

        Only records with equal options are compared.
        """
        return {"devices": self.description} if self.named_by_user else {}

    def available_counts(self, counts: Sequence[int]) -> List[int]:
        """Return the possible ``counts`` and the number of available devices, sorted."""
        available = len(self.numbers)
        return sorted({*(count for count in counts if count <= available), available})


def cpu_devices(count: int) -> MeasuredDevices:
    """Return ``count`` default CPU devices. The measurement of each row creates them."""
    return MeasuredDevices("cpu", tuple(range(count)), f"{count} CPU devices")


def find_measured_devices(spec: str) -> MeasuredDevices:
    """Return the devices that --devices names.

    Loads MXNet. Raises DeviceError for invalid devices.
    """
    from gluonlab.devices import devices

    try:
        ctxs = devices(spec)
    except DeviceError as error:
        raise DeviceError(f"--devices {error}") from None
    numbers = tuple(ctx.device_id for ctx in ctxs)
    return MeasuredDevices(ctxs[0].device_type, numbers, describe_devices(ctxs), named_by_user=True)


def describe_devices(ctxs: "Sequence[mx.Context]") -> str:
    """Describe the devices and how they copy, as in ``gpu(0) gpu(1): 2 x Tesla T4; ...``."""
    from gluonlab.devices import describe
    from gluonlab.gpu.cuda import describe_peer_access

    kinds = ", ".join(f"{count} x {name}" for name, count in Counter(gpu_names(ctxs)).items())
    description = describe(ctxs) + (f": {kinds}" if kinds else "")
    return "; ".join(filter(None, [description, describe_peer_access(ctxs)]))


def gpu_names(ctxs: "Sequence[Any]") -> List[str]:
    """Return the name of each GPU according to NVML, or an empty list if there are no names."""
    from gluonlab.collectives.named_topologies import nvml_numbers
    from gluonlab.gpu import nvml

    if any(ctx.device_type != "gpu" for ctx in ctxs):
        return []
    by_number = {gpu.index: gpu.name for gpu in nvml.cached_driver().gpus}
    return [by_number[number] for number in nvml_numbers(ctxs) or []]


# --- a measurement from beginning to end

RecordTitle = Tuple[str, Mapping[str, Any]]  # a measurement's name and its options


class MeasurementSession:
    """Measures the time and the machine's load during a measurement.

    Create a session before the measurement. After the measurement, `record` returns the record.
    ``turns`` is a random id that all records from the session share.
    """

    def __init__(self) -> None:
        self.turns = secrets.token_hex(8)
        self._began, self._clock = time.time(), time.monotonic()
        self._load, self._others = os.getloadavg()[0], OtherProcessLoad()

    def record(
        self, title: RecordTitle, rounds: int, series: Sequence[Series], checkout: Path = CHECKOUT, **more: Any
    ) -> Record:
        """Return a record of the series, including the machine, the versions and the load.

        ``checkout``: the folder whose commit is recorded. ``more``: additional facts.
        """
        facts = {
            **describe_environment(checkout),
            "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._began)),
            "seconds": round(time.monotonic() - self._clock, 1),
            "load": round(self._load, 2),
            "others": round(self._others.busy_cores(), 2),
            **more,
        }
        return Record(*title, rounds, self.turns, facts, tuple(series))

    def warn_if_busy(self) -> None:
        """Warn if other processes kept the machine busy, because they lower all measured rates."""
        self._others.warn_if_busy()


# --- drawings of schedules


class ScheduleDrawing(NamedTuple):
    """Functions that return a drawing as text, as an SVG picture, or as an HTML page.

    ``page`` receives the language, "en" or "ja".
    """

    text: Callable[[], str]
    picture: Callable[[], str]
    page: Callable[[str], str]


def output_drawing(drawing: ScheduleDrawing, out_file: Optional[str], language: Optional[str]) -> str:
    """Return a drawing as text, or write it to ``out_file`` and return a message.

    If the file's name ends in .svg, the file is a single picture. Otherwise, it is a page on which
    you can step through the schedule. Raises ConfigError if ``language`` is set but no page is
    written. Raises OutputError if the file exists or cannot be written.
    """
    path = None if out_file is None else Path(out_file)
    is_page = path is not None and path.suffix.lower() != ".svg"
    if language is not None and not is_page:
        raise ConfigError(
            "--language only applies to HTML pages, because text and images are always in English: "
            "add --out-file FILE.html, or omit --language"
        )
    if path is None:
        return drawing.text()
    check_new_path("--out-file", path)
    content = drawing.page(language or "en") if is_page else drawing.picture()
    with new_file("--out-file", path) as temporary:
        temporary.write_text(content, encoding="utf-8")
    return f"written to {path}: open it in a browser"


def count_devices(spec: str) -> int:
    """Return the number of devices that --devices names.

    If ``spec`` is a plain number or ``cpu*N``, the devices need not exist.
    """
    from gluonlab.devices import MAX_CPU_DEVICES, devices

    number = re.fullmatch(r"\s*(?:cpu\s*\*)?\s*([+-]?[0-9]+)\s*", spec.lower())
    if number:
        return int(whole_number_check(1, MAX_CPU_DEVICES)("--devices", number[1]))
    try:
        return len(devices(spec))
    except DeviceError as error:
        raise DeviceError(f"--devices {error}") from None


# --- options of commands

INTERRUPTED = "the unfinished measurement is not saved"  # message of every command after Ctrl-C
OLD_NAMES = {"--out": "--out-file"}  # old names of options that measurement commands share
_T = TypeVar("_T")
Option = Callable[[Callable[..., None]], Callable[..., None]]


def option(name: str, metavar: str, help: str, default: Optional[str] = None) -> Option:
    """Return a click option whose value is text. The measurement checks the value."""
    shown = default is not None
    return click.option(name, metavar=metavar, default=default, show_default=shown, help=help)


JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="print only JSON on standard output")
OUT_FILE_OPTION = option("--out-file", "FILE", "also write the JSON output to this file")
DEVICES_OPTION = option(
    "--devices", "SPEC", "devices to use, such as gpu:*, gpu:0,2 or cpu:0,1  [default: CPU devices]"
)
LANGUAGE_OPTION = option("--language", "NAME", "language of the page, en or ja  [default: en]")


class MeasurementOptions(NamedTuple):
    """The values of the options that all measurements have: --rounds, --json and --out-file."""

    rounds: int
    as_json: bool
    out_file: Optional[str]

    def measure_and_record(
        self, title: RecordTitle, measure: Callable[[int], _T], series: Callable[[_T], List[Series]]
    ) -> Tuple[_T, Record]:
        """Return the result of ``measure(rounds)``, and a record of it.

        Warns if the machine was busy. ``title``: the measurement's name and options. ``series``: a
        function that returns the record's series for a result.
        """
        session = MeasurementSession()
        result = measure(self.rounds)
        record = session.record(title, self.rounds, series(result))
        session.warn_if_busy()
        return result, record

    def print_record(self, record: Record, text: str, on: Optional[MeasuredDevices] = None) -> None:
        """Print the record as JSON, or as ``text`` after a description of the machine.

        If --out-file is set, also write the record to that file.
        """
        devices = "" if on is None else f"\n{textwrap.fill(f'devices: {on.description}', WIDTH)}"
        output = record.as_json() if self.as_json else f"{describe_machine()}{devices}\n\n{text}\n"
        click.echo(output, nl=False)
        if self.out_file is not None:
            record.write(Path(self.out_file))


def measurement_options(rounds: int) -> Option:
    """Return a decorator that adds the options of `MeasurementOptions` to a command's function.

    The function receives a MeasurementOptions, and its own options by name. ``rounds``: the default
    number of rounds.
    """
    rounds_option = option("--rounds", "N", "number of measurements for each table row", str(rounds))

    def add_options(function: Callable[..., None]) -> Callable[..., None]:
        """Add the options --rounds, --json and --out-file to ``function``."""

        @wraps(function)
        def run(rounds: str, as_json: bool, out_file: Optional[str], **own_options: Any) -> None:
            """Check the added options, and call ``function`` with all options."""
            count = whole_number_check(1)("--rounds", rounds)
            if out_file is not None:
                check_output_file("--out-file", Path(out_file))  # before the measurement, which takes minutes
            function(MeasurementOptions(count, as_json, out_file), **own_options)

        decorated: Callable[..., None] = rounds_option(JSON_OPTION(OUT_FILE_OPTION(run)))
        return decorated

    return add_options
