"""python -m gluonlab.scratch --gpus 2: options in, a training by hand, its epochs out."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, List, Optional

import click

from gluonlab.cli.command import command
from gluonlab.collectives.algorithms import ALGORITHMS, make_schedule
from gluonlab.config.values import LARGEST_RATE, real, text, whole
from gluonlab.errors import ConfigError, ScheduleError, unknown
from gluonlab.scratch.recipes import INITIALISATIONS, RECIPES, Recipe, recipe_for

if TYPE_CHECKING:
    import mxnet as mx

    from gluonlab.scratch.data_parallel import Allreduce

CHAPTERS = "star"  # what the chapter's own allreduce is called among ALGORITHMS
USUAL, DIGITS = Recipe(), RECIPES["digits"]


@command("python -m gluonlab.scratch", interrupted="a training by hand keeps nothing")
@click.option(
    "--gpus",
    metavar="N",
    help="use N GPUs; on a machine without any, N CPU devices stand in  [default: one device]",
)
@click.option(
    "--dataset",
    metavar="NAME",
    default="digits",
    show_default=True,
    help="digits, fashion-mnist, mnist, synthetic",
)
@click.option(
    "--data-dir",
    metavar="DIR",
    help="the folder of the data set's files  [default: where gluonlab.data downloads to]",
)
@click.option(
    "--global-batch-size",
    metavar="N",
    help=f"images per step over all devices  [default: {USUAL.global_batch_size}]",
)
@click.option(
    "--lr", metavar="RATE", help=f"learning rate of the whole batch  [default: {USUAL.lr:g}]"
)
@click.option(
    "--epochs",
    metavar="N",
    help=f"passes over the training images  [default: {DIGITS.epochs} for digits, "
    f"else {USUAL.epochs}]",
)
@click.option(
    "--init",
    metavar="NAME",
    help="he, or chapter: normal(0.01)  [default: chapter for fashion-mnist, else he]",
)
@click.option(
    "--seed",
    metavar="N",
    default="0",
    show_default=True,
    help="the seed of initialisation and shuffling",
)
@click.option(
    "--allreduce",
    metavar="NAME",
    default=CHAPTERS,
    help=f"{', '.join(ALGORITHMS)}  [default: {CHAPTERS}, the chapter's]",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="print the result as JSON, and nothing else, on standard output",
)
def main(
    gpus: Optional[str],
    dataset: str,
    data_dir: Optional[str],
    seed: str,
    allreduce: str,
    as_json: bool,
    **numbers: Optional[str],
) -> None:
    """Train LeNet on several devices with nothing but arrays: parameters, gradients, allreduce and
    update by hand.

    The batch size is global here, as in the chapter: each of k devices gets 1/k of it. So 256 is
    128 per device on two of them and 64 on four, and the same training on any number. For the same
    work per device on k devices give k times as much, and try a larger --lr (exercises 1 and 2). In
    gluonlab.run, --batch-size is per device.
    """
    recipe, shuffle_seed = _recipe(dataset, **numbers), whole(0, 2**32 - 1)("--seed", seed)
    gpu_count = None if gpus is None else whole(1)("--gpus", gpus)
    if allreduce not in ALGORITHMS:
        raise ScheduleError(unknown("allreduce", allreduce, ALGORITHMS))

    from gluonlab.data.sets.registry import load_dataset  # MXNet is loaded here, not for --help
    from gluonlab.devices import describe, devices
    from gluonlab.scratch.lenet import init_params
    from gluonlab.scratch.loop import train

    data = load_dataset(dataset, None if data_dir is None else text("--data-dir", data_dir))
    ctxs = devices(gpu_count)
    params = init_params(INITIALISATIONS[recipe.init], shuffle_seed)
    report = (lambda epoch: None) if as_json else click.echo
    began = time.perf_counter()
    trained = train(
        data,
        params,
        ctxs,
        recipe.global_batch_size,
        recipe.lr,
        recipe.epochs,
        shuffle_seed,
        _allreduce(allreduce, ctxs),
        report,
    )
    seconds = time.perf_counter() - began
    if as_json:
        summary = {
            "accuracy": trained.accuracy,
            "images_per_second": trained.images_per_second,
            "seconds": seconds,
        }
        click.echo(json.dumps({**summary, "epochs": [epoch._asdict() for epoch in trained.epochs]}))
    else:
        speed = f"{trained.images_per_second:,.0f} images/s, {seconds:.1f} s in all"
        click.echo(f"\ntest accuracy {trained.accuracy:.4f}, {speed} on {describe(ctxs)}")


def _recipe(
    dataset: str,
    init: Optional[str],
    epochs: Optional[str],
    global_batch_size: Optional[str],
    lr: Optional[str],
) -> Recipe:
    """The data set's recipe, with what the options say instead."""
    usual = recipe_for(dataset)
    recipe = Recipe(
        usual.init if init is None else init,
        whole(1)("--epochs", usual.epochs if epochs is None else epochs),
        whole(1)(
            "--global-batch-size",
            usual.global_batch_size if global_batch_size is None else global_batch_size,
        ),
        real(0, LARGEST_RATE, above_minimum=True)("--lr", usual.lr if lr is None else lr),
    )
    if recipe.init not in INITIALISATIONS:
        raise ConfigError(unknown("initialisation", recipe.init, INITIALISATIONS))
    return recipe


def _allreduce(name: str, ctxs: "List[mx.Context]") -> "Allreduce":
    """The chapter's function, or one that runs the schedule of this name."""
    if name == CHAPTERS:
        from gluonlab.scratch.data_parallel import allreduce

        return allreduce
    from gluonlab.collectives.executor import make_allreduce
    from gluonlab.kvstores.placement import ground_of, place

    placed = place(make_schedule(name, len(ctxs)), ground_of(ctxs))
    return make_allreduce(name, ctxs, placed.order)


if __name__ == "__main__":
    main()
