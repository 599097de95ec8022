"""python -m gluonlab.study splits: its options, and what it prints."""

from __future__ import annotations

import re
from typing import Any, Dict, Mapping, Optional

import click

from gluonlab.bench import splits as _names
from gluonlab.bench.harness.command import cpu_devices, option
from gluonlab.cli.command import command
from gluonlab.config.train_config import given
from gluonlab.config.values import whole
from gluonlab.plain import json_text
from gluonlab.study.command import INTERRUPTED, Asked, in_terminal, study
from gluonlab.study.options import check, one_of
from gluonlab.study.options import whole as whole_number

NAME = "splits"
_CUT = re.compile(r"[0-9]{1,4}(,[0-9]{1,4})*")
MOST_DEVICES = 8  # that the links have, on which transfers are priced


@command(f"python -m gluonlab.study {NAME}", INTERRUPTED)
@study(NAME, lambda options: _read(options))
@option("--network", "NAME", f"one of {', '.join(_names.TASKS)}  [default: resnet18; with --quick: "
        "lenet]")  # fmt: skip
@option("--devices", "N", f"CPU devices that share it, 2 to {MOST_DEVICES}  [default: 2]")
@option("--microbatches", "N", "parts of a pipeline's batch  [default: 8]")
@option("--rounds", "N", "measurements of each split  [default: 9; with --quick: 5]")
def main(asked_for: Asked, **own: Optional[str]) -> None:
    """Measure one network under every split: time, bytes and memory.

    It is the measurement of bench splits, with each round kept, and figures and a page.
    """
    resumed = asked_for.resumed
    options = _asked(asked_for.quick, own) if resumed is None else resumed
    found = _measured(options, asked_for)
    click.echo(json_text(found) if asked_for.as_json else in_terminal(found["said"]))


def _asked(quick: bool, own: Mapping[str, Optional[str]]) -> Dict[str, Any]:
    """The options as plain values. Raises ConfigError."""
    usual = {
        "network": "lenet" if quick else "resnet18", "devices": _names.DEVICES,
        "microbatches": str(_names.MICROBATCHES), "rounds": 5 if quick else _names.ROUNDS,
    }  # fmt: skip
    wanted: Dict[str, Any] = {**usual, **given({**own})}
    task = _names.check_network(wanted["network"])
    return {
        "network": wanted["network"],
        "devices": whole(2, MOST_DEVICES)("--devices", wanted["devices"]),
        "microbatches": _names.check_microbatches(wanted["microbatches"], task),
        "rounds": whole(1, 1000)("--rounds", wanted["rounds"]),
    }


def _read(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """What `_asked` gave. Raises ValueError for anything else."""
    task = _names.TASKS.get(str(options.get("network")))
    if task is None:
        raise ValueError("network")
    fits = {
        "network": one_of(_names.TASKS), "devices": whole_number(2, MOST_DEVICES),
        "microbatches": whole_number(1, task.global_batch_size), "rounds": whole_number(1, 1000),
        "cuts": _are_cuts,
    }  # fmt: skip
    check(options, fits)
    return options


def _are_cuts(value: Any) -> bool:
    """The layers with which stages begin, by a pipeline's name: ``{"1f1b": "2,5"}``."""
    return isinstance(value, dict) and all(
        name in _names.CUT_APART and isinstance(cut, str) and bool(_CUT.fullmatch(cut))
        for name, cut in value.items()
    )


def _measured(options: Mapping[str, Any], asked_for: Asked) -> Dict[str, Any]:
    """Measure, and write everything; the result, and lines about it."""
    # MXNet is loaded here, not for --help
    from gluonlab.bench.splits_measure import cuts_of, splits
    from gluonlab.study.benches import as_values, together
    from gluonlab.study.page import write
    from gluonlab.study.splits.report import report
    from gluonlab.study.sweep.engine import Sweep
    from gluonlab.study.sweep.folder import begun

    task = _names.TASKS[options["network"]]
    if "cuts" not in options:  # once: in each round they could be others, and the network as well
        size = options["devices"], options["microbatches"]
        options = {**options, "cuts": cuts_of(task, cpu_devices(size[0]), *size)}

    def one_round(settings: Mapping[str, Any], number: int) -> Dict[str, Any]:
        on = cpu_devices(settings["devices"])
        size = settings["devices"], settings["microbatches"]
        return as_values(splits(task, on, *size, rounds=1, cuts=settings["cuts"]))

    point = {name: options[name] for name in ("network", "devices", "microbatches", "cuts")}
    with begun(NAME, options, asked_for.out) as folder:
        with Sweep(folder.measured, one_round, shown=False) as sweep:
            [found] = sweep.run([point], range(options["rounds"]))
        series = together(found)
        plain = as_values(series)
        folder.write_result({"study": NAME, "options": dict(options), **plain})
        told = report(series, task, options, asked_for.language)
        written = write(folder, told)
    where = f"written to {folder.path}: {written[-1]} holds all figures"
    return {"study": NAME, "path": str(folder.path), **plain, "said": [*told.sentences, "", where]}


if __name__ == "__main__":
    main()
