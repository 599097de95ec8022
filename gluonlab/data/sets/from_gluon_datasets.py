"""Makes data sets from Gluon data sets or other sequences of (image, label).

Samples that cannot change are read into memory once. Such samples come from arrays, and from MXNet
data sets whose transformations are all in FIXED_TRANSFORMS.

All other data sets may draw random numbers. The images of these data sets are read again in every
epoch, when a batch needs them, as with a DataLoader.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Iterator, List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon.data import dataloader
from mxnet.gluon.data.dataset import (
    _DownloadedDataset,
    _FilteredDataset,
    _LazyTransformDataset,
    _SampledDataset,
    _TransformFirstClosure,
)
from mxnet.gluon.data.vision import transforms
from tqdm import tqdm

from gluonlab.data.sets.array_dataset import check_same_shape, make_split
from gluonlab.data.sets.convert_user_arrays import (
    CHANNELS_FIRST,
    CHANNELS_LAST,
    WHITE,
    check_layout_name,
    convert_labels,
    looks_channels_last,
    resolve_class_names,
    to_bytes_if_whole,
    to_numpy,
    to_pixels,
    warn_of_whole_floats,
)
from gluonlab.data.sets.dataset import ArraySplit, Dataset, Defaults, LabeledSplit, Split
from gluonlab.engine.nd_and_np_arrays import nd_semantics, np_semantics
from gluonlab.errors import DataError, error_type_and_text, warn

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gluonlab.data.sets.dataset import Images, Indices, Targets

DEFAULT_NAME = "gluon-data"
MAX_BYTES_IN_MEMORY = 2**31  # of the images of a data set that is read once
# Transformations of gluon.data.vision that always return the same image for the same input.
FIXED_TRANSFORMS = (
    transforms.Cast, transforms.CenterCrop, transforms.Normalize, transforms.Resize,
    transforms.ToTensor,
)  # fmt: skip
DEFAULT_BATCHIFY = (dataloader.default_batchify_fn, dataloader.default_mp_batchify_fn)
PAIR_HINT = "pass two data sets of (image, label) samples, as in dataset=(train, test)"


def from_datasets(
    train: Any,
    test: Any,
    classes: Optional[Sequence[str]] = None,
    name: str = DEFAULT_NAME,
    layout: Optional[str] = None,
) -> Dataset:
    """Create a data set from two Gluon data sets with samples (image, label).

    The model receives integer images divided by 255, and float images unchanged.

    Args:
        train: Training samples. Images are (C, H, W), (H, W, C) or grayscale (H, W). Labels are
            integers starting from 0.
        test: Validation samples.
        classes: The class names. The default names are the numbers up to the largest label.
        name: The name of the data set in the run directory.
        layout: ``"NCHW"`` or ``"NHWC"``, if the shape of the images is ambiguous.

    Returns:
        The data set.

    Raises:
        DataError: The samples do not have this format.
    """
    check_layout_name(layout)
    splits = [_make_split(given, part, layout) for given, part in ((train, "train"), (test, "test"))]
    check_same_shape(splits[0].image_shape, splits[1].image_shape, "train", "test")
    known_classes = classes if classes is not None else _folder_class_names(train)
    names = resolve_class_names(splits[0].labels, splits[1].labels, known_classes)
    return Dataset(name, splits[0], splits[1], names, Defaults())


def resolve_dataset(given: Any) -> Optional[Dataset]:
    """Return ``given`` if it is a Dataset or None, or make a Dataset from a pair (train, test).

    Raises DataError for other values.
    """
    return None if given is None else require_dataset(given)


def require_dataset(given: Any) -> Dataset:
    """Return ``given`` if it is a Dataset, or make a Dataset from a pair (train, test).

    Raises DataError for other values.
    """
    if isinstance(given, Dataset):
        return given
    if isinstance(given, str):
        raise DataError(
            f"dataset={given!r} is a name: use TrainConfig(dataset={given!r}), or "
            f"dataset=gluonlab.load_dataset({given!r})"
        )
    if isinstance(given, (tuple, list)) and len(given) == 2 and all(map(has_samples, given)):
        return from_datasets(_unwrap_loader(given[0], "train"), _unwrap_loader(given[1], "test"))
    if isinstance(given, (tuple, list)):
        description = f"a {type(given).__name__} of {', '.join(_describe_value(part) for part in given[:4])}"
        arrays = "dataset=gluonlab.data.from_arrays(x_train, y_train, x_test, y_test) for arrays"
        raise DataError(f"dataset is {description}: {PAIR_HINT}, or {arrays}")
    if has_samples(given):
        raise DataError(f"dataset is a single data set, {_describe_value(given)}: {PAIR_HINT}")
    if isinstance(given, Split):
        raise DataError(
            f"dataset is a split, {_describe_value(given)}: pass a gluonlab.data.Dataset, which has two splits"
        )
    raise DataError(f"dataset is {_describe_value(given)}: {PAIR_HINT} with random access")


def resolve_split(given: Any) -> Split:
    """Return ``given`` if it is a split, or make a split from a Gluon data set.

    Raises DataError for other objects.
    """
    if isinstance(given, Split):
        return given
    if isinstance(given, Dataset):
        raise DataError("a Loader reads a single split: pass dataset.train or dataset.val")
    if not has_samples(given):
        raise DataError(
            f"a Loader cannot read {_describe_value(given)}: pass a split, such as dataset.train, or "
            "a gluon.data.Dataset of (image, label) samples"
        )
    return _make_split(given, "data", None)


def warn_of_ignored_loader_settings(given: Any, dataset: Dataset, batch_size: int, drop_last: bool) -> None:
    """Warn if a setting of the user's DataLoaders, ``given``, differs from the run's setting.

    ``dataset``: the data set made from these DataLoaders. ``batch_size``: the number of images per
    step on all devices of the run. ``drop_last``: whether the run omits a smaller last batch.
    """
    loaders = given if isinstance(given, (tuple, list)) else ()
    for loader, part in zip(loaders, ("train", "test")):
        if not isinstance(loader, gluon.data.DataLoader):
            continue
        name, batches, is_training = (f"the DataLoader of {part}", loader._batch_sampler, part == "train")
        if is_training and not isinstance(batches._sampler, gluon.data.RandomSampler):
            warn(f"{name} does not shuffle, but a run shuffles in each epoch")
        if loader._num_workers and isinstance(getattr(dataset, part), GluonSplit):
            workers = loader._num_workers
            warn(f"{name} has num_workers={workers}, but a run uses one thread to read data in advance")
        if is_training and batches._batch_size != batch_size:
            size = batches._batch_size
            warn(
                f"{name} has batches of {size} images, but the run's config sets a batch of {batch_size} "
                f"images for all devices: to use {size} images, set TrainConfig(global_batch_size={size})"
            )
        expected = "discard" if drop_last and is_training else "keep"
        if batches._last_batch != expected:
            advice = ": set TrainConfig(drop_last=...)" if is_training else ""
            warn(f"{name} has last_batch={batches._last_batch!r}, but the run uses {expected!r}{advice}")


def _unwrap_loader(given: Any, part: str) -> Any:
    """Return the data set of a DataLoader, or ``given`` itself.

    Raises DataError for a DataLoader with a custom sampler or batchify_fn.
    """
    if not isinstance(given, gluon.data.DataLoader):
        return given
    batches = given._batch_sampler
    sampler = getattr(batches, "_sampler", None)
    supported = (gluon.data.SequentialSampler, gluon.data.RandomSampler)
    if type(batches) is not gluon.data.BatchSampler or type(sampler) not in supported:
        description = _describe_value(batches if sampler is None else sampler)
        raise DataError(
            f"the DataLoader of {part} has a custom sampler, {description}, but a run shuffles all "
            "images itself: pass the data set instead, or dataset.sample(sampler) to train only on the "
            "sampled images"
        )
    if given._batchify_fn not in DEFAULT_BATCHIFY:
        raise DataError(
            f"the DataLoader of {part} has a custom batchify_fn, but a run creates batches itself: "
            "pass its data set instead, with (image, label) samples of the same shape"
        )
    return given._dataset


class GluonSplit(LabeledSplit):
    """A split that reads samples from its data set each time a batch needs them.

    All images must have the shape and type of the first image. ``labels`` (int32 with shape (n,))
    are set by the caller or by `read_labels`. Later reads must return the same labels. ``part``:
    "train" or "test", for error messages.
    """

    def __init__(self, data: Any, part: str, layout: Optional[str]) -> None:
        self.data, self.part = data, part
        self._uses_np = mx.util.is_np_array()
        first, _ = self._get_sample(0)
        if first.ndim not in (2, 3) or not first.size:
            raise DataError(
                f"the images of {part} have type {first.dtype} and shape {first.shape}: use images of shape "
                "(C, H, W) or (H, W, C), or of shape (H, W) for gray images"
            )
        if first.dtype.kind not in "uif":
            raise DataError(f"the images of {part} have type {first.dtype}: use bytes (uint8) from 0 to 255, or floats")
        warn_of_whole_floats(first, f"the first image of {part}")
        self._first, self._layout = (first.shape, first.dtype), layout
        if layout is None and first.ndim == 3 and looks_channels_last(first.shape):
            self._layout = CHANNELS_LAST
        channels, height, width = self._to_channels_first(first).shape
        self.image_shape = (channels, height, width)
        self.dtype = np.dtype(np.float32 if first.dtype.kind == "f" else np.uint8)
        super().__init__(np.zeros(0, np.int32))

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, indices: "Indices") -> "Tuple[Images, Targets]":
        """Read the images (n, C, H, W) and int32 labels (n,) at ``indices``.

        If the images have weights, labels are float32 with shape (n, 2): each label and its weight.
        Raises DataError for a sample that cannot be read, or that differs in shape or type from the
        first sample.
        """
        images = np.empty((len(indices), *self.image_shape), self.dtype)
        for position, index in enumerate(map(int, indices)):
            images[position], label = self.read_sample(index)
            if label != self.labels[index]:
                raise DataError(
                    f"the label of image {index} of {self.part} has changed from {self.labels[index]} to "
                    f"{label}: always return the same label for an image"
                )
        return images, self.targets[indices]

    def read_sample(self, index: int) -> "Tuple[NDArray[Any], int]":
        """Read the image at ``index``, (C, H, W) in the split's type, and its label."""
        image, label = self._get_sample(index)
        if (image.shape, image.dtype) != self._first:
            shape, dtype = self._first
            raise DataError(
                f"image {index} of {self.part} has type {image.dtype} and shape {image.shape}, but image 0 has "
                f"type {dtype} and shape {shape}: use the same type and shape for all images, for "
                "example with transforms.Resize"
            )
        image = self._to_channels_first(image)
        if self.dtype == np.uint8:
            image = to_pixels(image, f"image {index} of {self.part}")
        else:
            image = image.astype(np.float32) * np.float32(WHITE)
            if not np.isfinite(image).all():
                raise DataError(
                    f"image {index} of {self.part} contains NaN or infinite values: replace them, or remove the image"
                )
        description = f"the label of image {index} of {self.part}"
        return image, int(convert_labels(np.reshape(label, (1, -1)), description, 1)[0])

    def read_labels(self) -> None:
        """Read every sample once, and store the labels."""
        self.labels = np.array(
            [self.read_sample(index)[1] for index in _indices_with_progress(len(self), self.part)], np.int32
        )

    def read_all(self) -> ArraySplit:
        """Read every sample once, and return a split in memory."""
        images = np.empty((len(self), *self.image_shape), self.dtype)
        labels = np.empty(len(self), np.int32)
        for index in _indices_with_progress(len(self), self.part):
            images[index], labels[index] = self.read_sample(index)
        return ArraySplit(to_bytes_if_whole(images), labels, CHANNELS_FIRST)

    def _get_sample(self, index: int) -> "Tuple[NDArray[Any], NDArray[Any]]":
        """Read an image and its label, unchanged. Raises DataError if the sample is not a pair."""
        try:
            # MXNet's setting np_array is per thread, so it is set in the thread that reads ahead.
            with np_semantics() if self._uses_np else nd_semantics():
                sample = self.data[index]
        except MemoryError:
            raise
        except Exception as error:  # the user's code may raise any exception
            description = f"image {index} of {self.part} cannot be read"
            raise DataError(f"{description}: {error_type_and_text(error)}") from error
        if not isinstance(sample, (tuple, list)) or len(sample) != 2:
            parts = f" of {len(sample)} elements" if isinstance(sample, (tuple, list)) else ""
            raise DataError(
                f"sample {index} of {self.part} is a {type(sample).__name__}{parts}: use (image, label) "
                "pairs; for a model with several inputs, write a custom training loop "
                "(docs/own-training.md)"
            )
        image, label = (np.asarray(part.asnumpy() if hasattr(part, "asnumpy") else part) for part in sample)
        return image, label

    def _to_channels_first(self, image: "NDArray[Any]") -> "NDArray[Any]":
        if image.ndim == 2:
            return image[np.newaxis]
        return image.transpose(2, 0, 1) if self._layout == CHANNELS_LAST else image


def _indices_with_progress(count: int, part: str) -> Iterator[int]:
    """Yield 0 to ``count`` - 1, and show a progress bar named ``part``."""
    with tqdm(unit=" images", disable=None, leave=False, dynamic_ncols=True, total=count) as bar:
        bar.set_description(part)
        for index in range(count):
            yield index
            bar.update()


def _make_split(data: Any, part: str, layout: Optional[str]) -> "ArraySplit | GluonSplit":
    """Make a split from a data set of samples. Raise DataError for other objects."""
    if isinstance(data, gluon.data.DataLoader):
        raise DataError(
            f"{part} is a DataLoader, but gluonlab forms the batches itself: pass the DataLoader's data set instead"
        )
    if not has_samples(data):
        raise DataError(f"{part} is {_describe_value(data)}: {PAIR_HINT}")
    if not len(data):
        raise DataError(f"{part} is an empty data set: pass a data set with at least one sample")
    columns = _array_columns(data)
    if columns is not None:
        images, labels = to_numpy(columns[0], f"x_{part}"), columns[1]
        is_last = images.ndim == 4 and looks_channels_last(images.shape[1:])
        return make_split(images, labels, part, layout or (CHANNELS_LAST if is_last else None))
    split = GluonSplit(data, part, layout)
    size = len(split) * math.prod(split.image_shape) * split.dtype.itemsize
    if has_fixed_samples(data) and size <= MAX_BYTES_IN_MEMORY:
        return split.read_all()
    labels = _labels_without_images(data)
    if labels is None:
        split.read_labels()
    else:
        split.labels = convert_labels(labels, f"y_{part}", len(split))
    return split


def _array_columns(data: Any) -> Optional[Tuple[Any, Any]]:
    """Return a data set's image and label arrays if each sample is a row of both, else None."""
    if type(data) is gluon.data.ArrayDataset and len(data._data) == 2:
        return tuple(data._data) if all(map(_is_rows, data._data)) else None
    if isinstance(data, _DownloadedDataset) and _is_mxnet_class(data) and data._transform is None:
        return data._data, data._label
    return None


def _is_rows(column: Any) -> bool:
    return hasattr(column, "shape") or isinstance(column, (list, tuple))


def _is_mxnet_class(data: Any) -> bool:
    """Return whether the class of ``data`` is part of MXNet.

    A derived class does not count, because it may behave differently.
    """
    return type(data).__module__.startswith("mxnet.gluon.data")


def has_fixed_samples(data: Any) -> bool:
    """Return whether a data set is known to return the same samples every time it is read."""
    if isinstance(data, (list, tuple)) or hasattr(data, "shape"):
        return True
    if not _is_mxnet_class(data) or getattr(data, "_transform", None) is not None:
        return False
    if isinstance(data, _LazyTransformDataset):
        first = isinstance(data._fn, _TransformFirstClosure)
        return first and _is_fixed_transform(data._fn._fn) and has_fixed_samples(data._data)
    if isinstance(data, (_SampledDataset, _FilteredDataset)):
        return has_fixed_samples(data._dataset)
    if isinstance(data, gluon.data.ArrayDataset):
        return all(map(has_fixed_samples, data._data))
    if isinstance(data, gluon.data.SimpleDataset):
        return has_fixed_samples(data._data)
    return True  # MXNet's other data sets read images from files


def _is_fixed_transform(transform: Any) -> bool:
    if isinstance(transform, (gluon.nn.Sequential, gluon.nn.HybridSequential)):
        return all(map(_is_fixed_transform, transform._children.values()))
    return type(transform) in FIXED_TRANSFORMS


def _labels_without_images(data: Any) -> Any:
    """Return a data set's labels if they can be read without the images, else None."""
    columns = _array_columns(data)
    if columns is not None:
        return columns[1]
    if not _is_mxnet_class(data) or getattr(data, "_transform", None) is not None:
        return None
    if isinstance(data, _LazyTransformDataset):
        first = isinstance(data._fn, _TransformFirstClosure)
        return _labels_without_images(data._data) if first else None
    if isinstance(data, (_SampledDataset, _FilteredDataset)):
        labels = _labels_without_images(data._dataset)
        return None if labels is None else to_numpy(labels, "labels")[data._indices]
    if isinstance(data, gluon.data.vision.ImageFolderDataset):
        return [label for _, label in data.items]
    return None


def _folder_class_names(data: Any) -> Optional[List[str]]:
    """Return the class names of a plain or transformed ImageFolderDataset, else None."""
    while data is not None and not hasattr(data, "synsets"):
        data = getattr(data, "_dataset", None) or getattr(data, "_data", None)
        data = data if isinstance(data, gluon.data.Dataset) else None
    return None if data is None else list(data.synsets)


def has_samples(given: Any) -> bool:
    """Return whether ``given`` is a DataLoader, a list of pairs, or another sequence of samples.

    Arrays, tuples, dictionaries and strings do not count as sequences of samples.
    """
    if isinstance(given, gluon.data.DataLoader):
        return True
    if isinstance(given, list):
        return not given or (isinstance(given[0], (tuple, list)) and len(given[0]) == 2)
    is_other_value = isinstance(given, (str, bytes, tuple, dict, type)) or hasattr(given, "shape")
    return not is_other_value and hasattr(given, "__len__") and hasattr(given, "__getitem__")


def _describe_value(given: Any) -> str:
    """Describe a value for an error message, such as ``a list`` or ``an array of shape (3,)``."""
    if hasattr(given, "shape"):
        return f"an array of shape {tuple(given.shape)}"
    if isinstance(given, type):
        return f"the class {given.__name__}"
    kind = type(given).__name__
    return f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"
