"""The page shows the picture of where a run's time went, and runs nothing that is in it."""

import base64
import re

import pytest
from support.made_up_runs import make_run

from gluonlab.errors import DataError
from gluonlab.report.page import as_page
from gluonlab.runs import reader
from gluonlab.runs.reader import read_runs

PICTURE = re.compile(r'<img alt="[^"]*" src="data:image/svg\+xml;base64,([^"]*)">')


def test_a_run_that_was_recorded_has_its_picture_on_the_page_and_no_other_has(tmp_path):
    plain, recorded = make_run(tmp_path / "plain"), make_run(tmp_path / "recorded")
    svg = '<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    (recorded / "timeline.svg").write_text(svg)
    page = as_page(read_runs([plain, recorded]))
    assert [base64.b64decode(found).decode() for found in PICTURE.findall(page)] == [svg]
    assert page.count("<script") == 1  # our own
    assert PICTURE.findall(as_page(read_runs([plain]))) == []


def test_a_picture_that_is_too_large_or_none_does_not_reach_the_page(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run")
    (run / "timeline.svg").mkdir()
    assert PICTURE.findall(as_page(read_runs([run]))) == []
    (run / "timeline.svg").rmdir()
    monkeypatch.setattr(reader, "MOST_PICTURE_BYTES", 10)
    (run / "timeline.svg").write_text("x" * 11)
    with pytest.raises(DataError, match=r"timeline\.svg has more than the 10 bytes"):
        as_page(read_runs([run]))
