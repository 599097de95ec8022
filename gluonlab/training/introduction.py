"""The lines with which a run begins: devices, network, data, and how it trains."""

from __future__ import annotations

import textwrap
from typing import Iterator, Tuple

from gluonlab.data.loading.loader import stays_on_devices
from gluonlab.devices import describe
from gluonlab.optimizers.sgd import MXNET
from gluonlab.parallel.strategy import Strategy
from gluonlab.training import remarks
from gluonlab.training.plan import Plan
from gluonlab.training.recipe import CHANGES, named
from gluonlab.training.settle import OPTIONS_WIDTH


def introduction(plan: Plan, strategy: Strategy) -> Iterator[str]:
    """One line for each, a title of 11 columns in front."""
    data, on_gpus = plan.dataset, plan.ctxs[0].device_type == "gpu"
    each = " each" * (len(plan.ctxs) > 1)
    threads = f", {plan.threads} thread{'s' * (plan.threads > 1)}{each}" * (not on_gpus)
    params = strategy.net.collect_params().values()
    size = sum(param.list_data()[0].size for param in params)
    place = (
        "resident on the devices"
        if stays_on_devices(data.train, plan.resident_bytes)
        else f"streamed, {plan.prefetch} batches ahead"
    )
    steps, group = plan.steps_per_epoch, plan.group
    many = f"{group.size} processes ({group.name}), each with " * (group.size > 1)
    rest = len(data.train) - plan.images_per_epoch
    left_out = f", {rest} image{'s' * (rest > 1)} left out" * (rest > 0)
    settings = ", ".join(
        f"{name.replace('_', ' ')} {value:g}"
        for name, value in plan.optimizer_params.items()
        if value
    )
    rule = f", momentum rule {MXNET}" * (plan.momentum_rule == MXNET)
    for name, text in (
        ("devices", many + describe(plan.ctxs) + threads),
        ("network", f"{plan.model}, {size:,} parameters"),
        (
            "data",
            f"{data.name}: {len(data.train):,} training, {len(data.test):,} test images, {place}",
        ),
        *strategy.lines(),
        *plan.settled.in_words(),
        (
            "batch",
            f"{plan.batch_in_words(len(strategy.inputs) * group.size)}; "
            f"{steps:,} step{'s' * (steps > 1)} per epoch{left_out}",
        ),
        ("optimizer", f"{plan.optimizer}, {settings}{rule}"),
        *options_in_words(plan),
        (
            "kvstore",
            f"{plan.config.kvstore}{plan.placed_in_words()}"
            f"{', updated on servers' * plan.on_servers}; seed {plan.seed}",
        ),
        *([("arithmetic", plan.arithmetic.in_words())] if on_gpus else []),
        *(("remark", line) for line in remarks.before(plan)),
    ):
        yield f"{name:<11}{text}"


def options_in_words(plan: Plan) -> Iterator[Tuple[str, str]]:
    """(title, text) of the optimization, where it is not the usual.

    A line without a title goes on with the one before.
    """
    if plan.rates.schedule != "constant" or plan.rates.warmup_steps:
        yield "schedule", plan.rates.in_words()
    options = [
        f"{plan.dtype} with a dynamic loss scale" if plan.dtype != "float32" else "",
        *named(plan, "clip_norm", *CHANGES),
        "sync-bn" if plan.sync_bn else "",
        *named(plan, "no_bias_decay", "compress"),
        weights_in_words(plan),
    ]
    text = ", ".join(filter(None, options))
    lines = textwrap.wrap(text, OPTIONS_WIDTH, break_on_hyphens=False)
    yield from zip(["options", *[""] * len(lines)], lines)


def weights_in_words(plan: Plan) -> str:
    """``loss weighted by 0.5 to 2.25``: the range of the training images; empty without weights."""
    weights = plan.weights
    return "" if weights is None else f"loss weighted by {weights.min():g} to {weights.max():g}"
