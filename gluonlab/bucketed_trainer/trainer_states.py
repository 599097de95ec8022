"""The optimizer states of a BucketedTrainer: gathered, and restored into any other.

`gather_states` and `restore_states` are what ``save_states`` and ``load_states`` are made of,
without a file; what the arrays are named and hold is told in
`gluonlab.optimizers.optimizer_states`,
and how parameters of other names are found in `gluonlab.optimizers.optimizer_states`. What goes on
with restored states makes the same updates, to the bit where the store, the devices and the buckets
are the same, and otherwise as the same sums in another order do. The parameters themselves, the
scale of the loss and what compressed gradients have left over are not among the states.
"""

from __future__ import annotations

import math
import os
from functools import partial
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

import mxnet as mx
from mxnet import gluon, nd
from mxnet.gluon import Parameter

from gluonlab.bucketed_trainer.sum_and_update import BucketUpdates
from gluonlab.engine.np_compatibility import nd_semantics
from gluonlab.errors import KVStoreError
from gluonlab.optimizers.optimizer_states import (
    KeyState,
    ParameterState,
    States,
    fitted,
    from_arrays,
    kind_of,
    most_bytes,
    own_of,
    read,
    resume,
    to_arrays,
    unique,
)
from gluonlab.optimizers.optimizer_step import (
    age_of,
    flat,
    like,
    numbers_of,
    set_numbers,
)


class _Place(NamedTuple):
    """Where a parameter's state lies: the optimizer's key, and its elements among the key's.

    ``begin``: None when it has all of them. ``end``: where the next parameter begins.
    """

    key: Any
    begin: Optional[int]
    end: int


def gather_states(trainer: gluon.Trainer) -> Dict[str, nd.NDArray]:
    """All that the trainer's optimizer knows, by name, as in a file of ``save_states``; on the CPU.

    Nothing waits for them. A trainer whose parameters have no shapes yet has what it was given by
    `restore_states`, or counts of 0.
    """
    return to_arrays(states_of(trainer))


def restore_states(trainer: gluon.Trainer, arrays: Mapping[str, nd.NDArray]) -> None:
    """Have the trainer go on from what `gather_states` gave, of any store, devices and buckets.

    Where shapes are still unknown the arrays are kept until the first step. Raises KVStoreError,
    and changes nothing, for arrays that are no states, or those of another optimizer or network.
    """
    restore(trainer, from_arrays(arrays), "these arrays")


def load(trainer: gluon.Trainer, fname: "str | bytes | os.PathLike[str]") -> None:
    """`restore_states` of what is in a file.

    Raises KVStoreError, and changes nothing, as ``load_states`` does.
    """
    restore(trainer, read(fname, most_bytes(own_of(trainer._params))), repr(os.fsdecode(fname)))


@nd_semantics()
def restore(trainer: gluon.Trainer, states: States, what: str) -> None:
    """`restore_states` of what was read from ``what``, with which every message begins."""
    states = fitted(trainer._optimizer, states, own_of(trainer._params), what)
    # after Parameter.set_data: without its store, a trainer does not know who updates
    if not trainer._kv_initialized:
        trainer._init_kvstore()
    if trainer.buckets:
        _put(trainer, states, what)
        trainer._awaited = None
        return
    trainer._awaited = states
    set_numbers(trainer._optimizer, states.numbers)
    if states.num_update is not None:
        # the learning rate is that of the states from now on
        trainer._optimizer.num_update = states.num_update


def put_awaited(trainer: gluon.Trainer) -> None:
    """Once there are buckets: give them the states that have waited for them.

    Raises KVStoreError when they do not fit.
    """
    states, trainer._awaited = trainer._awaited, None
    if states is not None:
        restore(trainer, states, "what load_states read")


@nd_semantics()
def states_of(trainer: gluon.Trainer) -> States:
    """`gather_states` before the arrays get their names."""
    awaited: Optional[States] = trainer._awaited
    if awaited is not None:
        return awaited
    optimizer, places = trainer._optimizer, _places(trainer)
    of_keys = {place.key: _of_key(trainer, place.key) for place in places.values()}
    parameters = tuple(
        _cut_out(of_keys[places[param].key], places[param].begin, name, param)
        if param in places
        else ParameterState(name, param.shape, optimizer.begin_num_update)
        for name, param in zip(unique(trainer._params), trainer._params)
    )
    return States(kind_of(optimizer), optimizer.num_update, numbers_of(optimizer), parameters)


def _places(trainer: gluon.Trainer) -> Dict[Parameter, _Place]:
    """Of the parameters that are updated, once there are buckets."""
    if not trainer._by_bucket:
        keys = {param: key for key, param in enumerate(trainer._params)}
        inside = [param for bucket in trainer.buckets for param in bucket.params]
        inside.sort(key=keys.__getitem__)
        return {param: _Place(keys[param], None, 0) for param in inside}
    places = {}
    for key, bucket in enumerate(trainer.buckets):
        ends = [*bucket.begins[1:], bucket.size]
        for param, begin, end in zip(bucket.params, bucket.begins, ends):
            places[param] = _Place(key, begin, end)
    return places


def _of_key(trainer: gluon.Trainer, key: Any) -> KeyState:
    """The state of a key, its arrays where they are, or copies on the CPU."""
    if not trainer._kv_initialized:
        trainer._init_kvstore()
    if trainer._update_on_kvstore:
        state: KeyState = trainer._kvstore.get_key_state(key)
        return state
    arrays = tuple(flat(trainer._updaters[0].states.get(key)))
    if isinstance(trainer._updates, BucketUpdates):
        return KeyState(arrays, trainer._updates.keys[key].ages())
    return KeyState(arrays, {(0, 0): age_of(trainer._optimizer, key)})


def _cut_out(state: KeyState, begin: Optional[int], name: str, param: Parameter) -> ParameterState:
    """The part of a key's state that is a parameter's: copies."""
    parts = [array if begin is None else _part(array, begin, param) for array in state.arrays]
    copies, age = tuple(part.copyto(mx.cpu()) for part in parts), state.age_at(begin or 0)
    return ParameterState(name, param.shape, age.updates, copies, age.memory)


def _part(array: nd.NDArray, begin: int, param: Parameter) -> nd.NDArray:
    """A view of a bucket's array, of the parameter's shape."""
    return array.reshape((-1,))[begin : begin + math.prod(param.shape)].reshape(param.shape or (1,))


def _put(trainer: gluon.Trainer, states: States, what: str) -> None:
    new, of_keys = _made(trainer, dict(zip(trainer._params, states.parameters)), what)
    optimizer, ctxs = trainer._optimizer, trainer._contexts
    updated = trainer.buckets if trainer._by_bucket else trainer._params
    optimizer.param_dict = dict(enumerate(updated))
    resume(optimizer, of_keys, states.num_update, states.numbers, ctxs, trainer._schedule)
    trainer._updates = None  # its calls are for the arrays of old
    counts = {age.updates for state in of_keys.values() for age in state.ages.values()}
    trainer._uneven = len(counts) > 1
    if trainer._update_on_kvstore:
        trainer._kvstore.set_key_states(of_keys)
        return
    for updater, ctx in zip(trainer._updaters, ctxs):
        copied = partial(nd.NDArray.copyto, other=ctx)
        updater.states = {key: like(state, copied) for key, state in new.items()}
        updater.states_synced = dict.fromkeys(new, True)
    if trainer._by_bucket and any(counts):
        updates = trainer._make_updates()
        assert isinstance(updates, BucketUpdates)
        for key, state in of_keys.items():
            updates.keys[key].set_ages(state.ages)
        trainer._updates = updates


def _made(
    trainer: gluon.Trainer, of_params: Mapping[Parameter, ParameterState], what: str
) -> "Tuple[Dict[Any, Any], Dict[Any, KeyState]]":
    """The keys' nested states on the CPU, none for those that begin anew, and each key's KeyState.

    Raises KVStoreError when the arrays of a parameter have not the shapes that the optimizer gives
    them.
    """
    members: Dict[Any, Dict[Parameter, _Place]] = {}
    for param, place in _places(trainer).items():
        members.setdefault(place.key, {})[param] = place
    new: Dict[Any, Any] = {}
    of_keys: Dict[Any, KeyState] = {}
    for key, places in members.items():
        if any(of_params[param].arrays for param in places):
            new[key] = _assembled(trainer, key, places, of_params, what)
        ranges = ((place.begin or 0, place.end) for place in places.values())
        ages = {ends: of_params[param].age for ends, param in zip(ranges, places)}
        of_keys[key] = KeyState(tuple(flat(new.get(key))), ages)
    return new, of_keys


def _assembled(
    trainer: gluon.Trainer,
    key: Any,
    places: Mapping[Parameter, _Place],
    of_params: Mapping[Parameter, ParameterState],
    what: str,
) -> Any:
    """The nested state of a key: new where a parameter has none."""
    if trainer._by_bucket:
        weight = trainer.buckets[key].weights[0]
    else:
        weight = next(iter(places)).list_data()[0].as_nd_ndarray()
    state = trainer._optimizer.create_state_multi_precision(key, weight.copyto(mx.cpu()))
    for param, place in places.items():
        for array, saved in zip(flat(state), of_params[param].arrays):
            target = array if place.begin is None else _part(array, place.begin, param)
            if target.size != saved.size:
                shapes = f"an array of {param.name}'s state is {saved.shape}, not {target.shape}"
                raise KVStoreError(
                    f"{what} does not fit: {shapes}: load what the same optimizer and network "
                    "have saved"
                )
            saved.reshape(target.shape).copyto(target)
    return state
