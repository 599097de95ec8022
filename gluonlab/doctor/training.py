"""One step of training on every device, beside the same step on one."""

from __future__ import annotations

import os
from typing import List

from gluonlab.doctor.findings import Finding, fault, ok, one_line
from gluonlab.doctor.training_process import TOLERANCE
from gluonlab.gpu.process import Outcome, ask

# Ampere's tensor cores round float32 to 10 bits, and which kernels do depends on the batch: two
# computations would differ by it.
EXACT = {"NVIDIA_TF32_OVERRIDE": "0"}  # of NVIDIA's libraries: CUDA, cuBLAS, cuDNN
TIMEOUT_S = 180.0  # a GPU's first step tries cuDNN's algorithms, one after the other


def try_training() -> List[Finding]:
    """Train in a process of its own."""
    return findings(
        ask(
            "gluonlab.doctor.training_process", timeout_s=TIMEOUT_S, environ={**os.environ, **EXACT}
        )
    )


def findings(outcome: Outcome) -> List[Finding]:
    """What the process told."""
    devices = (outcome.answer("devices") or {}).get("devices", "")
    where = f" on {devices}" if devices else ""
    refused, result = outcome.answer("error"), outcome.answer("difference")
    if refused is not None:
        reason = one_line(refused["error"])
        return [fault("train", f"a step{where} fails", reason, _cure(reason))]
    if result is None:
        cause = f"the process {outcome.ended or 'told nothing'}. {outcome.said}".rstrip(". ")
        return [
            fault(
                "train",
                f"a step{where} fails",
                cause,
                "see the lines above; on GPUs try one alone: --devices gpu:0",
            )
        ]
    what = (
        f"one step on {result['images']} images{where} and on one device alone: "
        f"parameters differ by {result['difference']:.1e}"
    )
    if not result["difference"] <= TOLERANCE:  # NaN, too
        cure = (
            "try other kvstores with --kvstore, and fewer GPUs, "
            "to find the one that computes wrongly"
        )
        return [
            fault("train", what, f"more than {TOLERANCE:g}, which the order of sums explains", cure)
        ]
    return [ok("train", what)]


def _cure(reason: str) -> str:
    if "no kernel image" in reason:
        return (
            "this GPU needs code that mxnet-cu112 1.9.1 does not have: "
            "see the line capability; use --devices 'cpu*2'"
        )
    if "unsupported toolchain" in reason:
        return "the driver does not run fused operators: see the line fusion"
    if "out of memory" in reason.lower():
        return "see the line gpu-memory: end the processes that hold it"
    return "see the lines above"
