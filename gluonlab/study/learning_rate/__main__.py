"""python -m gluonlab.study learning-rate: its options, and what it prints."""

from __future__ import annotations

from typing import Any, Dict, Optional

import click

from gluonlab.bench.harness.command import option
from gluonlab.cli.command import command
from gluonlab.plain import json_text
from gluonlab.study.command import INTERRUPTED, Asked, in_terminal, study
from gluonlab.study.learning_rate.names import NAME, Options, asked, from_dict


@command(
    f"python -m gluonlab.study {NAME}",
    INTERRUPTED,
    most_used="--devices --batch-size --epochs --quick --out --resume --json",
)
@study(NAME, from_dict)
@option("--devices", "N,N", "numbers of GPUs, or of CPU devices that stand in  [default: 1,2,4]")
@option("--batch-size", "N", "images per device and step  [default: 32]")
@option("--epochs", "N", "of each training  [default: 3]")
@option("--seeds", "N", "trainings with each rate  [default: 5; with --quick: 2]")
def main(asked_for: Asked, **own: Optional[str]) -> None:
    """Measure accuracy against the learning rate for several numbers of devices.

    Each device has as many images, so that k devices make batches k times as large. The rate stays,
    or follows the linear rule, with and without warm-up and momentum correction. Figures, a page
    and all measurements are in the study's folder.
    """
    resumed = asked_for.resumed
    options = asked(asked_for.quick, **own) if resumed is None else resumed
    found = _measured(options, asked_for)
    click.echo(json_text(found) if asked_for.as_json else in_terminal(found["said"]))


def _measured(options: Options, asked_for: Asked) -> Dict[str, Any]:
    """Measure, and write everything; the result, and lines about it."""
    # MXNet is loaded here, not for --help
    from gluonlab.study.learning_rate.measure import findings, measure
    from gluonlab.study.learning_rate.report import report
    from gluonlab.study.numbers import as_plain
    from gluonlab.study.page import write
    from gluonlab.study.stand_ins import tell_of_stand_ins
    from gluonlab.study.sweep.engine import Sweep
    from gluonlab.study.sweep.folder import begun

    tell_of_stand_ins()
    with begun(NAME, options.to_dict(), asked_for.out) as folder:
        with Sweep(folder.measured, measure(options)) as sweep:
            found = findings(options, sweep.run(options.points(), range(options.seeds), NAME))
        plain = as_plain(found)
        folder.write_result({"study": NAME, "options": options.to_dict(), **plain})
        told = report(found, options, asked_for.language)
        written = write(folder, told)
    where = f"written to {folder.path}: {written[-1]} holds all figures"
    return {"study": NAME, "path": str(folder.path), **plain, "said": [*told.sentences, "", where]}


if __name__ == "__main__":
    main()
