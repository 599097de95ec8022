"""A graph computed by MXNet, operator by operator.

A graph bound without any gradient is fused for oneDNN, and then gives wrong scores for networks
such as gluoncv's cifar_resnet20_v2, or cannot be bound.
"""

from __future__ import annotations

from typing import List, Mapping

import mxnet as mx
from mxnet import nd

from gluonlab.models.rewriting import plain_where_channels_are_odd


def outputs(
    graph: mx.sym.Symbol,
    arrays: Mapping[str, nd.NDArray],
    name: str,
    images: nd.NDArray,
    is_train: bool = False,
) -> List[nd.NDArray]:
    """What ``graph`` gives for these images, on the CPU.

    ``name``: of the variable that stands for them. ``arrays``: the values of all others, which
    stay what they are; with ``is_train``, layers compute as they do while training.
    """
    plain = plain_where_channels_are_odd(graph, {name: images.shape})
    arguments = {each: arrays[each] for each in plain.list_arguments() if each != name}
    states = {each: arrays[each].copy() for each in plain.list_auxiliary_states()}
    last = next(reversed(list(arguments)), name)  # whose gradient takes the least memory
    given = {name: images, **arguments}
    wanted = {**dict.fromkeys(given, "null"), last: "write"}
    bound = plain.bind(mx.cpu(), given, {last: nd.zeros_like(given[last])}, wanted, states)
    found: List[nd.NDArray] = bound.forward(is_train=is_train)
    return found
