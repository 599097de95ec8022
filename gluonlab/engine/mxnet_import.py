"""Installs an import hook that prepares the import of mxnet and explains import errors."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from typing import Any, Callable, ContextManager

from gluonlab.engine.mxnet_and_cuda_libraries import pip_install_choices
from gluonlab.errors import EngineError, MissingMXNet
from gluonlab.host.startup_errors import explain_hidden_module, hidden_module_message


def install_import_hook(around: Callable[[], ContextManager[None]]) -> None:
    """Make Python load mxnet within the context manager ``around()``.

    Errors in ``around`` and in MXNet's import are converted to EngineError. If MXNet is not
    installed, its import raises MissingMXNet. Further calls have no effect.
    """
    if not any(isinstance(finder, _MXNetFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _MXNetFinder(around))


def remove_import_hook() -> None:
    """Remove the import hook."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _MXNetFinder)]


def explain_import_error(error: BaseException) -> EngineError:
    """Return an EngineError with the cause of a failed import of MXNet, and how to fix it."""
    text = " ".join(str(error).split())
    if isinstance(error, ModuleNotFoundError) and error.name == "distutils":
        return EngineError(
            "mxnet needs distutils, which Python 3.12 removed: pip install 'setuptools<81', which still contains it"
        )
    hidden = explain_hidden_module(error)
    if hidden is not None:
        return EngineError(hidden)
    from gluonlab.engine.linker_errors import diagnose_linker_error

    complaint = diagnose_linker_error(text)
    if complaint is None:
        return EngineError(f"mxnet cannot be imported: {text}")
    cause = f"{complaint.cause}; " if complaint.cause else ""
    quote = f" [{text}]" if complaint.cause != text else ""
    return EngineError(f"mxnet cannot load {complaint.library}: {cause}{complaint.cure}{quote}")


def _called_by_find_spec() -> bool:
    """Check if the caller's caller is importlib.util.find_spec, which does not import MXNet."""
    frame = sys._getframe(2)
    while frame is not None and "importlib" in frame.f_code.co_filename:
        if frame.f_code.co_name == "find_spec" and frame.f_globals.get("__name__") == "importlib.util":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _add_operator_cache(spec: "importlib.machinery.ModuleSpec | None") -> "importlib.machinery.ModuleSpec | None":
    """Make the loader of ``mxnet.base`` use the cache of operators' functions. Return ``spec``."""
    if spec is not None and spec.loader is not None:
        from gluonlab.engine import faster_import  # here, to keep `import gluonlab` fast

        load = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            load(module)
            faster_import.use_operator_cache(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
    return spec


class _MXNetFinder:
    """Finder that locates mxnet as Python would, and loads it within the context ``around()``."""

    def __init__(self, around: Callable[[], ContextManager[None]]) -> None:
        self._around = around

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> "importlib.machinery.ModuleSpec | None":
        """Return the spec of mxnet or mxnet.base with a wrapped loader; None for other modules.

        Raises MissingMXNet if MXNet is not installed, and EngineError if a file mxnet.py hides it.
        """
        if name not in ("mxnet", "mxnet.base"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if name == "mxnet.base":
            return _add_operator_cache(spec)
        if spec is None or spec.loader is None:
            if _called_by_find_spec():
                return None
            raise MissingMXNet(f"MXNet is not installed: {pip_install_choices()}")
        if spec.origin is not None and spec.submodule_search_locations is None:
            # The user has a file mxnet.py, which hides MXNet.
            raise EngineError(hidden_module_message("mxnet", spec.origin))
        load = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            """Load the module within ``around()``. Raise EngineError with the cause if it fails."""
            try:
                with self._around():
                    load(module)
            # A newer numpy that has dropped further names raises AttributeError.
            except (OSError, RuntimeError, ImportError, AttributeError) as error:
                if isinstance(error, EngineError):
                    raise
                raise explain_import_error(error) from error

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
