"""MXNet's limit on arrays, fewer than 2**31 - 1 elements, checked before a run begins."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Dict, Tuple, Union

import mxnet as mx
from mxnet import gluon

from gluonlab.engine.invoke import ARRAY_LIMIT
from gluonlab.errors import ConfigError
from gluonlab.parallel.data.microbatches import Microbatches
from gluonlab.parallel.data.replica import IMAGES, LABELS

Shape = Tuple[int, ...]


def check_elements(images: int, elements: int) -> None:
    """Raise ConfigError when ``images`` images make more ``elements`` than an array has."""
    if elements >= ARRAY_LIMIT:
        raise ConfigError(
            f"{images:,} images make an array of {elements:,} elements, "
            f"and MXNet allows fewer than {ARRAY_LIMIT:,}: "
            "choose a smaller --batch-size, or smaller microbatches"
        )


def check_inside(graph: mx.sym.Symbol, inputs: Dict[str, Shape], images: int) -> None:
    """`check_elements` of every array that a graph computes for ``images`` images.

    ``inputs``: the shapes of its arguments. Raises ConfigError.
    """
    check_elements(images, max(map(math.prod, graph.get_internals().infer_shape(**inputs)[1])))


@dataclass(frozen=True)
class ArrayLimit:
    """The largest arrays of a batch: on the host, and in the `loss_graph` of a device.

    ``devices``: of how many such devices as get the most images the batch on the host is.
    """

    graph: mx.sym.Symbol
    net: gluon.HybridBlock
    image_shape: Shape
    devices: Union[int, Fraction]
    microbatches: Microbatches
    columns: int = 0  # of labels, `gluonlab.parallel.objective.label_columns`

    def check(self, images: int) -> None:
        """Raise ConfigError when batches of ``images`` images per device need too large arrays."""
        self.check_host(images)
        part = self.microbatches.largest(images)
        shapes = {name: param.shape for name, param in self.net.collect_params().items()}
        shapes[IMAGES] = (part, *self.image_shape)
        shapes[LABELS] = (part, *[self.columns] * bool(self.columns))
        # those of a loss's constants are in the graph
        names = set(self.graph.list_arguments()) & set(shapes)
        check_inside(self.graph, {name: shapes[name] for name in names}, part)

    def check_host(self, images: int) -> None:
        """The same for the batch on the host alone."""
        batch = math.ceil(images * self.devices)
        check_elements(batch, batch * math.prod(self.image_shape))

    def largest(self, most: int) -> int:
        """The most images per device, from 1 up to ``most``, that pass `check`."""
        low, high = 1, most
        while low < high:
            # all of them first: a data set is rarely so large
            middle = (low + high + 1) // 2 if high < most else high
            try:
                self.check(middle)
                low = middle
            except ConfigError:
                high = middle - 1
        return low
