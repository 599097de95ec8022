"""Says at the end how many inputs were tried."""

from support.fuzzing import TRIED


def pytest_terminal_summary(terminalreporter):
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(TRIED.items()))
    terminalreporter.write_line(f"{sum(TRIED.values()):,} inputs tried: {kinds}")
