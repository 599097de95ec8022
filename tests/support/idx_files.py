"""Independent writer of IDX files, by the format of http://yann.lecun.com/exdb/mnist/."""

import gzip
import struct

import numpy as np

MNIST_NAMES = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]


def idx_bytes(array):
    """Return the content of the IDX file of a uint8 array."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_file(path, content):
    """Write bytes to a file, compressed if its suffix is .gz; return the path."""
    path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)
    return path


def make_mnist_arrays(train=40, test=10, seed=0):
    """Return random training images and labels, and test images and labels."""
    random = np.random.RandomState(seed)
    arrays = []
    for size in (train, test):
        arrays += [random.randint(0, 256, (size, 28, 28), dtype=np.uint8), random.randint(0, 10, size).astype(np.uint8)]
    return arrays


def write_mnist(folder, train=40, test=10, ending=""):
    """Write a small data set of random images in the four files; return its four arrays."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = make_mnist_arrays(train, test, seed=3)
    for name, array in zip(MNIST_NAMES, arrays):
        write_file(folder / (name + ending), idx_bytes(array))
    return arrays
