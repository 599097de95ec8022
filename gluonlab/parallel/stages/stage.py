"""The stages of a network: stretches of its chain of layers, each with a graph of its own."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Set

import mxnet as mx
from mxnet import gluon

from gluonlab.errors import ModelError
from gluonlab.parallel.data.replica import IMAGES, LABELS, with_loss
from gluonlab.parallel.objective import constants_of, label_columns, scoring_loss
from gluonlab.parallel.precision import Conversion
from gluonlab.parallel.stages.chain import run

ACTIVATION = "gluonlab_activation"


class Stage(NamedTuple):
    """A stretch of the network: ``inputs`` -> its activation, or of the last one loss and scores.

    ``params``: those that it has, by name. ``scoring``: the graph for labels (n,), where those of
    training are of another kind. ``wants``: whether a stage before it learns, and so needs the
    gradient of this one's input. ``constants``: what its loss keeps, by name.
    """

    graph: mx.sym.Symbol
    scoring: mx.sym.Symbol
    inputs: Sequence[str]
    params: Dict[str, gluon.Parameter]
    wants: bool
    constants: Dict[str, gluon.Parameter]

    @property
    def kept(self) -> Dict[str, gluon.Parameter]:
        """All arrays that its graphs have, by name."""
        return {**self.params, **self.constants}

    @property
    def is_last(self) -> bool:
        """Whether it ends with the loss."""
        return LABELS in self.inputs

    @property
    def learns(self) -> bool:
        """Whether a parameter of it does."""
        return any(param.grad_req != "null" for param in self.params.values())


def make_stages(
    layers: Sequence[gluon.HybridBlock],
    cuts: Sequence[int],
    loss: gluon.HybridBlock,
    preprocess: Callable[[Any, Any], Any],
    convert: Conversion,
) -> List[Stage]:
    """The stages between ``cuts``, numbers of the layers with which stages begin, but the first.

    Raises ModelError for a parameter that two of them share: its gradients would have to be summed
    between devices.
    """
    bounds = [0, *cuts, len(layers)]
    stages: List[Stage] = []
    learned = False
    taken: Set[str] = set()
    for begin, end in zip(bounds, bounds[1:]):
        stage = make_stage(layers, begin, end, loss, preprocess, convert, learned)
        for name in taken.intersection(stage.params):
            raise ModelError(
                f"{name} is a parameter of layers on both sides of the cut in front of layer "
                f"{begin}: cut elsewhere, or choose --split data"
            )
        stages.append(stage)
        learned = learned or stage.learns
        taken.update(stage.params)
    return stages


def make_stage(
    layers: Sequence[gluon.HybridBlock],
    begin: int,
    end: int,
    loss: gluon.HybridBlock,
    preprocess: Callable[[Any, Any], Any],
    convert: Conversion,
    wants: bool,
) -> Stage:
    """The layers from ``begin`` to ``end`` as a stage."""
    first, last = begin == 0, end == len(layers)
    of_labels = scoring_loss(loss) if label_columns(loss) else loss
    data = mx.sym.var(IMAGES if first else ACTIVATION)
    value = convert(run(layers[begin:end], preprocess(mx.sym, data) if first else data))
    graph = with_loss(value, loss) if last else value
    scoring = with_loss(value, of_labels) if last else value
    # of all layers: one may take a parameter of another
    params = {name: each for layer in layers for name, each in layer.collect_params().items()}
    names = [*graph.list_arguments(), *graph.list_auxiliary_states()]
    own = {name: params[name] for name in names if name in params}
    inputs = [IMAGES if first else ACTIVATION, *[LABELS] * last]
    return Stage(graph, scoring, inputs, own, wants, constants_of(loss) if last else {})
