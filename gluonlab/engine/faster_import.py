"""Import of MXNet in a fraction of the usual processor time.

MXNet's optional packages are imported when they are first used (`defer_optional_imports`). MXNet
1.9.1 imports scikit-learn, and with it pandas and SciPy, for the base class of one obsolete class.
It also imports SciPy for sparse arrays, h5py, ONNX and OpenCV. Together they take half of the
processor time of the import, and most programs use none of them.

The Python functions of MXNet's operators come from a cache (`OperatorCache`). Generating and
compiling them takes another third.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib
import importlib.machinery
import importlib.util
import marshal
import os
import stat
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional, Tuple

from gluonlab.host.cache_folder import cache_folder

DEFERRED_PACKAGES = frozenset(
    {
        "scipy", "scipy.sparse", "scipy.sparse.csr", "scipy.stats", "h5py", "onnx", "cv2",
        "requests", "pandas",
    }
)  # fmt: skip
# MXNet checks every array for these classes. Before the package is imported, no array can be an
# instance of them.
DEFERRED_CLASSES = {
    "scipy.sparse.csr.csr_matrix": ("scipy.sparse", "csr_matrix"),
    "h5py.Dataset": ("h5py", "Dataset"),
}
# mxnet.model.FeedForward, obsolete since MXNet 1.0, derives from scikit-learn's BaseEstimator if
# scikit-learn is installed.
HIDDEN_MODULE = "sklearn.base"
# Loaded alone. Its replacement, setuptools, would otherwise be imported for two classes.
DISTUTILS_VERSION = "distutils.version"


class DeferredModule(ModuleType):
    """Placeholder for a package in MXNet's modules, which imports the package on first use."""

    def __getattr__(self, name: str) -> Any:
        child = f"{self.__name__}.{name}"
        if child in DEFERRED_PACKAGES:
            return DeferredModule(child)
        if child in DEFERRED_CLASSES:
            package, name = DEFERRED_CLASSES[child]
            return getattr(sys.modules[package], name) if package in sys.modules else ()
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def defer_optional_imports() -> Iterator[None]:
    """Return `DeferredModule` packages from MXNet's own import statements in this block.

    Import statements of all other modules, in all threads, work as usual.
    """
    original = builtins.__import__

    def import_for_mxnet(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        if level == 0 and str((globals or {}).get("__name__", "")).startswith("mxnet."):
            if name in DEFERRED_PACKAGES and _is_installed(name):
                return DeferredModule(name if fromlist else name.partition(".")[0])
            if name == HIDDEN_MODULE:
                raise ImportError(f"{name} is not imported while MXNet is loaded", name=name)
            versions = _load_distutils_version() if name == DISTUTILS_VERSION and fromlist else None
            if versions is not None:
                return versions
        return original(name, globals, locals, fromlist, level)

    builtins.__import__ = import_for_mxnet
    try:
        yield
    finally:
        if builtins.__import__ is import_for_mxnet:
            builtins.__import__ = original


def _is_installed(name: str) -> bool:
    root = name.partition(".")[0]
    return root in sys.modules or importlib.machinery.PathFinder.find_spec(root) is not None


def _load_distutils_version() -> Optional[ModuleType]:
    """Load distutils.version of Python, or of setuptools.

    The module is not registered in sys.modules, because setuptools expects to be imported first.
    """
    if DISTUTILS_VERSION in sys.modules:
        return sys.modules[DISTUTILS_VERSION]
    folders = [Path(os.__file__).parent / "distutils"]  # until Python 3.11
    setuptools = importlib.machinery.PathFinder.find_spec("setuptools")
    if setuptools is not None and setuptools.submodule_search_locations:
        folders.append(Path(setuptools.submodule_search_locations[0], "_distutils"))
    for folder in folders:
        path = folder / "version.py"
        spec = (
            importlib.util.spec_from_file_location(DISTUTILS_VERSION, path)
            if path.is_file()
            else None
        )
        if spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    return None


# Cache of the Python functions that MXNet generates for its operators.
#
# Each time MXNet 1.9.1 is imported, it writes the source of some 2,500 functions and compiles them.
# That takes a third of the import's processor time. The functions depend only on MXNet's library,
# on a few of its Python files, and on the version of Python. So their compiled code is stored in
# the user's cache folder, like Python's own in ``__pycache__``. For security the file must belong
# to the user or to root, and only its owner may write it.
#
# A damaged, foreign or missing file is ignored, and written again if possible.


CACHE_FORMAT = "2"  # part of the file's name
# MXNet generates the functions from these files and from the library.
GENERATOR_FILES = (
    "base.py",
    "ndarray/register.py",
    "symbol/register.py",
    "ndarray_doc.py",
    "symbol_doc.py",
    "_numpy_op_doc.py",
)
# The linker's build ID, a digest of the whole library, is near its start. Hashing all of its 150 MB
# would take longer than the cache saves.
HASHED_LIBRARY_BYTES = 2**16

FunctionFactory = Callable[[Any, str, str], Any]
FunctionKey = Tuple[str, str, str]  # the generating module, the operator, and the function


class _StoredFunction(NamedTuple):
    """A function's code, without the operator's handle, which differs in each process.

    ``nulls`` is True for each default value that is MXNet's ``_Null``. The others are None.
    """

    code: CodeType
    handle_position: int  # in the code's constants
    nulls: Tuple[bool, ...]
    documentation: Optional[str]


class OperatorCache:
    """A cache file of the functions of one MXNet library and one Python version."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._cached: Dict[FunctionKey, Any] = read_cache(path)
        self._new: Dict[FunctionKey, Tuple[Any, ...]] = {}
        self._is_loading = True

    def wrap_initializer(self, initialize: Callable[..., None]) -> Callable[..., None]:
        """Make MXNet's ``_init_op_module`` or ``_init_np_op_module`` use cached functions."""

        def cached_initialize(*args: Any, **kwargs: Any) -> None:
            # Not after `close`: `mx.library.load` may add operators of any name.
            if self._is_loading and "make_op_func" in kwargs:
                kwargs["make_op_func"] = self._wrap_function_factory(kwargs["make_op_func"])
            elif self._is_loading:
                args = (*args[:-1], self._wrap_function_factory(args[-1]))
            initialize(*args, **kwargs)

        return cached_initialize

    def _wrap_function_factory(self, make: FunctionFactory) -> FunctionFactory:
        namespace = make.__globals__
        null = namespace["_Null"]

        def make_cached(handle: Any, operator: str, name: str) -> Any:
            key = (make.__module__, operator, name)
            cached = self._cached.get(key)
            if cached is None:
                function = make(handle, operator, name)
                self._new[key] = tuple(_to_stored_function(function, handle.value, null))
                return function
            code, position, nulls, documentation = cached
            constants = (*code.co_consts[:position], handle.value, *code.co_consts[position + 1 :])
            defaults = tuple([null if is_null else None for is_null in nulls])
            function = FunctionType(
                code.replace(co_consts=constants), namespace, name, defaults or None
            )
            function.__doc__ = documentation
            return function

        return make_cached

    def close(self) -> None:
        """Write the missing functions to the file, once MXNet is loaded."""
        self._is_loading = False
        if self._new:
            write_cache(self.path, {**self._cached, **self._new})
        self._cached, self._new = {}, {}


def _to_stored_function(function: Any, handle: int, null: Any) -> _StoredFunction:
    constants = list(function.__code__.co_consts)
    position = constants.index(handle)
    constants[position] = None
    nulls = tuple(value is null for value in function.__defaults__ or ())
    code = function.__code__.replace(co_consts=tuple(constants))
    # The documentation is stored separately: the code's first constant may be a None in use.
    return _StoredFunction(code, position, nulls, function.__doc__)


_cache: Optional[OperatorCache] = None


def use_operator_cache(base: ModuleType) -> None:
    """Make ``mxnet.base``, which has just been loaded, use the cache of operators' functions.

    Does nothing without a home folder, or if MXNet's files differ from those of 1.9.1.
    """
    global _cache
    with suppress(OSError, RuntimeError, AttributeError):
        cache = OperatorCache(cache_path(Path(str(base.__file__)).parent, Path(base._LIB._name)))
        for name in ("_init_op_module", "_init_np_op_module"):
            setattr(base, name, cache.wrap_initializer(getattr(base, name)))
        _cache = cache


def close_operator_cache() -> None:
    """Write the missing functions; see `OperatorCache.close`."""
    global _cache
    if _cache is not None:
        _cache.close()
        _cache = None


def cache_path(package: Path, library: Path) -> Path:
    """Return the cache file for this MXNet and Python, named by a digest of both.

    Raises OSError for files that cannot be read, and RuntimeError without a home folder.
    """
    digest = hashlib.sha256()
    # python -O leaves out the functions' assertions
    python = f"{sys.implementation.cache_tag} {sys.hexversion} {sys.flags.optimize}"
    digest.update(f"{CACHE_FORMAT} {python} {library.stat().st_size}".encode())
    digest.update(importlib.util.MAGIC_NUMBER)
    with open(library, "rb") as file:
        digest.update(file.read(HASHED_LIBRARY_BYTES))
    for name in GENERATOR_FILES:
        digest.update((package / name).read_bytes())
    return cache_folder() / "mxnet-operators" / f"{digest.hexdigest()[:32]}.bin"


def read_cache(path: Path) -> Dict[FunctionKey, Any]:
    """Return the stored functions; none if the file is missing, damaged or not trusted."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_uid not in (0, os.geteuid()):
                return {}
            if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                return {}
            digest, content = file.read(hashlib.sha256().digest_size), file.read()
    except OSError:
        return {}
    if hashlib.sha256(content).digest() != digest:
        return {}
    stored: Dict[FunctionKey, Any] = marshal.loads(content)
    return stored


def write_cache(path: Path, functions: Dict[FunctionKey, Any]) -> None:
    """Write the cache file atomically. Do nothing if it cannot be written."""
    content = marshal.dumps(functions)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        number, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with open(number, "wb") as file:
                file.write(hashlib.sha256(content).digest() + content)
            os.replace(temporary, path)  # only its owner can read it: mkstemp's mode
        except BaseException:
            Path(temporary).unlink()
            raise
