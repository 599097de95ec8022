"""Where the files of data sets come from, and how each is known: a table, and no work.

Sizes and SHA-256 are those that TensorFlow Datasets and torchvision publish; CIFAR-10's batches are
known by the SHA-1 of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Iterator, Mapping, Optional, Tuple

from gluonlab.errors import DataError, unknown


@dataclass(frozen=True)
class KnownFile:
    """A file's name, size in bytes and digest, hexadecimal, by ``algorithm``."""

    name: str
    size: int
    digest: str
    algorithm: str = "sha256"

    def __str__(self) -> str:
        return f"{self.name} ({self.size:,} bytes, {self.algorithm} {self.digest})"


@dataclass(frozen=True)
class Contents:
    """What an archive unpacks to: at most ``most_bytes`` in ``most_files``.

    ``known``: its files, which are then all that is kept of it, and by which another packing of the
    same files is recognised. Where they are not known, the archive's own digest decides, and its
    files lie below one folder, which is left out. ``folder``: what that is called, so that what was
    unpacked by hand is found, too.
    """

    most_bytes: int
    most_files: int = 20_000
    known: Tuple[KnownFile, ...] = ()
    folder: str = ""


@dataclass(frozen=True)
class Source:
    """The ``files`` of the data set ``name``, at each of ``mirrors``, tried in this order.

    ``contents``: for a data set that is one archive, what it holds.
    """

    name: str
    files: Tuple[KnownFile, ...]
    mirrors: Tuple[str, ...]
    contents: Optional[Contents] = None

    @property
    def size(self) -> int:
        """Bytes to fetch."""
        return sum(file.size for file in self.files)

    @property
    def known(self) -> Tuple[KnownFile, ...]:
        """The files that the data set is read from, as far as they are known beforehand."""
        return self.contents.known if self.contents else self.files


def find_source(name: str, sources: Mapping[str, Source]) -> Source:
    """The source of a data set.

    Raises DataError, with the choices, when there is none of this name.
    """
    if name not in sources:
        raise DataError(unknown("data set to download", name, sources))
    return sources[name]


def _files(table: str, algorithm: str = "sha256") -> Tuple[KnownFile, ...]:
    """The files of a table with a line ``name size digest`` for each."""
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
# version 2 holds a third of the images back for validation, version 1 only 500; the numbers are the
# shorter side in pixels
IMAGENETTE = """
imagenette2-320.tgz 341663724 569b4497c98db6dd29f335d1f109cf315fe127053cedf69010d047f0188e158c
imagenette2-160.tgz 99003388 64d0c4859f35a461889e0147755a999a48b49bf38a7e0f9bd27003f10db02fe5
imagenette-320.tgz 341289752 0e3ac85d7f3fd0a63d5e27d85c68511be9ac4dae260345b6f7434a0d4fa24b3f
imagenette-160.tgz 98752094 4bacf19aa3f2454e330ac366c98ac1e470ccc6bebca8ff63ecc7f339cb2ead11
"""


def _sources() -> Iterator[Source]:
    ossci, cvdf = "ossci-datasets.s3.amazonaws.com", "storage.googleapis.com/cvdf-datasets"
    yield Source("mnist", _files(MNIST), (f"https://{ossci}/mnist/", f"https://{cvdf}/mnist/"))
    keras = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/"
    zalando = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
    yield Source("fashion-mnist", _files(FASHION_MNIST), (keras, zalando))
    batches = _files(CIFAR10_BATCHES, "sha1")
    # beside the batches a page and a list of names; tar rounds up
    most_bytes = sum(batch.size for batch in batches) + 2**20
    contents = Contents(most_bytes, known=batches, folder="cifar-10-batches-bin")
    yield Source("cifar10", _files(CIFAR10), ("https://www.cs.toronto.edu/~kriz/",), contents)
    for file in _files(IMAGENETTE):
        # JPEGs do not shrink when they are packed: twice the archive is far more than it holds
        contents, name = Contents(2 * file.size), file.name[: -len(".tgz")]
        yield Source(name, (file,), ("https://s3.amazonaws.com/fast-ai-imageclas/",), contents)


SOURCES: Dict[str, Source] = {source.name: source for source in _sources()}
