"""Runs the trials of --gpu-self-test, which check that the GPUs sum and train correctly together.

All trials run within a time limit. The results are written to a JSON file and an HTML page. The
files contain nothing private: no names of hosts, people, folders or processes, no addresses, serial
numbers or UUIDs.
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
from gluonlab.doctor.findings import FAULT, Finding, format_count, join_lines, ok
from gluonlab.doctor.trials import TRIALS
from gluonlab.drawing.page_template import template_environment
from gluonlab.errors import DeviceError
from gluonlab.files.atomic_files import check_new_path, write_text
from gluonlab.gpu import nvml
from gluonlab.gpu.isolated_process import ProcessOutcome, run_isolated
from gluonlab.gpu.nvml import visible_gpus

FORMAT = 1
TIME_LIMIT_S = 300.0
MACHINE_FIELDS = ("gluonlab", "cpu", "cores", "versions")  # facts that affect measurements


class TrialResult(NamedTuple):
    """Result of a trial.

    ``verdicts``: the faults, or one finding with the status OK. ``numbers``: measurements, as
    dictionaries without nested values. The page shows them as tables.
    """

    name: str
    seconds: float
    verdicts: List[Finding]
    numbers: List[Dict[str, Any]]

    def __str__(self) -> str:
        return "\n".join(f"{each.status:<9}{self.name:<12}{each.what}" for each in self.verdicts)


class Proof(NamedTuple):
    """The paths of the two files to write, and the driver that reports the GPUs to test."""

    data: Path
    page: Path
    driver: nvml.Driver

    @classmethod
    def create(cls, name: str) -> Proof:
        """Make a Proof that writes NAME.json and NAME.html; check these paths and the GPUs.

        Raises OutputError if a file exists or cannot be written, and DeviceError if there are no
        GPUs.
        """
        data, page = Path(f"{name}.json"), Path(f"{name}.html")
        for path in (data, page):
            check_new_path("--out-file", path)
        driver, visible = nvml.read_driver(), os.environ.get("CUDA_VISIBLE_DEVICES")
        if not visible_gpus(driver.gpus, visible).gpus:
            hidden = f"CUDA_VISIBLE_DEVICES={visible!r} hides all GPUs"
            why = driver.error or (hidden if driver.gpus else "the driver does not list any")
            raise DeviceError(f"--gpu-self-test needs GPUs, but none was found ({why}): remove --gpu-self-test")
        return cls(data, page, driver)

    def run_and_write(self, say: Callable[[str], Any]) -> Dict[str, Any]:
        """Run all trials, write the files, and return the JSON object.

        ``say``: the function that prints a line.
        """
        say(f"\ntesting the GPUs, for at most {TIME_LIMIT_S:g} s")
        bar_format = "testing {desc} {bar} {elapsed}"
        options = dict(total=len(TRIALS), disable=None, leave=False, file=sys.stderr)
        with tqdm(desc=next(iter(TRIALS)), bar_format=bar_format, **options) as bar:

            def report_trial(result: TrialResult) -> None:
                """Advance the progress bar, and print the result of a trial."""
                bar.update()
                bar.set_description_str([*TRIALS, ""][[*TRIALS].index(result.name) + 1])
                with bar.external_write_mode():
                    say(str(result))

            proof = proof_to_dict(describe_machine(self.driver), run_trials("gpu:*", report_trial))
        write_text(self.data, json.dumps(proof, indent=1) + "\n")
        write_text(self.page, render_page(proof))
        say(f"{format_count(proof['faults'], 'fault')}; written to {self.data} and {self.page}")
        return proof


def run_trials(devices: str, on_result: Callable[[TrialResult], None]) -> List[TrialResult]:
    """Run all trials on ``devices``, which is written like a value of --devices.

    ``on_result`` is called after each trial.
    """
    deadline, results = time.monotonic() + TIME_LIMIT_S, []
    for name, trial in TRIALS.items():
        began = time.monotonic()
        timeout_s = min(trial.timeout_s, deadline - began)
        verdicts = [_fault(name, f"no time was left: the time limit for all tests is {TIME_LIMIT_S:g} s")]
        numbers: List[Dict[str, Any]] = []
        if timeout_s >= 1:
            outcome = run_isolated("gluonlab.doctor.trials", name, devices, timeout_s=timeout_s)
            verdicts, numbers = trial_verdicts(name, outcome), trial_numbers(name, outcome)
        results.append(TrialResult(name, time.monotonic() - began, verdicts, numbers))
        on_result(results[-1])
    return results


def trial_verdicts(name: str, outcome: ProcessOutcome) -> List[Finding]:
    """Return a trial's faults or, if there are none, one finding with its summary."""
    trial = TRIALS[name]
    faults = [_fault(name, what) for what in [*trial.faults(outcome), *_process_faults(outcome)]]
    return faults or [ok(name, trial.summary(outcome))]


def trial_numbers(name: str, outcome: ProcessOutcome) -> List[Dict[str, Any]]:
    """Return the measurements of a trial, as dictionaries without nested values."""
    return [answer for key in TRIALS[name].measurement_keys for answer in outcome.all_answers(key)]


def _process_faults(outcome: ProcessOutcome) -> List[str]:
    """Return a list with the process's last attempt and why it failed, or [] after a success."""
    error, attempt = outcome.first_answer("error"), outcome.last_answer("trying")
    reason = join_lines(error["error"]) if error else outcome.failure
    return [f"{attempt['trying'] if attempt else 'its start'}: {reason}"] if reason else []


def _fault(trial: str, what: str) -> Finding:
    return Finding(trial, FAULT, what)


def proof_to_dict(machine: Dict[str, Any], results: List[TrialResult]) -> Dict[str, Any]:
    """Return the JSON object with the machine, and the verdicts and numbers of each trial."""
    trials = [
        {
            "trial": trial.name,
            "seconds": round(trial.seconds, 1),
            "verdicts": [{"status": verdict.status, "what": verdict.what} for verdict in trial.verdicts],
            "numbers": trial.numbers,
        }
        for trial in results
    ]
    faults = sum(verdict.status == FAULT for trial in results for verdict in trial.verdicts)
    return {"format": FORMAT, "faults": faults, "machine": machine, "trials": trials}


def describe_machine(driver: nvml.Driver) -> Dict[str, Any]:
    """Describe the machine. GPUs are numbered as in NVML and nvidia-smi."""
    machine = describe_environment()
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
        **{name: machine[name] for name in MACHINE_FIELDS},
        "driver": driver.version,
        "gpus": gpus,
        "nvlinks": [[a, b, count] for (a, b), count in sorted(driver.nvlinks.items())],
        "switched": list(driver.nvswitch_gpus),
        "no_peers": [list(pair) for pair in driver.pairs_without_access],
    }


def render_page(proof: Dict[str, Any]) -> str:
    """Return an HTML page for an object that `proof_to_dict` has returned."""
    # base.html comes from gluonlab.report
    templates = template_environment("gluonlab.doctor", "gluonlab.report", trim_blocks=True)
    templates.filters["number"] = format_number
    return templates.get_template("proof.html").render(
        proof=proof,
        titles={name: trial.title for name, trial in TRIALS.items()},
        tables={trial["trial"]: make_tables(trial["numbers"]) for trial in proof["trials"]},
    )


def make_tables(numbers: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Return one table for each group of objects with the same keys.

    Copy speeds between pairs of GPUs become a square table.
    """
    groups: Dict[Any, List[Dict[str, Any]]] = {}
    for row in numbers:
        groups.setdefault(tuple(row), []).append(row)
    return [
        pair_table(rows) if {"source", "target", "gb_per_s"} <= set(keys) else plain_table(rows)
        for keys, rows in groups.items()
    ]


def plain_table(rows: List[Dict[str, Any]]) -> Dict[str, Any]:
    """Return a table with a row for each object."""
    headings = [name.replace("_", " ") for name in rows[0]]
    return {"headings": headings, "rows": [list(row.values()) for row in rows]}


def pair_table(rows: List[Dict[str, Any]]) -> Dict[str, Any]:
    """Return a square table of copies between GPUs: GB/s, or the number of wrong elements."""
    names = list(dict.fromkeys(row["source"] for row in rows))
    cells = {(row["source"], row["target"]): row for row in rows}
    table = [[source, *(_format_pair(cells.get((source, to))) for to in names)] for source in names]
    return {"headings": ["from \\ to, GB/s", *names], "rows": table}


def _format_pair(row: Optional[Dict[str, Any]]) -> str:
    if row is None:
        return ""
    return f"{row['wrong']:,} wrong" if row["wrong"] else f"{row['gb_per_s']:.1f}"


def format_number(value: Any) -> str:
    """Format a number for a table cell."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)
