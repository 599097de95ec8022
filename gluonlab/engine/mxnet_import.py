"""The import hook of mxnet: what is done around the import, and errors that name the cure."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from typing import Any, Callable, ContextManager

from gluonlab.engine.mxnet_installation import either
from gluonlab.errors import EngineError, MissingMXNet
from gluonlab.host.command_start import explain_hidden, hidden_line


def install(around: Callable[[], ContextManager[None]]) -> None:
    """Have mxnet loaded within ``around()``, whoever imports it. Further calls have no effect.

    What is raised there or by MXNet becomes an EngineError, and MissingMXNet where there is no
    MXNet.
    """
    if not any(isinstance(finder, _MXNetFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _MXNetFinder(around))


def uninstall() -> None:
    """Remove the hook: Python imports mxnet by itself again."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _MXNetFinder)]


def explain(error: BaseException) -> EngineError:
    """The EngineError that says what to do about a failed import of MXNet."""
    text = " ".join(str(error).split())
    if isinstance(error, ModuleNotFoundError) and error.name == "distutils":
        return EngineError(
            "mxnet needs distutils, which Python 3.12 dropped: "
            "pip install 'setuptools<81', which still has it"
        )
    hidden = explain_hidden(error)
    if hidden is not None:
        return EngineError(hidden)
    from gluonlab.engine.linker_errors import understand

    complaint = understand(text)
    if complaint is None:
        return EngineError(f"mxnet cannot be imported: {text}")
    cause = f"{complaint.cause}; " if complaint.cause else ""
    words = f" [{text}]" if complaint.cause != text else ""
    return EngineError(f"mxnet cannot load {complaint.library}: {cause}{complaint.cure}{words}")


def _only_asked_for() -> bool:
    """Whether importlib.util.find_spec looks for MXNet without importing it, as libraries do."""
    frame = sys._getframe(2)
    while frame is not None and "importlib" in frame.f_code.co_filename:
        if (
            frame.f_code.co_name == "find_spec"
            and frame.f_globals.get("__name__") == "importlib.util"
        ):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _with_cached_operators(
    spec: "importlib.machinery.ModuleSpec | None",
) -> "importlib.machinery.ModuleSpec | None":
    """The modules that MXNet loads after its base have operators' functions made by that."""
    if spec is not None and spec.loader is not None:
        from gluonlab.engine import faster_import  # not for those who only import gluonlab

        load = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            load(module)
            faster_import.use_operator_cache(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
    return spec


class _MXNetFinder:
    """Finds mxnet as Python would, and wraps its loading."""

    def __init__(self, around: Callable[[], ContextManager[None]]) -> None:
        self._around = around

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> "importlib.machinery.ModuleSpec | None":
        if name not in ("mxnet", "mxnet.base"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if name == "mxnet.base":
            return _with_cached_operators(spec)
        if spec is None or spec.loader is None:
            if _only_asked_for():
                return None
            raise MissingMXNet(f"MXNet is not installed: {either()}")
        if spec.origin is not None and spec.submodule_search_locations is None:
            raise EngineError(hidden_line("mxnet", spec.origin))  # a file of the user's own
        load = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            try:
                with self._around():
                    load(module)
            # the last of a numpy that lacks yet other names
            except (OSError, RuntimeError, ImportError, AttributeError) as error:
                if isinstance(error, EngineError):
                    raise
                raise explain(error) from error

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
