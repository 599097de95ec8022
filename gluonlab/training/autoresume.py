"""A run with the same command each time: it begins, goes on, or has ended.

That is what services need that start a command again where it was ended: spot instances, queues,
supervisors. What they put back of the run's folder may be of different ages, and a part.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, List, NamedTuple, Optional

import numpy as np

from gluonlab.config import TrainConfig
from gluonlab.errors import ConfigError, DataError
from gluonlab.files.arrays import read_arrays
from gluonlab.kvstores.compression import keeps_rest
from gluonlab.kvstores.groups import ALONE, Group
from gluonlab.parallel.strategy import Strategy
from gluonlab.runs.checkpoint import checkpoints
from gluonlab.runs.reader import Description, read_description, read_lines
from gluonlab.runs.result import Result
from gluonlab.runs.schema import PARAMETERS, ConfusionEvent, Epoch, StoppedEvent
from gluonlab.runs.writer import has_ended, has_run, make_room
from gluonlab.training.agreement import all_or_none
from gluonlab.training.early_stopping import best_epoch
from gluonlab.training.gathering import arrays_of_first
from gluonlab.training.on_servers import check_going_on
from gluonlab.training.plan import Plan
from gluonlab.training.resume import (
    Interrupted,
    check_settings,
    description_of_first,
    interrupted,
    interrupted_of_first,
    with_cut,
)
from gluonlab.training.standing import put_parameters

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
    config: TrainConfig, before: Optional[Interrupted] = None, group: Group = ALONE
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
    if keeps_rest(config.compress):
        raise ConfigError(
            f"--autoresume and --compress {config.compress} contradict each other: "
            "what 2 bits have left over is in no checkpoint: leave one of them out"
        )
    check_going_on("--autoresume", config, group)
    return config.replace(checkpoint_every=config.checkpoint_every or PERIOD)


def begun(config: TrainConfig, group: Group = ALONE) -> Optional[Begun]:
    """The run in the folder ``config.out``; None where that is new or empty.

    Rank 0 reads it, and tells the others. Raises OutputError for a folder that is in use, or holds
    what no run writes; RunError in the others then.
    """
    own = all_or_none(group, lambda: _begun(config) if group.rank == 0 else None)
    _, own_run, own_ended = own or (None, None, None)
    has = np.array([own is not None, own_run is not None, own_ended is not None])
    has_begun, goes_on, has_finished = group.everyones(has)[0]
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


def as_begun(config: TrainConfig, earlier: Begun, group: Group = ALONE) -> TrainConfig:
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
    seconds, epochs, matrix, stopped = json.loads(group.bytes_of_first(json.dumps(told).encode()))
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


def anew(earlier: Begun, group: Group = ALONE) -> str:
    """Make room for a run that begins anew; what there was, in words. Raises OutputError.

    Rank 0 has the folder, and the words.
    """
    return all_or_none(group, lambda: _anew(earlier) if group.rank == 0 else "")


def _anew(earlier: Begun) -> str:
    lacks = "whole checkpoint" if checkpoints(earlier.folder) else "checkpoint"
    done = make_room(earlier.folder)
    return f"anew: the run in {earlier.folder} had no {lacks} to go on from; {done}"
