"""Checks that MXNet loads, and that kvstores and Horovod work.

`probe_mxnet` runs this module in a child process, which prints its answers as lines of JSON.
`mxnet_findings` converts the answers to findings.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
from typing import Any, Dict, Iterator, List, Optional

from gluonlab.doctor.findings import Finding, fault, join_lines, ok, returns_list, warning
from gluonlab.engine import mxnet_setup
from gluonlab.engine.linker_errors import diagnose_linker_error
from gluonlab.engine.mxnet_and_cuda_libraries import REINSTALL_MXNET
from gluonlab.gpu.cuda import describe_unsupported
from gluonlab.gpu.isolated_process import ProcessOutcome, error_message, run_isolated, send_answer

FEATURES = ("CUDA", "CUDNN", "NCCL", "ONEDNN", "MKLDNN", "DIST_KVSTORE", "OPENMP")

# Pointwise operators are fused by NVRTC. The wheels contain NVRTC of CUDA 11.8, whose oldest driver
# is this one.
FUSION_DRIVER = "520.61.05"
TIMEOUT_S = 60.0  # two seconds on a slow machine; a cold network disk needs longer
HOROVOD_CURE = (
    "HOROVOD_WITH_MXNET=1 HOROVOD_WITH_GLOO=1 pip install --no-build-isolation "
    "--force-reinstall --no-deps horovod==0.28.1"
)
KVSTORE_CURE = "choose another kvstore with --kvstore"


def probe_mxnet() -> ProcessOutcome:
    """Load MXNet in a child process, and try each kvstore and Horovod there."""
    return run_isolated("gluonlab.doctor.check_mxnet", timeout_s=TIMEOUT_S)


@returns_list
def mxnet_findings(outcome: ProcessOutcome, is_installed: bool, horovod: Optional[str]) -> Iterator[Finding]:
    """Convert the answers of `probe_mxnet` to findings about MXNet, kvstores and Horovod.

    ``is_installed``: whether a module mxnet exists. ``horovod``: the installed version of Horovod,
    or None.
    """
    if is_installed or outcome.first_answer("version"):  # otherwise the check "mxnet" reports it
        yield _import_finding(outcome)
    fusion, copies = outcome.first_answer("fusion"), outcome.first_answer("copies")
    if fusion is not None:
        yield _fusion_finding(**fusion["fusion"])
    if copies is not None:
        # with MXNet's numbers; the check "peers" reports NVML's data and numbers
        yield ok("copies", copies["copies"])
    if outcome.first_answer("version"):
        yield from _kvstore_findings(outcome)
    yield _horovod_finding(outcome.first_answer("horovod"), horovod)


def _import_finding(outcome: ProcessOutcome) -> Finding:
    """Report MXNet's version and number of GPUs, or why MXNet does not load."""
    loaded, error = outcome.first_answer("version"), outcome.first_answer("error")
    if loaded is not None:
        gpus, built_with = loaded["gpus"], ", ".join(loaded["built_with"])
        gpu_text = f"{gpus or 'no'} GPU{'s' if gpus > 1 else ''}"
        if "DIST_KVSTORE" not in loaded["built_with"]:  # MXNet's wheels for ARM and macOS
            built_with += ", but without the parameter server for gluonlab launch"
        return ok("import", f"mxnet {loaded['version']} loads; built with {built_with}; it sees {gpu_text}")
    if error is not None:
        return _import_error_finding(error)
    failure = outcome.failure or "exited without a result"
    cause = f"the process {failure} during: {_last_attempt(outcome)}. {outcome.last_line}".rstrip(". ")
    return fault("import", "mxnet does not load", cause, REINSTALL_MXNET)


def _fusion_finding(is_on: bool, driver_supports: bool, reason: str) -> Finding:
    """Return the finding about fused operators on GPUs.

    The arguments are the fields of `gluonlab.engine.mxnet_setup.FusionState`.
    """
    reason = join_lines(reason)
    if driver_supports:
        return ok("fusion", f"pointwise operators are{' not' * (not is_on)} fused on GPUs: {reason}")
    if is_on:
        cure = f"unset {mxnet_setup.FUSION_VARIABLE} to run without fusion"
        return fault("fusion", "a run stops at its first fused operator", reason, cure)
    cure = f"use driver {FUSION_DRIVER} or newer; without fusion, a step needs more kernel launches"
    return warning("fusion", "pointwise operators are not fused on GPUs", reason, cure)


def _import_error_finding(answer: Dict[str, Any]) -> Finding:
    """Return the finding for an error during the import of MXNet."""
    if "library" in answer:
        cause = join_lines(answer["cause"]) or "the dynamic linker cannot find it"
        return fault("import", f"mxnet cannot load {answer['library']}", cause, answer["cure"])
    message = join_lines(answer["error"])
    cause, _, cure = message.partition(": ")
    if not cure.startswith(("pip ", "run pip ", "install ")):
        cause, cure = message, "see the lines above; if all are ok, create a new environment: "
        cure += "python3 tools/make_venv.py DIR cpu"
    return fault("import", "mxnet does not load", cause, cure)


def _kvstore_findings(outcome: ProcessOutcome) -> Iterator[Finding]:
    """Report all working kvstores in one finding, and each failing kvstore in its own finding."""
    tried = {answer["kvstore"]: answer for answer in outcome.answers if "kvstore" in answer}
    works = [name for name, answer in tried.items() if answer["works"]]
    if works:
        impossible = "".join(
            f"; {name} {answer['problem']}" for name, answer in tried.items() if answer["works"] is None
        )
        yield ok("kvstores", f"{', '.join(works)} work{impossible}")
    for name, answer in tried.items():
        if answer["works"] is False:
            yield fault("kvstores", f"{name} fails", join_lines(answer["problem"]), KVSTORE_CURE)
    kind, _, last = _last_attempt(outcome).partition(" ")
    if outcome.failure and kind == "kvstore" and last not in tried:
        yield fault("kvstores", f"kvstore {last} fails", f"the process {outcome.failure}", KVSTORE_CURE)


def _horovod_finding(loaded: Optional[Dict[str, Any]], installed: Optional[str]) -> Finding:
    """Report whether Horovod loads. ``loaded``: the child process's answer, or None."""
    if installed is None:
        return ok("horovod", "not installed: only --backend horovod of gluonlab launch needs it")
    if loaded is None:
        cause = "it needs MXNet, whose check did not finish"
        return warning("horovod", f"{installed} was not tested", cause, "fix MXNet first")
    if loaded["horovod"] is None:
        cause = join_lines(loaded["problem"])
        return fault("horovod", f"{installed} does not load", cause, HOROVOD_CURE)
    built = ", ".join(loaded["built_with"])
    return ok("horovod", f"{loaded['horovod']} loads; built with {built}")


def _last_attempt(outcome: ProcessOutcome) -> str:
    tried = outcome.last_answer("trying")
    return str(tried["trying"]) if tried else "start"


def main() -> None:
    """Try MXNet, kvstores and Horovod, and print an answer for each.

    The answers have the keys ``version`` or ``error``, ``fusion``, ``copies``, ``kvstore`` (one
    answer for each kvstore) and ``horovod``. The key ``trying`` names the current attempt.
    """
    if _import_mxnet():
        _report_copies()
        _try_kvstores()
        _import_horovod()


def _import_mxnet() -> bool:
    """Import MXNet after gluonlab, as users do."""
    send_answer(trying="import mxnet")
    try:
        import mxnet as mx

        from gluonlab.devices import gpu_count

        features = mx.runtime.Features()
        built_with = [name for name in FEATURES if name in features and features.is_enabled(name)]
        send_answer(version=mx.__version__, built_with=built_with, gpus=gpu_count())
        if gpu_count():
            send_answer(fusion=mxnet_setup.fusion_state()._asdict())
    except Exception as error:
        reason = error.__cause__ or error
        complaint = diagnose_linker_error(str(reason)) if isinstance(reason, (OSError, ImportError)) else None
        send_answer(error=error_message(error), **(complaint._asdict() if complaint else {}))
        return False
    return True


def _report_copies() -> None:
    """Send which GPUs can copy directly to each other. This query does not use the GPUs."""
    import mxnet as mx

    from gluonlab.devices import gpu_count
    from gluonlab.gpu.cuda import describe_peer_access

    if gpu_count() > 1:
        send_answer(copies=describe_peer_access([mx.gpu(i) for i in range(gpu_count())]))


def _try_kvstores() -> None:
    """Sum with each kvstore on two CPU devices, or on GPUs if the kvstore supports only GPUs."""
    import mxnet as mx

    from gluonlab.devices import devices, gpu_count
    from gluonlab.kvstores import KVSTORES

    gpus = [mx.gpu(i) for i in range(gpu_count()) if not describe_unsupported([i], 0)]
    for name, kind in KVSTORES.items():
        send_answer(trying=f"kvstore {name}")
        if kind.gpus_only and len(gpus) < 2:
            send_answer(kvstore=name, works=None, problem="needs two GPUs")
            continue
        try:
            problem = check_kvstore_sum(name, gpus if kind.gpus_only else devices("cpu*2"))
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        send_answer(kvstore=name, works=not problem, problem=problem)


def check_kvstore_sum(name: str, ctxs: List[Any]) -> str:
    """Sum 1, 2, ... over the devices with the kvstore ``name``. Return the problem, or ""."""
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


def _import_horovod() -> None:
    """Import Horovod if it is installed, and send its version."""
    if importlib.util.find_spec("horovod") is None:
        return
    send_answer(trying="import horovod.mxnet")
    try:
        horovod = importlib.import_module("horovod.mxnet")
        built = [kind for kind in ("mpi", "gloo", "nccl") if getattr(horovod, f"{kind}_built")()]
        send_answer(horovod=importlib.import_module("horovod").__version__, built_with=built)
    except Exception as error:
        send_answer(horovod=None, problem=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    gc.disable()  # MXNet loads faster without garbage collection
    main()
    os._exit(0)  # some libraries crash while Python exits; all answers are sent
