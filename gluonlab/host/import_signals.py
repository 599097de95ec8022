"""Ctrl-C during the import of an extension module: delivered when the import has ended.

Python runs a signal's handler inside whatever the main thread imports. C code often drops the
exception that the handler raises there, so that Ctrl-C has no effect, or turns it into an
ImportError. A half-imported extension module cannot be imported again in the same process, either.
So the handlers of SIGINT, SIGTERM and SIGHUP wait while one of these packages is imported.

numpy is told on this way that its idle threads are to sleep soon (`gluonlab.host.openblas`).
"""

from __future__ import annotations

import importlib.machinery
import sys
from typing import Any, Callable, ContextManager

from gluonlab.host.openblas import threads_sleep_soon
from gluonlab.host.signals import delayed_signals, signals_are_delayed

# The packages with extension modules that gluonlab or MXNet imports. MXNet itself is imported by
# `gluonlab.engine.setup`.
PACKAGES = frozenset(
    {
        "PIL", "cv2", "cykooz", "cykooz_resizer", "google", "h5py", "horovod", "matplotlib",
        "numpy", "onnx", "onnxruntime", "ortools", "pandas", "scipy", "simplejpeg", "sklearn",
        "torch",
    }
)  # fmt: skip


class _Finder:
    """Finds modules of PACKAGES as Python would, and delays signals while they are loaded."""

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> "importlib.machinery.ModuleSpec | None":
        if name.partition(".")[0] not in PACKAGES or (signals_are_delayed() and name != "numpy"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            steps = [("create_module", delayed_signals), ("exec_module", delayed_signals)]
            if name == "numpy":
                steps.append(("exec_module", threads_sleep_soon))
            for step, block in steps:
                setattr(spec.loader, step, _within(block, getattr(spec.loader, step)))
        return spec


def _within(
    block: Callable[[], ContextManager[None]], step: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    def load(argument: Any) -> Any:
        with block():
            return step(argument)

    return load


def install() -> None:
    """Delay signals while PACKAGES are imported, from now on. Further calls have no effect."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
