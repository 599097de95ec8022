"""The plot that grows while a lab trains, in a real notebook."""

import base64

import nbformat
import the_labs

from gluonlab_labs.kernel import execute

CELL = """from gluonlab.exercises.live import LivePlot
plot = LivePlot("epoch", "accuracy")
plot.add(1, {"one": 0.5})
plot.add(2, {"one": 0.7})"""


def test_it_stays_one_picture_which_is_the_last(tmp_path):
    notebook = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_code_cell(cell)
            for cell in (CELL, "import base64\nbase64.b64encode(plot.png())")
        ]
    )
    execute(notebook, tmp_path, 60, PYTHONPATH=str(the_labs.REPOSITORY))
    [output] = notebook.cells[0].outputs
    shown = base64.b64decode(output.data["image/png"])
    [value] = notebook.cells[1].outputs
    assert shown.startswith(b"\x89PNG")
    assert base64.b64encode(shown).decode() in value.data["text/plain"]
