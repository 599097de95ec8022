"""python -m gluonlab.study scaling: its options, and what it prints."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

import click

from gluonlab.bench.harness.command import option
from gluonlab.bench.scaling import MOST, NETWORKS, STRONG, WEAK, check_network, parse_counts
from gluonlab.cli.command import command
from gluonlab.config.train_config import given
from gluonlab.config.values import whole
from gluonlab.errors import ConfigError, RunError, unknown
from gluonlab.plain import json_text
from gluonlab.study.benches import as_values, together
from gluonlab.study.command import INTERRUPTED, Asked, in_terminal, study
from gluonlab.study.options import any_of, ascending, check, one_of, some_of
from gluonlab.study.options import whole as whole_number
from gluonlab.study.page import write
from gluonlab.study.scaling.measure import DEVICE, SPLITS, one_round
from gluonlab.study.scaling.report import report
from gluonlab.study.sweep.engine import Sweep
from gluonlab.study.sweep.folder import begun

NAME = "scaling"
NONE, USUAL_SPLITS, QUICK_SPLITS = "none", "layers,channels,1f1b", "layers"


@command(
    f"python -m gluonlab.study {NAME}",
    INTERRUPTED,
    most_used="--network --devices --stores --splits --quick --out --resume --json",
)
@study(NAME, lambda options: _read(options))
@option("--network", "NAME", f"one of {', '.join(NETWORKS)}  [default: lenet]")
@option("--devices", "N,N", "numbers of CPU devices, beside 1  [default: 2,4; with --quick: 2]")
@option("--stores", "NAMES", "kvstores (see gluonlab.run --list)  [default: device,local,ring; "
        "with --quick: device]")  # fmt: skip
@option("--splits", "NAMES", f"ways to split the network: some of {', '.join(SPLITS)}, or none  "
        f"[default: {USUAL_SPLITS}; with --quick: {QUICK_SPLITS}]")  # fmt: skip
@option("--rounds", "N", "measurements of each  [default: 7; with --quick: 5]")
def main(asked_for: Asked, **own: Optional[str]) -> None:
    """Measure strong and weak scaling over devices, stores and splits, and the time to start.

    It is the measurement of bench scaling, each round with processes of its own and kept at once,
    and figures and a page.
    """
    resumed = asked_for.resumed
    options = _asked(asked_for.quick, own) if resumed is None else resumed
    found = _measured(options, asked_for)
    click.echo(json_text(found) if asked_for.as_json else in_terminal(found["said"]))


def _asked(quick: bool, own: Mapping[str, Optional[str]]) -> Dict[str, Any]:
    """The options as plain values. Raises ConfigError and KVStoreError."""
    usual = {
        "network": NETWORKS[0], "devices": "2" if quick else "2,4", "rounds": 5 if quick else 7,
        "stores": DEVICE if quick else f"{DEVICE},local,ring",
        "splits": QUICK_SPLITS if quick else USUAL_SPLITS,
    }  # fmt: skip
    wanted: Dict[str, Any] = {**usual, **given({**own})}
    network = check_network(wanted["network"])
    counts = parse_counts("--devices", wanted["devices"])
    rounds = whole(1, 1000)("--rounds", wanted["rounds"])
    names = _names(wanted["stores"])
    from gluonlab.kvstores import check_kvstore  # MXNet is loaded here, not for --help

    for name in names:
        check_kvstore(name)
    splits = _splits(wanted["splits"])
    return {"network": network, "devices": sorted({1, *counts}), "stores": names,
            "splits": splits, "kinds": [WEAK, STRONG], "rounds": rounds}  # fmt: skip


def _splits(text: str) -> List[str]:
    """Their names. Raises ConfigError for others."""
    names = [] if text == NONE else _names(text)
    for name in names:
        if name not in SPLITS:
            raise ConfigError(
                unknown("--splits", name, SPLITS if NONE in names else (*SPLITS, NONE))
            )
    return names


def _names(text: str) -> List[str]:
    """Each once."""
    return list(dict.fromkeys(each.strip() for each in text.split(",")))


def _read(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """What `_asked` gave. Raises ValueError for anything else."""
    from gluonlab.kvstores import KVSTORES  # MXNet is loaded here, not for --help

    fits = {
        "network": one_of(NETWORKS), "devices": ascending(whole_number(1, MOST)),
        "stores": some_of(KVSTORES), "splits": any_of(SPLITS), "kinds": some_of((WEAK, STRONG)),
        "rounds": whole_number(1, 1000),
    }  # fmt: skip
    check(options, fits)
    return options


def _measured(options: Mapping[str, Any], asked_for: Asked) -> Dict[str, Any]:
    """Measure, and write everything; the result, and lines about it."""
    point = {name: options[name] for name in ("network", "devices", "stores", "splits", "kinds")}
    with begun(NAME, options, asked_for.out) as folder:
        with Sweep(folder.measured, one_round, shown=False) as sweep:
            [found] = sweep.run([point], range(options["rounds"]))
        series = together(found)
        if not any(one.values for one in series):
            raise RunError(f"nothing could be measured: {series[0].reason}")
        plain = as_values(series)
        folder.write_result({"study": NAME, "options": dict(options), **plain})
        told = report(series, options, asked_for.language)
        written = write(folder, told)
    where = f"written to {folder.path}: {written[-1]} holds all figures"
    return {"study": NAME, "path": str(folder.path), **plain, "said": [*told.sentences, "", where]}


if __name__ == "__main__":
    main()
