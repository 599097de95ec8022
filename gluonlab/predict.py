"""Implements ``gluonlab predict RUN IMAGE...``, which classifies images with a finished run.

`main` checks the options. It then classifies the user's images or, if --misclassified is given,
finds the run's misclassified validation images. The result is printed as text, JSON or CSV, and
--grid also writes an image grid.
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

DEFAULT_TOP_K, DEFAULT_GRID = 5, WRONG_IMAGES
EXAMPLE = "use gluonlab predict RUN_DIR IMAGE..."


@command(
    "gluonlab predict",
    interrupted="nothing was written",
    most_used="--top-k --misclassified --grid --csv --json --gpus",
    renamed={
        "--top": "--top-k",
        "--wrong": "--misclassified",
        "--sheet": "--grid",
        "--decoders": "--workers",
        "--skip-bad": "--skip-corrupt",
    },
)
@click.argument("run", required=False, metavar="RUN_DIR")
@click.argument("images", nargs=-1, metavar="IMAGE...")
@click.option("--top-k", metavar="K", help=f"number of classes to print for each image  [default: {DEFAULT_TOP_K}]")
@add_json_option()
@click.option("--csv", "as_csv", is_flag=True, help="print the result on standard output as CSV")
@click.option(
    "--grid", metavar="FILE", help="write a grid of the images with their classes and probabilities to a new PNG file"
)
@click.option(
    "--misclassified",
    is_flag=True,
    help="list the validation images that the run misclassified, and write them to an image grid (see --grid)  "
    f"[default: {DEFAULT_GRID}, or no file with --json or --csv]",
)
@click.option("--gpus", metavar="N", help="use N GPUs, or N CPU devices if there are no GPUs")
@click.option("--devices", metavar="SPEC", help="devices to use, such as gpu:0,2, gpu:*, cpu or cpu*4")
@click.option("--threads", metavar="N", help="number of threads per CPU device")
@click.option(
    "--batch-size", "-b", metavar="N", help="number of images per device and batch  [default: the run's batch size]"
)
@click.option("--data-dir", metavar="DIR", help="with --misclassified: directory with the files of the data set")
@click.option("--workers", "-j", metavar="N", help="number of processes that decode images  [default: one per core]")
@click.option("--skip-corrupt", is_flag=True, default=None, help="skip images that cannot be decoded")
def main(
    run: Optional[str],
    images: Tuple[str, ...],
    top_k: Optional[str],
    as_json: bool,
    as_csv: bool,
    grid: Optional[str],
    misclassified: bool,
    **settings: Any,
) -> None:
    """Classify images with a finished run.

    RUN_DIR is the run directory of a finished run. IMAGE is an image file, a folder of images, or -
    for an image on standard input.
    """
    if run is None:
        raise ConfigError(f"the run directory is missing: {EXAMPLE}")
    if as_json and as_csv:
        raise ConfigError("--json and --csv contradict each other: remove one of them")
    output_format = "json" if as_json else "csv" if as_csv else "text"
    TrainConfig(**given_settings(settings))  # checks the settings before anything is loaded
    if misclassified:
        if images or top_k is not None:
            other = images[0] if images else f"--top-k {top_k}"
            raise ConfigError(
                "--misclassified uses the run's validation images, and shows one predicted class per image: "
                f"omit {other}"
            )
        _predict_misclassified(run, grid, output_format, given_settings(settings))
        return
    if settings["data_dir"] is not None:
        raise ConfigError(
            f"--data-dir {settings['data_dir']} has no effect without --misclassified: omit --data-dir, "
            "or add --misclassified"
        )
    if not images:
        raise ConfigError(
            f"no images were given: {EXAMPLE}, or add --misclassified to show the run's misclassified images"
        )
    count = DEFAULT_TOP_K if top_k is None else whole_number_check(1)("--top-k", top_k)
    _predict(run, list(images), count, grid, output_format, given_settings(settings))


def _predict(
    run: str, images: List[str], count: int, grid: Optional[str], output_format: str, settings: Dict[str, Any]
) -> None:
    """Classify images, print the best ``count`` classes of each, and draw an image grid."""
    loaded, pictures = _load_run_and_images(run, grid, settings, images)
    from gluonlab.inference import predictions
    from gluonlab.inference.predictions import MAX_PICTURES, write_sheet

    tiles: List[Any] = []
    with _progress_bar(len(pictures)) as show_progress:

        def add_batch(batch: "PredictedBatch") -> None:
            show_progress(batch)
            if grid is not None and len(tiles) < MAX_PICTURES:
                best = (top_classes[0] for top_classes in batch.predictions.top(1))
                tiles.extend(map(predictions.prediction_tile, batch.predictions.images, best, batch.pixels))

        result = loaded.predict(pictures, add_batch)
    if grid is not None:
        limit_text = f", {MAX_PICTURES} of them below" if len(result) > MAX_PICTURES else ""
        title = f"{loaded.model} of {run}, {len(result):,} image{'s' * (len(result) > 1)}{limit_text}"
        write_sheet("--grid", Path(grid), title, tiles)
    if output_format == "json":
        entries = predictions.predictions_as_json(result, count)
        click.echo(json_text({"run": run, "model": loaded.model, "sheet": grid, "images": entries}))
    elif output_format == "csv":
        click.echo(predictions.predictions_as_csv(result, count))
    else:
        click.echo(predictions.predictions_as_text(result, count) + _written_message(grid))


def _predict_misclassified(run: str, grid: Optional[str], output_format: str, settings: Dict[str, Any]) -> None:
    """Print the run's misclassified validation images, and write them to an image grid."""
    replace = grid is None  # an image grid with the default name may be overwritten
    if replace and output_format == "text":
        grid = DEFAULT_GRID
    loaded, _ = _load_run_and_images(run, grid, settings, None, replace)
    from gluonlab.inference import predictions
    from gluonlab.inference.predictions import MAX_PICTURES, write_sheet

    with _progress_bar(None) as show_progress:
        mistakes = loaded.mistakes(show_progress)
    written_grid = grid if mistakes.wrong else None
    if written_grid is not None:
        limit_text = f", {MAX_PICTURES} of them below" if len(mistakes.wrong) > MAX_PICTURES else ""
        title = f"{predictions.mistakes_summary(mistakes)}{limit_text}, those with the highest probability first"
        write_sheet("--grid", Path(written_grid), title, predictions.mistake_tiles(mistakes), replace)
    if output_format == "json":
        values = {"run": run, "model": loaded.model, "sheet": written_grid, **predictions.mistakes_as_json(mistakes)}
        click.echo(json_text(values))
    elif output_format == "csv":
        click.echo(predictions.mistakes_as_csv(mistakes))
    else:
        click.echo(predictions.mistakes_as_text(mistakes) + _written_message(written_grid))


def _load_run_and_images(
    run: str, grid: Optional[str], settings: Dict[str, Any], images: Optional[List[str]], replace: bool = False
) -> "Tuple[LoadedRun, List[Any]]":
    """Load the run and find the image files, after the checks that do not need MXNet.

    ``replace``: whether the file ``grid`` may be overwritten, if gluonlab.predict wrote this file.
    """
    from gluonlab.inference.input_images import find_pictures
    from gluonlab.runs.run_reader import read_finished_run

    try:
        read_finished_run(Path(run))
    except DataError as error:
        raise ConfigError(str(error)) from None
    if grid is not None:
        _check_grid(grid, replace)
    pictures = find_pictures(images) if images is not None else []
    from gluonlab.inference.loaded_network import load_run

    return load_run(run, **settings), pictures


def _check_grid(grid: str, replace: bool) -> None:
    """Raise ConfigError unless ``grid`` is the name of a PNG file that may be written."""
    from gluonlab.inference.predictions import MARK

    if Path(grid).suffix.lower() != ".png":
        raise ConfigError(f"--grid {grid}: must end in .png, because the image grid is a PNG file")
    if replace:
        check_new_or_marked("--grid", Path(grid), MARK)
    else:
        check_new_path("--grid", Path(grid))


@contextmanager
def _progress_bar(total: Optional[int]) -> "Iterator[Callable[[PredictedBatch], None]]":
    """Show a progress bar on a terminal if classification takes more than a second."""
    from tqdm import tqdm

    is_disabled = True if sys.stderr is None else None  # None: disabled without a terminal
    with tqdm(
        total=total, unit=" images", unit_scale=True, disable=is_disabled, leave=False, delay=1, dynamic_ncols=True
    ) as bar:
        yield lambda batch: bar.update(len(batch.predictions))


def _written_message(grid: Optional[str]) -> str:
    """Return the last lines of the output, which contain the path of the image that was written."""
    return "" if grid is None else f"\n\nwritten to {grid}"


if __name__ == "__main__":
    main()
