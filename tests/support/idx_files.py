"""IDX files written by the book, independently of the reader: http://yann.lecun.com/exdb/mnist/."""

import gzip
import struct

import numpy as np

MNIST_NAMES = [
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
]


def idx_bytes(array):
    """The content of the IDX file that holds an array of uint8."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_file(path, content):
    """Write bytes to a file, compressed if it is called .gz."""
    path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)
    return path


def write_mnist(folder, train=40, test=10, ending=""):
    """A small data set of random images in the four files; returns its four arrays."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.RandomState(3)
    arrays = []
    for size in (train, test):
        arrays += [
            random.randint(0, 256, (size, 28, 28), dtype=np.uint8),
            random.randint(0, 10, size).astype(np.uint8),
        ]
    for name, array in zip(MNIST_NAMES, arrays):
        write_file(folder / (name + ending), idx_bytes(array))
    return arrays
