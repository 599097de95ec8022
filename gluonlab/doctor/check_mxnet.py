"""Whether MXNet loads, and which kvstores and Horovod work with it.

`try_mxnet` runs this module as a process of its own, which answers line by line; `findings` makes
findings of the answers.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
from typing import Any, Dict, Iterator, List, Optional

from gluonlab.doctor.findings import Finding, fault, listed, ok, one_line, warning
from gluonlab.engine import mxnet_setup
from gluonlab.engine.linker_errors import diagnose_linker_error
from gluonlab.engine.mxnet_installation import REINSTALL_MXNET
from gluonlab.gpu.cuda import lacking
from gluonlab.gpu.isolated_process import ProcessExit, ask, message_of, tell

FEATURES = ("CUDA", "CUDNN", "NCCL", "ONEDNN", "MKLDNN", "DIST_KVSTORE", "OPENMP")

FUSES_FROM = "520.61.05"  # the first of CUDA 11.8, whose NVRTC the wheels have
TIMEOUT_S = 60.0  # it takes two seconds on a slow machine; a cold network disk needs longer
HOROVOD = (
    "HOROVOD_WITH_MXNET=1 HOROVOD_WITH_GLOO=1 pip install --no-build-isolation "
    "--force-reinstall --no-deps horovod==0.28.1"
)
OTHER_STORE = "choose another with --kvstore"


def try_mxnet() -> ProcessExit:
    """Load MXNet in a process of its own and try what works with it."""
    return ask("gluonlab.doctor.check_mxnet", timeout_s=TIMEOUT_S)


@listed
def findings(outcome: ProcessExit, is_installed: bool, horovod: Optional[str]) -> Iterator[Finding]:
    """``is_installed``: there is an MXNet at all.

    ``horovod``: the version that is installed, or None.
    """
    if is_installed or outcome.answer("version"):  # otherwise the line mxnet says it
        yield _loads(outcome)
    fusion, copies = outcome.answer("fusion"), outcome.answer("copies")
    if fusion is not None:
        yield _fusion(**fusion["fusion"])
    if copies is not None:
        # by MXNet's numbers; the line peers has what NVML reports, by its own
        yield ok("copies", copies["copies"])
    if outcome.answer("version"):
        yield from _kvstores(outcome)
    yield _horovod(outcome.answer("horovod"), horovod)


def _loads(outcome: ProcessExit) -> Finding:
    loaded, refused = outcome.answer("version"), outcome.answer("error")
    if loaded is not None:
        gpus = loaded["gpus"]
        seen = f"{gpus or 'no'} GPU{'s' if gpus > 1 else ''}"
        what = f"mxnet {loaded['version']} loads; built with {', '.join(loaded['built_with'])}"
        return ok("import", f"{what}; it sees {seen}")
    if refused is not None:
        return _refused(refused)
    end = outcome.ended or "ended without an answer"
    cause = f"the process {end} during: {_trying(outcome)}. {outcome.said}".rstrip(". ")
    return fault("import", "mxnet does not load", cause, REINSTALL_MXNET)


def _fusion(works: bool, on: bool, because: str) -> Finding:
    """The finding on machines with GPUs."""
    because = one_line(because)
    if works:
        return ok("fusion", f"pointwise operators are{' not' * (not on)} fused on GPUs: {because}")
    if on:
        what, cure = (
            "a run ends at its first fused operator",
            f"unset {mxnet_setup.FUSION_VARIABLE} to run without fusion",
        )
        return fault("fusion", what, because, cure)
    cure = f"a driver from {FUSES_FROM} on; without it, a step takes more kernel launches"
    return warning("fusion", "pointwise operators are not fused on GPUs", because, cure)


def _refused(answer: Dict[str, Any]) -> Finding:
    """The engine's error, which ends with the cure, or a library's complaint, told in parts."""
    if "library" in answer:
        cause = one_line(answer["cause"]) or "the linker does not find it"
        return fault("import", f"mxnet cannot load {answer['library']}", cause, answer["cure"])
    message = one_line(answer["error"])
    cause, _, cure = message.partition(": ")
    if not cure.startswith(("pip ", "install ")):
        cause, cure = message, "see the lines above; if all are ok, make a new environment: "
        cure += "python3 tools/make_venv.py DIR cpu"
    return fault("import", "mxnet does not load", cause, cure)


def _kvstores(outcome: ProcessExit) -> Iterator[Finding]:
    tried = {answer["kvstore"]: answer for answer in outcome.answers if "kvstore" in answer}
    works = [name for name, answer in tried.items() if answer["works"]]
    if works:
        impossible = "".join(
            f"; {name} {answer['problem']}"
            for name, answer in tried.items()
            if answer["works"] is None
        )
        yield ok("kvstores", f"{', '.join(works)} work{impossible}")
    for name, answer in tried.items():
        if answer["works"] is False:
            yield fault("kvstores", f"{name} fails", one_line(answer["problem"]), OTHER_STORE)
    kind, _, last = _trying(outcome).partition(" ")
    if outcome.ended and kind == "kvstore" and last not in tried:
        yield fault(
            "kvstores", f"kvstore {last} fails", f"the process {outcome.ended}", OTHER_STORE
        )


def _horovod(loaded: Optional[Dict[str, Any]], installed: Optional[str]) -> Finding:
    if installed is None:
        return ok("horovod", "not installed: only for training on several machines with Horovod")
    if loaded is None:
        cause = "it needs MXNet, whose check did not finish"
        return warning("horovod", f"{installed} was not tested", cause, "cure that first")
    if loaded["horovod"] is None:
        cause = one_line(loaded["problem"])
        return fault("horovod", f"{installed} does not load", cause, HOROVOD)
    built = ", ".join(loaded["built_with"])
    return ok("horovod", f"{loaded['horovod']} loads; built with {built}")


def _trying(outcome: ProcessExit) -> str:
    tried = outcome.last("trying")
    return str(tried["trying"]) if tried else "start"


def main() -> None:
    """The process: answers version or error, fusion, copies, each kvstore's, and horovod."""
    if _load():
        _tell_copies()
        _try_kvstores()
        _load_horovod()


def _load() -> bool:
    """Import MXNet as everybody does who imports gluonlab first."""
    tell(trying="import mxnet")
    try:
        import mxnet as mx

        from gluonlab.devices import gpu_count

        features = mx.runtime.Features()
        built_with = [name for name in FEATURES if name in features and features.is_enabled(name)]
        tell(version=mx.__version__, built_with=built_with, gpus=gpu_count())
        if gpu_count():
            tell(fusion=mxnet_setup.fusion_state()._asdict())
    except Exception as error:
        reason = error.__cause__ or error
        complaint = (
            diagnose_linker_error(str(reason))
            if isinstance(reason, (OSError, ImportError))
            else None
        )
        tell(error=message_of(error), **(complaint._asdict() if complaint else {}))
        return False
    return True


def _tell_copies() -> None:
    """Between which GPUs CUDA copies directly; no GPU is touched for it."""
    import mxnet as mx

    from gluonlab.devices import gpu_count
    from gluonlab.gpu.cuda import peers_in_words

    if gpu_count() > 1:
        tell(copies=peers_in_words([mx.gpu(i) for i in range(gpu_count())]))


def _try_kvstores() -> None:
    """Sum over each store, on two CPU devices, or on the GPUs for those that are for GPUs only."""
    import mxnet as mx

    from gluonlab.devices import devices, gpu_count
    from gluonlab.kvstores import KVSTORES

    gpus = [mx.gpu(i) for i in range(gpu_count()) if not lacking([i], 0)]
    for name, kind in KVSTORES.items():
        tell(trying=f"kvstore {name}")
        if kind.gpus_only and len(gpus) < 2:
            tell(kvstore=name, works=None, problem="needs two GPUs")
            continue
        try:
            problem = sum_over(name, gpus if kind.gpus_only else devices("cpu*2"))
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        tell(kvstore=name, works=not problem, problem=problem)


def sum_over(name: str, ctxs: List[Any]) -> str:
    """What is wrong with the sum of 1, 2, ... on these devices; empty if nothing is."""
    import numpy as np
    from mxnet import autograd, gluon, init

    from gluonlab.kvstores import make_kvstore

    weight = gluon.Parameter("weight", shape=(64,))
    weight.initialize(init.Zero(), ctx=ctxs)
    store = make_kvstore(name, ctxs)
    trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 1.0}, kvstore=store)
    with autograd.record():
        losses = [weight.data(ctx) * (rank + 1) for rank, ctx in enumerate(ctxs)]
    autograd.backward(losses)
    trainer.step(1)
    expected = np.full(64, -sum(range(1, len(ctxs) + 1)), "float32")
    for ctx in ctxs:
        updated = weight.data(ctx).asnumpy()
        if not np.array_equal(updated, expected):
            return f"the sum is {-updated[0]:g} instead of {-expected[0]:g}"
    return ""


def _load_horovod() -> None:
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
