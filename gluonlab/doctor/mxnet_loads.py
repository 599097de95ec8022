"""Whether MXNet loads, and what works with it, as the process that tried has told."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from gluonlab.doctor.findings import Finding, fault, ok, one_line, warning
from gluonlab.engine.setup import FUSION
from gluonlab.gpu.process import Outcome, ask

FUSES_FROM = "520.61.05"  # the first of CUDA 11.8, whose NVRTC the wheels have
TIMEOUT_S = 60.0  # it takes two seconds on a slow machine; a cold network disk needs longer
HOROVOD = (
    "HOROVOD_WITH_MXNET=1 HOROVOD_WITH_GLOO=1 pip install --no-build-isolation "
    "--force-reinstall --no-deps horovod==0.28.1"
)


def try_mxnet() -> Outcome:
    """Load MXNet in a process of its own and try what works with it."""
    return ask("gluonlab.doctor.mxnet_process", timeout_s=TIMEOUT_S)


def findings(outcome: Outcome, is_installed: bool, horovod: Optional[str]) -> List[Finding]:
    """``is_installed``: there is an MXNet at all.

    ``horovod``: the version that is installed, or None.
    """
    loads = _loads(outcome, is_installed)
    loads += _fusion(outcome)
    return [
        *loads,
        *_copies(outcome),
        *(_kvstores(outcome) if outcome.answer("version") else []),
        *_horovod(outcome, horovod),
    ]


def _loads(outcome: Outcome, is_installed: bool) -> List[Finding]:
    told = outcome.answer("version")
    if told is not None:
        gpus = told["gpus"]
        seen = "no GPU" if not gpus else "1 GPU" if gpus == 1 else f"{gpus} GPUs"
        return [
            ok(
                "import",
                f"mxnet {told['version']} loads; built with {', '.join(told['built_with'])}; "
                f"it sees {seen}",
            )
        ]
    if not is_installed:
        return []  # said already
    refused = outcome.answer("error")
    if refused is not None:
        return [_refused(refused)]
    cause = (
        f"the process {outcome.ended or 'ended without a word'} while it did: "
        f"{_trying(outcome)}. {outcome.said}"
    ).rstrip(". ")
    cure = (
        "install MXNet again: pip install --force-reinstall --no-deps mxnet==1.9.1, "
        "or mxnet-cu112==1.9.1"
    )
    return [fault("import", "mxnet does not load", cause, cure)]


def _copies(outcome: Outcome) -> List[Finding]:
    """Between which GPUs, by MXNet's numbers; the line ``peers`` has what NVML tells, by its
    own.
    """
    told = outcome.answer("copies")
    return [] if told is None else [ok("copies", told["copies"])]


def _fusion(outcome: Outcome) -> List[Finding]:
    """Of machines with GPUs."""
    told = outcome.answer("fusion")
    if told is None:
        return []
    fusion = told["fusion"]
    because = one_line(fusion["because"])
    if fusion["works"]:
        return [
            ok(
                "fusion",
                f"pointwise operators are{'' if fusion['on'] else ' not'} fused on GPUs: {because}",
            )
        ]
    if fusion["on"]:
        return [
            fault(
                "fusion",
                "a run ends at its first fused operator",
                because,
                f"unset {FUSION}, and none are fused",
            )
        ]
    cure = f"a driver from {FUSES_FROM} on; without it all runs, with more launches a step"
    return [warning("fusion", "pointwise operators are not fused on GPUs", because, cure)]


def _refused(answer: Dict[str, Any]) -> Finding:
    """The engine's error: its own words end with the cure, unless a library was to blame, which was
    told in parts.
    """
    said = one_line(answer["error"])
    if "library" in answer:
        return fault(
            "import",
            f"mxnet cannot load {answer['library']}",
            one_line(answer["cause"]) or "the linker finds it nowhere",
            answer["cure"],
        )
    cause, _, cure = said.partition(": ")
    if not cure.startswith(("pip ", "install ")):
        cause, cure = (
            said,
            (
                "see the lines above; if all are ok, make a new environment: "
                "python3 tools/make_venv.py DIR cpu"
            ),
        )
    return fault("import", "mxnet does not load", cause, cure)


def _kvstores(outcome: Outcome) -> List[Finding]:
    tried = [answer for answer in outcome.answers if "kvstore" in answer]
    works = [answer["kvstore"] for answer in tried if answer["works"]]
    cannot = [
        f"{answer['kvstore']} {answer['problem']}" for answer in tried if answer["works"] is None
    ]
    found = (
        [ok("kvstores", ", ".join(works) + " work" + "".join(f"; {text}" for text in cannot))]
        if works
        else []
    )
    for answer in tried:
        if answer["works"] is False:
            found.append(
                fault(
                    "kvstores",
                    f"{answer['kvstore']} fails",
                    one_line(answer["problem"]),
                    "choose another with --kvstore",
                )
            )
    trying = _trying(outcome)
    if (
        outcome.ended
        and trying.startswith("kvstore")
        and trying not in [f"kvstore {answer['kvstore']}" for answer in tried]
    ):
        found.append(
            fault(
                "kvstores",
                f"{trying} fails",
                f"the process {outcome.ended}",
                "choose another with --kvstore",
            )
        )
    return found


def _horovod(outcome: Outcome, installed: Optional[str]) -> List[Finding]:
    if installed is None:
        return [ok("horovod", "not installed: only for training on several machines with Horovod")]
    told = outcome.answer("horovod")
    if told is None:
        return [
            warning(
                "horovod",
                f"{installed} was not tried",
                "MXNet, which it needs, came to no end",
                "cure that first",
            )
        ]
    if told["horovod"] is None:
        return [fault("horovod", f"{installed} does not load", one_line(told["problem"]), HOROVOD)]
    return [ok("horovod", f"{told['horovod']} loads; built with {', '.join(told['built_with'])}")]


def _trying(outcome: Outcome) -> str:
    return next(
        (str(answer["trying"]) for answer in reversed(outcome.answers) if "trying" in answer),
        "start",
    )
