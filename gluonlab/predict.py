"""python -m gluonlab.predict RUN IMAGE...: pictures in, their classes out."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional, Tuple

import click

from gluonlab.cli.command import add_json_option, command
from gluonlab.config import TrainConfig
from gluonlab.config.command_line import given_settings
from gluonlab.config.option_types import whole_number_check
from gluonlab.errors import ConfigError, DataError
from gluonlab.files.atomic_files import check_new, check_new_or_marked
from gluonlab.plain_text import json_text
from gluonlab.runs.run_schema import WRONG

if TYPE_CHECKING:
    from gluonlab.inference.loaded_network import LoadedRun
    from gluonlab.inference.predictions import PredictedBatch

TOP, SHEET = 5, WRONG
EXAMPLE = "write python -m gluonlab.predict RUN IMAGE..."


@command(
    "python -m gluonlab.predict",
    interrupted="nothing was written",
    most_used="--top --wrong --sheet --csv --json --gpus",
)
@click.argument("run", required=False, metavar="RUN")
@click.argument("images", nargs=-1, metavar="IMAGE...")
@click.option("--top", metavar="N", help=f"classes for each image  [default: {TOP}]")
@add_json_option()
@click.option("--csv", "as_csv", is_flag=True, help="print the result as CSV, and nothing else")
@click.option("--sheet", metavar="FILE", help="draw the images with class and probability: a PNG")
@click.option(
    "--wrong",
    is_flag=True,
    help="instead of IMAGEs, the test images that the run gets wrong; "
    f"the PNG is that of --sheet; without, and without --json and --csv, {SHEET}",
)
@click.option("--gpus", metavar="N", help="use N GPUs; without any, N CPU devices stand in")
@click.option("--devices", metavar="SPEC", help="devices by name: gpu:0,2 gpu:* cpu cpu*4")
@click.option("--threads", metavar="N", help="threads per CPU device")
@click.option("--batch-size", metavar="N", help="images per device at once  [default: the run's]")
@click.option("--data-dir", metavar="DIR", help="with --wrong: the folder of the data set's files")
@click.option("--decoders", metavar="N", help="processes that decode files  [default: one a core]")
@click.option(
    "--skip-bad", is_flag=True, default=None, help="leave out pictures that fail to decode"
)
def main(
    run: Optional[str],
    images: Tuple[str, ...],
    top: Optional[str],
    as_json: bool,
    as_csv: bool,
    sheet: Optional[str],
    wrong: bool,
    **settings: Any,
) -> None:
    """Classify pictures with a finished RUN, with probabilities.

    RUN is a folder that gluonlab.run has written. IMAGE is an image file, a folder of them, or -
    for one on standard input.
    """
    if run is None:
        raise ConfigError(f"no run is given: {EXAMPLE}")
    if as_json and as_csv:
        raise ConfigError("--json and --csv contradict each other: give one of them")
    form = "json" if as_json else "csv" if as_csv else "text"
    TrainConfig(**given_settings(settings))  # a mistake is found before anything is loaded
    if wrong:
        if images or top is not None:
            other = images[0] if images else f"--top {top}"
            raise ConfigError(
                f"--wrong looks at the run's own test images, one class each: leave {other} out"
            )
        _wrong(run, sheet, form, given_settings(settings))
        return
    if settings["data_dir"] is not None:
        raise ConfigError(
            f"--data-dir {settings['data_dir']} is for --wrong: leave it out, or add --wrong"
        )
    if not images:
        raise ConfigError(f"no image is given: {EXAMPLE}, or --wrong for the run's test images")
    count = TOP if top is None else whole_number_check(1)("--top", top)
    _predict(run, list(images), count, sheet, form, given_settings(settings))


def _predict(
    run: str,
    images: List[str],
    count: int,
    sheet: Optional[str],
    form: str,
    settings: Dict[str, Any],
) -> None:
    loaded, pictures = _loaded(run, sheet, settings, images)
    from gluonlab.inference import predictions
    from gluonlab.inference.predictions import MOST, write_sheet

    tiles: List[Any] = []
    with _bar(len(pictures)) as tell:

        def saw(seen: "PredictedBatch") -> None:
            tell(seen)
            if sheet is not None and len(tiles) < MOST:
                best = (each[0] for each in seen.said.top(1))
                tiles.extend(map(predictions.tile_of, seen.said.images, best, seen.pixels))

        said = loaded.predict(pictures, saw)
    if sheet is not None:
        shown = f", {MOST} of them below" if len(said) > MOST else ""
        title = f"{loaded.model} of {run}, {len(said):,} picture{'s' * (len(said) > 1)}{shown}"
        write_sheet("--sheet", Path(sheet), title, tiles)
    if form == "json":
        found = predictions.predictions_as_json(said, count)
        click.echo(json_text({"run": run, "model": loaded.model, "sheet": sheet, "images": found}))
    elif form == "csv":
        click.echo(predictions.predictions_as_csv(said, count))
    else:
        click.echo(predictions.predictions_as_text(said, count) + _written(sheet))


def _wrong(run: str, sheet: Optional[str], form: str, settings: Dict[str, Any]) -> None:
    replace = sheet is None  # nobody has asked for that name, and may ask again
    if replace and form == "text":
        sheet = SHEET
    loaded, _ = _loaded(run, sheet, settings, None, replace)
    from gluonlab.inference import predictions
    from gluonlab.inference.predictions import MOST, write_sheet

    with _bar(None) as tell:
        found = loaded.mistakes(tell)
    drawn = sheet if found.wrong else None
    if drawn is not None:
        shown = f", {MOST} of them below" if len(found.wrong) > MOST else ""
        title = f"{predictions.counted(found)}{shown}, the surest first"
        write_sheet("--sheet", Path(drawn), title, predictions.tiles_of(found), replace)
    if form == "json":
        said = {
            "run": run,
            "model": loaded.model,
            "sheet": drawn,
            **predictions.mistakes_as_json(found),
        }
        click.echo(json_text(said))
    elif form == "csv":
        click.echo(predictions.mistakes_as_csv(found))
    else:
        click.echo(predictions.mistakes_as_text(found) + _written(drawn))


def _loaded(
    run: str,
    sheet: Optional[str],
    settings: Dict[str, Any],
    images: Optional[List[str]],
    replace: bool = False,
) -> "Tuple[LoadedRun, List[Any]]":
    """The run, and the pictures; every mistake that needs no MXNet is found before it loads."""
    from gluonlab.inference.input_images import find_pictures
    from gluonlab.runs.run_reader import read_finished

    try:
        read_finished(Path(run))
    except DataError as error:
        raise ConfigError(str(error)) from None
    if sheet is not None:
        _check_sheet(sheet, replace)
    pictures = find_pictures(images) if images is not None else []
    from gluonlab.inference.loaded_network import load_run

    return load_run(run, **settings), pictures


def _check_sheet(sheet: str, replace: bool) -> None:
    from gluonlab.inference.predictions import MARK

    if Path(sheet).suffix.lower() != ".png":
        raise ConfigError(f"--sheet {sheet}: it is a PNG: give a name that ends in .png")
    if replace:
        check_new_or_marked("--sheet", Path(sheet), MARK)
    else:
        check_new("--sheet", Path(sheet))


@contextmanager
def _bar(total: Optional[int]) -> "Iterator[Callable[[PredictedBatch], None]]":
    """A progress bar on a terminal, for what takes more than a second."""
    from tqdm import tqdm

    hidden = True if sys.stderr is None else None  # None: where standard error is no terminal
    with tqdm(
        total=total, unit=" images", unit_scale=True, disable=hidden, leave=False, delay=1,
        dynamic_ncols=True,
    ) as bar:  # fmt: skip
        yield lambda seen: bar.update(len(seen.said))


def _written(sheet: Optional[str]) -> str:
    return "" if sheet is None else f"\n\nwritten to {sheet}"


if __name__ == "__main__":
    main()
