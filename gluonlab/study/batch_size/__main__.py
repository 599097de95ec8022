"""python -m gluonlab.study batch-size: its options, and what it prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Optional

import click

from gluonlab.bench.harness.command import option
from gluonlab.cli.command import command
from gluonlab.errors import DataError, RunError
from gluonlab.plain import json_text
from gluonlab.study.batch_size.names import NAME, PANELS, Options, asked, from_dict
from gluonlab.study.command import INTERRUPTED, Asked, in_terminal, study

if TYPE_CHECKING:  # it loads numpy, which --help does not need
    from gluonlab.study.batch_size.findings import Found


@command(
    f"python -m gluonlab.study {NAME}",
    INTERRUPTED,
    most_used="--panels --sizes --target --quick --out --resume --json",
)
@study(NAME, from_dict)
@option("--panels", "NAMES", f"some of {', '.join(PANELS)}  [default: those whose data are here; "
        "with --quick: digits]")  # fmt: skip
@option("--sizes", "N,N", "batch sizes, over all devices  [default: 1 to 1,024 for the digits]")
@option("--target", "SHARE", "of the test images that is to be right  [default: 0.93 for digits]")
@option("--seeds", "N", "trainings of each batch size  [default: 7; with --quick: 4]")
@option("--gpus", "N", "use N GPUs; without any, N CPU devices stand in")
def main(asked_for: Asked, panels: Optional[str], **own: Optional[str]) -> None:
    """Measure how many steps, epochs and seconds a target takes with each batch size.

    The learning rate is tuned at each. Marks the three regimes, and compares errors at equal steps
    and at equal epochs. Figures, a page and all measurements are in the study's folder.
    """
    if asked_for.resumed is not None:
        options = asked_for.resumed
    else:
        options = asked(_panels(panels, asked_for.quick), asked_for.quick, **own)
    found = _measured(options, asked_for)
    click.echo(json_text(found) if asked_for.as_json else in_terminal(found["said"]))


def _panels(given: Optional[str], quick: bool) -> List[str]:
    """The panels asked for, else those whose data are here, else the digits."""
    from gluonlab.study.trial import read  # MXNet is loaded here, not for --help

    if given is not None:
        names = [each.strip() for each in given.split(",")]
        for name in filter(PANELS.__contains__, names):
            read(PANELS[name].dataset)
        return names
    here = []
    for name, panel in PANELS.items():
        try:
            if not quick and name != "digits":
                read(panel.dataset)
                here.append(name)
        except DataError:
            pass
    return here or ["digits"]


def _measured(options: Options, asked_for: Asked) -> Dict[str, Any]:
    """Measure, and write everything; the result, and lines about it."""
    from gluonlab.study.batch_size.measure import findings, measure
    from gluonlab.study.batch_size.measure import study as measured
    from gluonlab.study.batch_size.report import report
    from gluonlab.study.numbers import as_plain
    from gluonlab.study.page import write
    from gluonlab.study.stand_ins import tell_of_stand_ins
    from gluonlab.study.sweep.engine import Sweep
    from gluonlab.study.sweep.folder import begun

    if options.gpus is not None:
        tell_of_stand_ins()
    with begun(NAME, options.to_dict(), asked_for.out) as folder:
        with Sweep(folder.measured, measure(options)) as sweep:
            found = {
                name: findings(name, measured(name, options, sweep)) for name in options.panels
            }
        plain = {name: as_plain(each) for name, each in found.items()}
        folder.write_result({"study": NAME, "options": options.to_dict(), "panels": plain})
        told = report(found, options, asked_for.language)
        written = write(folder, told)
        missed = _missed(found, options)
        if missed:
            others = {name: each for name, each in found.items() if name not in missed}
            if others:  # what they say is no less true
                said = report(others, options, asked_for.language).sentences
                shown = {"study": NAME, "path": str(folder.path), "said": said,
                         "panels": {name: plain[name] for name in others}}  # fmt: skip
                click.echo(json_text(shown) if asked_for.as_json else in_terminal([*said, ""]))
            raise RunError(f"{'; '.join(missed.values())}: give a smaller --target")
        where = f"written to {folder.path}: {', '.join(written[-1:])} holds all figures"
    return {"study": NAME, "path": str(folder.path), "panels": plain,
            "said": [*told.sentences, "", where]}  # fmt: skip


def _missed(found: "Dict[str, Found]", options: Options) -> Dict[str, str]:
    """What to say of each panel in which no batch size reached the target."""
    said = {}
    for name, each in found.items():
        if all(row.steps is None for row in each.rows):
            best = max(each.rows, key=lambda row: row.best)
            said[name] = (
                f"{name}: no batch size reached {options.panels[name]['target']:g} of the test "
                f"images; the best was {best.best:.4f}, with batches of {best.size}"
            )
    return said


if __name__ == "__main__":
    main()
