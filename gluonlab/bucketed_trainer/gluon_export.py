"""The optimizer states of a BucketedTrainer, in a file that gluon.Trainer loads."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import mxnet as mx
from mxnet import gluon
from mxnet.gluon import Parameter

from gluonlab.bucketed_trainer.trainer_states import states_of
from gluonlab.errors import KVStoreError
from gluonlab.files.atomic_files import atomic_path, on_disk
from gluonlab.optimizers.optimizer_states import ParameterState, StateTarget, nest
from gluonlab.optimizers.optimizer_step import like, set_memory, set_updates

DEVICES = range(16)  # gluon.Trainer's optimizers count on each device anew


def export_gluon_states(trainer: gluon.Trainer, fname: str) -> None:
    """Write the states for ``gluon.Trainer.load_states``: MXNet's own pickle, states by position.

    The trainer that reads it takes over this optimizer, its settings and its schedule, as
    gluon.Trainer always does. Its parameters must come in the same order: gluon.Trainer sorts a
    ParameterDict by name as text. Raises OutputError, and KVStoreError for an optimizer that cannot
    be pickled, such as one whose schedule is a lambda.
    """
    every = enumerate(states_of(trainer).parameters)
    saved = {position: state for position, state in every if state.arrays or state.updates}
    optimizer = copy.copy(trainer._optimizer)
    # the copy's own, to be filled by position
    for name in ("_all_index_update_counts", "_all_former_rates", "cumgrads"):
        if hasattr(optimizer, name):
            setattr(optimizer, name, {})
    counts = {position: state.updates or 0 for position, state in saved.items()}
    set_updates(optimizer, counts, DEVICES)
    memory = {position: state.memory for position, state in saved.items()}
    set_memory(optimizer, memory, DEVICES)
    updater = mx.optimizer.get_updater(optimizer)
    updater.states = {
        position: _nested(optimizer, trainer._params[position], state)
        for position, state in saved.items()
    }
    try:
        content = updater.get_states(dump_optimizer=True)
    except Exception as error:  # whatever the classes raise that the user's schedule is made of
        reason = f"the optimizer cannot be pickled, as gluon.Trainer's files are ({error})"
        raise KVStoreError(
            f"{reason}: give it a learning rate or a schedule of mx.lr_scheduler"
        ) from None
    path = Path(fname)
    with on_disk(path, "choose another place"), atomic_path(path) as temporary:
        temporary.write_bytes(content)


def _nested(optimizer: mx.optimizer.Optimizer, param: Parameter, state: ParameterState) -> Any:
    """The state as the optimizer nests its arrays."""
    arrays, own = iter(state.arrays), StateTarget(param.name, param.shape, param.dtype, True)
    return like(nest(optimizer, own), lambda _: next(arrays))
