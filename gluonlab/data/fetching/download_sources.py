"""Download sources of the data sets: addresses, sizes and digests.

TensorFlow Datasets and torchvision publish these sizes and SHA-256 digests. The digests of
CIFAR-10's batches are SHA-1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Iterator, Mapping, Optional, Tuple

from gluonlab.errors import DataError, unknown


@dataclass(frozen=True)
class KnownFile:
    """Name, size in bytes and hexadecimal digest of a file."""

    name: str
    size: int
    digest: str
    algorithm: str = "sha256"

    def __str__(self) -> str:
        return f"{self.name} ({self.size:,} bytes, {self.algorithm} {self.digest})"


@dataclass(frozen=True)
class ArchiveContents:
    """The contents of an archive: at most ``max_bytes`` bytes, in at most ``max_files`` files.

    ``known_files``: if given, only these files are unpacked. The digests of these files are
    verified instead of the archive's digest, so that a repacked archive is accepted. Without known
    files, the archive's digest is verified, and the top folder is removed from all paths.

    ``top_folder``: the name of the archive's top folder. This folder is also searched for files,
    because users may have unpacked the archive by hand.
    """

    max_bytes: int
    max_files: int = 20_000
    known_files: Tuple[KnownFile, ...] = ()
    top_folder: str = ""


@dataclass(frozen=True)
class Source:
    """The files of the data set ``name``, and where to download them.

    ``mirrors``: addresses of folders that contain the files, in the order in which to try them.
    ``contents``: only set if ``files`` is a single archive.
    """

    name: str
    files: Tuple[KnownFile, ...]
    mirrors: Tuple[str, ...]
    contents: Optional[ArchiveContents] = None

    @property
    def size(self) -> int:
        """Number of bytes to download."""
        return sum(file.size for file in self.files)

    @property
    def known_files(self) -> Tuple[KnownFile, ...]:
        """The files from which the data set is read; empty for an archive without known files."""
        return self.contents.known_files if self.contents else self.files


def find_source(name: str, sources: Mapping[str, Source]) -> Source:
    """Return the source of a data set.

    For an unknown name, raises a DataError that lists the choices.
    """
    if name not in sources:
        raise DataError(unknown("downloadable data set", name, sources))
    return sources[name]


def _parse_file_table(table: str, algorithm: str = "sha256") -> Tuple[KnownFile, ...]:
    """Parse a table with one line ``name size digest`` per file."""
    rows = [line.split() for line in table.strip().split("\n")]
    return tuple(KnownFile(name, int(size), digest, algorithm) for name, size, digest in rows)


MNIST = """
train-images-idx3-ubyte.gz 9912422 440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609
train-labels-idx1-ubyte.gz 28881 3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c
t10k-images-idx3-ubyte.gz 1648877 8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6
t10k-labels-idx1-ubyte.gz 4542 f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6
"""
FASHION_MNIST = """
train-images-idx3-ubyte.gz 26421880 3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84
train-labels-idx1-ubyte.gz 29515 a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845
t10k-images-idx3-ubyte.gz 4422102 346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073
t10k-labels-idx1-ubyte.gz 5148 67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5
"""
CIFAR10 = """
cifar-10-binary.tar.gz 170052171 c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd
"""
CIFAR10_BATCHES = """
data_batch_1.bin 30730000 aadd24acce27caa71bf4b10992e9e7b2d74c2540
data_batch_2.bin 30730000 c0ba65cce70568cd57b4e03e9ac8d2a5367c1795
data_batch_3.bin 30730000 1dd00a74ab1d17a6e7d73e185b69dbf31242f295
data_batch_4.bin 30730000 aab85764eb3584312d3c7f65fd2fd016e36a258e
data_batch_5.bin 30730000 26e2849e66a845b7f1e4614ae70f4889ae604628
test_batch.bin 30730000 67eb016db431130d61cd03c7ad570b013799c88c
"""
# Version 2 (imagenette2) has a third of the images for validation, version 1 only 500 images. 320
# and 160 are the lengths of the short side in pixels.
IMAGENETTE = """
imagenette2-320.tgz 341663724 569b4497c98db6dd29f335d1f109cf315fe127053cedf69010d047f0188e158c
imagenette2-160.tgz 99003388 64d0c4859f35a461889e0147755a999a48b49bf38a7e0f9bd27003f10db02fe5
imagenette-320.tgz 341289752 0e3ac85d7f3fd0a63d5e27d85c68511be9ac4dae260345b6f7434a0d4fa24b3f
imagenette-160.tgz 98752094 4bacf19aa3f2454e330ac366c98ac1e470ccc6bebca8ff63ecc7f339cb2ead11
"""


def _make_sources() -> Iterator[Source]:
    """Yield the sources of all data sets."""
    ossci, cvdf = "ossci-datasets.s3.amazonaws.com", "storage.googleapis.com/cvdf-datasets"
    yield Source("mnist", _parse_file_table(MNIST), (f"https://{ossci}/mnist/", f"https://{cvdf}/mnist/"))
    keras = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/"
    zalando = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
    yield Source("fashion-mnist", _parse_file_table(FASHION_MNIST), (keras, zalando))
    batches = _parse_file_table(CIFAR10_BATCHES, "sha1")
    # 1 MiB more than the batches, for two small text files in the archive and for tar's padding
    most_bytes = sum(batch.size for batch in batches) + 2**20
    contents = ArchiveContents(most_bytes, known_files=batches, top_folder="cifar-10-batches-bin")
    yield Source("cifar10", _parse_file_table(CIFAR10), ("https://www.cs.toronto.edu/~kriz/",), contents)
    for file in _parse_file_table(IMAGENETTE):
        # compression hardly shrinks JPEGs, so twice the size of the archive is more than enough
        contents, name = ArchiveContents(2 * file.size), file.name[: -len(".tgz")]
        yield Source(name, (file,), ("https://s3.amazonaws.com/fast-ai-imageclas/",), contents)


SOURCES: Dict[str, Source] = {source.name: source for source in _make_sources()}
