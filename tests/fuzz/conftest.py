"""Says at the end how many inputs were tried, with pytest -n by all processes together."""

import pytest
from support.fuzzing import TRIED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    TRIED.update(getattr(node, "workeroutput", {}).get("inputs tried", {}))


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["inputs tried"] = dict(TRIED)


def pytest_terminal_summary(terminalreporter):
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(TRIED.items()))
    terminalreporter.write_line(f"{sum(TRIED.values()):,} inputs tried: {kinds}")
