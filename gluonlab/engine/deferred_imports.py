"""MXNet's optional packages, imported when they are used instead of when MXNet is loaded.

MXNet 1.9.1 imports scikit-learn, and with it pandas and SciPy, for the base class of one obsolete
class; SciPy for sparse arrays; h5py, ONNX and OpenCV for those who have them. Together they take
half of its import's processor time, and most programs use none of them.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.machinery
import importlib.util
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Iterator, Optional

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
