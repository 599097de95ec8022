"""The optimizer states of a BucketedTrainer: taken out of buckets, devices and shards, and put back into any others.

`gather_states` and `restore_states` are what ``save_states`` and ``load_states`` are made of, without a file; what the arrays are
named and hold is told in `gluonlab.kvstores.states`, and how parameters of other names are found in `gluonlab.kvstores.matching`.
What goes on with restored states makes the same updates, to the bit where the store, the devices and the buckets are the same, and
otherwise as the same sums in another order do. The parameters themselves, the scale of the loss and what compressed gradients have
left over are not among the states.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

import mxnet as mx
from mxnet import nd
from mxnet.gluon import Parameter

from gluonlab.errors import KVStoreError
from gluonlab.files import atomic_path, on_disk
from gluonlab.kvstores.counts import memory_of, numbers_of, set_memory, set_numbers, set_updates, updates_of
from gluonlab.kvstores.fitting import fitted, nest, resume
from gluonlab.kvstores.matching import Own, unique
from gluonlab.kvstores.states import ParameterState, States, flat, from_arrays, kind_of, like, to_arrays
from gluonlab.training.replica_updates import BucketUpdates

if TYPE_CHECKING:
    from gluonlab.training.buckets import BucketedTrainer

# The updates of these do not depend on how many there were before; those of Adam do, for one.
UNCOUNTED = (
    mx.optimizer.SGD, mx.optimizer.NAG, mx.optimizer.RMSProp, mx.optimizer.AdaGrad, mx.optimizer.AdaDelta, mx.optimizer.Ftrl,
    mx.optimizer.Signum,
)  # fmt: skip
DEVICES_OF_GLUON = 16  # for which a file for gluon.Trainer has counts, whose optimizers count on each device anew


class _Place(NamedTuple):
    """Where a parameter's state lies: the optimizer's key, and where it begins in the key's arrays, or None for all of them."""

    key: Any
    begin: Optional[int]


def gather_states(trainer: "BucketedTrainer") -> Dict[str, nd.NDArray]:
    """All that the trainer's optimizer knows, by name, as in a file of ``save_states``: copies on the CPU.

    Nothing waits for them. A trainer whose parameters have no shapes yet has what it was given by `restore_states`, or counts of 0.
    """
    return to_arrays(_states(trainer))


def restore_states(trainer: "BucketedTrainer", arrays: Mapping[str, nd.NDArray]) -> None:
    """Have the trainer go on from what `gather_states` gave, of any store, devices and buckets, before its first step or later.

    Where shapes are still unknown the arrays are kept until the first step. Raises KVStoreError, and changes nothing, for arrays
    that are no states, or those of another optimizer or network.
    """
    restore(trainer, from_arrays(arrays), "these arrays")


def restore(trainer: "BucketedTrainer", states: States, what: str) -> None:
    """`restore_states` of what was read from ``what``, with which every message begins."""
    names = unique(trainer._params)
    own = [Own(name, param.shape, param.dtype, param.grad_req != "null") for name, param in zip(names, trainer._params)]
    states = fitted(trainer._optimizer, states, own, what)
    if trainer.buckets:
        _put(trainer, states, what)
        trainer._awaited = None
        return
    trainer._awaited = states
    set_numbers(trainer._optimizer, states.numbers)
    if states.num_update is not None:
        trainer._optimizer.num_update = states.num_update  # the learning rate is that of the states from now on


def put_awaited(trainer: "BucketedTrainer") -> None:
    """Once there are buckets: give them the states that have waited for them. Raises KVStoreError when they do not fit."""
    states, trainer._awaited = trainer._awaited, None
    if states is not None:
        restore(trainer, states, "what load_states read")


def _states(trainer: "BucketedTrainer") -> States:
    if trainer._awaited is not None:
        return trainer._awaited
    optimizer, places = trainer._optimizer, _places(trainer)
    of_keys = {place.key: _of_key(trainer, place.key) for place in places.values()}
    parameters = tuple(
        _cut_out(_aged(trainer, of_keys[places[param].key], places[param]), places[param].begin, name, param)
        if param in places
        else ParameterState(name, param.shape, optimizer.begin_num_update)
        for name, param in zip(unique(trainer._params), trainer._params)
    )
    return States(kind_of(optimizer), optimizer.num_update, numbers_of(optimizer), parameters)


def _places(trainer: "BucketedTrainer") -> Dict[Parameter, _Place]:
    """Of the parameters that are updated, once there are buckets."""
    if trainer._by_bucket:
        buckets = enumerate(trainer.buckets)
        return {param: _Place(key, begin) for key, bucket in buckets for param, begin in zip(bucket.params, bucket.begins)}
    in_buckets = {param for bucket in trainer.buckets for param in bucket.params}
    return {param: _Place(key, None) for key, param in enumerate(trainer._params) if param in in_buckets}


def _of_key(trainer: "BucketedTrainer", key: Any) -> ParameterState:
    """The state of a key, its arrays where they are, or copies on the CPU."""
    if trainer._update_on_kvstore:
        state: ParameterState = trainer._kvstore.state_of(key)
        return state
    optimizer, arrays = trainer._optimizer, flat(trainer._updaters[0].states.get(key))
    return ParameterState(str(key), None, updates_of(optimizer, key), tuple(arrays), memory_of(optimizer, key))


def _aged(trainer: "BucketedTrainer", state: ParameterState, place: _Place) -> ParameterState:
    """The state of a key with the count and memory of a parameter in it, which may once have stayed behind others."""
    key, updates = place.key, trainer._updates
    if place.begin is not None and trainer._update_on_kvstore:
        key = trainer._kvstore.key_at(key, place.begin)
    elif place.begin is not None and isinstance(updates, BucketUpdates):
        key = updates.keys[key].key_at(place.begin)
    if key == place.key:
        return state
    return state._replace(updates=updates_of(trainer._optimizer, key), memory=memory_of(trainer._optimizer, key))


def _cut_out(state: ParameterState, begin: Optional[int], name: str, param: Parameter) -> ParameterState:
    """The part of a key's state that is a parameter's: copies."""
    arrays = [array if begin is None else _part(array, begin, param) for array in state.arrays]
    return state._replace(name=name, shape=param.shape, arrays=tuple(array.copyto(mx.cpu()) for array in arrays))


def _part(array: nd.NDArray, begin: int, param: Parameter) -> nd.NDArray:
    """A view of a bucket's array, of the parameter's shape."""
    size = param.data(param.list_ctx()[0]).size
    return array.reshape((-1,))[begin : begin + size].reshape(param.shape or (1,))


def _put(trainer: "BucketedTrainer", states: States, what: str) -> None:
    of_params = dict(zip(trainer._params, states.parameters))
    apart = any(_ages_differ(trainer._optimizer, [of_params[param] for param in bucket.params]) for bucket in trainer.buckets)
    if apart and trainer._update_on_kvstore:
        raise KVStoreError(
            f"{what} has parameters that were updated more often than others in the same bucket, which {trainer._kvstore.type!r} "
            "cannot tell apart: make the trainer with bucket_bytes=0"
        )
    former, trainer._apart = trainer._apart, apart
    try:
        of_keys, new = _made(trainer, of_params, what)
    except KVStoreError:
        trainer._apart = former
        raise
    if trainer._update_on_kvstore:
        trainer._kvstore.set_states(of_keys)
    else:
        for updater, ctx in zip(trainer._updaters, trainer._contexts):
            updater.states = {key: like(state, lambda array, ctx=ctx: array.copyto(ctx)) for key, state in new.items()}
            updater.states_synced = dict.fromkeys(new, True)
    trainer._updates = None  # made for the arrays of old
    resume(trainer._optimizer, of_keys, states.num_update, states.numbers, trainer._contexts, trainer._schedule)
    trainer._optimizer.param_dict = dict(enumerate(trainer.buckets if trainer._by_bucket else trainer._params))


def _ages_differ(optimizer: mx.optimizer.Optimizer, states: List[ParameterState]) -> bool:
    """Whether an update of these as one would not be that of each."""
    counted = not isinstance(optimizer, UNCOUNTED)
    rates = (state.memory.get("former_rate") for state in states)
    ages = {
        (state.updates if counted else 0, None if rate is None else float(rate.asscalar())) for state, rate in zip(states, rates)
    }
    return len(ages) > 1


def _made(
    trainer: "BucketedTrainer", of_params: Mapping[Parameter, ParameterState], what: str
) -> "Tuple[Dict[Any, ParameterState], Dict[Any, Any]]":
    """What the optimizer is to know of each key, and the keys' nested states on the CPU, none for those that begin anew.

    Raises KVStoreError when the arrays of a parameter have not the shapes that the optimizer gives them.
    """
    of_keys: Dict[Any, ParameterState] = {}
    new: Dict[Any, Any] = {}
    members: Dict[Any, List[Tuple[Parameter, Optional[int]]]] = {}
    for param, place in _places(trainer).items():
        members.setdefault(place.key, []).append((param, place.begin))
    for key, params in members.items():
        states = [of_params[param] for param, _ in params]
        if any(state.arrays for state in states):
            new[key] = _assembled(trainer, key, params, of_params, what)
        oldest = max(states, key=lambda state: state.updates or 0)
        of_keys[key] = oldest._replace(name=str(key), shape=None, arrays=tuple(flat(new.get(key))))
    return of_keys, new


def _assembled(
    trainer: "BucketedTrainer",
    key: Any,
    params: List[Tuple[Parameter, Optional[int]]],
    of_params: Mapping[Parameter, ParameterState],
    what: str,
) -> Any:
    """The nested state of a key: new where a parameter has none."""
    weight = params[0][0].list_data()[0] if params[0][1] is None else trainer.buckets[key].weights[0]
    state = trainer._optimizer.create_state_multi_precision(key, weight.copyto(mx.cpu()))
    for param, begin in params:
        for array, saved in zip(flat(state), of_params[param].arrays):
            target = array if begin is None else _part(array, begin, param)
            if target.size != saved.size:
                raise KVStoreError(f"{what} does not fit: an array of {param.name}'s state is {saved.shape}, not {target.shape}")
            saved.reshape(target.shape).copyto(target)
    return state


def export_gluon_states(trainer: "BucketedTrainer", fname: str) -> None:
    """Write the states for ``gluon.Trainer.load_states``: MXNet's own pickle of states by position, and of the optimizer.

    The trainer that reads it takes over this optimizer, its settings and its schedule, as gluon.Trainer always does. Its parameters
    must come in the same order: gluon.Trainer sorts a ParameterDict by name as text. Raises OutputError, and KVStoreError for an
    optimizer that cannot be pickled, such as one whose schedule is a lambda.
    """
    saved = {position: state for position, state in enumerate(_states(trainer).parameters) if state.arrays or state.updates}
    optimizer = copy.copy(trainer._optimizer)
    for name in ("_all_index_update_counts", "_all_former_rates", "cumgrads"):  # the copy's own, to be filled by position
        if hasattr(optimizer, name):
            setattr(optimizer, name, {})
    set_updates(optimizer, {position: state.updates or 0 for position, state in saved.items()}, range(DEVICES_OF_GLUON))
    set_memory(optimizer, {position: state.memory for position, state in saved.items()}, range(DEVICES_OF_GLUON))
    updater = mx.optimizer.get_updater(optimizer)
    updater.states = {position: _nested(optimizer, trainer._params[position], state) for position, state in saved.items()}
    try:
        content = updater.get_states(dump_optimizer=True)
    except Exception as error:  # whatever the classes raise that the user's schedule is made of
        reason = f"the optimizer cannot be pickled, as gluon.Trainer's files are ({error})"
        raise KVStoreError(f"{reason}: give it a learning rate or a schedule of mx.lr_scheduler") from None
    path = Path(fname)
    with on_disk(path, "choose another place"), atomic_path(path) as temporary:
        temporary.write_bytes(content)


def _nested(optimizer: mx.optimizer.Optimizer, param: Parameter, state: ParameterState) -> Any:
    """The state as the optimizer nests its arrays."""
    arrays = iter(state.arrays)
    return like(nest(optimizer, Own(param.name, param.shape, param.dtype, True)), lambda _: next(arrays))
