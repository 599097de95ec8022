"""Lets an optimizer go on with saved states, after checking that they fit."""

from __future__ import annotations

import warnings
from typing import Any, Mapping, Optional, Sequence

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.errors import KVStoreError, warn
from gluonlab.optimizers.states.matching import Own, matched
from gluonlab.optimizers.states.states import (
    KeyState,
    ParameterState,
    States,
    flat,
    kind_of,
    kinds_of,
)
from gluonlab.optimizers.updates.counts import (
    Rewinding,
    set_memory,
    set_numbers,
    set_updates,
    updates_of,
)


def fitted(
    optimizer: mx.optimizer.Optimizer, states: States, own: Sequence[Own], what: str
) -> States:
    """The same states under the names of ``own``, in their order, checked to fit the optimizer.

    A parameter that was never updated has none. A parameter that is frozen here keeps its own for
    the time when it is trained again, as with gluon.Trainer. ``what`` begins every message. Raises
    KVStoreError for states of another optimizer, other settings of it, or another network. Warns
    where a file does not say how often parameters have been updated.
    """
    if states.optimizer is not None and states.optimizer not in kinds_of(optimizer):
        raise KVStoreError(
            f"{what} holds the states of {states.optimizer}, "
            f"and the optimizer here is {kind_of(optimizer)}: "
            f"make the trainer with {states.optimizer.lower()!r}, or begin without states"
        )
    saved = matched(states, own, what)
    for state, param in zip(saved, own):
        if state is not None and param.trainable and (state.arrays or state.updates):
            _check_arrays(optimizer, state, param, what)
    if states.num_update is None and states.parameters:
        warn(
            f"{what} does not say how often parameters were updated: "
            "it was saved without the optimizer; "
            "learning rates and corrections of bias go on from this trainer's counts"
        )
    parameters = tuple(
        (state or ParameterState("", None, 0))._replace(name=param.name, shape=param.shape)
        for state, param in zip(saved, own)
    )
    return states._replace(optimizer=kind_of(optimizer), parameters=parameters, named=True)


def _check_arrays(
    optimizer: mx.optimizer.Optimizer, state: ParameterState, param: Own, what: str
) -> None:
    if param.shape is not None and 0 in param.shape and not state.arrays:
        return  # no elements, or not known yet
    wanted = flat(nest(optimizer, param))
    if len(wanted) != len(state.arrays):
        raise KVStoreError(
            f"{what} holds {len(state.arrays)} arrays for {param.name}, "
            f"and {kind_of(optimizer)} as it is set here keeps {len(wanted)}: "
            "give it the momentum, multi_precision and other settings that it was saved with"
        )
    for array, like in zip(state.arrays, wanted):
        given, kept = np.dtype(array.dtype), np.dtype(like.dtype)
        if given != kept:
            raise KVStoreError(
                f"{what} holds {given} for {param.name}, "
                f"and {kind_of(optimizer)} keeps {kept} here: "
                "cast the network to the type that it was saved with"
            )


def nest(optimizer: mx.optimizer.Optimizer, param: Own) -> Any:
    """A new state for one element of a parameter with the same type and number of dimensions."""
    with warnings.catch_warnings():
        # float16 without multi_precision: the real state will say so
        warnings.simplefilter("ignore")
        weight = nd.zeros((1,) * max(1, len(param.shape or ())), dtype=param.dtype)
        return optimizer.create_state_multi_precision(0, weight)


def resume(
    optimizer: mx.optimizer.Optimizer,
    of_keys: Mapping[Any, KeyState],
    num_update: Optional[int],
    numbers: Mapping[str, float],
    ctxs: Sequence[mx.Context],
    schedule: Rewinding,
) -> None:
    """Have the optimizer go on, on any of these devices, with the ages in ``of_keys`` alone.

    A count that is None stays as it is. A key with elements of several ages has that of the first
    of them.
    """
    devices = [ctx.device_id for ctx in ctxs]
    ages = {key: state.age_at(0) for key, state in of_keys.items()}
    counts = {
        key: updates_of(optimizer, key) if age.updates is None else age.updates
        for key, age in ages.items()
    }
    set_updates(optimizer, counts, devices)
    memory = {key: age.memory for key, age in ages.items()}
    set_memory(optimizer, memory, devices, ctxs[0] if ctxs else mx.cpu())
    set_numbers(optimizer, numbers)
    if num_update is not None:
        optimizer.num_update = num_update
        schedule.to(num_update)
