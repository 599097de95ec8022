"""A finding: one line of the doctor's report, with what is wrong, why, and the cure."""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, Iterable, Iterator, List, Sequence

OK, WARNING, FAULT = "ok", "warning", "fault"
_ORDER = (OK, WARNING, FAULT)


@dataclass(frozen=True)
class Finding:
    """``check``: what was examined, a stable name.

    ``status``: OK, WARNING (it runs, but slower or otherwise than expected) or FAULT.
    """

    check: str
    status: str
    what: str
    cause: str = ""
    cure: str = ""


def ok(check: str, what: str) -> Finding:
    """Nothing to do."""
    return Finding(check, OK, what)


def warning(check: str, what: str, cause: str = "", cure: str = "") -> Finding:
    """It runs, but slower or otherwise than expected."""
    return Finding(check, WARNING, what, cause, cure)


def fault(check: str, what: str, cause: str, cure: str) -> Finding:
    """Something does not run."""
    return Finding(check, FAULT, what, cause, cure)


def listed(look: Callable[..., Iterator[Finding]]) -> Callable[..., List[Finding]]:
    """Make a generator of findings a function that returns them all."""

    @functools.wraps(look)
    def findings(*arguments: Any, **options: Any) -> List[Finding]:
        return list(look(*arguments, **options))

    return findings


def worst(findings: Iterable[Finding]) -> str:
    """The status of all together."""
    return max((finding.status for finding in findings), key=_ORDER.index, default=OK)


def guarded(check: str, look: Callable[[], Sequence[Finding]]) -> List[Finding]:
    """The findings of a check; if it breaks, that is its finding."""
    try:
        return list(look())
    except Exception as error:
        what = one_line(f"this check itself failed: {type(error).__name__}: {error}")
        cure = "the other lines are still valid; please report this one"
        return [warning(check, what, cure=cure)]


def one_line(text: str) -> str:
    """A text from elsewhere, without its line breaks."""
    return " ".join(text.split())


def plural(count: int, noun: str) -> str:
    """``no cores``, ``1 core``, ``2 cores``."""
    return f"{count or 'no'} {noun}{'' if count == 1 else 's'}"


def as_lines(findings: Sequence[Finding], seconds: float) -> str:
    """For a person: a line each, its cause and cure below it, and how many there are."""
    width = max((len(finding.check) for finding in findings), default=0)
    lines = []
    for finding in findings:
        lines.append(f"{finding.status:<9}{finding.check:<{width}}  {finding.what}")
        for name, text in (("cause", finding.cause), ("cure", finding.cure)):
            lines += [f"{'':<9}{'':<{width}}  {name + ':':<7}{text}"] * bool(text)
    statuses = [finding.status for finding in findings]
    summary = ", ".join(plural(statuses.count(status), status) for status in (FAULT, WARNING))
    return "\n".join([*lines, "", f"{summary}, {seconds:.1f} s"])


def as_object(findings: Sequence[Finding], seconds: float) -> Dict[str, Any]:
    """For a program: ``status``, ``seconds`` and ``findings``, each with all five fields."""
    return {
        "status": worst(findings),
        "seconds": round(seconds, 3),
        "findings": [asdict(finding) for finding in findings],
    }
