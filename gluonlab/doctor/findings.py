"""The findings in the doctor's report, each with a status, a cause and a fix."""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, Iterable, Iterator, List, Sequence

OK, WARNING, FAULT = "ok", "warning", "fault"
_ORDER = (OK, WARNING, FAULT)


@dataclass(frozen=True)
class Finding:
    """A line of the report.

    Attributes:
        check: The name of the check, which is stable across versions.
        status: OK, WARNING (slower than or different from what users expect) or FAULT.
        what: A description of the state.
        cause: The cause of the problem.
        cure: How to fix the problem.
    """

    check: str
    status: str
    what: str
    cause: str = ""
    cure: str = ""


def ok(check: str, what: str) -> Finding:
    """Return a finding that needs no action."""
    return Finding(check, OK, what)


def warning(check: str, what: str, cause: str = "", cure: str = "") -> Finding:
    """Return a finding about something that works, but slower or differently than expected."""
    return Finding(check, WARNING, what, cause, cure)


def fault(check: str, what: str, cause: str, cure: str) -> Finding:
    """Return a finding about something that does not work."""
    return Finding(check, FAULT, what, cause, cure)


def returns_list(check: Callable[..., Iterator[Finding]]) -> Callable[..., List[Finding]]:
    """Decorate a function that yields findings, so that it returns a list of findings."""

    @functools.wraps(check)
    def findings(*arguments: Any, **options: Any) -> List[Finding]:
        return list(check(*arguments, **options))

    return findings


def worst_status(findings: Iterable[Finding]) -> str:
    """Return the worst status of all findings."""
    return max((finding.status for finding in findings), key=_ORDER.index, default=OK)


def run_check(name: str, check: Callable[[], Sequence[Finding]]) -> List[Finding]:
    """Return the findings from a check. An error that the check raises becomes a finding."""
    try:
        return list(check())
    except Exception as error:
        what = join_lines(f"this check itself failed: {type(error).__name__}: {error}")
        cure = "the other lines are still valid; please report this one"
        return [warning(name, what, cure=cure)]


def join_lines(text: str) -> str:
    """Replace line breaks with spaces."""
    return " ".join(text.split())


def format_count(count: int, noun: str) -> str:
    """Return text such as ``no cores``, ``1 core`` or ``2 cores``."""
    return f"{count or 'no'} {noun}{'' if count == 1 else 's'}"


def format_findings(findings: Sequence[Finding], seconds: float) -> str:
    """Return text with a line for each finding, its cause and fix, and a summary."""
    width = max((len(finding.check) for finding in findings), default=0)
    lines = []
    for finding in findings:
        lines.append(f"{finding.status:<9}{finding.check:<{width}}  {finding.what}")
        for name, text in (("cause", finding.cause), ("cure", finding.cure)):
            lines += [f"{'':<9}{'':<{width}}  {name + ':':<7}{text}"] * bool(text)
    statuses = [finding.status for finding in findings]
    summary = ", ".join(format_count(statuses.count(status), status) for status in (FAULT, WARNING))
    return "\n".join([*lines, "", f"{summary}, {seconds:.1f} s"])


def findings_to_dict(findings: Sequence[Finding], seconds: float) -> Dict[str, Any]:
    """Return the JSON object with ``status``, ``seconds`` and ``findings``."""
    return {
        "status": worst_status(findings),
        "seconds": round(seconds, 3),
        "findings": [asdict(finding) for finding in findings],
    }
