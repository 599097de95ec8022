"""All trials, one after the other, within a time; their verdicts as two files to send in.

The files hold nothing of their owner's: no names of hosts, people, folders or processes, no
addresses, serial numbers or UUIDs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from tqdm import tqdm

from gluonlab.bench.harness.machine_info import describe_environment
from gluonlab.doctor.findings import FAULT, Finding, ok, one_line, plural
from gluonlab.doctor.trials import TRIALS
from gluonlab.drawing.page_template import environment
from gluonlab.errors import DeviceError
from gluonlab.files.atomic_files import check_new, write_text
from gluonlab.gpu import nvml
from gluonlab.gpu.isolated_process import ProcessExit, ask
from gluonlab.gpu.nvml import visible_gpus

FORMAT = 1
TOTAL_S = 300.0
OF_INTEREST = ("gluonlab", "cpu", "cores", "versions")  # what numbers depend on


class TrialResult(NamedTuple):
    """A trial that has ended. ``numbers``: flat objects, which the page shows as a table."""

    name: str
    seconds: float
    verdicts: List[Finding]
    numbers: List[Dict[str, Any]]

    def __str__(self) -> str:
        return "\n".join(f"{each.status:<9}{self.name:<12}{each.what}" for each in self.verdicts)


class Proof(NamedTuple):
    """The two files that are going to be written, and the GPUs that there are."""

    data: Path
    page: Path
    driver: nvml.Driver

    @classmethod
    def named(cls, name: str) -> Proof:
        """Raises OutputError for files that exist or cannot be written, DeviceError for no GPUs."""
        data, page = Path(f"{name}.json"), Path(f"{name}.html")
        for path in (data, page):
            check_new("--out", path)
        driver, visible = nvml.look(), os.environ.get("CUDA_VISIBLE_DEVICES")
        if not visible_gpus(driver.gpus, visible).gpus:
            hidden = f"CUDA_VISIBLE_DEVICES={visible!r} hides all"
            why = driver.error or (hidden if driver.gpus else "the driver shows none")
            raise DeviceError(
                f"--prove tests GPUs, and this machine shows none ({why}): leave it out"
            )
        return cls(data, page, driver)

    def prove(self, say: Callable[[str], Any]) -> Dict[str, Any]:
        """Try everything, write the files, and return the object in one of them.

        ``say`` prints a line.
        """
        say(f"\ntesting the GPUs, {TOTAL_S:g} s at most")
        bar_format = "testing {desc} {bar} {elapsed}"
        options = dict(total=len(TRIALS), disable=None, leave=False, file=sys.stderr)
        with tqdm(desc=next(iter(TRIALS)), bar_format=bar_format, **options) as bar:

            def done(tried: TrialResult) -> None:
                bar.update()
                bar.set_description_str([*TRIALS, ""][[*TRIALS].index(tried.name) + 1])
                with bar.external_write_mode():
                    say(str(tried))

            proof = as_object(describe(self.driver), try_all("gpu:*", done))
        write_text(self.data, json.dumps(proof, indent=1) + "\n")
        write_text(self.page, as_page(proof))
        say(f"{plural(proof['faults'], 'fault')}; written to {self.data} and {self.page}")
        return proof


def try_all(devices: str, done: Callable[[TrialResult], None]) -> List[TrialResult]:
    """Try everything on ``devices``, as --devices names them; ``done`` is called after each."""
    ends, tried = time.monotonic() + TOTAL_S, []
    for name, trial in TRIALS.items():
        began = time.monotonic()
        timeout_s = min(trial.longest_s, ends - began)
        verdicts = [_fault(name, f"there was no time left: all trials have {TOTAL_S:g} s")]
        numbers: List[Dict[str, Any]] = []
        if timeout_s >= 1:
            outcome = ask("gluonlab.doctor.trials", name, devices, timeout_s=timeout_s)
            verdicts, numbers = judge(name, outcome), numbers_of(name, outcome)
        tried.append(TrialResult(name, time.monotonic() - began, verdicts, numbers))
        done(tried[-1])
    return tried


def judge(name: str, outcome: ProcessExit) -> List[Finding]:
    """At least one verdict on a trial, from what its process told."""
    trial = TRIALS[name]
    faults = [_fault(name, what) for what in [*trial.faults(outcome), *_unfinished(outcome)]]
    return faults or [ok(name, trial.summary(outcome))]


def numbers_of(name: str, outcome: ProcessExit) -> List[Dict[str, Any]]:
    """What a trial measured: flat objects."""
    return [answer for key in TRIALS[name].numbers for answer in outcome.all(key)]


def _unfinished(outcome: ProcessExit) -> List[str]:
    """Why a process crashed, hung or gave up, and at what; nothing for one that told all."""
    refused, doing = outcome.answer("error"), outcome.last("trying")
    reason = one_line(refused["error"]) if refused else outcome.ended
    return [f"{doing['trying'] if doing else 'its start'}: {reason}"] if reason else []


def _fault(trial: str, what: str) -> Finding:
    return Finding(trial, FAULT, what)


def as_object(machine: Dict[str, Any], tried: List[TrialResult]) -> Dict[str, Any]:
    """For a file: format, machine, and each trial with verdicts and numbers."""
    trials = [
        {
            "trial": trial.name,
            "seconds": round(trial.seconds, 1),
            "verdicts": [{"status": each.status, "what": each.what} for each in trial.verdicts],
            "numbers": trial.numbers,
        }
        for trial in tried
    ]
    faults = sum(each.status == FAULT for trial in tried for each in trial.verdicts)
    return {"format": FORMAT, "faults": faults, "machine": machine, "trials": trials}


def describe(driver: nvml.Driver) -> Dict[str, Any]:
    """The machine, for the file. GPUs have NVML's numbers, which are nvidia-smi's."""
    here = describe_environment()
    gpus = [
        {
            "name": gpu.name,
            "capability": list(gpu.capability),
            "memory_bytes": gpu.memory_bytes,
            "mig": gpu.parts is not None,
        }
        for gpu in driver.gpus
    ]
    return {
        **{name: here[name] for name in OF_INTEREST},
        "driver": driver.version,
        "gpus": gpus,
        "nvlinks": [[a, b, count] for (a, b), count in sorted(driver.nvlinks.items())],
        "switched": list(driver.switched),
        "no_peers": [list(pair) for pair in driver.no_peers],
    }


def as_page(proof: Dict[str, Any]) -> str:
    """An HTML page about the object that `proof.as_object` makes."""
    # the page's frame and style are the report's
    templates = environment("gluonlab.doctor", "gluonlab.report", trim_blocks=True)
    templates.filters["number"] = number
    return templates.get_template("proof.html").render(
        proof=proof,
        titles={name: trial.title for name, trial in TRIALS.items()},
        tables={trial["trial"]: tables(trial["numbers"]) for trial in proof["trials"]},
    )


def tables(numbers: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """The numbers as tables, one for each set of columns; a long table of pairs becomes square."""
    groups: Dict[Any, List[Dict[str, Any]]] = {}
    for row in numbers:
        groups.setdefault(tuple(row), []).append(row)
    return [
        square(rows) if {"source", "target", "gb_per_s"} <= set(keys) else plain(rows)
        for keys, rows in groups.items()
    ]


def plain(rows: List[Dict[str, Any]]) -> Dict[str, Any]:
    """A row for each."""
    headings = [name.replace("_", " ") for name in rows[0]]
    return {"headings": headings, "rows": [list(row.values()) for row in rows]}


def square(rows: List[Dict[str, Any]]) -> Dict[str, Any]:
    """From each GPU, to each: GB/s, or how many numbers arrived wrongly."""
    names = list(dict.fromkeys(row["source"] for row in rows))
    cells = {(row["source"], row["target"]): row for row in rows}
    table = [[source, *(_cell(cells.get((source, to))) for to in names)] for source in names]
    return {"headings": ["from \\ to, GB/s", *names], "rows": table}


def _cell(row: Optional[Dict[str, Any]]) -> str:
    if row is None:
        return ""
    return f"{row['wrong']:,} wrong" if row["wrong"] else f"{row['gb_per_s']:.1f}"


def number(value: Any) -> str:
    """A cell of a table."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)
