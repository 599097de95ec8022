"""gluonlab scratch: train LeNet by hand on several devices."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Callable, List, Optional, Tuple

import click

from gluonlab.cli.command import add_json_option, command
from gluonlab.collectives.algorithms import ALGORITHMS, make_schedule
from gluonlab.config.option_checks import LARGEST_NUMBER, check_text, real_number_check, whole_number_check
from gluonlab.errors import ConfigError, ScheduleError, unknown
from gluonlab.plain_text import json_text
from gluonlab.scratch.recipes import INITIALIZATIONS, RECIPES, Recipe, recipe_for

if TYPE_CHECKING:
    import mxnet as mx

    from gluonlab.scratch.data_parallel import Allreduce

# The allreduce of "Training on Multiple GPUs" (Dive into Deep Learning) has this name in
# ALGORITHMS.
CHAPTER_ALLREDUCE = "star"
DEFAULT_RECIPE, DIGITS_RECIPE = Recipe(), RECIPES["digits"]


OPTIONS: Tuple[Tuple[str, str, Optional[str], str], ...] = (  # name, metavar, default, help
    ("--gpus", "N", None,
     "use N GPUs, or N CPU devices if there are no GPUs  [default: one device]"),
    ("--dataset", "NAME", "digits",
     "data set: digits, fashion-mnist, mnist or synthetic  [default: digits]"),
    ("--data-dir", "DIR", None,
     "directory with the files of the data set  [default: the download directory of gluonlab data]"),
    ("--global-batch-size", "N", None,
     f"number of images per step on all devices together  [default: {DEFAULT_RECIPE.global_batch_size}]"),
    ("--lr", "RATE", None, f"learning rate  [default: {DEFAULT_RECIPE.lr:g}]"),
    ("--epochs", "N", None,
     f"number of passes over the training images  [default: {DIGITS_RECIPE.epochs} for digits, else "
         f"{DEFAULT_RECIPE.epochs}]"),
    ("--init", "NAME", None,
     "weight initialization: he, or chapter for the standard deviation 0.01 of Dive into Deep Learning  "
     "[default: chapter for fashion-mnist, else he]"),
    ("--seed", "N", "0", "random seed for initialization and shuffling  [default: 0]"),
    ("--allreduce", "NAME", CHAPTER_ALLREDUCE,
     f"allreduce algorithm: {', '.join(ALGORITHMS)}  [default: {CHAPTER_ALLREDUCE}, the algorithm "
     "of Dive into Deep Learning]"),
)  # fmt: skip


def _options(function: Callable[..., None]) -> Callable[..., None]:
    for name, metavar, default, help in reversed(OPTIONS):
        function = click.option(name, metavar=metavar, default=default, help=help)(function)
    return function


@command(
    "gluonlab scratch",
    interrupted="nothing was saved",
    most_used="--gpus --dataset --global-batch-size --lr --epochs --allreduce --json",
)
@_options
@add_json_option()
def main(
    gpus: Optional[str],
    dataset: str,
    data_dir: Optional[str],
    seed: str,
    allreduce: str,
    as_json: bool,
    **numbers: Optional[str],
) -> None:
    """Train LeNet on several devices with code that uses only arrays.

    The batch size is global, as in the chapter "Training on Multiple GPUs" of Dive into Deep
    Learning: each of k devices gets 1/k of the batch. The results are the same on any number of
    devices. To keep the work per device constant, multiply the batch size by k, and try a larger
    --lr (exercises 1 and 2 of the chapter). In gluonlab run, --batch-size is per device.
    """
    recipe, shuffle_seed = _make_recipe(dataset, **numbers), whole_number_check(0, 2**32 - 1)("--seed", seed)
    gpu_count = None if gpus is None else whole_number_check(1)("--gpus", gpus)
    if allreduce not in ALGORITHMS:
        raise ScheduleError(unknown("allreduce", allreduce, ALGORITHMS))

    # imported here, so that --help does not load MXNet
    from gluonlab.data.sets.dataset_registry import load_dataset
    from gluonlab.devices import describe, devices
    from gluonlab.scratch.lenet import init_params
    from gluonlab.scratch.loop import train

    data = load_dataset(dataset, None if data_dir is None else check_text("--data-dir", data_dir))
    ctxs = devices(gpu_count)
    params = init_params(INITIALIZATIONS[recipe.init], shuffle_seed)
    report = (lambda epoch: None) if as_json else click.echo
    start = time.perf_counter()
    result = train(
        data, params, ctxs, recipe.global_batch_size, recipe.lr, recipe.epochs, shuffle_seed,
        _make_allreduce(allreduce, ctxs), report,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    if as_json:
        summary = {
            "val_accuracy": result.val_accuracy,
            "images_per_second": result.images_per_second,
            "seconds": seconds,
            "epochs": [epoch._asdict() for epoch in result.epochs],
        }
        click.echo(json_text(summary))
    else:
        speed = f"{result.images_per_second:,.0f} images/s, {seconds:.1f} s in all"
        click.echo(f"\nval accuracy {result.val_accuracy:.4f}, {speed} on {describe(ctxs)}")


def _make_recipe(dataset: str, **options: Optional[str]) -> Recipe:
    """Return the data set's recipe, changed by the ``options`` that are not None.

    ``options``: for each field of Recipe, the text from the command line or None.
    """
    chosen = {name: value for name, value in options.items() if value is not None}
    init, epochs, batch, lr = recipe_for(dataset)._replace(**chosen)  # type: ignore[arg-type]
    recipe = Recipe(
        init,
        whole_number_check(1)("--epochs", epochs),
        whole_number_check(1)("--global-batch-size", batch),
        real_number_check(0, LARGEST_NUMBER, above_minimum=True)("--lr", lr),
    )
    if init not in INITIALIZATIONS:
        raise ConfigError(unknown("initialization", init, INITIALIZATIONS))
    return recipe


def _make_allreduce(name: str, ctxs: "List[mx.Context]") -> "Allreduce":
    """Return the allreduce function for the algorithm ``name`` of ALGORITHMS.

    For CHAPTER_ALLREDUCE, return `gluonlab.scratch.data_parallel.allreduce`. For other names,
    return a function that runs the algorithm's schedule on ``ctxs``.
    """
    if name == CHAPTER_ALLREDUCE:
        from gluonlab.scratch.data_parallel import allreduce

        return allreduce
    from gluonlab.collectives.named_topologies import resolve_topology
    from gluonlab.collectives.schedule_executor import make_allreduce
    from gluonlab.kvstores.schedule_stores import place_ranks

    placed = place_ranks(make_schedule(name, len(ctxs)), resolve_topology(ctxs))
    return make_allreduce(name, ctxs, placed.order)


if __name__ == "__main__":
    main()
