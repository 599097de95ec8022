"""Whether a network takes images of a shape, and the shapes of its parameters.

These are found on symbols, or are those of arrays that are there; nothing is computed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Dict, Iterable, Optional, Tuple

import mxnet as mx

from gluonlab.errors import ModelError
from gluonlab.models.symbol_graph import one_array

if TYPE_CHECKING:
    from mxnet.gluon import HybridBlock, Parameter

    Shape = Tuple[int, ...]

# tried in this order, then those between two of them
_SIDES = (1, 2, 4, 8, 16, 32, 64, 128, 224, 256, 299, 331, 384, 512, 1024)


def note_shapes(params: "Iterable[Parameter]") -> None:
    """Set missing shapes and types of parameters from their arrays.

    ``gluon.SymbolBlock.imports`` loads arrays, and leaves the shapes open.
    """
    for param in params:
        if param._data is not None:
            if param._shape is None:
                param._shape = tuple(param._data[0].shape)
            if param._dtype is None:
                param._dtype = param._data[0].dtype


def complete(
    net: "HybridBlock", name: str, image_shape: "Tuple[int, int, int]", classes: int
) -> None:
    """Give every parameter of ``net`` the shape that it has for images (C, H, W).

    Parameters that wait for it are initialised. Raises ModelError, with the smallest images that do
    fit, when the network ``name`` cannot take these, and for arrays of another shape.
    """
    scores = one_array(net(mx.sym.var("data")), name)
    shapes = _shapes(scores, image_shape, classes)
    if shapes is None:
        hint = _hint(image_shape, _smallest(scores, image_shape[0], classes))
        raise ModelError(
            f"{name} cannot take images of shape {_in_words(image_shape)}{hint}; "
            "choose another network or --dataset"
        )
    params = net.collect_params()
    for parameter, shape in shapes.items():
        if params[parameter]._data is not None and params[parameter].shape != shape:
            raise ModelError(
                f"{name} has {parameter} {params[parameter].shape}, but needs {shape} "
                f"for images of shape {_in_words(image_shape)}: give images of the shape that "
                "it was made for, or initialize it again"
            )
        params[parameter].shape = shape
        params[parameter]._finish_deferred_init()  # in the graph's order, as a first forward would


def takes(scores: mx.sym.Symbol, image_shape: "Shape", classes: int) -> bool:
    """Whether the graph ``scores`` of a network takes images (C, H, W), and gives (n, classes)."""
    return _shapes(scores, image_shape, classes) is not None


def _shapes(
    scores: mx.sym.Symbol, image_shape: "Shape", classes: int
) -> "Optional[Dict[str, Shape]]":
    """The shape of every parameter, by name, or None when images of this shape do not fit."""
    try:
        arguments, outputs, states = scores.infer_shape_partial(data=(1, *image_shape))
    except (ValueError, mx.base.MXNetError):
        return None
    named = dict(zip(scores.list_arguments(), arguments))
    named.update(zip(scores.list_auxiliary_states(), states))
    del named["data"]
    # a size that is left unknown is 0: so little of an image was left that a layer got nothing
    known = all(shape and math.prod(shape) for shape in named.values())
    return named if known and outputs == [(1, classes)] else None


def _smallest(scores: mx.sym.Symbol, channels: int, classes: int) -> "Optional[Shape]":
    """The smallest square images that fit, with as many channels if possible, else with 3 or 1."""
    for count in dict.fromkeys((channels, 3, 1)):

        def fits(side: int, count: int = count) -> bool:
            return takes(scores, (count, side, side), classes)

        too_small = 0
        for side in _SIDES:
            if fits(side):
                while side - too_small > 1:  # what fits lies above too_small, and side does
                    middle = (too_small + side) // 2
                    too_small, side = (too_small, middle) if fits(middle) else (middle, side)
                return count, side, side
            too_small = side
    return None


def _hint(given: "Shape", smallest: "Optional[Shape]") -> str:
    if smallest is None:
        return ""
    larger = given[0] == smallest[0] and min(given[1:]) >= smallest[1]
    more = ", and not all larger ones fit" if larger else ""
    return f": the smallest square ones that it takes are {_in_words(smallest)}{more}"


def _in_words(shape: "Shape") -> str:
    return "x".join(map(str, shape))
