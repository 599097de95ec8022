"""Shared fixtures of the labs' tests: each lab executed once, and the pages made of them."""

import os

import pytest
from the_labs import LABS, PLACE, SERIES, run_lab

SECONDS = {}  # lab -> how long it ran, for the end of the report

for name in ("GLUONLAB_LANGUAGE", "GLUONLAB_GRADES"):
    os.environ.pop(name, None)


@pytest.fixture(scope="session")
def executed():
    """``executed("02")``: that lab, run the first time that a test asks for it."""
    done = {}

    def get(number):
        if number not in done:
            done[number] = run_lab(LABS[number])
            SECONDS[number] = f"{done[number].wall_s:.0f} s ({done[number].cpu_s:.0f} s of processor time)"
        return done[number]

    return get


@pytest.fixture(scope="session")
def handouts(executed, tmp_path_factory):
    """The folder of all pages."""
    from gluonlab_labs.handouts import write_index, write_pages

    root = tmp_path_factory.mktemp("handouts")
    for lab in SERIES.labs:
        write_pages(SERIES, lab, executed(lab.number).notebooks, PLACE, root)
    write_index(SERIES, root)
    return root


def pytest_terminal_summary(terminalreporter):
    if SECONDS:
        terminalreporter.write_line(
            "labs ran: " + ", ".join(f"{lab} {seconds}" for lab, seconds in sorted(SECONDS.items()))
        )
