"""--pretrained loads all parameters of a file, or all but the last layer's, or raises one error and changes nothing."""

import struct
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import nd
from support.completed import make_initialized_net
from support.damage import corrupt_bytes
from support.devices import contexts, device
from support.made_up_data import make_dataset
from support.reference import parameter_arrays

from gluonlab.errors import ModelError
from gluonlab.export.export_network import WEIGHTS, write_export
from gluonlab.models.load_parameter_file import load_parameters, load_pretrained


def are_equal(first, second):
    return [np.array_equal(a, b) for a, b in zip(first, second)]


@pytest.mark.parametrize("name", ["lenet", "resnet8", "cifar_resnet20", "gluoncv:mobilenet0.25"])
@pytest.mark.parametrize("written_by", ["save_parameters", "export"])
def test_a_file_of_the_same_network_gives_every_device_its_parameters(tmp_path, name, written_by):
    net, other = (make_initialized_net(name, ctxs=contexts(1)), make_initialized_net(name, ctxs=contexts(2)))
    file = tmp_path / "a.params"
    if written_by == "export":
        write_export(net, name, make_dataset((3, 32, 32), "0123456789"), tmp_path)
        file = tmp_path / WEIGHTS
    else:
        net.save_parameters(str(file))
    assert not all(are_equal(parameter_arrays(net), parameter_arrays(other, device(1))))
    assert load_pretrained(other, str(file), 10) == f"{file}: all parameters"
    for ctx in contexts(2):
        assert all(are_equal(parameter_arrays(net), parameter_arrays(other, ctx)))


@pytest.mark.parametrize("name", ["lenet", "resnet18", "gluoncv:squeezenet1.1"])
def test_for_other_classes_everything_but_the_last_layer_is_loaded(tmp_path, name):
    side = 224 if "squeeze" in name else 32
    net, other = (make_initialized_net(name, (3, side, side), classes=classes) for classes in (6, 4))
    net.save_parameters(str(tmp_path / "a.params"))
    before = parameter_arrays(other)
    message = load_pretrained(other, str(tmp_path / "a.params"), 4)
    assert message.startswith(f"{tmp_path / 'a.params'}: all parameters except ")
    assert message.endswith(", which are new for 4 classes")
    loaded = are_equal(parameter_arrays(other), parameter_arrays(net))
    assert loaded == [param.shape[0] != 4 for param in other.collect_params().values()]
    assert all(kept or new for kept, new in zip(are_equal(parameter_arrays(other), before), loaded))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet18", r"features\.0\.weight is missing; .* is missing and \d+ more\): use a parameter file of "),
        ("cifar_resnet20", ".* is missing"),
        ("lenet", r".*0\.bias is missing"),
    ],
)
def test_a_file_of_another_network_is_refused_and_changes_nothing(tmp_path, name, message):
    file = tmp_path / "a.params"
    make_initialized_net("resnet8").save_parameters(str(file))
    net = make_initialized_net(name)
    before = parameter_arrays(net)
    with pytest.raises(ModelError, match=rf"^--pretrained {file} does not match the model \({message}"):
        load_pretrained(net, str(file), 10)
    assert all(are_equal(parameter_arrays(net), before))


def test_other_shapes_and_surplus_parameters_are_named(tmp_path):
    path, net = tmp_path / "a.params", make_initialized_net("resnet8")
    file = str(path)
    make_initialized_net("resnet8", (1, 28, 28)).save_parameters(file)
    with pytest.raises(ModelError, match=r"0\.weight has shape \(16, 1, 3, 3\), not \(16, 3, 3, 3\)"):
        load_pretrained(net, file, 10)
    make_initialized_net("resnet8", classes=5).save_parameters(file)
    message = r"^it does not match the model \(8\.weight has shape \(5, 64\), not \(10, 64\); 8\.bias has"
    with pytest.raises(ModelError, match=message):
        load_parameters(net, path, "it", 10)
    arrays = {name: param.data() for name, param in net._collect_params_with_prefix().items()}
    nd.save(file, {**arrays, "99.weight": nd.zeros((1,))})
    with pytest.raises(ModelError, match=r"99\.weight is not in the model"):
        load_pretrained(net, file, 10)


NO_FILES = {
    "a list": lambda file: nd.save(file, [nd.zeros((2,))]),
    "nothing": lambda file: nd.save(file, {}),
    "empty": lambda file: Path(file).write_bytes(b""),
    "text": lambda file: Path(file).write_bytes(b"weights, weights, weights, and nothing else"),
}


@pytest.mark.parametrize("kind", NO_FILES)
def test_a_file_without_parameters_is_a_clear_error(tmp_path, kind):
    file = str(tmp_path / "a.params")
    NO_FILES[kind](file)
    with pytest.raises(ModelError, match="use a file that Gluon's save_parameters or export wrote"):
        load_pretrained(make_initialized_net("mlp"), file, 10)


def dense():
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize(mx.init.Normal(1))
    return net


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("params") / "dense.params"
    dense().save_parameters(str(path))
    return path


@settings(max_examples=200)
@given(st.data())
def test_a_damaged_file_is_loaded_or_a_model_error(file, tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "damaged.params"
    path.write_bytes(corrupt_bytes(data, file.read_bytes()))
    net = dense()
    try:
        load_parameters(net, path, "it", 2)
        mx.nd.waitall()
    except ModelError as error:
        assert str(error).startswith("it ")


@pytest.mark.parametrize("place", [7, 15])
def test_a_damaged_shape_is_refused(file, tmp_path, place):
    """2**62 more rows or columns: the number of bytes is the same modulo 2**64."""
    content = bytearray(file.read_bytes())
    begin = content.index(struct.pack("<qq", 2, 3))
    content[begin + place] ^= 0x40
    (tmp_path / "a.params").write_bytes(content)
    with pytest.raises(ModelError, match="cannot be read as a parameter file"):
        load_parameters(dense(), tmp_path / "a.params", "it", 2)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_files_of_older_versions_of_mxnet_are_read(tmp_path, version):
    """Their arrays start with ndim and 32-bit sizes, or with a magic number and 64-bit sizes."""
    arrays = {"weight": np.arange(6, dtype=np.float32).reshape(2, 3), "bias": np.array([7, 8], np.float32)}
    content = struct.pack("<QQQ", 0x112, 0, 2)
    for array in arrays.values():
        content += struct.pack("<I", 0xF993FAC7 + version) if version else b""
        content += struct.pack("<i", 0) if version == 2 else b""
        content += struct.pack(f"<i{array.ndim}{'q' if version else 'I'}", array.ndim, *array.shape)
        content += struct.pack("<iii", 1, 0, 0) + array.tobytes()
    content += struct.pack("<Q", 2) + b"".join(struct.pack("<Q", len(name)) + name.encode() for name in arrays)
    (tmp_path / "a.params").write_bytes(content)
    net = dense()
    assert load_parameters(net, tmp_path / "a.params", "it", 2) == []
    for name, array in arrays.items():
        assert np.array_equal(getattr(net, name).data().asnumpy(), array)


def test_a_file_that_was_written_after_set_np_is_read(tmp_path):
    with mx.util.np_shape(True), mx.util.np_array(True):
        net = dense()
        net.save_parameters(str(tmp_path / "a.params"))
        expected = [param.data().asnumpy() for param in net.collect_params().values()]
    net = dense()
    load_parameters(net, tmp_path / "a.params", "it", 2)
    assert all(are_equal(parameter_arrays(net), expected))


@pytest.mark.parametrize("path", ["missing.params", ".", "https://example.org/resnet18.params"])
def test_only_local_files_are_read(path):
    with pytest.raises(ModelError, match="use a local parameter file, because nothing is downloaded"):
        load_parameters(make_initialized_net("mlp"), Path(path), path, 10)
