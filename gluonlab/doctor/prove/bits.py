"""Trial: does a run with the same seed end with the same bits, with --deterministic and without?"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, List

from gluonlab.doctor.prove.trial import reason_of, run
from gluonlab.errors import GluonlabError
from gluonlab.files.whole import temporary_folder
from gluonlab.gpu.process import Outcome, tell

if TYPE_CHECKING:
    import mxnet as mx

NUMBERS = ("how",)  # with alike, or refused
KINDS = {"--deterministic": ["--deterministic"], "without --deterministic": []}
TIMEOUT_S = 60.0
PARAMETERS = "model.params"


class _RunFailed(GluonlabError):
    pass


def run_twice(ctxs: List[mx.Context]) -> None:
    """Answers ``how`` and whether two runs of it were ``alike``, or ``refused``."""
    devices = "gpu:" + ",".join(str(ctx.device_id) for ctx in ctxs)
    for how, options in KINDS.items():
        tell(trying=f"two runs {how}")
        try:
            tell(how=how, alike=_parameters(devices, options) == _parameters(devices, options))
        except Exception as error:
            tell(how=how, refused=reason_of(error))


def _parameters(devices: str, options: List[str]) -> str:
    """The SHA-256 of the parameters that a run ends with."""
    with temporary_folder("prove") as folder:
        out = Path(folder) / "run"
        words = ["--devices", devices, "--epochs", "1", "--seed", "3", "--out", str(out), "--json"]
        ended = subprocess.run(
            [sys.executable, "-m", "gluonlab.run", *words, *options], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8", errors="replace",
            timeout=TIMEOUT_S, env=dict(os.environ), check=False,
        )  # fmt: skip
        if ended.returncode:
            raise _RunFailed(([""] + ended.stderr.strip().split("\n"))[-1])
        [parameters] = out.glob("*.params")
        return hashlib.sha256(parameters.read_bytes()).hexdigest()


def faults(outcome: Outcome) -> List[str]:
    """Runs that fail, and runs of --deterministic that differ; others promise no equal bits."""
    answers = outcome.all("how")
    failed = [
        f"runs {told['how']} fail: {told['refused']}" for told in answers if "refused" in told
    ]
    if any(told["how"] == "--deterministic" and told.get("alike") is False for told in answers):
        failed.append("two runs with --deterministic and the same seed end with different bits")
    return failed


def summary(outcome: Outcome) -> str:
    """Whether runs without --deterministic repeat, too."""
    alike = {told["how"]: told["alike"] for told in outcome.all("how")}
    without = "the same" if alike["without --deterministic"] else "different"
    return (
        "two runs with --deterministic and the same seed end with the same bits; "
        f"two without it end with {without} bits"
    )


if __name__ == "__main__":
    run(run_twice)
