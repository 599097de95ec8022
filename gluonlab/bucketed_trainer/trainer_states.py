"""Reads the optimizer states of a BucketedTrainer, and sets them in another trainer.

``save_states`` and ``load_states`` use these functions; `gather_states` and `restore_states` work
without a file. `gluonlab.optimizers.optimizer_states` describes the names and contents of the
arrays, and how parameters with other names are matched.

A trainer with restored states computes the same updates as the first trainer. The updates are
bit-identical if the store, devices and buckets are the same, and otherwise equal up to rounding.
The states do not include the parameters, the loss scale or the residuals of compressed gradients.
"""

from __future__ import annotations

import math
import os
from functools import partial
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

import mxnet as mx
from mxnet import gluon, nd
from mxnet.gluon import Parameter

from gluonlab.bucketed_trainer.sum_and_update import make_key_updates
from gluonlab.engine.nd_and_np_arrays import nd_semantics
from gluonlab.errors import KVStoreError
from gluonlab.optimizers.optimizer_states import (
    KeyState,
    ParameterState,
    States,
    fit_states,
    max_states_bytes,
    optimizer_class_name,
    read_states,
    resume_optimizer,
    state_targets,
    states_from_arrays,
    states_to_arrays,
    unique_names,
)
from gluonlab.optimizers.optimizer_step import flatten_state, map_state
from gluonlab.optimizers.update_history import (
    read_key_histories,
    read_scalars,
    set_key_histories,
    set_scalars,
    update_history,
)


class _StateLocation(NamedTuple):
    """The location of a parameter's state: the optimizer's key, and a range of the key's elements.

    ``begin`` is None if all elements of the key belong to the parameter. ``end`` is the offset of
    the next parameter.
    """

    key: Any
    begin: Optional[int]
    end: int


def gather_states(trainer: gluon.Trainer) -> Dict[str, nd.NDArray]:
    """Return all states of the trainer's optimizer by name, as CPU arrays, without waiting.

    Args:
        trainer: A `BucketedTrainer`. If parameters have no shapes yet, the result contains the
            states that `restore_states` set, or else update counts of 0.

    Returns:
        The arrays that ``save_states`` writes.
    """
    return states_to_arrays(collect_states(trainer))


def restore_states(trainer: gluon.Trainer, arrays: Mapping[str, nd.NDArray]) -> None:
    """Set the optimizer states of a trainer.

    If shapes are still unknown, the arrays are kept until the first step.

    Args:
        trainer: A `BucketedTrainer`, with any store, devices and buckets.
        arrays: The states that `gather_states` returned.

    Raises:
        KVStoreError: For arrays that are not states, or states of another optimizer or network.
            In this case, nothing changes.
    """
    set_states(trainer, states_from_arrays(arrays), "the dictionary of states")


def load_states_file(trainer: gluon.Trainer, fname: "str | bytes | os.PathLike[str]") -> None:
    """Set the trainer's states to the states in a file. Raise KVStoreError like ``load_states``."""
    states = read_states(fname, max_states_bytes(state_targets(trainer._params)))
    set_states(trainer, states, repr(os.fsdecode(fname)))


@nd_semantics()
def set_states(trainer: gluon.Trainer, states: States, source: str) -> None:
    """Set the optimizer states of a trainer, or keep them until the trainer has buckets.

    Error messages start with ``source``.
    """
    states = fit_states(trainer._optimizer, states, state_targets(trainer._params), source)
    # after Parameter.set_data, a trainer does not know whether its store updates
    if not trainer._kv_initialized:
        trainer._init_kvstore()
    if trainer.buckets:
        _put_states(trainer, states, source)
        trainer._pending_states = None
        return
    trainer._pending_states = states
    set_scalars(trainer._optimizer, states.scalars)
    if states.num_update is not None:
        # The learning rate depends on this count.
        trainer._optimizer.num_update = states.num_update


def load_pending_states(trainer: gluon.Trainer) -> None:
    """Set the states that were loaded before the trainer had buckets, if any.

    Raises KVStoreError if the states do not match the trainer.
    """
    states, trainer._pending_states = trainer._pending_states, None
    if states is not None:
        set_states(trainer, states, "what load_states read")


@nd_semantics()
def collect_states(trainer: gluon.Trainer) -> States:
    """Return the states of all parameters, in the trainer's order, with arrays on the CPU."""
    pending: Optional[States] = trainer._pending_states
    if pending is not None:
        return pending
    optimizer, locations = trainer._optimizer, _state_locations(trainer)
    keys = {location.key for location in locations.values()}
    key_states = {key: _key_state(trainer, key) for key in keys}
    parameters = tuple(
        _parameter_state(key_states[locations[param].key], locations[param].begin, name, param)
        if param in locations
        else ParameterState(name, param.shape, optimizer.begin_num_update)
        for name, param in zip(unique_names(trainer._params), trainer._params)
    )
    return States(optimizer_class_name(optimizer), optimizer.num_update, read_scalars(optimizer), parameters)


def _state_locations(trainer: gluon.Trainer) -> Dict[Parameter, _StateLocation]:
    """Return, for each parameter, the optimizer key and the range of elements with its state.

    Only parameters in buckets are included.
    """
    if not trainer._updates_buckets:
        keys = {param: key for key, param in enumerate(trainer._params)}
        params = [param for bucket in trainer.buckets for param in bucket.params]
        params.sort(key=keys.__getitem__)
        return {param: _StateLocation(keys[param], None, 0) for param in params}
    locations = {}
    for key, bucket in enumerate(trainer.buckets):
        ends = [*bucket.offsets[1:], bucket.size]
        for param, begin, end in zip(bucket.params, bucket.offsets, ends):
            locations[param] = _StateLocation(key, begin, end)
    return locations


def _key_state(trainer: gluon.Trainer, key: Any) -> KeyState:
    """Return the state of an optimizer key: the optimizer's own arrays, or copies on the CPU."""
    if not trainer._kv_initialized:
        trainer._init_kvstore()
    if trainer._update_on_kvstore:
        state: KeyState = trainer._kvstore.get_key_state(key)
        return state
    arrays = tuple(flatten_state(trainer._updaters[0].states.get(key)))
    if trainer._key_updates:
        return KeyState(arrays, read_key_histories(trainer._key_updates[key]))
    return KeyState(arrays, {(0, 0): update_history(trainer._optimizer, key)})


def _parameter_state(state: KeyState, begin: Optional[int], name: str, param: Parameter) -> ParameterState:
    """Return a parameter's state, copied to the CPU from the state of the optimizer key.

    ``begin``: see `_StateLocation`.
    """
    views = [array if begin is None else _parameter_view(array, begin, param) for array in state.arrays]
    copies, age = tuple(view.copyto(mx.cpu()) for view in views), state.history_at(begin or 0)
    return ParameterState(name, param.shape, age.updates, copies, age.extra_state)


def _parameter_view(array: nd.NDArray, begin: int, param: Parameter) -> nd.NDArray:
    """Return a view of a bucket's array in the parameter's shape."""
    return array.reshape((-1,))[begin : begin + math.prod(param.shape)].reshape(param.shape or (1,))


def _put_states(trainer: gluon.Trainer, states: States, source: str) -> None:
    """Set the states of a trainer that already has buckets."""
    param_states = dict(zip(trainer._params, states.parameters))
    nested, key_states = _new_key_states(trainer, param_states, source)
    optimizer, ctxs = trainer._optimizer, trainer._contexts
    updated = trainer.buckets if trainer._updates_buckets else trainer._params
    optimizer.param_dict = dict(enumerate(updated))
    resume_optimizer(optimizer, key_states, states.num_update, states.scalars, ctxs, trainer._lr_schedule)
    trainer._key_updates = []  # because they hold the old state arrays
    counts = {age.updates for state in key_states.values() for age in state.histories.values()}
    trainer._counts_differ = len(counts) > 1
    if trainer._update_on_kvstore:
        trainer._kvstore.set_key_states(key_states)
        return
    for updater, ctx in zip(trainer._updaters, ctxs):
        copy_to_device = partial(nd.NDArray.copyto, other=ctx)
        updater.states = {key: map_state(state, copy_to_device) for key, state in nested.items()}
        updater.states_synced = dict.fromkeys(nested, True)
    if trainer._updates_buckets and any(counts):
        trainer._key_updates = make_key_updates(trainer.buckets, optimizer, trainer._updaters)
        for key, state in key_states.items():
            set_key_histories(trainer._key_updates[key], state.histories)


def _new_key_states(
    trainer: gluon.Trainer, param_states: Mapping[Parameter, ParameterState], source: str
) -> "Tuple[Dict[Any, Any], Dict[Any, KeyState]]":
    """Return the nested states and the `KeyState` of each optimizer key, as two dicts on the CPU.

    The first dict omits keys whose parameters have no state arrays. Raises KVStoreError if the
    arrays of a parameter do not match the optimizer.
    """
    key_locations: Dict[Any, Dict[Parameter, _StateLocation]] = {}
    for param, location in _state_locations(trainer).items():
        key_locations.setdefault(location.key, {})[param] = location
    nested: Dict[Any, Any] = {}
    key_states: Dict[Any, KeyState] = {}
    for key, locations in key_locations.items():
        if any(param_states[param].arrays for param in locations):
            nested[key] = _assemble_key_state(trainer, key, locations, param_states, source)
        ages = {
            (location.begin or 0, location.end): param_states[param].history for param, location in locations.items()
        }
        key_states[key] = KeyState(tuple(flatten_state(nested.get(key))), ages)
    return nested, key_states


def _assemble_key_state(
    trainer: gluon.Trainer,
    key: Any,
    locations: Mapping[Parameter, _StateLocation],
    param_states: Mapping[Parameter, ParameterState],
    source: str,
) -> Any:
    """Return the nested state of a key. Parameters without a saved state get a new one."""
    if trainer._updates_buckets:
        weight = trainer.buckets[key].weights[0]
    else:
        weight = next(iter(locations)).list_data()[0].as_nd_ndarray()
    state = trainer._optimizer.create_state_multi_precision(key, weight.copyto(mx.cpu()))
    for param, location in locations.items():
        for array, saved in zip(flatten_state(state), param_states[param].arrays):
            target = array
            if location.begin is not None:
                target = _parameter_view(array, location.begin, param)
            if target.size != saved.size:
                shapes = f"the state of {param.name} has shape {saved.shape}, not {target.shape}"
                raise KVStoreError(
                    f"{source} does not match this trainer: {shapes}: load states of the same optimizer and network"
                )
            saved.reshape(target.shape).copyto(target)
    return state
