"""python -m gluonlab.scratch --gpus 2: options in, a training by hand, its epochs out."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Callable, List, Optional, Tuple

import click

from gluonlab.cli.command import add_json_option, command
from gluonlab.collectives.algorithms import ALGORITHMS, make_schedule
from gluonlab.config.option_types import (
    LARGEST_RATE,
    check_text,
    real_number_check,
    whole_number_check,
)
from gluonlab.errors import ConfigError, ScheduleError, unknown
from gluonlab.plain_text import json_text
from gluonlab.scratch.recipes import INITIALISATIONS, RECIPES, Recipe, recipe_for

if TYPE_CHECKING:
    import mxnet as mx

    from gluonlab.scratch.data_parallel import Allreduce

CHAPTERS = "star"  # what the chapter's own allreduce is called among ALGORITHMS
USUAL, DIGITS = Recipe(), RECIPES["digits"]


OPTIONS: Tuple[Tuple[str, str, Optional[str], str], ...] = (  # name, metavar, default, help
    ("--gpus", "N", None,
     "use N GPUs; on a machine without any, N CPU devices stand in  [default: one device]"),
    ("--dataset", "NAME", "digits",
     "digits, fashion-mnist, mnist, synthetic  [default: digits]"),
    ("--data-dir", "DIR", None,
     "the folder of the data set's files  [default: where gluonlab.data downloads to]"),
    ("--global-batch-size", "N", None,
     f"images per step over all devices  [default: {USUAL.global_batch_size}]"),
    ("--lr", "RATE", None, f"learning rate of the whole batch  [default: {USUAL.lr:g}]"),
    ("--epochs", "N", None,
     f"passes over the training data  [default: {DIGITS.epochs} for digits, else {USUAL.epochs}]"),
    ("--init", "NAME", None,
     "he, or chapter: normal(0.01)  [default: chapter for fashion-mnist, else he]"),
    ("--seed", "N", "0", "the seed of initialisation and shuffling  [default: 0]"),
    ("--allreduce", "NAME", CHAPTERS,
     f"{', '.join(ALGORITHMS)}  [default: {CHAPTERS}, the chapter's]"),
)  # fmt: skip


def _options(function: Callable[..., None]) -> Callable[..., None]:
    for name, metavar, default, help in reversed(OPTIONS):
        function = click.option(name, metavar=metavar, default=default, help=help)(function)
    return function


@command(
    "python -m gluonlab.scratch",
    interrupted="a training by hand keeps nothing",
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
    """Train LeNet on several devices with nothing but arrays.

    The batch size is global here, as in the chapter: each of k devices gets 1/k of it. So 256 is
    128 per device on two of them and 64 on four, and the same training on any number. For the same
    work per device on k devices give k times as much, and try a larger --lr (exercises 1 and 2). In
    gluonlab.run, --batch-size is per device.
    """
    recipe, shuffle_seed = (
        _recipe(dataset, **numbers),
        whole_number_check(0, 2**32 - 1)("--seed", seed),
    )
    gpu_count = None if gpus is None else whole_number_check(1)("--gpus", gpus)
    if allreduce not in ALGORITHMS:
        raise ScheduleError(unknown("allreduce", allreduce, ALGORITHMS))

    from gluonlab.data.sets.dataset_registry import (
        load_dataset,
    )  # MXNet is loaded here, not for --help
    from gluonlab.devices import describe, devices
    from gluonlab.scratch.lenet import init_params
    from gluonlab.scratch.loop import train

    data = load_dataset(dataset, None if data_dir is None else check_text("--data-dir", data_dir))
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
        click.echo(json_text({**summary, "epochs": [epoch._asdict() for epoch in trained.epochs]}))
    else:
        speed = f"{trained.images_per_second:,.0f} images/s, {seconds:.1f} s in all"
        click.echo(f"\ntest accuracy {trained.accuracy:.4f}, {speed} on {describe(ctxs)}")


def _recipe(dataset: str, **given: Optional[str]) -> Recipe:
    """The data set's recipe, with what the options say instead."""
    chosen = {name: value for name, value in given.items() if value is not None}
    init, epochs, batch, lr = recipe_for(dataset)._replace(**chosen)  # type: ignore[arg-type]
    recipe = Recipe(
        init,
        whole_number_check(1)("--epochs", epochs),
        whole_number_check(1)("--global-batch-size", batch),
        real_number_check(0, LARGEST_RATE, above_minimum=True)("--lr", lr),
    )
    if init not in INITIALISATIONS:
        raise ConfigError(unknown("initialisation", init, INITIALISATIONS))
    return recipe


def _allreduce(name: str, ctxs: "List[mx.Context]") -> "Allreduce":
    """The chapter's function, or one that runs the schedule of this name."""
    if name == CHAPTERS:
        from gluonlab.scratch.data_parallel import allreduce

        return allreduce
    from gluonlab.collectives.named_topologies import ground_of
    from gluonlab.collectives.schedule_executor import make_allreduce
    from gluonlab.kvstores.schedule_stores import place

    placed = place(make_schedule(name, len(ctxs)), ground_of(ctxs))
    return make_allreduce(name, ctxs, placed.order)


if __name__ == "__main__":
    main()
