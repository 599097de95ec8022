"""The gradients of what goes from stage to stage: who wants them, and in which arrays they lie."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence, Set, Tuple

import numpy as np
from mxnet import gluon, nd

from gluonlab.training.stages import Layer, Stage

Kind = Tuple[Tuple[int, ...], Any]  # shape and type


def kinds_between(stages: Sequence[Stage], kinds: Dict[str, Kind]) -> Dict[str, Kind]:
    """Shape and type of what goes from stage to stage, as well as ``kinds``: those of all that the stages are given."""
    found = dict(kinds)
    for stage in stages:
        names = stage.graph.list_arguments()
        _, shapes, _ = stage.graph.infer_shape(**{name: found[name][0] for name in names})
        _, types, _ = stage.graph.infer_type(**{name: found[name][1] for name in names})
        found.update(zip(stage.gives, zip(shapes, types)))
    return found


class Wishes:
    """Who wants which gradients.

    ``learns[i]``: whether stage i has any to make. ``wanted``: values between stages whose gradients
    are, and ``latest`` the last stage that takes each, the first to make it. ``uses``: how many
    stages or layers have a gradient for each parameter.
    """

    def __init__(self, stages: Sequence[Stage], layers: Sequence[Layer], params: Dict[str, gluon.Parameter]) -> None:
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
            begins = [name for layer in (stages[number - 1].layers if number else []) for name in (layer.gamma, layer.beta)]
            names = stage.graph.list_arguments()
            self.learns.append(any(name in trained or name in self.wanted for name in [*names, *begins]))
            for name in names:
                self.latest[name] = number
                if name in trained:
                    self.uses[name] = self.uses.get(name, 0) + 1
            if self.learns[-1]:
                self.wanted.update(stage.gives)


class Gradients:
    """Arrays for gradients of what goes from stage to stage, each used again once it is not needed any more.

    ``of``: by the name of the value. ``scratch``: by the number of a layer, an array like its data.
    """

    def __init__(self, stages: Sequence[Stage], wishes: Wishes, kinds: Dict[str, Kind], make: Callable[..., nd.NDArray]) -> None:
        """``make(shape, dtype=...)`` gives an array."""
        self.of: Dict[str, nd.NDArray] = {}
        self.scratch: Dict[int, nd.NDArray] = {}
        self.bytes = 0
        self._make, self._free = make, {}  # type: Any, Dict[Any, List[nd.NDArray]]
        for number in range(len(stages) - 1, -1, -1):
            for name in sorted(name for name in wishes.wanted if wishes.latest.get(name) == number):
                self.of[name] = self._take(kinds[name])
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
        self.bytes += int(np.prod(shape)) * np.dtype(dtype).itemsize
        array: nd.NDArray = self._make(shape, dtype=dtype)
        return array

    def _release(self, array: nd.NDArray) -> None:
        self._free[array.shape, np.dtype(array.dtype)].append(array)
