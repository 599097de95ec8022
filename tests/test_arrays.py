"""Arrays in files: MXNet's own format to the byte, and never a file that is cut off."""

import mxnet as mx
import numpy as np
import pytest
from full_disk import full_at
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import nd

from gluonlab.arrays import save_arrays
from gluonlab.errors import OutputError

TYPES = ("float32", "float64", "float16", "uint8", "int8", "int32", "int64")
SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)
NAMES = st.text(st.characters(codec="utf-8")).filter(lambda name: "\0" not in name)
ARRAYS = st.dictionaries(NAMES, st.tuples(SHAPES, st.sampled_from(TYPES)))


@settings(max_examples=60)
@given(ARRAYS)
def test_the_bytes_are_those_of_mxnet(tmp_path_factory, wanted):
    folder = tmp_path_factory.getbasetemp()
    arrays = {name: nd.array(np.arange(np.prod(shape)).reshape(shape), dtype=kind) for name, (shape, kind) in wanted.items()}
    save_arrays(folder / "ours", arrays)
    nd.save(str(folder / "mxnets"), arrays)
    assert (folder / "ours").read_bytes() == (folder / "mxnets").read_bytes()


def test_arrays_of_any_device_are_read_on_the_cpu(tmp_path):
    values = np.random.RandomState(0).rand(3, 5).astype("float32")
    save_arrays(tmp_path / "file", {"a.weight": nd.array(values, ctx=mx.cpu(3))})
    loaded = nd.load(str(tmp_path / "file"))
    assert list(loaded) == ["a.weight"] and loaded["a.weight"].context == mx.cpu(0)
    assert np.array_equal(loaded["a.weight"].asnumpy(), values)


@pytest.mark.parametrize("lacking", [1, 100, 4096, 5000])
def test_a_disk_that_is_full_at_the_end_is_an_error_and_the_old_file_stays(tmp_path, lacking):
    """Where less than a buffer is lacking, mx.nd.save says nothing."""
    arrays = {"weight": nd.ones((50, 50)), "bias": nd.ones((50,))}
    save_arrays(tmp_path / "file", arrays)
    whole = (tmp_path / "file").read_bytes()
    with full_at(len(whole) - lacking), pytest.raises(OutputError, match=r"^cannot write .*/file: File too large; choose another"):
        save_arrays(tmp_path / "file", arrays)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == whole
