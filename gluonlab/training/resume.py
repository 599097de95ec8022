"""A run that goes on from its last checkpoint: what it is asked for, and what must be the same."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional

from gluonlab.config import TrainConfig, option_name
from gluonlab.data.sets.digest import digest
from gluonlab.errors import ConfigError, DataError
from gluonlab.parallel.strategy import Strategy
from gluonlab.runs.checkpoint import Checkpoint, newest, remove_later
from gluonlab.runs.description import Description, read_description
from gluonlab.runs.reader import read_lines
from gluonlab.runs.schema import Line
from gluonlab.runs.writer import NoRunDirectory, RunDirectory
from gluonlab.training.plan import Plan

RESUMED = "give the folder of a run of gluonlab.run"
# Settings that may differ from those of the run so far: the sums are the same but for their order.
MAY_DIFFER = (
    "devices", "threads_per_device", "processes", "backend", "kvstore", "topology", "order",
    "placed", "bucket_bytes", "microbatches", "microbatch_size", "data_dir", "deterministic",
    "tf32",
)  # fmt: skip
OF_EPOCHS = ("epochs", "lr_decay_steps")
LAYOUT = ("devices", "processes", "microbatches", "microbatch_size")  # what BatchNorm looks at
BATCH_SIZES = ("batch_size", "global_batch_size")


class Interrupted(NamedTuple):
    """A run that goes on: its folder, what its config.json says, and its last whole checkpoint.

    ``damaged``: a line about each later one that is not whole.
    """

    folder: Path
    found: Description
    checkpoint: Checkpoint
    damaged: List[str]

    @property
    def lines(self) -> List[Line]:
        """Those of its metrics, after `run_directory` up to the checkpoint."""
        return read_lines(self.folder)


def interrupted(folder: "str | Path") -> Interrupted:
    """The run in this folder. Raises DataError for one that has nothing to go on from."""
    path = Path(folder)
    try:
        found = read_description(path, RESUMED)
    except DataError as error:
        raise DataError(f"--resume {error}") from None
    if found.is_comparison:
        raise DataError(f"--resume {path} is a comparison: give the folder of one of its runs")
    return Interrupted(path, found, *newest(path))


def asked(run: Interrupted, **given: Any) -> TrainConfig:
    """What the run was asked for, with what is ``given`` now. Raises ConfigError."""
    fields = {field.name for field in dataclasses.fields(TrainConfig)}
    strange = sorted(set(run.found.asked) - fields)
    if strange:
        raise ConfigError(
            f"{run.found.file} has settings that this gluonlab does not know: {', '.join(strange)}"
        )
    if given.get("out") is not None:
        raise ConfigError(
            f"--out {given['out']} and --resume {run.folder} contradict each other: "
            "a run goes on in its own folder: leave --out out"
        )
    before = {name: value for name, value in run.found.asked.items() if name != "out"}
    if any(name in given for name in ("gpus", "devices")):
        before.update(gpus=None, devices=None, threads=None, require_gpu=False)
        before.update(batch_size=None, global_batch_size=run.found.used.get("global_batch_size"))
    if set(given) & set(BATCH_SIZES):
        before.update(dict.fromkeys(BATCH_SIZES))
    try:
        TrainConfig(**before)
    except ConfigError as error:
        raise ConfigError(f"{run.found.file} is damaged: {error}") from None
    return TrainConfig(**{**before, **given})


def run_directory(
    plan: Plan, strategy: Strategy, before: Optional[Interrupted] = None
) -> "RunDirectory | NoRunDirectory":
    """The plan's folder: a new one, or that of the run ``before``, as its checkpoint left it.

    Raises OutputError, and what `check_same` raises.
    """
    if before is not None:
        if plan.group.size > 1:
            raise ConfigError(
                f"--resume {before.folder} is for one process, and {plan.group.size} train here: "
                "use python -m gluonlab.run"
            )
        check_same(before, plan, strategy)
        run = RunDirectory.reopen(before.folder, before.checkpoint.state["metrics"])
        remove_later(before.folder, before.checkpoint.step)
        return run
    if plan.group.rank == 0:
        return RunDirectory.create(plan.out, f"{plan.model}-{plan.dataset.name}")
    return NoRunDirectory()


def check_same(run: Interrupted, plan: Plan, strategy: Strategy) -> None:
    """Raise ConfigError where the run would go on with other numbers than it has begun with."""
    before, now = run.found.used, plan.settings()
    longer = plan.epochs != before.get("epochs")
    may_differ = {*MAY_DIFFER, *(OF_EPOCHS if longer else ())}
    for name in [name for name in {**before, **now} if name not in may_differ]:
        if before.get(name) != now.get(name):
            raise ConfigError(
                f"--resume {run.folder}: {option_name(name)} was {before.get(name)}, and would be "
                f"{now.get(name)}: leave it as it was, or begin a new run"
            )
    for split, was in run.checkpoint.state["data"].items():
        is_now = digests(plan)[split]
        if was != is_now:
            raise ConfigError(
                f"--resume {run.folder}: {plan.dataset.name} has changed: its {split} split had "
                f"{was[:40]}..., and has {is_now[:40]}...: give it the data it began with"
            )
    changed = next((name for name in LAYOUT if before.get(name) != now.get(name)), None)
    if changed and strategy.has_statistics and not plan.sync_bn:
        raise ConfigError(
            f"--resume {run.folder}: {option_name(changed)} was {before.get(changed)}, and is "
            f"{now.get(changed)}; BatchNorm looks at each device's part of a batch, so that the "
            "network would be another one: leave it as it was"
        )
    done = run.checkpoint.state["loader"]["epoch"]
    if done >= plan.epochs:
        raise ConfigError(
            f"--resume {run.folder}: {done} of {plan.epochs} epochs are finished: "
            f"give more --epochs, or evaluate it with --evaluate {run.folder}"
        )


def digests(plan: Plan) -> Dict[str, str]:
    """Which images both splits of the plan have."""
    return {split: digest(getattr(plan.dataset, split)) for split in ("train", "test")}


def differences(run: Interrupted, plan: Plan) -> Iterator[str]:
    """What is not as it was, and what that means for the results."""
    yield from (f"{line}: going on from the one before" for line in run.damaged)
    before, now = run.found.used, plan.settings()
    others = [name for name in MAY_DIFFER if before.get(name) != now.get(name)]
    if set(others) - {"data_dir"}:
        yield (
            f"other {', '.join(name.replace('_', ' ') for name in others)} than before: "
            "sums are added in another order, so results differ in their last digits"
        )
    if plan.epochs != before.get("epochs"):
        rate = ""
        if plan.rates.schedule != "constant":
            rate = (
                f"; the rate follows the {plan.rates.schedule} schedule of {plan.epochs} from here"
            )
        yield f"{plan.epochs} epochs instead of {before.get('epochs')}{rate}"
