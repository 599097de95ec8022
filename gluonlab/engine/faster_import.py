"""Saves most of the CPU time that importing MXNet takes.

- `defer_optional_imports` delays the import of optional packages until they are used. MXNet 1.9.1
  imports scikit-learn, and with it pandas and SciPy, only for the base class of one obsolete class.
  MXNet also imports h5py, ONNX and OpenCV, and SciPy for sparse arrays. These packages take half of
  the processor time of the import, and most programs use none of them.
- `OperatorCache` stores the Python functions of MXNet's operators. Generating and compiling these
  functions takes another third of the time.
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
# Classes with which MXNet calls isinstance for every array, as (package, class). Before the package
# is imported, no array can be an instance of its class.
DEFERRED_CLASSES = {"scipy.sparse.csr.csr_matrix": ("scipy.sparse", "csr_matrix"), "h5py.Dataset": ("h5py", "Dataset")}
# mxnet.model.FeedForward, obsolete since MXNet 1.0, derives from scikit-learn's BaseEstimator if
# scikit-learn is installed.
HIDDEN_MODULE = "sklearn.base"
# This module is loaded without its package. Otherwise all of setuptools, which replaces distutils,
# would be imported for two classes.
DISTUTILS_VERSION = "distutils.version"


class DeferredModule(ModuleType):
    """A placeholder for a package in MXNet's modules, which imports the package on first use."""

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
    """In this with block, make MXNet's imports of DEFERRED_PACKAGES return a `DeferredModule`.

    The import statements in other modules work as usual, in all threads.
    """
    original = builtins.__import__

    def import_for_mxnet(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        """Import like ``__import__``, but defer or replace some imports in MXNet's modules."""
        if level == 0 and str((globals or {}).get("__name__", "")).startswith("mxnet."):
            if name in DEFERRED_PACKAGES and _is_installed(name):
                return DeferredModule(name if fromlist else name.partition(".")[0])
            if name == HIDDEN_MODULE:
                raise ImportError(f"{name} cannot be imported while MXNet is being loaded", name=name)
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
    """Check if the top-level package of ``name`` can be imported, without importing it."""
    root = name.partition(".")[0]
    return root in sys.modules or importlib.machinery.PathFinder.find_spec(root) is not None


def _load_distutils_version() -> Optional[ModuleType]:
    """Load the module distutils.version from Python or setuptools; None if neither has it.

    The module is not registered in sys.modules, because setuptools must be imported before
    distutils.
    """
    if DISTUTILS_VERSION in sys.modules:
        return sys.modules[DISTUTILS_VERSION]
    folders = [Path(os.__file__).parent / "distutils"]  # until Python 3.11
    setuptools = importlib.machinery.PathFinder.find_spec("setuptools")
    if setuptools is not None and setuptools.submodule_search_locations:
        folders.append(Path(setuptools.submodule_search_locations[0], "_distutils"))
    for folder in folders:
        path = folder / "version.py"
        spec = importlib.util.spec_from_file_location(DISTUTILS_VERSION, path) if path.is_file() else None
        if spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    return None


# Cache of the Python functions that MXNet generates for its operators.
#
# At each import, MXNet 1.9.1 generates the source of about 2,500 functions and compiles it. This
# takes a third of the import's processor time. The functions depend only on MXNet's library, on a
# few of its Python files, and on the version of Python. So a file in the user's cache folder stores
# the compiled code, like Python's ``__pycache__``.
#
# For security the file must belong to the user or to root, and only its owner may have permission
# to write it. A file that is damaged, missing or not trusted is ignored, and written again if
# possible.


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
# Only the start of the library is hashed, which contains the linker's build ID, a digest of the
# whole library. To hash all of its 150 MB would take longer than the cache saves.
HASHED_LIBRARY_BYTES = 2**16

FunctionFactory = Callable[[Any, str, str], Any]
FunctionKey = Tuple[str, str, str]  # the generating module, the operator, and the function


class _StoredFunction(NamedTuple):
    """The compiled code of an operator's Python function, without the operator's handle.

    The handle is an address that differs in each process. ``handle_position`` is the handle's
    position in the constants of the code. ``nulls`` contains, for each default value of a
    parameter, True for MXNet's ``_Null`` and False for None.
    """

    code: CodeType
    handle_position: int
    nulls: Tuple[bool, ...]
    documentation: Optional[str]


class OperatorCache:
    """A cache file with the operators' functions for one MXNet library and one Python version."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._cached: Dict[FunctionKey, Any] = read_cache(path)
        self._new: Dict[FunctionKey, Tuple[Any, ...]] = {}
        self._is_loading = True

    def wrap_initializer(self, initialize: Callable[..., None]) -> Callable[..., None]:
        """Wrap MXNet's ``_init_op_module`` or ``_init_np_op_module``, so that it uses the cache."""

        def cached_initialize(*args: Any, **kwargs: Any) -> None:
            """Call ``initialize``. While MXNet is loading, create its functions from the cache."""
            # After `close` the cache is not used: `mx.library.load` may add operators of any name.
            if self._is_loading and "make_op_func" in kwargs:
                kwargs["make_op_func"] = self._wrap_function_factory(kwargs["make_op_func"])
            elif self._is_loading:
                args = (*args[:-1], self._wrap_function_factory(args[-1]))
            initialize(*args, **kwargs)

        return cached_initialize

    def _wrap_function_factory(self, make: FunctionFactory) -> FunctionFactory:
        """Return a function that does the same as ``make``, but uses cached code where possible."""
        namespace = make.__globals__
        null = namespace["_Null"]

        def make_cached(handle: Any, operator: str, name: str) -> Any:
            """Return an operator's function, from cached code if the cache contains it."""
            key = (make.__module__, operator, name)
            cached = self._cached.get(key)
            if cached is None:
                function = make(handle, operator, name)
                self._new[key] = tuple(_to_stored_function(function, handle.value, null))
                return function
            code, position, nulls, documentation = cached
            constants = (*code.co_consts[:position], handle.value, *code.co_consts[position + 1 :])
            defaults = tuple([null if is_null else None for is_null in nulls])
            function = FunctionType(code.replace(co_consts=constants), namespace, name, defaults or None)
            function.__doc__ = documentation
            return function

        return make_cached

    def close(self) -> None:
        """Write newly generated functions to the cache file. Call this after MXNet is loaded."""
        self._is_loading = False
        if self._new:
            write_cache(self.path, {**self._cached, **self._new})
        self._cached, self._new = {}, {}


def _to_stored_function(function: Any, handle: int, null: Any) -> _StoredFunction:
    """Convert an operator's function, as generated by MXNet, for storage in the cache.

    ``handle``: the operator's handle. ``null``: MXNet's ``_Null``.
    """
    constants = list(function.__code__.co_consts)
    position = constants.index(handle)
    constants[position] = None
    nulls = tuple(value is null for value in function.__defaults__ or ())
    code = function.__code__.replace(co_consts=tuple(constants))
    # The docstring is stored separately, because the code may use its first constant, None.
    return _StoredFunction(code, position, nulls, function.__doc__)


_cache: Optional[OperatorCache] = None


def use_operator_cache(base: ModuleType) -> None:
    """Make the module ``mxnet.base`` use the cache of operators' functions.

    Call this function just after ``base`` has been loaded. The function does nothing if there is no
    home folder, or if MXNet's files are not from version 1.9.1.
    """
    global _cache
    with suppress(OSError, RuntimeError, AttributeError):
        cache = OperatorCache(cache_path(Path(str(base.__file__)).parent, Path(base._LIB._name)))
        for name in ("_init_op_module", "_init_np_op_module"):
            setattr(base, name, cache.wrap_initializer(getattr(base, name)))
        _cache = cache


def close_operator_cache() -> None:
    """Write new functions to the cache file, and stop using the cache."""
    global _cache
    if _cache is not None:
        _cache.close()
        _cache = None


def cache_path(package: Path, library: Path) -> Path:
    """Return the path of the cache file for this MXNet and Python.

    The file's name is a digest of both.

    Raises OSError for files that cannot be read, and RuntimeError if there is no home folder.

    Args:
        package: the folder of the mxnet package
        library: the path of libmxnet.so
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
    """Return the stored functions; {} if the file is missing, damaged or not trusted."""
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
    """Write the cache file atomically. Do nothing if the file cannot be written."""
    content = marshal.dumps(functions)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        number, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with open(number, "wb") as file:
                file.write(hashlib.sha256(content).digest() + content)
            os.replace(temporary, path)  # mkstemp lets only the owner read and write the file
        except BaseException:
            Path(temporary).unlink()
            raise
