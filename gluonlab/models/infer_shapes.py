"""Infers the shapes of a network's parameters, and checks that the network accepts given images.

Shapes are inferred from symbols or read from existing arrays. Nothing is computed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Dict, Iterable, Optional, Tuple

import mxnet as mx

from gluonlab.errors import ModelError
from gluonlab.models.symbol_graph import require_single_output

if TYPE_CHECKING:
    from mxnet.gluon import HybridBlock, Parameter

    Shape = Tuple[int, ...]

# Image sides that are tried in this order; a binary search then finds the smallest side that fits.
_TRIED_SIDES = (1, 2, 4, 8, 16, 32, 64, 128, 224, 256, 299, 331, 384, 512, 1024)


def set_missing_shapes(params: "Iterable[Parameter]") -> None:
    """Set missing shapes and types of parameters to those of their arrays.

    ``gluon.SymbolBlock.imports`` loads the arrays of parameters without setting their shapes.
    """
    for param in params:
        if param._data is not None:
            if param._shape is None:
                param._shape = tuple(param._data[0].shape)
            if param._dtype is None:
                param._dtype = param._data[0].dtype


def complete_initialization(net: "HybridBlock", name: str, image_shape: "Tuple[int, int, int]", classes: int) -> None:
    """Infer the shape of every parameter for images (C, H, W), and finish deferred initialization.

    Raises ModelError if the network does not accept these images. The message names the smallest
    images that the network accepts. Also raises ModelError if a parameter already has a different
    shape.

    ``name``: the network's name in error messages.
    """
    scores = require_single_output(net(mx.sym.var("data")), name)
    shapes = _infer_shapes(scores, image_shape, classes)
    if shapes is None:
        hint = _smallest_image_hint(image_shape, _find_smallest_image(scores, image_shape[0], classes))
        raise ModelError(
            f"{name} does not accept images of shape {_format_shape(image_shape)}{hint}: choose "
            "another model or --dataset"
        )
    params = net.collect_params()
    for parameter, shape in shapes.items():
        if params[parameter]._data is not None and params[parameter].shape != shape:
            raise ModelError(
                f"the parameter {parameter} of {name} has shape {params[parameter].shape}, but images of shape "
                f"{_format_shape(image_shape)} require shape {shape}: use images of the original shape, or "
                "initialize the model again"
            )
        params[parameter].shape = shape
        params[parameter]._finish_deferred_init()  # in the order of the graph, as in a first forward


def accepts_images(scores: mx.sym.Symbol, image_shape: "Shape", classes: int) -> bool:
    """Return whether the graph ``scores`` accepts images (C, H, W) and returns (n, classes)."""
    return _infer_shapes(scores, image_shape, classes) is not None


def _infer_shapes(scores: mx.sym.Symbol, image_shape: "Shape", classes: int) -> "Optional[Dict[str, Shape]]":
    """Return every parameter's shape, by name; None if the network does not accept the images."""
    try:
        arguments, outputs, states = scores.infer_shape_partial(data=(1, *image_shape))
    except (ValueError, mx.base.MXNetError):
        return None
    shapes = dict(zip(scores.list_arguments(), arguments))
    shapes.update(zip(scores.list_auxiliary_states(), states))
    del shapes["data"]
    # a size of 0 means that a layer has no pixels left
    is_complete = all(shape and math.prod(shape) for shape in shapes.values())
    return shapes if is_complete and outputs == [(1, classes)] else None


def _find_smallest_image(scores: mx.sym.Symbol, channels: int, classes: int) -> "Optional[Shape]":
    """Return the smallest square image that the network accepts, as (channels, side, side).

    The image has ``channels`` channels if the network accepts this number, otherwise 3 or 1.
    Returns None if the network accepts none of the tried images.
    """
    for count in dict.fromkeys((channels, 3, 1)):

        def fits(side: int, count: int = count) -> bool:
            return accepts_images(scores, (count, side, side), classes)

        too_small = 0
        for side in _TRIED_SIDES:
            if fits(side):
                while side - too_small > 1:  # the smallest side is above too_small, at most side
                    middle = (too_small + side) // 2
                    too_small, side = (too_small, middle) if fits(middle) else (middle, side)
                return count, side, side
            too_small = side
    return None


def _smallest_image_hint(shape: "Shape", smallest: "Optional[Shape]") -> str:
    """Return the end of an error message: the smallest image that the network accepts, or ""."""
    if smallest is None:
        return ""
    larger = shape[0] == smallest[0] and min(shape[1:]) >= smallest[1]
    note = ", and it does not accept all larger images" if larger else ""
    return f" (the smallest square images that it accepts are {_format_shape(smallest)}{note})"


def _format_shape(shape: "Shape") -> str:
    return "x".join(map(str, shape))
