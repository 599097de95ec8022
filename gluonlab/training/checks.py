"""All that is checked before a run computes or writes anything, in the order in which it is asked.

Each check belongs to the feature that it is about, and raises a UsageError; here it is given what
it looks at.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Tuple

from mxnet import gluon

from gluonlab.data.sets.colours import find_colours
from gluonlab.data.sets.registry import check_dataset
from gluonlab.errors import ConfigError, KVStoreError
from gluonlab.export.checks import check_installed, check_network
from gluonlab.gpu.arithmetic import arithmetic, check_arithmetic
from gluonlab.kvstores import check_kvstore, check_topology
from gluonlab.kvstores.compression import check_compression, keeps_rest
from gluonlab.models import check_model
from gluonlab.models.pretrained import check_pretrained
from gluonlab.parallel.data import sync_bn
from gluonlab.parallel.data.replica import loss_graph
from gluonlab.parallel.objective import label_columns
from gluonlab.parallel.precision import check_dtype, check_dtype_on
from gluonlab.runs.event_file import check_tensorboard
from gluonlab.training import learning_rate, optimize
from gluonlab.training.array_limit import ArrayLimit
from gluonlab.training.device_weights import (
    check_count,
    check_shares,
    largest_part,
    weights_of,
)
from gluonlab.training.draft import Draft
from gluonlab.training.file_options import file_options
from gluonlab.training.metrics import check_metrics
from gluonlab.training.on_servers import check_on_servers
from gluonlab.training.one_process import check_group
from gluonlab.training.own import check_loss, check_own
from gluonlab.training.repeatable import check_repeatable
from gluonlab.training.splitting import check_split
from gluonlab.update.loss_scale import check_on_nan

CONFIG, DEVICES, DATA, NETWORK, BATCH = "config", "devices", "data", "network", "batch"


class Made(NamedTuple):
    """A plan and its network; ``devices``: how many of them share a batch."""

    plan: Any  # a Plan, whose module imports this one
    net: gluon.HybridBlock
    devices: int


def check(subject: "Draft | Made", *stages: str) -> None:
    """Make the checks of these stages, of a Draft or of a Made. Raises a UsageError."""
    for each in CHECKS:
        if each.stage in stages:
            each.of(subject)


def _topology(draft: Draft) -> None:
    try:
        check_topology(draft.asked.topology, draft.asked.kvstore)
    except KVStoreError as error:
        raise KVStoreError(f"--{error}") from None


def _checkpoints(draft: Draft) -> None:
    asked = draft.asked
    if asked.checkpoint_every is not None and keeps_rest(asked.compress):
        raise ConfigError(
            f"--checkpoint-every {asked.checkpoint_every} and --compress {asked.compress} "
            "contradict each other: what 2 bits have left over is in no checkpoint: "
            "leave one of them out"
        )


def _tensorboard(draft: Draft) -> None:
    if draft.asked.tensorboard and draft.group.rank == 0:  # which alone writes
        check_tensorboard()


def _on_nan(draft: Draft) -> None:
    asked = draft.asked
    check_on_nan(asked.on_nan)
    if asked.on_nan == "skip" and keeps_rest(asked.compress):
        raise ConfigError(
            f"--on-nan skip and --compress {asked.compress} contradict each other: "
            "what 2 bits have left over would hold a part of what is skipped: "
            "leave one of them out"
        )


def _on_nan_network(made: Made) -> None:
    plan, net = made.plan, made.net
    running = [name for name in net.collect_params() if name.endswith("running_mean")]
    if plan.on_nan == "skip" and running:
        raise ConfigError(
            f"--on-nan skip: a batch moves the running statistics of {plan.model} before its "
            "gradients are known: leave --on-nan out, or choose a network without BatchNorm"
        )


def _colours(draft: Draft) -> None:
    if draft.config.normalise is not None:
        find_colours(draft.config.normalise)


def _pretrained(draft: Draft) -> None:
    if draft.config.pretrained is not None:
        check_pretrained(draft.config.pretrained)


def _arithmetic(draft: Draft) -> None:
    check_arithmetic(arithmetic(draft.config.deterministic, draft.config.tf32), draft.ctxs)


def _sync_bn(made: Made) -> None:
    if made.plan.config.sync_bn:
        sync_bn.check_network(made.net, made.plan.model)


def _repeatable(made: Made) -> None:
    if made.plan.arithmetic.deterministic:
        check_repeatable(made.net, made.plan.model, made.plan.ctxs)


def _model(draft: Draft) -> None:
    if draft.own.net is None:
        check_model(str(draft.config.model))


def _last_batch(draft: Draft) -> None:
    if not draft.steps_per_epoch:
        images, batch = len(draft.dataset.train), draft.global_batch_size
        raise ConfigError(
            f"--drop-last: a batch has {batch:,} images, and {draft.dataset.name} {images:,}, so "
            "none would be left: choose a smaller batch, or leave --drop-last out"
        )


def _loss(draft: Draft) -> None:
    if draft.own.loss is not None:
        check_loss(draft.own.loss, len(draft.dataset.classes))


def _metrics(draft: Draft) -> None:
    data = draft.dataset
    check_metrics(draft.own.metrics, data.test, len(data.classes))


def _profile(draft: Draft) -> None:
    steps, there = draft.asked.profile, draft.steps_per_epoch
    if steps is not None and steps >= there:
        many = f"{there} step{'s' * (there > 1)}"
        most = f"at most {there - 1}, or " * (there > 1)
        raise ConfigError(
            f"--profile {steps}: an epoch has {many}, and one more than those is learned from: "
            f"give {most}a smaller --batch-size"
        )


def _batch(made: Made) -> None:
    plan, net, devices = made
    loss = plan.make_loss()
    graph = loss_graph(net, loss, plan.preprocess, plan.conversion)
    times = 1 / largest_part(weights_of(plan.device_weights), devices)
    limit = ArrayLimit(
        graph, net, plan.dataset.image_shape, times, plan.microbatches, label_columns(loss)
    )
    limit.check(plan.largest_share)


def check_exportable(plan: Any, net: gluon.HybridBlock) -> None:
    """Raise ModelError where the plan's network cannot be exported as it asks for."""
    data, plain = plan.dataset, net if plan.own.net is not None else None
    check_network(plan.export, plan.model, len(data.classes), data.image_shape, plain)


class Check(NamedTuple):
    """A check and its stage: ``of`` takes a Draft, or in the stages NETWORK and BATCH a Made."""

    stage: str
    name: str
    of: Callable[[Any], object]


# A part of the draft that is read here for the first time is made then, and may raise as well.
CHECKS: Tuple[Check, ...] = (
    Check(CONFIG, "group", lambda draft: check_group(draft.asked, draft.group)),
    Check(CONFIG, "kvstore", lambda draft: check_kvstore(draft.asked.kvstore)),

    Check(CONFIG, "topology", _topology),
    Check(CONFIG, "split", lambda draft: check_split(draft.asked)),
    Check(CONFIG, "own", lambda draft: check_own(draft.own, draft.asked)),
    Check(CONFIG, "dataset", lambda draft: check_dataset(draft.asked.dataset)),
    Check(CONFIG, "recipe", lambda draft: draft.settled),
    Check(CONFIG, "servers", lambda draft: check_on_servers(draft.config, draft.group)),
    Check(CONFIG, "schedule", lambda draft: learning_rate.check_schedule(draft.config)),
    Check(CONFIG, "epochs", lambda draft: learning_rate.check_epochs(draft.config)),
    Check(CONFIG, "dtype", lambda draft: check_dtype(draft.asked.dtype)),
    Check(CONFIG, "on-nan", _on_nan),
    Check(CONFIG, "compression", lambda draft: check_compression(
        draft.asked.compress, draft.asked.kvstore, draft.asked.dtype, draft.group)),
    Check(CONFIG, "checkpoints", _checkpoints),
    Check(CONFIG, "model", _model),
    Check(CONFIG, "colours", _colours),
    Check(CONFIG, "files", lambda draft: file_options(draft.asked)),
    Check(CONFIG, "optimizer", lambda draft: optimize.check_optimizer(
        draft.config.optimizer, draft.asked)),
    Check(CONFIG, "momentum", lambda draft: optimize.check_momentum(draft.config, draft.asked)),
    Check(CONFIG, "decay", lambda draft: optimize.check_decay(draft.config)),
    Check(CONFIG, "pretrained", _pretrained),
    Check(CONFIG, "export", lambda draft: check_installed(draft.asked.export)),
    Check(CONFIG, "tensorboard", _tensorboard),
    Check(DEVICES, "devices", lambda draft: draft.ctxs),
    Check(DEVICES, "dtype", lambda draft: check_dtype_on(draft.asked.dtype, draft.ctxs)),
    Check(DEVICES, "arithmetic", _arithmetic),
    Check(DEVICES, "split", lambda draft: draft.split),
    Check(DEVICES, "weights", lambda draft: check_count(
        draft.asked.device_weights, len(draft.split.copies))),
    Check(DEVICES, "sharding", lambda draft: optimize.check_sharding(
        draft.config.optimizer, draft.asked.kvstore, len(draft.split.copies))),
    Check(DEVICES, "channels", lambda draft: optimize.check_channels(
        draft.config.optimizer, draft.asked.split)),
    Check(DEVICES, "kvstore", lambda draft: draft.kvstore),
    Check(DATA, "dataset", lambda draft: draft.dataset),
    Check(DATA, "loss", _loss),
    Check(DATA, "metrics", _metrics),
    Check(DATA, "last batch", _last_batch),
    Check(DATA, "weights", lambda draft: check_shares(
        draft.asked.device_weights, draft.step_images, draft.ctxs, draft.group.size)),
    Check(DATA, "microbatches", lambda draft: draft.microbatches.check(
        draft.step_images, draft.copy_count, draft.split.has_copy, draft.fewest)),
    Check(DATA, "profile", _profile),
    Check(DATA, "final rate", lambda draft: learning_rate.check_final_rate(
        draft.config, draft.rates, draft.scale)),
    Check(NETWORK, "sync-bn", _sync_bn),
    Check(NETWORK, "deterministic", _repeatable),
    Check(NETWORK, "on-nan", _on_nan_network),
    Check(BATCH, "arrays", _batch),
    Check(BATCH, "export", lambda made: check_exportable(made.plan, made.net)),
)  # fmt: skip
