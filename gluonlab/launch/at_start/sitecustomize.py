"""Lets a failed worker of the user's program exit without waiting for the other workers.

By default, MXNet's kvstore waits at exit until all workers exit. A failed worker would therefore
never exit, because the other workers wait for its gradients. The servers need no barrier to stop,
because the launcher stops them.

Python imports a module named ``sitecustomize`` when it starts. `gluonlab.launch` puts this folder
first in the program's PYTHONPATH. The program may use a different Python, so this file imports
nothing from gluonlab.
"""

import sys


def _disable_exit_barrier():  # type: ignore[no-untyped-def]
    """Disable the barrier at exit in all of MXNet's distributed kvstores."""
    mxnet = sys.modules.get("mxnet")
    if mxnet is None:
        return
    import gc

    try:
        for each in gc.get_objects():
            if type(each) is mxnet.kvstore.KVStore and each.type.startswith("dist"):
                mxnet.base._LIB.MXKVStoreSetBarrierBeforeExit(each.handle, 0)
    except (AttributeError, ReferenceError):  # MXNet was only partly imported
        pass


if __name__ == "sitecustomize":
    import atexit

    _HERE = __file__.rpartition("/")[0]
    sys.path[:] = [each for each in sys.path if each != _HERE]
    _own = sys.modules.pop("sitecustomize")
    try:  # also import the sitecustomize that this file hides
        import sitecustomize  # type: ignore[import-not-found] # noqa: F401
    except ImportError:
        sys.modules["sitecustomize"] = _own
    atexit.register(_disable_exit_barrier)
