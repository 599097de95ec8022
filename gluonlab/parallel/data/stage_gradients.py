"""The gradients of what goes from stage to stage: who wants them, and in which arrays they lie."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence, Set, Tuple

import numpy as np
from mxnet import gluon, nd

from gluonlab.parallel.data.stages import Layer, Stage

Kind = Tuple[Tuple[int, ...], Any]  # shape and type
Kinds = Dict[str, Kind]  # by the name


def bytes_of(kind: Kind) -> int:
    """What an array of this shape and type takes."""
    return int(np.prod(kind[0])) * int(np.dtype(kind[1]).itemsize)


def kinds_between(stages: Sequence[Stage], kinds: Kinds) -> Kinds:
    """Shape and type of what goes from stage to stage, and ``kinds``: of all that stages take."""
    found = dict(kinds)
    for stage in stages:
        names = stage.graph.list_arguments()
        _, shapes, _ = stage.graph.infer_shape(**{name: found[name][0] for name in names})
        _, types, _ = stage.graph.infer_type(**{name: found[name][1] for name in names})
        found.update(zip(stage.gives, zip(shapes, types)))
    return found


class Wishes:
    """Who wants which gradients.

    ``learns[i]``: whether stage i has any to make. ``wanted``: values between stages whose
    gradients are, and ``latest`` the last stage that takes each, the first to make it. ``uses``:
    how many stages or layers have a gradient for each parameter.
    """

    def __init__(
        self, stages: Sequence[Stage], layers: Sequence[Layer], params: Dict[str, gluon.Parameter]
    ) -> None:
        trained = {name for name, param in params.items() if param.grad_req != "null"}
        self.wanted: Set[str] = set()
        self.latest: Dict[str, int] = {}
        self.learns: List[bool] = []
        self.uses: Dict[str, int] = {}
        for layer in layers:
            for name in (layer.gamma, layer.beta):
                if name is not None:
                    self.uses[name] = self.uses.get(name, 0) + 1
        for number, stage in enumerate(stages):
            names = stage.graph.list_arguments()
            begins = stages[number - 1].layers if number else []
            takes = {*names, *(name for each in begins for name in (each.gamma, each.beta))}
            self.learns.append(bool(takes & (trained | self.wanted)))
            for name in names:
                self.latest[name] = number
                if name in trained:
                    self.uses[name] = self.uses.get(name, 0) + 1
            if self.learns[-1]:
                self.wanted.update(stage.gives)


class Arrays:
    """A device's arrays that graphs use one after the other: each takes them by shape and type."""

    def __init__(self, make: Callable[..., nd.NDArray]) -> None:
        """``make(shape, dtype=...)`` gives an array."""
        self.bytes = 0
        self._make = make
        self._made: Dict[Any, List[nd.NDArray]] = {}

    def taken_anew(self) -> Callable[[Kind], nd.NDArray]:
        """What gives one graph arrays, no array twice."""
        counts: Dict[Any, int] = {}

        def take(kind: Kind) -> nd.NDArray:
            key = (kind[0], np.dtype(kind[1]))
            made, number = self._made.setdefault(key, []), counts.get(key, 0)
            counts[key] = number + 1
            if number == len(made):
                made.append(self._make(kind[0], dtype=kind[1]))
                self.bytes += bytes_of(kind)
            return made[number]

        return take


class Gradients:
    """Arrays for gradients of what goes from stage to stage, used again when they are free.

    ``of``: by the name of the value. ``added[stage]``: by the name, what this stage makes of it, to
    be added to that, where a later stage takes the value, too. ``scratch``: by the number of a
    layer, an array like its data.
    """

    def __init__(
        self, stages: Sequence[Stage], wishes: Wishes, kinds: Kinds, arrays: Arrays
    ) -> None:
        self.of: Dict[str, nd.NDArray] = {}
        self.added: List[Dict[str, nd.NDArray]] = [{} for _ in stages]
        self.scratch: Dict[int, nd.NDArray] = {}
        self._new, self._free = arrays.taken_anew(), {}  # type: Any, Dict[Any, List[nd.NDArray]]
        for number in range(len(stages) - 1, -1, -1):
            names = wishes.wanted.intersection(stages[number].graph.list_arguments())
            for name in sorted(name for name in names if wishes.latest[name] == number):
                self.of[name] = self._take(kinds[name])
            for name in sorted(name for name in names if wishes.latest[name] != number):
                self.added[number][name] = self._take(kinds[name])
            for array in self.added[number].values():
                self._release(array)
            for layer in stages[number - 1].layers if number else []:
                array = self.scratch[layer.number] = self._take(kinds[layer.data])
                self._release(array)
            for name in stages[number].gives:
                if name in self.of:
                    self._release(self.of[name])

    def _take(self, kind: Kind) -> nd.NDArray:
        shape, dtype = kind
        free = self._free.setdefault((shape, np.dtype(dtype)), [])
        if free:
            return free.pop()
        array: nd.NDArray = self._new(kind)
        return array

    def _release(self, array: nd.NDArray) -> None:
        self._free[array.shape, np.dtype(array.dtype)].append(array)
