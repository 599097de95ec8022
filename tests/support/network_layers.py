"""Layers of random networks for mx.nd and mx.np.

The tables map names to functions that make a layer of a number of units and a flag.
"""

import mxnet as mx
from mxnet.gluon import nn, rnn


class ScaledByParameter(nn.HybridBlock):
    """A layer that multiplies by a parameter of one number, of the shape (1,) or (1, 1)."""

    def __init__(self, axes):
        super().__init__()
        with self.name_scope():
            self.scale = self.params.get("scale", shape=(1,) * axes)

    def hybrid_forward(self, F, x, scale):
        if mx.util.is_np_array():
            return x * scale.reshape(-1)
        return F.broadcast_mul(x, scale.reshape((1,) * 2) if self.scale.shape != (1, 1) else scale)


class ParallelDense(nn.HybridBlock):
    """The sum of two parallel dense layers, which have the same parameters if ``shared``."""

    def __init__(self, units, shared):
        super().__init__()
        with self.name_scope():
            self.one = nn.Dense(units, activation="tanh")
            self.other = nn.Dense(units, params=self.one.params if shared else None)

    def hybrid_forward(self, F, x):
        return self.one(x) + self.other(x)


def shared_dense(units, flag):
    """Return two dense layers with shared parameters, and a layer without parameters between."""
    net = nn.HybridSequential()
    first = nn.Dense(units, in_units=units, activation="tanh")
    net.add(nn.Dense(units), first, nn.Dropout(0.0) if flag else nn.Flatten())
    net.add(nn.Dense(units, in_units=units, params=first.params))
    return net


def grouped_convolution(units, depthwise):
    """Return a grouped convolution of two groups, or a depthwise convolution."""
    net = nn.HybridSequential()
    net.add(nn.Conv2D(2 * units, 1), nn.Conv2D(2 * units, 3, padding=1, groups=2 * units if depthwise else 2))
    return net


def transposed_convolution(units, bias):
    """Return a transposed convolution."""
    # Two units at least: oneDNN cannot reorder the weights from 16 channels to one.
    return nn.Conv2DTranspose(max(2, units), 2, use_bias=bias)


IMAGE_LAYERS = {
    "conv": lambda units, bias: nn.Conv2D(units, 3, padding=1, activation="sigmoid", use_bias=bias),
    "strided": lambda units, bias: nn.Conv2D(units, (2, 1), strides=2, use_bias=bias),
    "grouped": grouped_convolution,
    "transposed": transposed_convolution,
    "batch norm": lambda units, flag: nn.BatchNorm(use_global_stats=True, scale=flag),
    "pool": lambda units, largest: (nn.MaxPool2D if largest else nn.AvgPool2D)(2, 1),
}
VECTOR_LAYERS = {
    "dense": lambda units, bias: nn.Dense(units, activation="tanh", use_bias=bias),
    "branches": ParallelDense,
    "twice": shared_dense,
    "scaled": lambda units, flag: ScaledByParameter(1 + flag),
    "layer norm": lambda units, flag: nn.LayerNorm(center=flag),
}
SEQUENCE_LAYERS = {
    "lstm": lambda units, both: rnn.LSTM(units, layout="NTC", bidirectional=both),
    "gru": lambda units, both: rnn.GRU(units, layout="NTC", bidirectional=both),
}
VOCABULARY_SIZE = 11
WORD_LAYERS = {"embedding": lambda units, flag: nn.Embedding(VOCABULARY_SIZE, units)}
LAYERS = {**IMAGE_LAYERS, **VECTOR_LAYERS, **SEQUENCE_LAYERS, **WORD_LAYERS}
