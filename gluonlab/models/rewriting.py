"""Rewrites the graph of a network for a device: the same function, computed correctly and fast."""

from __future__ import annotations

from typing import Any, Collection, Iterator, Mapping, NamedTuple, Optional, Tuple

import mxnet as mx

from gluonlab.models.channel_padding import pad_channels, padding_for
from gluonlab.models.odd_concat import plain_where_channels_are_odd
from gluonlab.models.one_pixel import dense_where_one_pixel
from gluonlab.models.relu_after_pooling import pool_before_relu
from gluonlab.models.whole_average import product_where_all_is_averaged
from gluonlab.models.wrong_gradients import with_right_gradients

Kinds = Mapping[str, Tuple[Tuple[int, ...], Any]]  # shape and type by name


class Rewrite(NamedTuple):
    """A graph after one of the rewrites.

    ``effect``: what this rewrite does to the operators that it changes.
    """

    effect: str
    graph: mx.sym.Symbol


def rewrite(
    graph: mx.sym.Symbol,
    ctx: mx.Context,
    kinds: Kinds,
    learned: Optional[Collection[str]] = None,
    pad: bool = True,
) -> mx.sym.Symbol:
    """Return a graph that computes the same, correctly and fast, on a device.

    Arguments, outputs and their names stay as they are.

    Args:
        graph: a network, perhaps with its loss.
        ctx: the device.
        kinds: shapes and types of all arguments.
        learned: the arguments whose gradients are requested; None if that is unknown.
        pad: whether channels may be padded. Auxiliary states then have more of them.
    """
    for step in rewrites(graph, ctx, kinds, learned, pad):
        graph = step.graph
    return graph


def rewrites(
    graph: mx.sym.Symbol,
    ctx: mx.Context,
    kinds: Kinds,
    learned: Optional[Collection[str]] = None,
    pad: bool = True,
) -> Iterator[Rewrite]:
    """Yield the graph after each of the rewrites that `rewrite` makes, in their order."""
    graph = with_right_gradients(graph, learned)
    yield Rewrite("replaced, because MXNet computes a wrong gradient", graph)
    graph = pool_before_relu(graph)
    yield Rewrite("exchanged, so that ReLU follows max pooling", graph)
    if ctx.device_type == "gpu":
        return  # the remaining rewrites are for oneDNN only
    names = graph.list_arguments()
    shapes, types = ({name: kinds[name][place] for name in names} for place in range(2))
    graph = dense_where_one_pixel(graph, shapes)
    yield Rewrite("one pixel computed as a dense layer", graph)
    if pad:
        graph = pad_channels(graph, shapes, types, padding_for(ctx))
        yield Rewrite("padded with zero channels", graph)
    graph = product_where_all_is_averaged(graph, shapes, types)
    yield Rewrite("average over all pixels computed as a matrix product", graph)
    graph = plain_where_channels_are_odd(graph, shapes)
    yield Rewrite("odd numbers of channels joined without oneDNN", graph)
