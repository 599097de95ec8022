"""Record files as MXNet's im2rec writes them with --pass-through, and their .lst and .idx."""

import struct

import numpy as np
from mxnet import recordio


def write_records(path, images, labels, ids=None, names=None):
    """A .rec of ``images``, bytes of files, with its .idx; with ``names`` a .lst, too."""
    ids = range(len(images)) if ids is None else ids
    writer = recordio.MXIndexedRecordIO(str(path.with_suffix(".idx")), str(path), "w")
    for place, (content, label, key) in enumerate(zip(images, labels, ids)):
        writer.write_idx(place, _pack_record(label, key, content))
    writer.close()
    if names is not None:
        lines = [f"{key}\t{float(label):f}\t{name}" for key, label, name in zip(ids, labels, names)]
        path.with_suffix(".lst").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _pack_record(label, key, content):
    """As recordio.pack, whose several labels need a method that numpy 2.3 has dropped."""
    if isinstance(label, list):
        labels = np.array(label, "float32")
        return struct.pack("IfQQ", len(labels), 0, key, 0) + labels.tobytes() + content
    return recordio.pack(recordio.IRHeader(0, label, key, 0), content)


def write_folder_records(root, out):
    """out/train.rec and out/val.rec of the images in root/train and root/val, as im2rec makes them.

    Labels number the sorted folders, and the .lst names them.
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
    """A CSV list of the images in the folders of ``part``, from the list's own folder."""
    files = sorted(part.rglob("*.jpg"))
    lines = ["image,label"]
    lines += [f"{file.relative_to(out.parent)},{file.parent.name}" for file in files]
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return out


def assert_same_splits(one, other):
    """Compare all images and labels of two data sets."""
    for split in ("train", "test"):
        ours, theirs = (getattr(each, split) for each in (one, other))
        every = np.arange(len(theirs))
        for found, wanted in zip(ours.batch(every), theirs.batch(every)):
            np.testing.assert_array_equal(found, wanted)
