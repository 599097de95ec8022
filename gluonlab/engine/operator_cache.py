"""Cache of the Python functions that MXNet generates for its operators.

Each time MXNet 1.9.1 is imported, it writes the source of some 2,500 functions and compiles them.
That takes a third of the import's processor time. The functions depend only on MXNet's library, on
a few of its Python files, and on the version of Python. So their compiled code is stored in the
user's cache folder, as Python stores its own in ``__pycache__``, and is trusted as much: the file
must belong to the user or to root, and only its owner may write it.

A damaged, foreign or missing file is ignored, and written again if that is possible.
"""

from __future__ import annotations

import hashlib
import importlib.util
import marshal
import os
import stat
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

from gluonlab.host.cache import cache_folder

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


def use(base: ModuleType) -> None:
    """Have ``mxnet.base``, which has just been loaded, take operators' functions from the cache.

    Without a home folder, or with an MXNet of other files, nothing changes.
    """
    global _cache
    with suppress(OSError, RuntimeError, AttributeError):
        cache = OperatorCache(file_for(Path(str(base.__file__)).parent, Path(base._LIB._name)))
        for name in ("_init_op_module", "_init_np_op_module"):
            setattr(base, name, cache.wrap(getattr(base, name)))
        _cache = cache


def close() -> None:
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
