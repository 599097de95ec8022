"""Exports a BucketedTrainer's optimizer states to a file that gluon.Trainer can load."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import mxnet as mx
from mxnet import gluon
from mxnet.gluon import Parameter

from gluonlab.bucketed_trainer.trainer_states import collect_states
from gluonlab.errors import KVStoreError
from gluonlab.files.atomic_files import atomic_path, raise_output_errors
from gluonlab.optimizers.optimizer_states import ParameterState, StateTarget, make_state_template
from gluonlab.optimizers.optimizer_step import map_state
from gluonlab.optimizers.update_history import set_extra_states, set_update_counts

DEVICES = range(16)  # gluon.Trainer's optimizers count updates separately on each device


def export_gluon_states(trainer: gluon.Trainer, fname: str) -> None:
    """Write optimizer states to a file for ``gluon.Trainer.load_states``.

    The file is a pickle of the optimizer, with its settings and schedule, and of its states, which
    are identified by the parameters' positions. So the trainer that loads the file must have the
    same parameters in the same order. If gluon.Trainer gets a ParameterDict, it sorts the
    parameters alphabetically by name.

    Args:
        trainer: A `BucketedTrainer`.
        fname: Path of the file.

    Raises:
        OutputError: If the file cannot be written.
        KVStoreError: For an optimizer that cannot be pickled, for example if its schedule is a
            lambda.
    """
    states = enumerate(collect_states(trainer).parameters)
    saved = {position: state for position, state in states if state.arrays or state.updates}
    optimizer = copy.copy(trainer._optimizer)
    # the copy gets separate dictionaries, to be filled by position
    for name in ("_all_index_update_counts", "_all_former_rates", "cumgrads"):
        if hasattr(optimizer, name):
            setattr(optimizer, name, {})
    counts = {position: state.updates or 0 for position, state in saved.items()}
    set_update_counts(optimizer, counts, DEVICES)
    extra_states = {position: state.extra_state for position, state in saved.items()}
    set_extra_states(optimizer, extra_states, DEVICES)
    updater = mx.optimizer.get_updater(optimizer)
    updater.states = {
        position: _nest_arrays(optimizer, trainer._params[position], state) for position, state in saved.items()
    }
    try:
        content = updater.get_states(dump_optimizer=True)
    except Exception as error:  # any exception of the user's schedule
        reason = f"gluon.Trainer's files contain the pickled optimizer, but this optimizer cannot be pickled ({error})"
        raise KVStoreError(f"{reason}: use a constant learning rate, or a schedule from mx.lr_scheduler") from None
    path = Path(fname)
    with raise_output_errors(path, "choose another path"), atomic_path(path) as temporary:
        temporary.write_bytes(content)


def _nest_arrays(optimizer: mx.optimizer.Optimizer, param: Parameter, state: ParameterState) -> Any:
    """Return the state with its arrays nested in the way that the optimizer expects."""
    arrays, target = iter(state.arrays), StateTarget(param.name, param.shape, param.dtype, True)
    return map_state(make_state_template(optimizer, target), lambda _: next(arrays))
