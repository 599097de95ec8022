"""With cached operators and deferred packages MXNet is the same as without them."""

import json
import os
import stat

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.full_disk import limit_file_size

from gluonlab.engine import faster_import

# Print a digest of all functions of MXNet's operators and their modules, without handles (addresses).
DESCRIBE = """
import hashlib, json, sys, types

def describe(function):
    code = function.__code__
    handles = [c for c in code.co_consts if isinstance(c, int) and c > 2**20]
    return [
        function.__name__, function.__qualname__, function.__module__, function.__doc__,
        repr(function.__defaults__), code.co_argcount, code.co_flags, len(handles),
        [repr(c) for c in code.co_consts if c not in handles], code.co_code.hex(),
        [*code.co_names, *code.co_varnames], code.co_filename, function.__globals__["__name__"],
    ]

mx = sys.modules["mxnet"]
WITH_OPERATORS = ("ndarray", "symbol", "numpy", "numpy_extension", "contrib")
modules = sorted(name for name in sys.modules if name.split(".")[1:2] and
                 name.split(".")[0] == "mxnet" and name.split(".")[1] in WITH_OPERATORS)
found = {}
for name in modules:
    module = sys.modules[name]
    found[name] = [dir(module), getattr(module, "__all__", None), {
        key: describe(value) for key, value in vars(module).items()
        if isinstance(value, types.FunctionType) and value.__code__.co_filename == "<string>"
    }]
count = sum(len(item[2]) for item in found.values())
text = json.dumps(found, sort_keys=True)
print(json.dumps([made, count, hashlib.sha256(text.encode()).hexdigest(), len(text)]))
"""
PLAIN = """
import numpy
from gluonlab.engine import mxnet_setup
from gluonlab.engine import mxnet_fixes
mxnet_setup.remove_setup_hook()
import mxnet
mxnet_fixes.patch_attribute_text()  # gives three modules a name, where numpy is 2 or newer
made = None
"""
OURS = """
import gluonlab
from gluonlab.engine import faster_import
generated, take_apart = [], faster_import._to_stored_function
faster_import._to_stored_function = lambda *given: generated.append(1) or take_apart(*given)
import mxnet
made = len(generated)
"""
OPTIONAL = ["sklearn", "scipy", "pandas", "onnx", "cv2", "requests", "setuptools", "distutils"]


@pytest.fixture(scope="module")
def functions():
    """Return some functions as the cache contains them."""

    def example(data=None, axis=0):
        """Words."""
        return data, axis, 123456789

    stored = faster_import._to_stored_function(example, 123456789, 0)
    return {("mxnet.nd", f"operator{number}", "example"): tuple(stored) for number in range(3)}


def cached_files(folder):
    return sorted((folder / "gluonlab" / "mxnet-operators").glob("*"))


def test_operators_are_those_of_a_plain_import(python, tmp_path):
    plain, first, second = (
        json.loads(python("-c", start + DESCRIBE, XDG_CACHE_HOME=str(tmp_path)).stdout) for start in (PLAIN, OURS, OURS)
    )
    assert plain[1] > 2000 and plain[1:] == first[1:] == second[1:]
    assert first[0] > 2000 and second[0] == 0  # generated once
    (file,) = cached_files(tmp_path)
    content, keys = file.read_bytes(), faster_import.read_cache(file).keys()
    file.write_bytes(content[: len(content) // 2])
    output = python("-c", OURS + "print(made)", XDG_CACHE_HOME=str(tmp_path)).stdout
    assert int(output) == first[0]
    assert cached_files(tmp_path) == [file]
    assert faster_import.read_cache(file).keys() == keys


def test_mxnet_starts_without_a_home_folder(python):
    code = OURS + "print(mxnet.nd.ones((2, 3)).sum().asscalar())"
    process = python("-c", code, HOME="/proc/none", XDG_CACHE_HOME="")
    assert (process.stdout, process.stderr) == ("6.0\n", "")


@pytest.mark.parametrize("folder", ["a file", "a file/below", "/dev/null", "/proc/none"])
def test_a_cache_that_cannot_be_written_is_none(tmp_path, functions, folder):
    (tmp_path / "a file").touch()
    path = tmp_path / folder / "file.bin"
    faster_import.write_cache(path, functions)
    assert faster_import.read_cache(path) == {}


def test_a_write_that_fails_in_the_middle_leaves_nothing_behind(tmp_path, functions):
    with limit_file_size(100):
        faster_import.write_cache(tmp_path / "file.bin", functions)
    assert list(tmp_path.iterdir()) == []


def test_no_optional_package_is_imported_before_it_is_used(python):
    code = f"""
import sys
import gluonlab, mxnet as mx
import numpy as np
mx.nd.array([1.0]) + mx.nd.array(np.ones(1))
mx.nd.sparse.csr_matrix(([1.0], [0], [0, 1]), shape=(1, 1))
mx.io.NDArrayIter(np.ones((2, 3)), np.ones(2)).next()
assert not set({OPTIONAL}) & set(sys.modules), set({OPTIONAL}) & set(sys.modules)
import scipy.sparse
sparse = scipy.sparse.csr_matrix(np.eye(3, dtype="float32"))
array = mx.nd.array(sparse)
assert array.stype == "csr" and (array.asscipy() != sparse).nnz == 0
assert mx.recordio.cv2.imread is sys.modules["cv2"].imread
assert mx.gluon.utils.requests.get is sys.modules["requests"].get
assert not hasattr(mx.contrib.quantization.stats, "no_such_name")
from sklearn.base import BaseEstimator
import setuptools, distutils.version
"""
    process = python("-W", "error", "-W", "ignore::DeprecationWarning", "-c", code)
    assert (process.returncode, process.stderr) == (0, "")


def test_packages_that_are_not_installed_are_missing_as_before(python):
    code = """
import importlib.machinery
original = importlib.machinery.PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.split(".")[0] in ("cv2", "onnx") else original(name, path, target)
importlib.machinery.PathFinder.find_spec = find_spec
import gluonlab, mxnet
print(mxnet.recordio.cv2, mxnet.image.image.cv2)
"""
    assert python("-c", code).stdout == "None None\n"


def test_an_h5py_dataset_is_known_once_h5py_is_imported(python, tmp_path):
    (tmp_path / "h5py.py").write_text(
        "import numpy as np\nclass Dataset:\n    shape, dtype = (4, 2), np.dtype('float32')\n    def __len__(self): "
        "return 4\n    def __getitem__(self, at): return np.arange(8, dtype='float32').reshape(4, 2)[at]\n"
    )
    code = """
import gluonlab, sys, mxnet as mx
assert mx.io.utils.h5py and "h5py" not in sys.modules
import h5py
print(mx.io.NDArrayIter(h5py.Dataset(), batch_size=4).next().data[0].asnumpy().tolist())
"""
    process = python("-c", code)
    assert process.stdout == "[[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]\n", process.stderr


def test_other_modules_import_as_usual_while_mxnet_is_loaded(python, tmp_path):
    (tmp_path / "other.py").write_text("import requests\nfrom sklearn.base import BaseEstimator\n")
    code = """
import sys
import gluonlab
from gluonlab.engine import faster_import
with faster_import.defer_optional_imports():
    import other
assert other.requests is sys.modules["requests"] and other.BaseEstimator
import builtins
assert builtins.__import__.__module__ == "builtins"
"""
    process = python("-c", code)
    assert (process.returncode, process.stderr) == (0, "")


def test_a_file_gives_back_what_was_written(tmp_path, functions):
    path = tmp_path / "below" / "file.bin"
    faster_import.write_cache(path, functions)
    assert faster_import.read_cache(path) == functions
    assert stat.S_IMODE(path.stat().st_mode) & (stat.S_IWGRP | stat.S_IWOTH) == 0
    assert [item.name for item in path.parent.iterdir()] == ["file.bin"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_damage_is_noticed(tmp_path, functions, data):
    path = tmp_path / "file.bin"
    faster_import.write_cache(path, functions)
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    assert faster_import.read_cache(path) == {}


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666, None])
def test_a_file_of_another_user_or_that_others_may_write_is_not_read(tmp_path, functions, monkeypatch, mode):
    path = tmp_path / "file.bin"
    faster_import.write_cache(path, functions)
    if mode is not None:
        path.chmod(mode)
    elif os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    assert faster_import.read_cache(path) == {}


@given(changed=st.sampled_from(["library", *faster_import.GENERATOR_FILES]))
def test_other_files_of_mxnet_have_another_cache(tmp_path_factory, changed):
    package = tmp_path_factory.mktemp("package")
    for name in ["library", *faster_import.GENERATOR_FILES]:
        (package / name).parent.mkdir(exist_ok=True)
        (package / name).write_text(name)
    before = faster_import.cache_path(package, package / "library")
    assert faster_import.cache_path(package, package / "library") == before
    (package / changed).write_text(f"{changed} changed")
    assert faster_import.cache_path(package, package / "library") != before


def test_operators_that_a_library_brings_later_are_generated(python, tmp_path):
    """`mx.library.load` calls the same functions again, when the cache is closed."""
    code = """
import gluonlab, mxnet
from mxnet.ndarray.register import _make_ndarray_function
old = mxnet.nd.relu
mxnet.base._init_op_module("mxnet", "ndarray", _make_ndarray_function)
assert mxnet.nd.op.relu is not old and mxnet.nd.op.relu.__doc__ == old.__doc__
print(mxnet.nd.op.relu(mxnet.nd.array([-1, 2])).asnumpy().tolist())
"""
    assert python("-c", code).stdout == "[0.0, 2.0]\n"
