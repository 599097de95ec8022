"""Trial: does a run with the same seed end with the same bits, with --deterministic and without?"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List

from gluonlab.doctor.prove.telling import reason_of, run
from gluonlab.doctor.prove.verdict import Verdict, all_of, right, unfinished, wrong
from gluonlab.errors import GluonlabError
from gluonlab.gpu.process import Outcome, tell

if TYPE_CHECKING:
    import mxnet as mx

NAME = "bits"
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
    with tempfile.TemporaryDirectory(prefix="gluonlab-prove-") as folder:
        out = Path(folder) / "run"
        words = [
            "--devices",
            devices,
            "--epochs",
            "1",
            "--seed",
            "3",
            "--out",
            str(out),
            "--json",
            *options,
        ]
        ended = subprocess.run(
            [sys.executable, "-m", "gluonlab.run", *words], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8", errors="replace",
            timeout=TIMEOUT_S, env=dict(os.environ), check=False,
        )  # fmt: skip
        if ended.returncode:
            raise _RunFailed(([""] + ended.stderr.strip().split("\n"))[-1])
        [parameters] = out.glob("*.params")
        return hashlib.sha256(parameters.read_bytes()).hexdigest()


def judge(outcome: Outcome) -> List[Verdict]:
    """Only --deterministic promises anything."""
    found = {told["how"]: told for told in all_of(outcome, "how")}
    bad = [
        wrong(NAME, f"runs {how} fail: {told['refused']}")
        for how, told in found.items()
        if "refused" in told
    ]
    if found.get("--deterministic", {}).get("alike") is False:
        bad.append(
            wrong(NAME, "two runs with --deterministic and the same seed end with other bits")
        )
    bad += unfinished(NAME, outcome)
    if bad:
        return bad
    without = "so do" if found["without --deterministic"]["alike"] else "other bits have"
    return [
        right(
            NAME,
            "two runs with --deterministic and the same seed end with the same bits; "
            f"{without} two without it",
        )
    ]


def numbers(outcome: Outcome) -> List[Dict[str, Any]]:
    """One for each of KINDS: ``how``, ``alike``, or ``refused``."""
    return all_of(outcome, "how")


if __name__ == "__main__":
    run(run_twice)
