"""Finds which parameter a saved state belongs to in another network, process or trainer.

Gluon numbers its automatic names through a process: what is ``dense0_weight`` where it was saved
may be ``dense3_weight`` where it is loaded. Four ways are tried, in this order, and the first by
which every shape fits is taken:

1. by name, where both have the same names;
2. by name without the beginning that all names have in common, on either side: ``resnetv10_``, or a
   prefix of the user's;
3. by order, if the names differ in their numbers alone; numbers are ordered as numbers, so
   ``dense9`` comes before ``dense10``;
4. by order, with a warning: nothing but the shapes says then that they belong together.

gluon.Trainer's files have positions in place of names. Those are positions in this trainer's own
order or, where shapes fit by it alone, in the order by number: gluon.Trainer sorts names as text,
which puts ``dense10`` before ``dense9`` in the one process and ``dense3`` after ``dense2`` in the
other.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from typing import Any, Callable, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from gluonlab.errors import KVStoreError, warn
from gluonlab.optimizers.states.states import ParameterState, States

LOAD = "load it into the network that it was saved with"
# no optimizer of MXNet's has more than 4; each of 8 bytes an element, at most
ARRAYS_OF_A_STATE = 16
# bytes of a file that is always read, so that a message can say what does not fit
LOOKED_AT = 2**26
Shape = Optional[Tuple[int, ...]]


class Own(NamedTuple):
    """A parameter to be given a state.

    Dimensions that are not known yet are 0 or -1; ``trainable``: whether it is updated.
    """

    name: str
    shape: Shape
    dtype: Any
    trainable: bool


Pairs = List[Tuple[ParameterState, Own]]


def most_bytes(own: Sequence[Own]) -> Optional[int]:
    """The largest possible file of these states; None if a shape is not known yet."""
    shapes = [param.shape for param in own]
    if any(shape is None or min(shape, default=1) < 0 or 0 in shape for shape in shapes):
        return None
    return LOOKED_AT + 8 * ARRAYS_OF_A_STATE * sum(math.prod(shape or ()) for shape in shapes)


def matched(states: States, own: Sequence[Own], what: str) -> List[Optional[ParameterState]]:
    """For each parameter its state, or None for one that has never been updated.

    ``what`` begins every message.

    Raises KVStoreError, which names the first difference, when they do not belong together.
    """
    if not states.named:
        return _by_position(states, own, what)
    saved = states.parameters
    if len(saved) != len(own):
        more = f"{len(saved)} parameters, and this trainer has {len(own)}"
        raise KVStoreError(f"{what} holds the states of {more}{_first_odd(saved, own)}: {LOAD}")
    pairs = _by_name(saved, own) or _by_number(saved, own)
    if pairs is None:
        pairs = list(zip(_in_order(saved), _in_order(own)))
        _check_shapes(pairs, what)
        state, param = next(pair for pair in pairs if pair[0].name != pair[1].name)
        warn(
            f"{what} has other names of parameters: taken in order, since all shapes fit, "
            f"so that {param.name} goes on as {state.name}"
        )
    _check_shapes(pairs, what)
    states_of = {param.name: state for state, param in pairs}
    return [states_of[param.name] for param in own]


def _by_name(saved: Sequence[ParameterState], own: Sequence[Own]) -> Optional[Pairs]:
    """Match by whole names, or else by names without their common beginnings."""
    for name_saved, name_own in ((str, str), (_relative(saved), _relative(own))):
        by_name = {name_saved(state.name): state for state in saved}
        names = [name_own(param.name) for param in own]
        if set(names) == set(by_name):
            return [(by_name[name], param) for name, param in zip(names, own)]
    return None


def _by_number(saved: Sequence[ParameterState], own: Sequence[Own]) -> Optional[Pairs]:
    """Match Gluon's automatic names in order, where only their numbers differ."""
    pairs = list(zip(_in_order(saved), _in_order(own)))
    of_saved, of_own = _relative(saved), _relative(own)
    for state, param in pairs:
        if _unnumbered(of_saved(state.name)) != _unnumbered(of_own(param.name)):
            return None
    return pairs if all(fits(state.shape, param.shape) for state, param in pairs) else None


def _relative(params: Sequence[Any]) -> Callable[[str], str]:
    """A function that cuts off what all these names begin with, up to an underscore."""
    common = os.path.commonprefix([param.name for param in params])  # noqa: RUF071
    begin = common.rfind("_") + 1
    return lambda name: name[begin:]


def _unnumbered(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def _in_order(params: Sequence[Any]) -> List[Any]:
    def key(param: Any) -> List[Any]:
        parts = re.split(r"(\d+)", param.name)
        return [int(part) if part.isdecimal() else part for part in parts]

    return sorted(params, key=key)


def _by_position(states: States, own: Sequence[Own], what: str) -> List[Optional[ParameterState]]:
    if not states.parameters:  # saved before the first step
        return [None] * len(own)
    by_position = {int(state.name): state for state in states.parameters}
    for order in (list(own), _in_order(own)):
        positions = {position for position, param in enumerate(order) if param.trainable}
        if positions == set(by_position) and all(
            fits(by_position[place].shape, order[place].shape) for place in positions
        ):
            states_of = {order[place].name: by_position[place] for place in positions}
            return [states_of.get(param.name) for param in own]
    for position, state in by_position.items():
        fault = ""
        if position >= len(own):
            fault = f"this trainer has {len(own)}"
        elif not own[position].trainable:
            fault = f"{own[position].name} is not trained here"
        if fault:
            raise KVStoreError(
                f"{what} holds a state of parameter {position}, counted from 0, and {fault}: {LOAD}"
            )
        _check_shapes([(state, own[position])], what)
    trained = {place: param.name for place, param in enumerate(own) if param.trainable}
    missing = next(name for place, name in trained.items() if place not in by_position)
    raise KVStoreError(f"{what} holds no state of {missing}: {LOAD}")


def own_of(params: Iterable[Any]) -> List[Own]:
    """What `matched` needs to know of a trainer's parameters."""
    params = list(params)
    return [
        Own(name, param.shape, param.dtype, param.grad_req != "null")
        for name, param in zip(unique(params), params)
    ]


def unique(params: Iterable[Any]) -> List[str]:
    """The names of parameters; of equal names the second ends in #2, and so on."""
    names: List[str] = []
    seen: Counter[str] = Counter()
    for param in params:
        seen[param.name] += 1
        names.append(param.name if seen[param.name] == 1 else f"{param.name}#{seen[param.name]}")
    return names


def fits(saved: Shape, own: Shape) -> bool:
    """Whether they are the same as far as they are known."""
    if saved is None or own is None:
        return True
    saved, own = saved or (1,), own or (1,)
    return len(saved) == len(own) and all(a == b or b <= 0 or a <= 0 for a, b in zip(saved, own))


def _check_shapes(pairs: Pairs, what: str) -> None:
    for state, param in pairs:
        if not fits(state.shape, param.shape):
            raise KVStoreError(
                f"{what} does not fit: {state.name} is {state.shape} there, "
                f"{param.name} {param.shape} here: {LOAD}"
            )


def _first_odd(saved: Sequence[ParameterState], own: Sequence[Own]) -> str:
    """The first parameter, by relative name, that only one side has; else an empty text."""
    of_saved, of_own = _relative(saved), _relative(own)
    there = {_unnumbered(of_saved(state.name)) for state in saved}
    here = {_unnumbered(of_own(param.name)) for param in own}
    for params, others, where in ((saved, here, "there"), (own, there, "here")):
        relative = of_saved if params is saved else of_own
        for param in params:
            if _unnumbered(relative(param.name)) not in others:
                return f", {param.name} only {where}"
    return ""
