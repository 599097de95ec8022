"""Arrays in files: MXNet's own format to the byte, and never a file that is cut off."""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import nd
from support.damage import corrupt_bytes
from support.devices import device
from support.examples import examples
from support.full_disk import limit_file_size

from gluonlab.errors import OutputError
from gluonlab.files.array_files import read_arrays, save_arrays

TYPES = ("float32", "float64", "float16", "uint8", "int8", "int32", "int64")
SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)
NAMES = st.text(st.characters(codec="utf-8")).filter(lambda name: "\0" not in name)
ARRAYS = st.dictionaries(NAMES, st.tuples(SHAPES, st.sampled_from(TYPES)))


@examples(25, 60)
@given(ARRAYS)
def test_the_bytes_are_those_of_mxnet_and_are_read_back(tmp_path_factory, drawn):
    folder = tmp_path_factory.getbasetemp()
    arrays = {
        name: nd.array(np.arange(np.prod(shape)).reshape(shape), dtype=dtype) for name, (shape, dtype) in drawn.items()
    }
    save_arrays(folder / "ours", arrays)
    nd.save(str(folder / "mxnets"), arrays)
    assert (folder / "ours").read_bytes() == (folder / "mxnets").read_bytes()
    loaded = read_arrays(folder / "ours")
    assert list(loaded) == list(arrays)
    for name, array in arrays.items():
        assert loaded[name].dtype == array.dtype and np.array_equal(loaded[name].asnumpy(), array.asnumpy())


def test_arrays_of_any_device_are_read_on_the_cpu(tmp_path):
    values = np.random.RandomState(0).rand(3, 5).astype("float32")
    save_arrays(tmp_path / "file", {"a.weight": nd.array(values, ctx=device(3))})
    loaded = nd.load(str(tmp_path / "file"))
    assert list(loaded) == ["a.weight"] and loaded["a.weight"].context == mx.cpu(0)
    assert np.array_equal(loaded["a.weight"].asnumpy(), values)


@pytest.mark.parametrize("lacking", [1, 100, 4096, 5000])
def test_a_disk_that_is_full_at_the_end_is_an_error_and_the_old_file_stays(tmp_path, lacking):
    """Where less than a buffer is lacking, mx.nd.save says nothing."""
    arrays = {"weight": nd.ones((50, 50)), "bias": nd.ones((50,))}
    save_arrays(tmp_path / "file", arrays)
    whole = (tmp_path / "file").read_bytes()
    with limit_file_size(len(whole) - lacking), pytest.raises(
        OutputError, match=r"^cannot write .*/file: File too large; choose another"
    ):
        save_arrays(tmp_path / "file", arrays)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == whole


def test_arrays_that_were_saved_after_set_np_are_read(tmp_path):
    """mx.nd.load refuses them in this mode."""
    with mx.util.np_shape(True), mx.util.np_array(True):
        arrays = {"a": mx.np.ones((2, 3)), "scalar": mx.np.array(3.0), "empty": mx.np.zeros((0, 3))}
        save_arrays(tmp_path / "file", arrays)
    with pytest.raises(mx.MXNetError):
        nd.load(str(tmp_path / "file"))
    values = {name: array.asnumpy().tolist() for name, array in read_arrays(tmp_path / "file").items()}
    assert values == {"a": [[1, 1, 1], [1, 1, 1]], "scalar": [3]}


@settings(max_examples=100)
@given(st.data())
def test_a_damaged_file_is_read_or_a_value_error(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "damaged"
    save_arrays(path, {"weight": nd.ones((2, 3)), "bias": nd.ones((2,))})
    path.write_bytes(corrupt_bytes(data, path.read_bytes()))
    try:
        assert all(isinstance(array, nd.NDArray) for array in read_arrays(path).values())
    except ValueError as error:
        assert "\n" not in str(error)
