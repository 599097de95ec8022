"""Writer of record files like MXNet's im2rec --pass-through, with .lst and .idx files."""

import struct

import numpy as np
from mxnet import recordio


def write_records(path, images, labels, ids=None, names=None):
    """Write a .rec of the contents of image files, its .idx, and with ``names`` a .lst."""
    ids = range(len(images)) if ids is None else ids
    writer = recordio.MXIndexedRecordIO(str(path.with_suffix(".idx")), str(path), "w")
    for index, (content, label, key) in enumerate(zip(images, labels, ids)):
        writer.write_idx(index, _pack_record(label, key, content))
    writer.close()
    if names is not None:
        lines = [f"{key}\t{float(label):f}\t{name}" for key, label, name in zip(ids, labels, names)]
        path.with_suffix(".lst").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _pack_record(label, key, content):
    """Pack a record. For several labels recordio.pack needs a method that numpy 2.3 dropped."""
    if isinstance(label, list):
        labels = np.array(label, "float32")
        return struct.pack("IfQQ", len(labels), 0, key, 0) + labels.tobytes() + content
    return recordio.pack(recordio.IRHeader(0, label, key, 0), content)


def write_folder_records(root, out):
    """Write out/train.rec and out/val.rec of the images in root/train and root/val.

    Labels are indices of the sorted folders. The .lst files contain the folders.
    """
    out.mkdir(exist_ok=True)
    for part in ("train", "val"):
        files = sorted((root / part).rglob("*.jpg"))
        classes = sorted({file.parent.name for file in files})
        write_records(
            out / f"{part}.rec",
            [file.read_bytes() for file in files],
            [classes.index(file.parent.name) for file in files],
            names=[f"{file.parent.name}/{file.name}" for file in files],
        )
    return out


def write_folder_list(part, out):
    """Write a CSV list of the images in the folders of ``part``, relative to its folder."""
    files = sorted(part.rglob("*.jpg"))
    lines = ["image,label"]
    lines += [f"{file.relative_to(out.parent)},{file.parent.name}" for file in files]
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return out


def assert_same_splits(one, other):
    """Check that all images and labels of two data sets are equal."""
    for split in ("train", "test"):
        ours, theirs = (getattr(dataset, split) for dataset in (one, other))
        indices = np.arange(len(theirs))
        for array, expected in zip(ours.batch(indices), theirs.batch(indices)):
            np.testing.assert_array_equal(array, expected)
