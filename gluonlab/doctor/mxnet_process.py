"""The process that loads MXNet: whether it can, what it was built with, and which kvstores and
Horovod work with it.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
from typing import List

from gluonlab.engine import setup
from gluonlab.engine.linking import understand
from gluonlab.errors import GluonlabError
from gluonlab.gpu.code import lacking
from gluonlab.gpu.process import tell

FEATURES = ("CUDA", "CUDNN", "NCCL", "ONEDNN", "MKLDNN", "DIST_KVSTORE", "OPENMP")


def main() -> None:
    """Answers: ``version`` or ``error``, ``copies``, then ``trying`` and ``kvstore`` for each of
    them, and ``horovod``.
    """
    if not load():
        return
    ask_for_peers()
    try_kvstores()
    load_horovod()


def load() -> bool:
    """Import MXNet as everybody does who imports gluonlab first."""
    tell(trying="import mxnet")
    try:
        import mxnet as mx

        from gluonlab.devices import gpu_count

        features = mx.runtime.Features()
        built_with = [name for name in FEATURES if name in features and features.is_enabled(name)]
        tell(version=mx.__version__, built_with=built_with, gpus=gpu_count())
        if gpu_count():
            tell(fusion=setup.fusing()._asdict())
    except Exception as error:
        reason = error.__cause__ or error
        complaint = understand(str(reason)) if isinstance(reason, (OSError, ImportError)) else None
        said = (
            str(error) if isinstance(error, GluonlabError) else f"{type(error).__name__}: {error}"
        )
        tell(error=said, **(complaint._asdict() if complaint else {}))
        return False
    return True


def ask_for_peers() -> None:
    """Between which GPUs CUDA copies directly; no GPU is touched for it."""
    import mxnet as mx

    from gluonlab.devices import gpu_count
    from gluonlab.gpu.peers import in_words

    gpus = [mx.gpu(i) for i in range(gpu_count())]
    if len(gpus) > 1:
        tell(copies=in_words(gpus))


def try_kvstores() -> None:
    """One step of gluon.Trainer over each store, on two CPU devices, or on the GPUs for those that
    are for GPUs only.
    """
    import mxnet as mx

    from gluonlab.devices import devices, gpu_count
    from gluonlab.kvstores import KVSTORES

    cpus = devices("cpu*2")
    gpus = [mx.gpu(i) for i in range(gpu_count()) if not lacking([i], 0)]
    for name, kind in KVSTORES.items():
        tell(trying=f"kvstore {name}")
        if kind.gpus_only and len(gpus) < 2:
            tell(kvstore=name, works=None, problem="needs two GPUs")
            continue
        try:
            problem = sum_over(name, gpus if kind.gpus_only else cpus)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        tell(kvstore=name, works=not problem, problem=problem)


def sum_over(name: str, ctxs: "List[object]") -> str:
    """What is wrong with the sum of 1, 2, ... on these devices; nothing, hopefully."""
    import numpy as np
    from mxnet import autograd, gluon, init

    from gluonlab.kvstores import make_kvstore

    weight = gluon.Parameter("weight", shape=(64,))
    weight.initialize(init.Zero(), ctx=ctxs)
    trainer = gluon.Trainer(
        [weight], "sgd", {"learning_rate": 1.0}, kvstore=make_kvstore(name, ctxs)
    )
    with autograd.record():
        losses = [weight.data(ctx) * (rank + 1) for rank, ctx in enumerate(ctxs)]
    autograd.backward(losses)
    trainer.step(1)
    expected = -len(ctxs) * (len(ctxs) + 1) / 2
    got = [weight.data(ctx).asnumpy() for ctx in ctxs]
    wrong = next(
        (array for array in got if not np.array_equal(array, np.full(64, expected, "float32"))),
        None,
    )
    return "" if wrong is None else f"the sum is {-wrong[0]:g} instead of {-expected:g}"


def load_horovod() -> None:
    """Only if it is installed."""
    if importlib.util.find_spec("horovod") is None:
        return
    tell(trying="import horovod.mxnet")
    try:
        horovod = importlib.import_module("horovod.mxnet")
        built = [kind for kind in ("mpi", "gloo", "nccl") if getattr(horovod, f"{kind}_built")()]
        tell(horovod=importlib.import_module("horovod").__version__, built_with=built)
    except Exception as error:
        tell(horovod=None, problem=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    gc.disable()  # loading MXNet is sooner done without
    main()
    os._exit(0)  # all is told; what libraries do while Python ends, some crash, is of no interest
