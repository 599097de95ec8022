"""Small fake data sets under the names of real ones, and tables of their sources.

python -m support.made_up_sources TABLE download mnist runs python -m gluonlab.data with the table
in the file TABLE.
"""

import dataclasses
import gzip
import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path

import numpy as np

from gluonlab.data.__main__ import main
from gluonlab.data.fetching.download import CHUNK_BYTES
from gluonlab.data.fetching.download_sources import SOURCES, ArchiveContents, KnownFile, Source
from support.idx_files import MNIST_NAMES, idx_bytes, make_mnist_arrays

IDX_NAMES = [f"{name}.gz" for name in MNIST_NAMES]
CIFAR_ARCHIVE = "cifar-10-binary.tar.gz"
BATCHES = [batch.name for batch in SOURCES["cifar10"].known_files]
RECORDS = 3  # images in each of the made-up CIFAR batches


def random_bytes(size, seed=0):
    """Return bytes that do not compress."""
    return np.random.RandomState(seed).bytes(size)


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def make_known_file(name, content, algorithm="sha256"):
    return KnownFile(name, len(content), hashlib.new(algorithm, content).hexdigest(), algorithm)


def mnist_files(seed=0):
    """Return the contents of the four files with 40 and 10 random images, by name."""
    arrays = make_mnist_arrays(seed=seed)
    return {name: gzip.compress(idx_bytes(array), 1) for name, array in zip(IDX_NAMES, arrays)}


def make_source(name, files, *mirrors, contents=None):
    return Source(name, tuple(make_known_file(file, content) for file, content in files.items()), mirrors, contents)


FILE_CONTENT = random_bytes(10 * CHUNK_BYTES)
CUT_BYTES = 4 * CHUNK_BYTES  # after these, connections break


def single_file_source(*mirrors):
    """Return the source of a data set of one file, FILE_CONTENT."""
    return make_source("set", {"file.gz": FILE_CONTENT}, *mirrors)


def make_tar(members, compress=True):
    """Return a tar archive of members (name, content) or TarInfo, in this order."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member, io.BytesIO(bytes(member.size)) if member.isreg() else None)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                tar.addfile(info, io.BytesIO(member[1]))
    return gzip.compress(packed.getvalue(), 1) if compress else packed.getvalue()


def cifar_batches(records=RECORDS, seed=0):
    """Return {file name: content} with random images and labels."""
    random = np.random.RandomState(seed)
    batches = {}
    for name in BATCHES:
        content = random.randint(0, 256, (records, 3073), dtype=np.uint8)
        content[:, 0] %= 10
        batches[name] = content.tobytes()
    return batches


def cifar_archive(batches, folder="cifar-10-batches-bin/"):
    return make_tar(
        [*((f"{folder}{name}", content) for name, content in batches.items()), (f"{folder}readme.html", b"<p>")]
    )


def cifar_source(batches, archive, *mirrors):
    files = tuple(make_known_file(name, content, "sha1") for name, content in batches.items())
    return make_source(
        "cifar10",
        {CIFAR_ARCHIVE: archive},
        *mirrors,
        contents=ArchiveContents(2**20, known_files=files, top_folder="cifar-10-batches-bin"),
    )


def read_files(folder):
    """Return {path: content} of all files below a folder, without locks."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def write_table(path, *sources):
    path.write_text(json.dumps([dataclasses.asdict(source) for source in sources]))
    return path


def read_table(path):
    sources = {}
    for fields in json.loads(path.read_text()):
        files = tuple(KnownFile(**file) for file in fields["files"])
        contents = fields["contents"] and ArchiveContents(
            fields["contents"]["max_bytes"],
            fields["contents"]["max_files"],
            tuple(KnownFile(**file) for file in fields["contents"]["known_files"]),
        )
        sources[fields["name"]] = Source(fields["name"], files, tuple(fields["mirrors"]), contents)
    return sources


if __name__ == "__main__":
    main(sys.argv[2:], read_table(Path(sys.argv[1])))
