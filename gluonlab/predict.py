"""The command gluonlab predict RUN IMAGE...: classifies images with a finished run.

`main` checks the options. It then classifies the user's images, or with --wrong finds the test
images that the run gets wrong. The result is printed as text, JSON or CSV, and --sheet draws it.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional, Tuple

import click

from gluonlab.cli.command import add_json_option, command
from gluonlab.config import TrainConfig
from gluonlab.config.command_line import given_settings
from gluonlab.config.option_checks import whole_number_check
from gluonlab.errors import ConfigError, DataError
from gluonlab.files.atomic_files import check_new_or_marked, check_new_path
from gluonlab.plain_text import json_text
from gluonlab.runs.run_schema import WRONG_IMAGES

if TYPE_CHECKING:
    from gluonlab.inference.loaded_network import LoadedRun
    from gluonlab.inference.predictions import PredictedBatch

DEFAULT_TOP, DEFAULT_SHEET = 5, WRONG_IMAGES
EXAMPLE = "write gluonlab predict RUN IMAGE..."


@command("gluonlab predict", interrupted="nothing was written", most_used="--top --wrong --sheet --csv --json --gpus")
@click.argument("run", required=False, metavar="RUN")
@click.argument("images", nargs=-1, metavar="IMAGE...")
@click.option("--top", metavar="N", help=f"classes for each image  [default: {DEFAULT_TOP}]")
@add_json_option()
@click.option("--csv", "as_csv", is_flag=True, help="print the result as CSV, and nothing else")
@click.option("--sheet", metavar="FILE", help="draw the images with class and probability: a PNG")
@click.option(
    "--wrong",
    is_flag=True,
    help="instead of IMAGEs, the test images that the run gets wrong; "
    f"the PNG is that of --sheet; without, and without --json and --csv, {DEFAULT_SHEET}",
)
@click.option("--gpus", metavar="N", help="use N GPUs; without any, N CPU devices stand in")
@click.option("--devices", metavar="SPEC", help="devices by name: gpu:0,2 gpu:* cpu cpu*4")
@click.option("--threads", metavar="N", help="threads per CPU device")
@click.option("--batch-size", metavar="N", help="images per device at once  [default: the run's]")
@click.option("--data-dir", metavar="DIR", help="with --wrong: the folder of the data set's files")
@click.option("--decoders", metavar="N", help="processes that decode files  [default: one a core]")
@click.option("--skip-bad", is_flag=True, default=None, help="leave out pictures that fail to decode")
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
    output_format = "json" if as_json else "csv" if as_csv else "text"
    TrainConfig(**given_settings(settings))  # checks the settings before anything is loaded
    if wrong:
        if images or top is not None:
            other = images[0] if images else f"--top {top}"
            raise ConfigError(f"--wrong looks at the run's own test images, one class each: leave {other} out")
        _predict_wrong_images(run, sheet, output_format, given_settings(settings))
        return
    if settings["data_dir"] is not None:
        raise ConfigError(f"--data-dir {settings['data_dir']} is for --wrong: leave it out, or add --wrong")
    if not images:
        raise ConfigError(f"no image is given: {EXAMPLE}, or --wrong for the run's test images")
    count = DEFAULT_TOP if top is None else whole_number_check(1)("--top", top)
    _predict(run, list(images), count, sheet, output_format, given_settings(settings))


def _predict(
    run: str, images: List[str], count: int, sheet: Optional[str], output_format: str, settings: Dict[str, Any]
) -> None:
    """Classify images, print the best ``count`` classes of each, and draw them in ``sheet``."""
    loaded, pictures = _load_run_and_images(run, sheet, settings, images)
    from gluonlab.inference import predictions
    from gluonlab.inference.predictions import MAX_PICTURES, write_sheet

    tiles: List[Any] = []
    with _progress_bar(len(pictures)) as show_progress:

        def add_batch(batch: "PredictedBatch") -> None:
            show_progress(batch)
            if sheet is not None and len(tiles) < MAX_PICTURES:
                best = (top_classes[0] for top_classes in batch.predictions.top(1))
                tiles.extend(map(predictions.prediction_tile, batch.predictions.images, best, batch.pixels))

        result = loaded.predict(pictures, add_batch)
    if sheet is not None:
        limit_text = f", {MAX_PICTURES} of them below" if len(result) > MAX_PICTURES else ""
        title = f"{loaded.model} of {run}, {len(result):,} picture{'s' * (len(result) > 1)}{limit_text}"
        write_sheet("--sheet", Path(sheet), title, tiles)
    if output_format == "json":
        entries = predictions.predictions_as_json(result, count)
        click.echo(json_text({"run": run, "model": loaded.model, "sheet": sheet, "images": entries}))
    elif output_format == "csv":
        click.echo(predictions.predictions_as_csv(result, count))
    else:
        click.echo(predictions.predictions_as_text(result, count) + _written_message(sheet))


def _predict_wrong_images(run: str, sheet: Optional[str], output_format: str, settings: Dict[str, Any]) -> None:
    """Print the run's test images that are classified wrongly, and write them to a picture."""
    replace = sheet is None  # a sheet with the default name may be overwritten
    if replace and output_format == "text":
        sheet = DEFAULT_SHEET
    loaded, _ = _load_run_and_images(run, sheet, settings, None, replace)
    from gluonlab.inference import predictions
    from gluonlab.inference.predictions import MAX_PICTURES, write_sheet

    with _progress_bar(None) as show_progress:
        mistakes = loaded.mistakes(show_progress)
    written_sheet = sheet if mistakes.wrong else None
    if written_sheet is not None:
        limit_text = f", {MAX_PICTURES} of them below" if len(mistakes.wrong) > MAX_PICTURES else ""
        title = f"{predictions.mistakes_summary(mistakes)}{limit_text}, the surest first"
        write_sheet("--sheet", Path(written_sheet), title, predictions.mistake_tiles(mistakes), replace)
    if output_format == "json":
        values = {"run": run, "model": loaded.model, "sheet": written_sheet, **predictions.mistakes_as_json(mistakes)}
        click.echo(json_text(values))
    elif output_format == "csv":
        click.echo(predictions.mistakes_as_csv(mistakes))
    else:
        click.echo(predictions.mistakes_as_text(mistakes) + _written_message(written_sheet))


def _load_run_and_images(
    run: str, sheet: Optional[str], settings: Dict[str, Any], images: Optional[List[str]], replace: bool = False
) -> "Tuple[LoadedRun, List[Any]]":
    """Load the run and find the image files, after the checks that do not need MXNet.

    ``replace``: whether the file ``sheet`` may be overwritten, if gluonlab.predict has written it.
    """
    from gluonlab.inference.input_images import find_pictures
    from gluonlab.runs.run_reader import read_finished_run

    try:
        read_finished_run(Path(run))
    except DataError as error:
        raise ConfigError(str(error)) from None
    if sheet is not None:
        _check_sheet(sheet, replace)
    pictures = find_pictures(images) if images is not None else []
    from gluonlab.inference.loaded_network import load_run

    return load_run(run, **settings), pictures


def _check_sheet(sheet: str, replace: bool) -> None:
    """Raise ConfigError unless ``sheet`` is the name of a PNG that may be written."""
    from gluonlab.inference.predictions import MARK

    if Path(sheet).suffix.lower() != ".png":
        raise ConfigError(f"--sheet {sheet}: it is a PNG: give a name that ends in .png")
    if replace:
        check_new_or_marked("--sheet", Path(sheet), MARK)
    else:
        check_new_path("--sheet", Path(sheet))


@contextmanager
def _progress_bar(total: Optional[int]) -> "Iterator[Callable[[PredictedBatch], None]]":
    """Show a progress bar on a terminal if classification takes more than a second."""
    from tqdm import tqdm

    is_disabled = True if sys.stderr is None else None  # None: disabled without a terminal
    with tqdm(
        total=total, unit=" images", unit_scale=True, disable=is_disabled, leave=False, delay=1, dynamic_ncols=True
    ) as bar:
        yield lambda batch: bar.update(len(batch.predictions))


def _written_message(sheet: Optional[str]) -> str:
    """Return the last lines of the output, which name the written picture."""
    return "" if sheet is None else f"\n\nwritten to {sheet}"


if __name__ == "__main__":
    main()
