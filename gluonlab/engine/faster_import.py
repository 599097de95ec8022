"""MXNet's import, in a fraction of its processor time.

Its optional packages are imported when they are used (`deferring`). MXNet 1.9.1 imports
scikit-learn, and with it pandas and SciPy, for the base class of one obsolete class; SciPy for
sparse arrays; h5py, ONNX and OpenCV for those who have them. Together they take half of its
import's processor time, and most programs use none of them.

The functions that it generates for its operators come from a cache (`OperatorCache`), since writing
and compiling them takes another third.
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

DEFERRED = frozenset(
    {
        "scipy", "scipy.sparse", "scipy.sparse.csr", "scipy.stats", "h5py", "onnx", "cv2",
        "requests", "pandas",
    }
)  # fmt: skip
# MXNet checks every array for these classes. Before somebody imports the package, no array can be
# an instance of one.
CLASSES = {
    "scipy.sparse.csr.csr_matrix": ("scipy.sparse", "csr_matrix"),
    "h5py.Dataset": ("h5py", "Dataset"),
}
# mxnet.model.FeedForward, obsolete since MXNet 1.0, derives from scikit-learn's BaseEstimator if
# there is one.
UNAVAILABLE = "sklearn.base"
# Otherwise setuptools, which takes distutils' place, would be imported for two classes.
VERSIONS = "distutils.version"


class Deferred(ModuleType):
    """Stands for a package in MXNet's modules, and imports it when something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        child = f"{self.__name__}.{name}"
        if child in DEFERRED:
            return Deferred(child)
        if child in CLASSES:
            package, name = CLASSES[child]
            return getattr(sys.modules[package], name) if package in sys.modules else ()
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def deferring() -> Iterator[None]:
    """Within this block, MXNet's own import statements give `Deferred` packages.

    Import statements of all other modules, in all threads, work as usual.
    """
    original = builtins.__import__

    def import_for_mxnet(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        if level == 0 and str((globals or {}).get("__name__", "")).startswith("mxnet."):
            if name in DEFERRED and _is_installed(name):
                return Deferred(name if fromlist else name.partition(".")[0])
            if name == UNAVAILABLE:
                raise ImportError(f"{name} is not imported while MXNet is loaded", name=name)
            versions = _distutils_version() if name == VERSIONS and fromlist else None
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


def _distutils_version() -> Optional[ModuleType]:
    """Python's own distutils.version, or setuptools' copy; not registered in sys.modules, as
    setuptools expects to be imported before distutils.
    """
    if VERSIONS in sys.modules:
        return sys.modules[VERSIONS]
    folders = [Path(os.__file__).parent / "distutils"]  # until Python 3.11
    setuptools = importlib.machinery.PathFinder.find_spec("setuptools")
    if setuptools is not None and setuptools.submodule_search_locations:
        folders.append(Path(setuptools.submodule_search_locations[0], "_distutils"))
    for folder in folders:
        path = folder / "version.py"
        spec = importlib.util.spec_from_file_location(VERSIONS, path) if path.is_file() else None
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
# the user's cache folder, as Python stores its own in ``__pycache__``, and is trusted as much: the
# file must belong to the user or to root, and only its owner may write it.
#
# A damaged, foreign or missing file is ignored, and written again if that is possible.


FORMAT = "2"  # of the file; other numbers are other files
# The functions follow from these files of MXNet and from the library.
GENERATORS = (
    "base.py",
    "ndarray/register.py",
    "symbol/register.py",
    "ndarray_doc.py",
    "symbol_doc.py",
    "_numpy_op_doc.py",
)
# The linker's build ID, a digest of the whole library, lies near its beginning. To digest all of
# its 150 MB would take longer than the cache saves.
LIBRARY_BYTES = 2**16

Make = Callable[[Any, str, str], Any]
Name = Tuple[str, str, str]  # the generating module, the operator, and the function


class _Stored(NamedTuple):
    """A function's code, without the operator's handle, which is another address in each process.

    ``nulls``: for each default value whether it is MXNet's ``_Null``; the others are None.
    """

    code: CodeType
    handle_at: int  # among the code's constants
    nulls: Tuple[bool, ...]
    documentation: Optional[str]


class OperatorCache:
    """The functions of one library and one Python, read from ``path`` and written there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stored: Dict[Name, Any] = read(path)
        self._new: Dict[Name, Tuple[Any, ...]] = {}
        self._is_loading = True

    def wrap(self, initialize: Callable[..., None]) -> Callable[..., None]:
        """Have MXNet's ``_init_op_module`` or ``_init_np_op_module`` take functions from here.

        After `close` it makes them by itself: `mx.library.load` may bring operators of any name.
        """

        def cached_initialize(*args: Any, **kwargs: Any) -> None:
            if self._is_loading and "make_op_func" in kwargs:
                kwargs["make_op_func"] = self._wrap_make(kwargs["make_op_func"])
            elif self._is_loading:
                args = (*args[:-1], self._wrap_make(args[-1]))
            initialize(*args, **kwargs)

        return cached_initialize

    def _wrap_make(self, make: Make) -> Make:
        namespace = make.__globals__
        null = namespace["_Null"]

        def make_cached(handle: Any, operator: str, name: str) -> Any:
            key = (make.__module__, operator, name)
            found = self._stored.get(key)
            if found is None:
                function = make(handle, operator, name)
                self._new[key] = tuple(_stored(function, handle.value, null))
                return function
            code, at, nulls, documentation = found
            constants = (*code.co_consts[:at], handle.value, *code.co_consts[at + 1 :])
            defaults = tuple([null if is_null else None for is_null in nulls])
            function = FunctionType(
                code.replace(co_consts=constants), namespace, name, defaults or None
            )
            function.__doc__ = documentation
            return function

        return make_cached

    def close(self) -> None:
        """MXNet is loaded: write what was missing."""
        self._is_loading = False
        if self._new:
            write(self.path, {**self._stored, **self._new})
        self._stored, self._new = {}, {}


def _stored(function: Any, handle: int, null: Any) -> _Stored:
    """Take a new function apart.

    MXNet sets its documentation later. In the code the first constant, where Python looks for a
    documentation, may be the None that the function uses.
    """
    constants = list(function.__code__.co_consts)
    at = constants.index(handle)
    constants[at] = None
    nulls = tuple(value is null for value in function.__defaults__ or ())
    code = function.__code__.replace(co_consts=tuple(constants))
    return _Stored(code, at, nulls, function.__doc__)


_cache: Optional[OperatorCache] = None


def use_operator_cache(base: ModuleType) -> None:
    """Have ``mxnet.base``, which has just been loaded, take operators' functions from the cache.

    Without a home folder, or with an MXNet of other files, nothing changes.
    """
    global _cache
    with suppress(OSError, RuntimeError, AttributeError):
        cache = OperatorCache(file_for(Path(str(base.__file__)).parent, Path(base._LIB._name)))
        for name in ("_init_op_module", "_init_np_op_module"):
            setattr(base, name, cache.wrap(getattr(base, name)))
        _cache = cache


def close_operator_cache() -> None:
    """Write what the cache was missing; see `OperatorCache.close`."""
    global _cache
    if _cache is not None:
        _cache.close()
        _cache = None


def file_for(package: Path, library: Path) -> Path:
    """Return the file for this MXNet and this Python: a name made of what the functions depend on.

    Raises OSError for files that cannot be read, and RuntimeError without a home folder.
    """
    digest = hashlib.sha256()
    # python -O leaves out the functions' assertions
    python = f"{sys.implementation.cache_tag} {sys.hexversion} {sys.flags.optimize}"
    digest.update(f"{FORMAT} {python} {library.stat().st_size}".encode())
    digest.update(importlib.util.MAGIC_NUMBER)
    with open(library, "rb") as file:
        digest.update(file.read(LIBRARY_BYTES))
    for name in GENERATORS:
        digest.update((package / name).read_bytes())
    return cache_folder() / "mxnet-operators" / f"{digest.hexdigest()[:32]}.bin"


def read(path: Path) -> Dict[Name, Any]:
    """Return the stored functions; none if the file is missing, damaged, or not to be trusted."""
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
    stored: Dict[Name, Any] = marshal.loads(content)
    return stored


def write(path: Path, functions: Dict[Name, Any]) -> None:
    """Write the file whole or not at all. Where that is not possible, there is no cache."""
    content = marshal.dumps(functions)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        number, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with open(number, "wb") as file:
                file.write(hashlib.sha256(content).digest() + content)
            os.replace(temporary, path)  # readable by its owner only, as mkstemp makes it
        except BaseException:
            Path(temporary).unlink()
            raise
