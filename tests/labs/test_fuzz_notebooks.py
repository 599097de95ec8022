"""Notebooks with other values and other bytes in them, as they are read before they are run."""

import json

from hypothesis import given
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from support.damage import corrupt_bytes, mutated_json
from support.fuzzing import INPUT_COUNTS, allow_gluonlab_errors, fuzz_property

from gluonlab.exercises.grading import Grade, as_csv
from gluonlab.exercises.run_submission import SubmittedCell, read_submission

NOTEBOOK = new_notebook(
    cells=[
        new_markdown_cell("# Title"),
        new_code_cell("x = 1", metadata={"tags": ["raises-exception"]}),
        new_code_cell("check('01-1', x)"),
    ],
    metadata={"gluonlab": {"lab": "01", "language": "en"}},
)


@fuzz_property
@given(st.data())
def test_a_notebook_is_cells_of_text_or_refused(tmp_path, data):
    path = tmp_path / "01.ipynb"
    path.write_text(json.dumps(data.draw(mutated_json(json.loads(json.dumps(NOTEBOOK))))))
    if data.draw(st.booleans()):
        junk = [b"[" * 5000, b"9" * 5000, b"\xff", b'"\\ud800"', b"null", b"NaN"]
        path.write_bytes(corrupt_bytes(data, path.read_bytes(), junk=junk))
    with allow_gluonlab_errors("notebooks"):
        cells, lab, language = read_submission(path, 2**20)
        assert all(type(cell) is SubmittedCell and cell.source.encode() is not None for cell in cells)
        assert lab.isdigit() and language in ("en", "ja")


@fuzz_property
@given(st.text(), st.text(), st.text())
def test_a_row_of_any_text_is_one_line_and_no_formula(name, status, note):
    INPUT_COUNTS["rows"] += 1
    table = as_csv([Grade(name, {"01-1": status}, note)])
    assert len(table.splitlines()) == 2 and table.replace("\n", "").isprintable()
    assert not table.splitlines()[1].lstrip('"').startswith(("=", "+", "-", "@"))
