"""Says at the end how many inputs were tried, with pytest -n by all processes together."""

import pytest
from support.fuzzing import INPUT_COUNTS


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    INPUT_COUNTS.update(getattr(node, "workeroutput", {}).get("inputs tried", {}))


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["inputs tried"] = dict(INPUT_COUNTS)


def pytest_terminal_summary(terminalreporter):
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(INPUT_COUNTS.items()))
    terminalreporter.write_line(f"{sum(INPUT_COUNTS.values()):,} inputs tried: {kinds}")
