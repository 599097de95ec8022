"""Lets a worker of MXNet's parameter server end without waiting for the others.

`gluonlab.launch` puts this folder first into a program's PYTHONPATH, and Python imports the module
as it starts. As it ends, MXNet's store would wait until all workers end: one that has failed would
never end while the others wait for its gradients. The launcher ends the servers itself.

The program's Python may be another one, so this file imports nothing of gluonlab.
"""

import sys


def _leave_alone():  # type: ignore[no-untyped-def]
    """Tell MXNet's stores, if there are any, not to wait."""
    mxnet = sys.modules.get("mxnet")
    if mxnet is None:
        return
    import gc

    try:
        for each in gc.get_objects():
            if type(each) is mxnet.kvstore.KVStore and each.type.startswith("dist"):
                mxnet.base._LIB.MXKVStoreSetBarrierBeforeExit(each.handle, 0)
    except (AttributeError, ReferenceError):  # an MXNet that was not loaded to its end
        pass


if __name__ == "sitecustomize":
    import atexit

    _HERE = __file__.rpartition("/")[0]
    sys.path[:] = [each for each in sys.path if each != _HERE]
    _own = sys.modules.pop("sitecustomize")
    try:  # the one that Python would have found without this
        import sitecustomize  # type: ignore[import-not-found] # noqa: F401
    except ImportError:
        sys.modules["sitecustomize"] = _own
    atexit.register(_leave_alone)
