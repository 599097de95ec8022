"""The work that every row of ``peers`` does, and how many floating-point operations it is.

Imports neither MXNet nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Sequence, Tuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LEARNING_RATE = 0.01
CLASSES = 10


class Task(NamedTuple):
    """A network of `gluonlab.models`, trained with SGD on random images (samples, C, H, W)."""

    title: str
    model: str
    shape: Tuple[int, int, int]
    samples: int
    global_batch_size: int
    momentum: float


TASKS = {
    "lenet": Task("LeNet 28x28", "lenet", (1, 28, 28), 8192, 128, 0.0),
    "mlp": Task("MLP 28x28", "mlp", (1, 28, 28), 8192, 128, 0.0),
    "resnet18": Task("ResNet-18 32x32", "resnet18", (3, 32, 32), 2048, 64, 0.9),
}


def images_and_labels(task: Task) -> "Tuple[NDArray[np.float32], NDArray[np.int32]]":
    """The task's images in 0..1 and random labels (samples,), those of the data set ``synthetic``.

    Made here again because a process that measures PyTorch must not load MXNet. The labels are
    random, too: a constant one is learnt within seconds, and its gradients then become denormal
    numbers, with which every library computes slowly.
    """
    import numpy as np  # a bench's --help does without

    random = np.random.RandomState(0)
    images = random.randint(0, 256, (task.samples, *task.shape), dtype=np.uint8)
    labels = random.randint(0, CLASSES, task.samples).astype(np.int32)
    return images.astype(np.float32) / np.float32(255), labels


class Layer(NamedTuple):
    """A convolution or dense layer: its multiply-adds per image.

    ``data_gradient``: whether backward computes a gradient for its input.
    """

    multiply_adds: int
    data_gradient: bool = True


def conv(
    channels_in: int, channels_out: int, kernel: int, side_out: int, data_gradient: bool = True
) -> Layer:
    """A convolution with a square kernel and a square output of ``side_out``."""
    return Layer(side_out**2 * channels_out * channels_in * kernel**2, data_gradient)


def dense(units_in: int, units_out: int) -> Layer:
    """A dense layer."""
    return Layer(units_in * units_out)


LENET = (
    conv(1, 20, 3, side_out=26, data_gradient=False),  # nobody asks for the gradient of the images
    conv(20, 50, 5, side_out=9),
    dense(50 * 4 * 4, 128),
    dense(128, CLASSES),
)


def training_flops(layers: Sequence[Layer]) -> int:
    """Operations of forward and backward per image, a multiply-add counted as two.

    Backward does forward's work twice, once for the weights' gradient and once for the input's.
    """
    return sum(2 * layer.multiply_adds * (3 if layer.data_gradient else 2) for layer in layers)
