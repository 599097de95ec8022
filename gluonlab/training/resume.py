"""Resumes a run from its last checkpoint (gluonlab resume) or its output folder (--autoresume).

The checks in this module decide which settings may differ from the settings of the interrupted run.
--autoresume is for services that start the same command again, such as spot instances, queues and
supervisors. --autoresume resumes, restarts or skips the run, depending on the files that an earlier
start has left in the folder. If a service has restored the folder, files may be missing or out of
date.
"""

from __future__ import annotations

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
from gluonlab.runs.checkpoint import Checkpoint, list_checkpoints, read_newest_checkpoint, remove_later_checkpoints
from gluonlab.runs.run_reader import (
    RUN_HINT,
    RunDescription,
    copy_count,
    parse_description,
    read_description,
    read_lines,
)
from gluonlab.runs.run_result import Result
from gluonlab.runs.run_schema import PARAMETERS, ConfusionEvent, Epoch, StoppedEvent
from gluonlab.runs.run_writer import NoRunDirectory, RunDirectory, archive_existing_run, has_ended, has_run
from gluonlab.training.builtin_callbacks import find_best_epoch
from gluonlab.training.checkpoint_writer import broadcast_arrays, broadcast_checkpoint
from gluonlab.training.config_checks import check_can_resume, check_settings_are_known
from gluonlab.training.image_loader_options import keep_recorded_resizer
from gluonlab.training.parallel_options import WAYS_BY_OPTION
from gluonlab.training.plan import Plan, dataset_digests
from gluonlab.training.stop_consensus import run_on_all_ranks
from gluonlab.training.train_state import set_strategy_parameters

SPLIT_OPTIONS = ("strategy", *WAYS_BY_OPTION)  # how the network is split among devices
STAGE_OPTIONS = ("cut", "balance", "pipeline_parallel", "stages_per_device", "pipeline_schedule")
# Settings that determine which device computes what.
PLACEMENT_SETTINGS = ("devices", "processes", "device_counts", "copies", *SPLIT_OPTIONS)
# A resumed run may change these settings. The results then differ only by the order of sums, and
# by random numbers of Dropout.
MAY_DIFFER = (
    *PLACEMENT_SETTINGS, "threads_per_device", "backend", "kvstore", "topology", "order", "placed",
    "schedules", "bucket_bytes", "microbatches", "microbatch_size", "data_dir", "deterministic",
    "tf32", "patience",
)  # fmt: skip
BATCH_PART_SETTINGS = ("device_weights", "microbatches", "microbatch_size")
EPOCH_SETTINGS = ("epochs", "lr_decay_steps")
BATCH_SIZES = ("batch_size", "global_batch_size")


class ResumePoint(NamedTuple):
    """A run to resume: its folder, its recorded config, and its last complete checkpoint.

    Attributes:
        damaged: A line about each later checkpoint that is damaged.
        stopped: True if a callback had stopped the run.
        by_autoresume: True for --autoresume. This option also resumes a run that has finished all
            epochs, to write the files that are still missing.
    """

    folder: Path
    description: RunDescription
    checkpoint: Checkpoint
    damaged: List[str]
    stopped: bool = False
    by_autoresume: bool = False

    @property
    def option_text(self) -> str:
        """The option and the folder, for messages."""
        return f"{'--autoresume: ' if self.by_autoresume else ''}{self.folder}"

    @property
    def keeps_stop(self) -> bool:
        """True if a callback's earlier request to stop also stops the resumed run.

        A user who resumes a stopped run with --resume wants to continue the training.
        """
        return self.by_autoresume or not self.stopped

    def read_history(self, group: ProcessGroup) -> List[Epoch]:
        """Return the epochs finished at the checkpoint, which rank 0 reads and broadcasts.

        Call this method after `open_run_directory`, which removes the lines of later epochs.
        """
        lines = read_lines(self.folder) if group.rank == 0 else []
        encoded = json.dumps([vars(line) for line in lines if isinstance(line, Epoch)]).encode()
        return [Epoch(**values) for values in json.loads(group.broadcast_bytes(encoded))]


def read_resume_point(folder: "str | Path", group: ProcessGroup = SINGLE_PROCESS) -> ResumePoint:
    """Return the run to resume. Rank 0 reads the run from ``folder`` and broadcasts it.

    If config.json is missing or damaged, the copy in the checkpoint is used. If the folder has no
    usable checkpoint, raises DataError at rank 0, and RunError in the other processes.
    """
    path = Path(folder)
    resume_point = run_on_all_ranks(group, lambda: _read_resume_point(path) if group.rank == 0 else None)
    return broadcast_resume_point(path, resume_point, group)


def broadcast_resume_point(path: Path, local: Optional[ResumePoint], group: ProcessGroup) -> ResumePoint:
    """Return rank 0's ``local`` in every process. The other processes pass None."""
    description = broadcast_description(path, local and local.description, group)
    flags = [] if local is None else [local.damaged, local.stopped, local.by_autoresume]
    damaged, stopped, by_autoresume = json.loads(group.broadcast_bytes(json.dumps(flags).encode()))
    checkpoint = broadcast_checkpoint(local and local.checkpoint, group)
    return ResumePoint(path, description, checkpoint, damaged, stopped, by_autoresume)


def broadcast_description(path: Path, local: Optional[RunDescription], group: ProcessGroup) -> RunDescription:
    """Return rank 0's ``local`` in every process. The other processes pass None."""
    fields = {} if local is None else {**vars(local), "folder": ""}
    received = json.loads(group.broadcast_bytes(json.dumps(fields).encode()))
    return RunDescription(**{**received, "folder": path})


def _read_resume_point(path: Path) -> ResumePoint:
    """Read the run to resume, in one process. Raises DataError if the run cannot be resumed."""
    try:
        description = read_description(path, RUN_HINT)
    except DataError as error:
        latest = read_newest_checkpoint(path) if list_checkpoints(path) else None
        config_content = None if latest is None else latest.checkpoint.state.get("run")
        if latest is None or config_content is None:
            raise DataError(str(error)) from None
        source = f"the checkpoint of step {latest.checkpoint.step} in {path}"
        return ResumePoint(path, parse_description(path, config_content, source, RUN_HINT), *latest, _was_stopped(path))
    if description.is_comparison:
        raise DataError(f"{path} is the directory of a comparison: use the directory of one of its runs")
    return ResumePoint(path, description, *read_newest_checkpoint(path), _was_stopped(path))


def _was_stopped(path: Path) -> bool:
    return any(isinstance(line, StoppedEvent) for line in read_lines(path))


def resumed_config(resume_point: ResumePoint, group: ProcessGroup = SINGLE_PROCESS, **given: Any) -> TrainConfig:
    """Return the config of the interrupted run, updated with the ``given`` settings.

    The total batch size stays the same, even on a different number of devices. Raises ConfigError
    for a setting that cannot be changed.
    """
    description = resume_point.description
    requested, used = description.requested, description.used
    check_settings_are_known(description)
    if given.get("out") is not None:
        raise _other_folder_error(given["out"], resume_point)
    settings = {name: value for name, value in requested.items() if name != "out"}
    if "strategy" in given:
        settings.update(dict.fromkeys(WAYS_BY_OPTION))
    elif any(name in given for name in STAGE_OPTIONS):
        settings.update(cut=None)
    elif used.get("cut") is not None:  # a new measurement could choose another cut
        settings.update(cut=used["cut"], balance=None)
    if any(name in given for name in ("gpus", "devices")):
        settings.update(gpus=None, devices=None, threads=None, require_gpu=None, device_weights=None)
    has_other_processes = used.get("processes", 1) != group.size
    if has_other_processes or any(name in given for name in ("gpus", "devices", *SPLIT_OPTIONS)):
        settings.update(batch_size=None, global_batch_size=used.get("global_batch_size"))
    if set(given) & set(BATCH_SIZES):
        settings.update(dict.fromkeys(BATCH_SIZES))
    try:
        TrainConfig(**settings)
    except ConfigError as error:
        raise ConfigError(f"{description.file} is damaged: {error}") from None
    return keep_recorded_resizer(TrainConfig(**{**settings, **given}), used)


def adapt_to_resumed_run(config: TrainConfig, resume_point: ResumePoint) -> TrainConfig:
    """Return the config with the run's resizing library, and its ``cut`` of the network.

    Raises ConfigError if ``config.out`` is not the run's folder.
    """
    if config.out is not None:
        if Path(config.out).resolve() != resume_point.folder.resolve():
            raise _other_folder_error(config.out, resume_point)
        config = config.replace(out=None)
    description = resume_point.description
    return keep_recorded_cut(keep_recorded_resizer(config, description.used), description)


def _other_folder_error(out: str, resume_point: ResumePoint) -> ConfigError:
    """Return the error for an --out that is not the folder of the run to resume."""
    return ConfigError(
        f"--out {out} contradicts the resumed run {resume_point.folder}, because "
        "a run resumes in its own directory: remove --out"
    )


def keep_recorded_cut(config: TrainConfig, description: RunDescription) -> TrainConfig:
    """Return the config with the run's ``cut`` of the network, unless the config changes the cut.

    The config changes the cut if it sets ``cut``, or if it has other stages or another balance than
    the run. A cut that was chosen by measurement could differ if it were measured again.
    """
    recorded, current, cut = description.requested, config.to_dict(), description.used.get("cut")
    names = ("strategy", "pipeline_parallel", "stages_per_device", "pipeline_schedule")
    has_same_stages = all(recorded.get(name) == current[name] for name in names)
    balances = (None, recorded.get("balance"), description.used.get("balance"))
    if cut is None or config.cut is not None or not has_same_stages or config.balance not in balances:
        return config
    return config.replace(cut=cut, balance=None)


def open_run_directory(
    plan: Plan, strategy: Strategy, resume_point: Optional[ResumePoint] = None
) -> "RunDirectory | NoRunDirectory":
    """Create the run's folder, or reopen the folder of the run to resume.

    Only rank 0 has a folder. Lines and checkpoints after the resumed checkpoint are removed. Raises
    OutputError, the ConfigError of `check_same_training`, and RunError if another process fails.
    """
    if resume_point is not None:
        run_on_all_ranks(plan.group, lambda: check_same_training(resume_point, plan, strategy))

    def open_directory() -> "RunDirectory | NoRunDirectory":
        """Create or reopen the folder at rank 0. Other processes have no folder."""
        if plan.group.rank > 0:
            return NoRunDirectory()
        if resume_point is None:
            return RunDirectory.create(plan.out, f"{plan.model}-{plan.dataset.name}")
        run = RunDirectory.reopen(resume_point.folder, resume_point.checkpoint.state["metrics"])
        remove_later_checkpoints(resume_point.folder, resume_point.checkpoint.step)
        return run

    return run_on_all_ranks(plan.group, open_directory)


def check_same_training(resume_point: ResumePoint, plan: Plan, strategy: Strategy) -> None:
    """Raise ConfigError if settings or data changed in a way that changes the results."""
    option_text, state = resume_point.option_text, resume_point.checkpoint.state
    check_can_resume(option_text, plan.config, plan.group)
    check_same_settings(option_text, resume_point.description.used, plan)
    digests = dataset_digests(plan)
    for split, recorded_digest in state["data"].items():
        digest = digests[split]
        if recorded_digest != digest:
            raise ConfigError(
                f"{option_text}: {plan.dataset.name} has changed: its {split} split contained "
                f"{recorded_digest[:40]}..., but now contains {digest[:40]}...: "
                "use the original data"
            )
    if strategy.has_running_statistics and not plan.sync_bn:
        _check_same_batch_parts(resume_point, plan.settings())
    epochs_done = state["loader"]["epoch"]
    is_complete = epochs_done == plan.epochs and state["loader"]["step"] == 0
    if epochs_done >= plan.epochs and not (resume_point.by_autoresume and is_complete):
        raise ConfigError(
            f"{option_text}: {epochs_done} of {plan.epochs} epochs are finished: "
            f"increase --epochs, or evaluate the run with gluonlab evaluate {resume_point.folder}"
        )


def check_same_settings(option_text: str, recorded: Mapping[str, Any], plan: Plan) -> None:
    """Raise ConfigError for a changed setting that changes the results."""
    current = plan.settings()
    if "resizer" in current:  # older versions did not record it
        recorded = {"resizer": PILLOW, **recorded}
    changes_epochs = plan.epochs != recorded.get("epochs")
    may_differ = {*MAY_DIFFER, *(EPOCH_SETTINGS if changes_epochs else ())}
    for name in [name for name in {**recorded, **current} if name not in may_differ]:
        if recorded.get(name) != current.get(name):
            raise ConfigError(
                f"{option_text}: {option_name(name)} was {recorded.get(name)}, and would now be "
                f"{current.get(name)}: use the same value, or start a new run"
            )


def _check_same_batch_parts(resume_point: ResumePoint, settings: Dict[str, Any]) -> None:
    """Raise ConfigError if batches are split differently than in the interrupted run.

    BatchNorm normalizes each part of a batch separately, so the results would differ.
    """
    recorded_parts, new_parts = _batch_parts(resume_point.description.used), _batch_parts(settings)
    for name, value in recorded_parts.items():
        if value != new_parts[name]:
            raise ConfigError(
                f"{resume_point.option_text}: {name} was {value}, and would now be {new_parts[name]}, "
                "which changes the images that BatchNorm normalizes together: use the same value"
            )


def _batch_parts(settings: Dict[str, Any]) -> Dict[str, Any]:
    """Return the settings that determine which images BatchNorm normalizes together."""
    devices = settings.get("devices")
    device_name = str(devices[0]) if isinstance(devices, list) and devices else ""
    return {
        "the number of replicas": copy_count(settings),
        **{option_name(name): settings.get(name) for name in BATCH_PART_SETTINGS},
        "the device type": device_name.partition("(")[0],
    }


def describe_differences(resume_point: ResumePoint, plan: Plan, strategy: Strategy, draws: bool) -> Iterator[str]:
    """Yield lines about differences from the interrupted run, and their effect on the results.

    ``draws``: True if the network draws random numbers in training.
    """
    yield from (f"{line}: resuming from the previous one" for line in resume_point.damaged)
    recorded, current = resume_point.description.used, {**plan.settings(), **strategy.settings()}
    reported = [name for name in MAY_DIFFER if name not in ("balance", "data_dir", "patience")]
    changed = [name for name in reported if recorded.get(name) != current.get(name)]
    if changed:
        consequence = "gradients are summed in another order, so the last digits of results may differ"
        if draws and set(changed) & {*PLACEMENT_SETTINGS, *BATCH_PART_SETTINGS}:
            consequence = "Dropout draws other numbers, so results differ as with another seed"
        names = ", ".join(name.replace("_", " ") for name in changed)
        yield f"changed {names}: {consequence}"
    if plan.patience != recorded.get("patience"):
        yield f"patience {plan.patience} instead of {recorded.get('patience')}"
    if resume_point.stopped and not resume_point.keeps_stop:
        yield "a callback stopped the run before, and may stop it again"
    if plan.epochs != recorded.get("epochs"):
        rate = ""
        if plan.rates.schedule != "constant":
            rate = (
                f"; from here on, the learning rate follows the {plan.rates.schedule} schedule for {plan.epochs} epochs"
            )
        yield f"{plan.epochs} epochs instead of {recorded.get('epochs')}{rate}"


# Interval between checkpoints with --autoresume, unless --checkpoint-every is given.
AUTORESUME_PERIOD = "1 epoch"


class ExistingRun(NamedTuple):
    """A run that --autoresume has found in the output folder.

    ``resume_point``: None if there is no usable checkpoint. ``finished``: the run's description if
    the run is complete, with all its files; otherwise None.
    """

    folder: Path
    resume_point: Optional[ResumePoint]
    finished: Optional[RunDescription]


def enable_checkpoints(
    config: TrainConfig, resume_point: Optional[ResumePoint] = None, group: ProcessGroup = SINGLE_PROCESS
) -> TrainConfig:
    """Return the config with periodic checkpoints, which --autoresume needs.

    Raises ConfigError if other settings contradict --autoresume, or if ``resume_point``, the run of
    --resume, is not None.
    """
    if resume_point is not None:
        raise ConfigError(
            f"resume={str(resume_point.folder)!r} and autoresume contradict each other: remove one of them"
        )
    if config.out is None:
        raise ConfigError("--autoresume needs --out, the directory of the run: add --out DIR")
    if keeps_residual(config.compress):
        raise ConfigError(
            f"--autoresume and --compress {config.compress} contradict each other, because "
            "checkpoints do not contain the residuals of 2-bit compression: remove one of them"
        )
    check_can_resume("--autoresume", config, group)
    return config.replace(checkpoint_every=config.checkpoint_every or AUTORESUME_PERIOD)


def find_existing_run(config: TrainConfig, group: ProcessGroup = SINGLE_PROCESS) -> Optional[ExistingRun]:
    """Return the run in the folder ``config.out``; None if the folder is new or empty.

    Rank 0 reads the run and broadcasts it. If the folder is in use, or contains files of other
    programs, raises OutputError at rank 0, and RunError in the other processes.
    """
    local = run_on_all_ranks(group, lambda: _read_existing_run(config) if group.rank == 0 else None)
    _, local_resume_point, local_finished = local or (None, None, None)
    flags = [part is not None for part in (local, local_resume_point, local_finished)]
    is_found, is_resumable, is_finished = group.all_gather(np.array(flags))[0]
    if not is_found:
        return None
    folder, resume_point, finished = Path(str(config.out)), None, None
    if is_resumable:
        resume_point = broadcast_resume_point(folder, local_resume_point, group)
    if is_finished:
        finished = broadcast_description(folder, local_finished, group)
    return ExistingRun(folder, resume_point, finished)


def _read_existing_run(config: TrainConfig) -> Optional[ExistingRun]:
    """Read the run in ``config.out``, in one process; None if there is no run."""
    assert config.out is not None
    if not has_run(config.out):
        return None
    folder, resume_point, finished = Path(config.out), None, None
    with suppress(DataError):
        finished = read_description(folder) if has_ended(folder) else None
    with suppress(DataError):
        resume_point = read_resume_point(folder)._replace(by_autoresume=True)
    return ExistingRun(folder, resume_point, finished)


def keep_recorded_settings(
    config: TrainConfig, existing_run: ExistingRun, group: ProcessGroup = SINGLE_PROCESS
) -> TrainConfig:
    """Return the config with the existing run's ``cut`` of the network into stages.

    If the number of processes has changed, the config also keeps the size of the whole batch.
    """
    if existing_run.resume_point is None:
        return config
    description = existing_run.resume_point.description
    config = keep_recorded_cut(config, description)
    if description.used.get("processes", group.size) != group.size:
        size = description.used.get("global_batch_size")
        config = config.replace(batch_size=None, global_batch_size=size)
    return config


def read_finished_result(existing_run: ExistingRun, plan: Plan, strategy: Strategy) -> Optional[Result]:
    """Return the result of a complete run; None if the run must be resumed or restarted.

    Raises ConfigError if the run was trained with other settings than the plan's settings.
    """
    folder, description = existing_run.folder, existing_run.finished
    epochs_done = description.used.get("epochs") if description is not None else None
    if description is None or not isinstance(epochs_done, int) or epochs_done < plan.epochs:
        return None
    if epochs_done > plan.epochs:
        raise ConfigError(
            f"--autoresume: the run in {folder} has finished {epochs_done} epochs, more than the requested "
            f"{plan.epochs}: use --epochs {epochs_done} or more, or another --out"
        )
    check_same_settings(f"--autoresume: {folder}", description.used, plan)
    is_rank_0, group = plan.group.rank == 0, plan.group
    lines: List[Any] = run_on_all_ranks(group, lambda: read_lines(folder) if is_rank_0 else [])
    arrays = run_on_all_ranks(group, lambda: read_arrays(folder / PARAMETERS) if is_rank_0 else {})
    set_strategy_parameters(strategy, broadcast_arrays(arrays, group))
    matrices = [line.matrix for line in lines if isinstance(line, ConfusionEvent)]
    stops = [line.message for line in lines if isinstance(line, StoppedEvent)]
    values = [
        lines[-1].seconds if lines else None,
        [vars(line) for line in lines if isinstance(line, Epoch)],
        matrices[-1] if matrices else None,
        stops[-1] if stops else None,
    ]
    seconds, epochs, matrix, stopped = json.loads(group.broadcast_bytes(json.dumps(values).encode()))
    history = [Epoch(**epoch) for epoch in epochs]
    return Result(
        plan,
        strategy.net,
        folder if is_rank_0 else None,
        stopped=stopped,
        best_epoch=find_best_epoch(plan.early_stopping, history),
        seconds=seconds or 0.0,
        history=history,
        confusion=None if matrix is None else np.array(matrix),
    )


def archive_and_restart(existing_run: ExistingRun, group: ProcessGroup = SINGLE_PROCESS) -> str:
    """Move the files of a run without a checkpoint to another folder, and return a message.

    Rank 0 moves the files, and the other processes wait. Raises OutputError on failure.
    """
    return run_on_all_ranks(group, lambda: _archive_existing_run(existing_run) if group.rank == 0 else "")


def _archive_existing_run(existing_run: ExistingRun) -> str:
    missing = "undamaged checkpoint" if list_checkpoints(existing_run.folder) else "checkpoint"
    message = archive_existing_run(existing_run.folder)
    return f"the run in {existing_run.folder} had no {missing}; {message}"
