"""docs/exactness.md: in float64 the order of a batch does not matter, so ties are float32's."""

import pytest
from support.pages import ROOT, read_blocks


@pytest.mark.long
def test_the_program_tells_rounding_from_ties(capsys):
    [block] = read_blocks(ROOT / "docs" / "exactness.md", "python")
    exec(compile(block.code, "exactness.md", "exec"), {})
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["float32", "float64"]
    single, double = ([float(cell) for cell in row[1:]] for row in rows)
    assert len(single) == len(double) == 10
    assert max(double) < 1e-12 and 1e-9 < max(single) < 0.5
