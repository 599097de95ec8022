"""A run that goes on: from its last checkpoint (--resume), or as it is found (--autoresume).

What it is asked for now, and what must be as it was. Services that start a command again where it
was ended (spot instances, queues, supervisors) need a run that begins, goes on or has ended, with
the same command each time. What they put back of its folder may be a part, of different ages.
"""

from __future__ import annotations

import dataclasses
import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional

import numpy as np

from gluonlab.config import TrainConfig, option_name
from gluonlab.data.images.resize_image import PILLOW
from gluonlab.errors import ConfigError, DataError
from gluonlab.files.array_files import read_arrays
from gluonlab.kvstores.gradient_compression import keeps_residual
from gluonlab.kvstores.process_groups import SINGLE_PROCESS, ProcessGroup
from gluonlab.parallel.strategy import Strategy
from gluonlab.runs.checkpoint import Checkpoint, checkpoints, newest, remove_later
from gluonlab.runs.run_reader import (
    RESUMED,
    Description,
    copy_count,
    description,
    read_description,
    read_lines,
)
from gluonlab.runs.run_result import Result
from gluonlab.runs.run_schema import PARAMETERS, ConfusionEvent, Epoch, StoppedEvent
from gluonlab.runs.run_writer import NoRunDirectory, RunDirectory, has_ended, has_run, make_room
from gluonlab.training.builtin_callbacks import best_epoch
from gluonlab.training.checkpoint_writer import arrays_of_first, checkpoint_of_first
from gluonlab.training.config_checks import check_going_on
from gluonlab.training.image_options import with_resizer
from gluonlab.training.parallel_options import OF_WAYS
from gluonlab.training.plan import Plan, digests
from gluonlab.training.stop_consensus import all_or_none
from gluonlab.training.train_state import put_parameters

# Settings that may differ from those of the run so far: the sums are the same but for their order.
SPLITTING = ("split", *OF_WAYS)
OF_STAGES = ("cut", "balance", "stages", "stages_per_device", "pipeline_schedule")
PLACES = (
    "devices",
    "processes",
    "device_counts",
    "copies",
    *SPLITTING,
)  # which device computes what
MAY_DIFFER = (
    *PLACES, "threads_per_device", "backend", "kvstore", "topology", "order", "placed",
    "schedules", "bucket_bytes", "microbatches", "microbatch_size", "data_dir", "deterministic",
    "tf32", "patience",
)  # fmt: skip
CUTTING = ("device_weights", "microbatches", "microbatch_size")
OF_EPOCHS = ("epochs", "lr_decay_steps")
BATCH_SIZES = ("batch_size", "global_batch_size")


class Interrupted(NamedTuple):
    """A run that goes on: its folder, what its config.json says, and its last whole checkpoint.

    ``damaged``: a line about each later one that is not whole. ``mends``: whether a run that has
    finished all epochs may go on, with what it had still to write. ``stopped``: whether a callback
    had stopped it.
    """

    folder: Path
    found: Description
    checkpoint: Checkpoint
    damaged: List[str]
    stopped: bool = False
    mends: bool = False

    @property
    def named(self) -> str:
        """The option and the folder."""
        return f"{'--autoresume:' if self.mends else '--resume'} {self.folder}"

    @property
    def stays_stopped(self) -> bool:
        """Whether a stop that a callback had asked for still counts.

        Who has a run go on that was stopped wants it to.
        """
        return self.mends or not self.stopped

    def epochs(self, group: ProcessGroup) -> List[Epoch]:
        """Those that are finished at the checkpoint, after `run_directory`; rank 0 reads them."""
        own = read_lines(self.folder) if group.rank == 0 else []
        told = json.dumps([vars(line) for line in own if isinstance(line, Epoch)]).encode()
        return [Epoch(**each) for each in json.loads(group.broadcast_bytes(told))]


def interrupted(folder: "str | Path", group: ProcessGroup = SINGLE_PROCESS) -> Interrupted:
    """The run in this folder, which rank 0 reads, and tells the others.

    Where config.json is missing or damaged, the checkpoint knows what it said. Raises DataError for
    a folder that has nothing to go on from, and RunError in the others then.
    """
    path = Path(folder)
    found = all_or_none(group, lambda: _read(path) if group.rank == 0 else None)
    return interrupted_of_first(path, found, group)


def interrupted_of_first(
    path: Path, own: Optional[Interrupted], group: ProcessGroup
) -> Interrupted:
    """The run in this folder as rank 0 has read it, in every process."""
    found = description_of_first(path, own and own.found, group)
    about = [] if own is None else [own.damaged, own.stopped, own.mends]
    damaged, stopped, mends = json.loads(group.broadcast_bytes(json.dumps(about).encode()))
    checkpoint = checkpoint_of_first(own and own.checkpoint, group)
    return Interrupted(path, found, checkpoint, damaged, stopped, mends)


def description_of_first(
    path: Path, own: Optional[Description], group: ProcessGroup
) -> Description:
    """What rank 0 has read of a run's folder, in every process."""
    about = {} if own is None else {**vars(own), "folder": ""}
    told = json.loads(group.broadcast_bytes(json.dumps(about).encode()))
    return Description(**{**told, "folder": path})


def _read(path: Path) -> Interrupted:
    try:
        found = read_description(path, RESUMED)
    except DataError as error:
        last = newest(path) if checkpoints(path) else None
        about = None if last is None else last.checkpoint.state.get("run")
        if last is None or about is None:
            raise DataError(f"--resume {error}") from None
        where = f"the checkpoint of step {last.checkpoint.step} in {path}"
        return Interrupted(path, description(path, about, where, RESUMED), *last, _stopped(path))
    if found.is_comparison:
        raise DataError(f"--resume {path} is a comparison: give the folder of one of its runs")
    return Interrupted(path, found, *newest(path), _stopped(path))


def _stopped(path: Path) -> bool:
    return any(isinstance(line, StoppedEvent) for line in read_lines(path))


def asked(run: Interrupted, group: ProcessGroup = SINGLE_PROCESS, **given: Any) -> TrainConfig:
    """What the run was asked for, with what is ``given`` now. Raises ConfigError.

    Other devices, or another number of processes, share batches of the size that the run had.
    """
    fields = {field.name for field in dataclasses.fields(TrainConfig)}
    strange = sorted(set(run.found.asked) - fields)
    if strange:
        raise ConfigError(
            f"{run.found.file} has settings that this gluonlab does not know: {', '.join(strange)}"
        )
    if given.get("out") is not None:
        raise _other_folder(given["out"], run)
    before = {name: value for name, value in run.found.asked.items() if name != "out"}
    used = run.found.used
    if "split" in given:
        before.update(dict.fromkeys(OF_WAYS))
    elif any(name in given for name in OF_STAGES):
        before.update(cut=None)
    elif used.get("cut") is not None:  # measured again, it may be another one
        before.update(cut=used["cut"], balance=None)
    if any(name in given for name in ("gpus", "devices")):
        before.update(gpus=None, devices=None, threads=None, require_gpu=None, device_weights=None)
    others = used.get("processes", 1) != group.size
    if others or any(name in given for name in ("gpus", "devices", *SPLITTING)):
        before.update(batch_size=None, global_batch_size=used.get("global_batch_size"))
    if set(given) & set(BATCH_SIZES):
        before.update(dict.fromkeys(BATCH_SIZES))
    try:
        TrainConfig(**before)
    except ConfigError as error:
        raise ConfigError(f"{run.found.file} is damaged: {error}") from None
    return with_resizer(TrainConfig(**{**before, **given}), used)


def going_on(config: TrainConfig, run: Interrupted) -> TrainConfig:
    """Adapt the user's config to a run that is resumed in its folder. Raises ConfigError."""
    if config.out is not None:
        if Path(config.out).resolve() != run.folder.resolve():
            raise _other_folder(config.out, run)
        config = config.replace(out=None)
    return with_cut(with_resizer(config, run.found.used), run.found)


def _other_folder(out: str, run: Interrupted) -> ConfigError:
    return ConfigError(
        f"--out {out} and --resume {run.folder} contradict each other: "
        "a run goes on in its own folder: leave --out out"
    )


def with_cut(config: TrainConfig, found: Description) -> TrainConfig:
    """Return the config with the cut of the resumed run, if it asks for the same stages.

    A cut that was measured could differ if it were measured again.
    """
    was, now, cut = found.asked, config.to_dict(), found.used.get("cut")
    same = ("split", "stages", "stages_per_device", "pipeline_schedule")
    if cut is None or config.cut is not None or any(was.get(each) != now[each] for each in same):
        return config
    if config.balance not in (None, was.get("balance"), found.used.get("balance")):
        return config
    return config.replace(cut=cut, balance=None)


def run_directory(
    plan: Plan, strategy: Strategy, before: Optional[Interrupted] = None
) -> "RunDirectory | NoRunDirectory":
    """The plan's folder: a new one, or that of the run ``before``, as its checkpoint left it.

    It is rank 0's. Raises OutputError, and what `check_same` raises; RunError where another process
    does.
    """
    if before is not None:
        all_or_none(plan.group, lambda: check_same(before, plan, strategy))

    def opened() -> "RunDirectory | NoRunDirectory":
        if plan.group.rank > 0:
            return NoRunDirectory()
        if before is None:
            return RunDirectory.create(plan.out, f"{plan.model}-{plan.dataset.name}")
        run = RunDirectory.reopen(before.folder, before.checkpoint.state["metrics"])
        remove_later(before.folder, before.checkpoint.step)
        return run

    return all_or_none(plan.group, opened)


def check_same(run: Interrupted, plan: Plan, strategy: Strategy) -> None:
    """Raise ConfigError where the run would go on with other numbers than it has begun with."""
    check_going_on(run.named, plan.config, plan.group)
    check_settings(run.named, run.found.used, plan)
    for split, was in run.checkpoint.state["data"].items():
        is_now = digests(plan)[split]
        if was != is_now:
            raise ConfigError(
                f"{run.named}: {plan.dataset.name} has changed: its {split} split had "
                f"{was[:40]}..., and has {is_now[:40]}...: give it the data it began with"
            )
    if strategy.has_statistics and not plan.sync_bn:
        _check_parts(run, plan.settings())
    loader = run.checkpoint.state["loader"]
    done, at_end = loader["epoch"], (loader["epoch"], loader["step"]) == (plan.epochs, 0)
    if done >= plan.epochs and not (run.mends and at_end):
        raise ConfigError(
            f"{run.named}: {done} of {plan.epochs} epochs are finished: "
            f"give more --epochs, or evaluate it with --evaluate {run.folder}"
        )


def check_settings(named: str, before: Mapping[str, Any], plan: Plan) -> None:
    """Raise ConfigError for a setting of the plan that was another one, and changes numbers."""
    now = plan.settings()
    if "resizer" in now:  # which older versions did not note
        before = {"resizer": PILLOW, **before}
    longer = plan.epochs != before.get("epochs")
    may_differ = {*MAY_DIFFER, *(OF_EPOCHS if longer else ())}
    for name in [name for name in {**before, **now} if name not in may_differ]:
        if before.get(name) != now.get(name):
            raise ConfigError(
                f"{named}: {option_name(name)} was {before.get(name)}, and would be "
                f"{now.get(name)}: leave it as it was, or begin a new run"
            )


def _check_parts(run: Interrupted, now: Dict[str, Any]) -> None:
    """Raise ConfigError unless batches are cut into the same parts, which BatchNorm looks at."""
    was, would = _parts(run.found.used), _parts(now)
    for name, value in was.items():
        if value != would[name]:
            raise ConfigError(
                f"{run.named}: {name} was {value}, and would be {would[name]}; "
                "BatchNorm looks at each part of a batch by itself, so that the network would be "
                "another one: leave it as it was"
            )


def _parts(settings: Dict[str, Any]) -> Dict[str, Any]:
    """What says into which parts a batch is cut, and who normalises them."""
    devices = settings.get("devices")
    first = str(devices[0]) if isinstance(devices, list) and devices else ""
    return {
        "the number of copies of the network": copy_count(settings),
        **{option_name(name): settings.get(name) for name in CUTTING},
        "the kind of device": first.partition("(")[0],
    }


def differences(run: Interrupted, plan: Plan, strategy: Strategy, draws: bool) -> Iterator[str]:
    """What is not as it was, and what that means for the results.

    ``draws``: whether the network draws random numbers while it trains.
    """
    yield from (f"{line}: going on from the one before" for line in run.damaged)
    before, now = run.found.used, {**plan.settings(), **strategy.settings()}
    said = [name for name in MAY_DIFFER if name not in ("balance", "data_dir", "patience")]
    others = [name for name in said if before.get(name) != now.get(name)]
    if others:
        means = "sums are added in another order, so results differ in their last digits"
        if draws and set(others) & {*PLACES, *CUTTING}:
            means = "Dropout draws other numbers, so results differ as with another seed"
        yield f"other {', '.join(name.replace('_', ' ') for name in others)} than before: {means}"
    if plan.patience != before.get("patience"):
        yield f"patience {plan.patience} instead of {before.get('patience')}"
    if run.stopped and not run.stays_stopped:
        yield "a callback had stopped it, and may do so again"
    if plan.epochs != before.get("epochs"):
        rate = ""
        if plan.rates.schedule != "constant":
            rate = (
                f"; the rate follows the {plan.rates.schedule} schedule of {plan.epochs} from here"
            )
        yield f"{plan.epochs} epochs instead of {before.get('epochs')}{rate}"


PERIOD = "1 epoch"  # between checkpoints, where nothing else is asked for


class Begun(NamedTuple):
    """A run that has begun in a folder.

    ``run``: what it goes on from; None without a whole checkpoint. ``ended``: what config.json says
    of a run that has ended, and whose files are all there.
    """

    folder: Path
    run: Optional[Interrupted]
    ended: Optional[Description]


def with_checkpoints(
    config: TrainConfig, before: Optional[Interrupted] = None, group: ProcessGroup = SINGLE_PROCESS
) -> TrainConfig:
    """The config of a run that can be gone on with. Raises ConfigError where that cannot be.

    ``before``: the run that --resume names.
    """
    if before is not None:
        raise ConfigError(
            f"--resume {before.folder} and --autoresume contradict each other: give one of them"
        )
    if config.out is None:
        raise ConfigError(
            "--autoresume goes on with the run in --out, and there is none: add --out DIR"
        )
    if keeps_residual(config.compress):
        raise ConfigError(
            f"--autoresume and --compress {config.compress} contradict each other: "
            "what 2 bits have left over is in no checkpoint: leave one of them out"
        )
    check_going_on("--autoresume", config, group)
    return config.replace(checkpoint_every=config.checkpoint_every or PERIOD)


def begun(config: TrainConfig, group: ProcessGroup = SINGLE_PROCESS) -> Optional[Begun]:
    """The run in the folder ``config.out``; None where that is new or empty.

    Rank 0 reads it, and tells the others. Raises OutputError for a folder that is in use, or holds
    what no run writes; RunError in the others then.
    """
    own = all_or_none(group, lambda: _begun(config) if group.rank == 0 else None)
    _, own_run, own_ended = own or (None, None, None)
    has = np.array([own is not None, own_run is not None, own_ended is not None])
    has_begun, goes_on, has_finished = group.all_gather(has)[0]
    if not has_begun:
        return None
    folder = Path(str(config.out))
    run = interrupted_of_first(folder, own_run, group) if goes_on else None
    return Begun(
        folder, run, description_of_first(folder, own_ended, group) if has_finished else None
    )


def _begun(config: TrainConfig) -> Optional[Begun]:
    assert config.out is not None
    if not has_run(config.out):
        return None
    folder, run, ended = Path(config.out), None, None
    with suppress(DataError):
        ended = read_description(folder) if has_ended(folder) else None
    with suppress(DataError):
        run = interrupted(folder)._replace(mends=True)
    return Begun(folder, run, ended)


def as_begun(
    config: TrainConfig, earlier: Begun, group: ProcessGroup = SINGLE_PROCESS
) -> TrainConfig:
    """The config with what the run has settled.

    That is its cut into stages. Another number of processes shares batches of the size that the run
    had.
    """
    if earlier.run is None:
        return config
    config, used = with_cut(config, earlier.run.found), earlier.run.found.used
    if used.get("processes", group.size) != group.size:
        size = used.get("global_batch_size")
        config = config.replace(batch_size=None, global_batch_size=size)
    return config


def result_of(earlier: Begun, plan: Plan, strategy: Strategy) -> Optional[Result]:
    """The result of a run that has ended; None for one that goes on, or begins anew.

    Raises ConfigError where the plan would have given another result.
    """
    folder, ended = earlier.folder, earlier.ended
    finished = ended.used.get("epochs") if ended is not None else None
    if ended is None or not isinstance(finished, int) or finished < plan.epochs:
        return None
    if finished > plan.epochs:
        raise ConfigError(
            f"--autoresume: the run in {folder} has finished {finished} epochs, and "
            f"{plan.epochs} are asked for: give --epochs {finished} or more, or another --out"
        )
    check_settings(f"--autoresume: {folder}", ended.used, plan)
    reads, group = plan.group.rank == 0, plan.group
    lines: List[Any] = all_or_none(group, lambda: read_lines(folder) if reads else [])
    arrays = all_or_none(group, lambda: read_arrays(folder / PARAMETERS) if reads else {})
    put_parameters(strategy, arrays_of_first(arrays, group))
    matrices = [line.matrix for line in lines if isinstance(line, ConfusionEvent)]
    stops = [line.message for line in lines if isinstance(line, StoppedEvent)]
    told = [
        lines[-1].seconds if lines else None,
        [vars(line) for line in lines if isinstance(line, Epoch)],
        matrices[-1] if matrices else None,
        stops[-1] if stops else None,
    ]
    seconds, epochs, matrix, stopped = json.loads(group.broadcast_bytes(json.dumps(told).encode()))
    history = [Epoch(**each) for each in epochs]
    return Result(
        plan,
        strategy.net,
        folder if reads else None,
        stopped=stopped,
        best_epoch=best_epoch(plan.stopping, history),
        seconds=seconds or 0.0,
        history=history,
        confusion=None if matrix is None else np.array(matrix),
    )


def anew(earlier: Begun, group: ProcessGroup = SINGLE_PROCESS) -> str:
    """Make room for a run that begins anew; what there was, in words. Raises OutputError.

    Rank 0 has the folder, and the words.
    """
    return all_or_none(group, lambda: _anew(earlier) if group.rank == 0 else "")


def _anew(earlier: Begun) -> str:
    lacks = "whole checkpoint" if checkpoints(earlier.folder) else "checkpoint"
    done = make_room(earlier.folder)
    return f"anew: the run in {earlier.folder} had no {lacks} to go on from; {done}"
