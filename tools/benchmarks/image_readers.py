"""Worker jobs that read image files into batches in MXNet, without training."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon, recordio

from benchmarks.images import BATCH_SIZE, whole_epochs
from gluonlab.bench.worker_main import Job
from gluonlab.data import Dataset
from gluonlab.data.images.decode_image import decode_image
from gluonlab.data.images.resize_image import default_resizer
from gluonlab.data.images.turbojpeg import matches_pillow
from gluonlab.data.loading.batch_loader import Loader
from gluonlab.data.sets.image_folder import ImageFolder, load_folder
from gluonlab.data.sets.packed_folder import pack_dataset
from gluonlab.devices import devices

WORKERS = 2


def make(reader: str, folder: str, size: int) -> Job:
    """Return a job that reads batches by one of READERS."""
    return whole_epochs(READERS[reader](folder, size), len(ImageFolder(folder).train[0]))


def _read_with_decoders(folder: str, size: int) -> Loader:
    return _make_loader(load_folder(folder, image_size=size, decoders=WORKERS))


def _read_packed(folder: str, size: int) -> Loader:
    # the folder for temporary files is the measurement's
    packed = Path(tempfile.mkdtemp()) / "packed"
    pack_dataset(load_folder(folder, image_size=size, decoders=WORKERS), packed)
    return _make_loader(load_folder(packed))


def _make_loader(dataset: Dataset) -> Loader:
    return Loader(dataset.train, devices("cpu*2"), BATCH_SIZE, raw=True)


class _RecordReader:
    """ImageRecordIter over a .rec of the unchanged JPEGs; it has one thread on two cores."""

    def __init__(self, folder: str, size: int) -> None:
        folder_of_records = Path(tempfile.mkdtemp())
        record = recordio.MXIndexedRecordIO(str(folder_of_records / "a.idx"), str(folder_of_records / "a.rec"), "w")
        paths, labels = ImageFolder(folder).train
        for number, (path, label) in enumerate(zip(paths, labels)):
            record.write_idx(
                number, recordio.pack(recordio.IRHeader(0, float(label), number, 0), Path(path).read_bytes())
            )
        record.close()
        self._iterator = mx.io.ImageRecordUInt8Iter(
            path_imgrec=str(folder_of_records / "a.rec"),
            path_imgidx=str(folder_of_records / "a.idx"), data_shape=(3, size, size),
            batch_size=BATCH_SIZE, resize=size, shuffle=True, preprocess_threads=WORKERS,
        )  # fmt: skip

    def __iter__(self) -> Iterator[Any]:
        self._iterator.reset()
        for batch in self._iterator:
            batch.data[0].wait_to_read()
            yield batch


class _FileDataset(gluon.data.Dataset):
    """A data set for gluon's DataLoader: an image (3, size, size) and its label."""

    def __init__(self, folder: str, size: int) -> None:
        self.paths, self.labels = ImageFolder(folder).train
        self.size, self.quick, self.resizer = size, matches_pillow(), default_resizer()

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tuple[Any, Any]:
        pixels = decode_image(self.paths[index], self.size, None, self.quick, self.resizer)
        return np.ascontiguousarray(pixels), self.labels[index]


def _read_with_gluon(folder: str, size: int) -> Iterable[Any]:
    loader: Iterable[Any] = gluon.data.DataLoader(
        _FileDataset(folder, size), BATCH_SIZE, shuffle=True, num_workers=WORKERS
    )
    return loader


READERS: Dict[str, Callable[[str, int], Iterable[Any]]] = {
    "decoders": _read_with_decoders,
    "packed": _read_packed,
    "record": _RecordReader,
    "gluon": _read_with_gluon,
}
