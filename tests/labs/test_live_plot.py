"""The pictures that grow while something trains, in a real notebook."""

import ast
import base64

import nbformat
import the_labs
from support.waiting import LIMIT_S

from gluonlab_labs.kernel import execute_notebook

CELL = """from gluonlab.drawing.matplotlib_figures import LiveChart
plot = LiveChart("epoch", "accuracy")
plot.add(1, {"one": 0.5})
plot.add(2, {"one": 0.7})"""


def test_it_stays_one_picture_which_is_the_last(tmp_path):
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in (CELL, "import base64\nbase64.b64encode(plot.png())")]
    )
    execute_notebook(notebook, tmp_path, LIMIT_S, PYTHONPATH=str(the_labs.REPOSITORY))
    [output] = notebook.cells[0].outputs
    shown = base64.b64decode(output.data["image/png"])
    [value] = notebook.cells[1].outputs
    assert shown.startswith(b"\x89PNG")
    assert base64.b64encode(shown).decode() in value.data["text/plain"]


RUN = """from gluonlab import LivePlot, TrainConfig, train
train(TrainConfig(devices="cpu*2", epochs=2, model="mlp"), callbacks=[LivePlot(every=0)]).stopped"""


def test_a_run_leaves_the_picture_of_its_end(tmp_path):
    """The same bytes as what the plot has drawn last."""
    keep = (
        "import gluonlab.drawing.matplotlib_figures as live\n"
        "shown, show = [], live.CellDisplay.show\n"
        "live.CellDisplay.show = lambda self, png: (shown.append(png), show(self, png))[1]"
    )
    look = "import base64\n[len(shown), base64.b64encode(shown[-1]).decode()]"
    cells = [nbformat.v4.new_code_cell(cell) for cell in (keep, RUN, look)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    execute_notebook(notebook, tmp_path, LIMIT_S, PYTHONPATH=str(the_labs.REPOSITORY))
    pictures = [each.data for each in notebook.cells[1].outputs if "image/png" in each.get("data", {})]
    [picture], [value] = pictures, notebook.cells[2].outputs
    count, last = ast.literal_eval(value.data["text/plain"])
    assert count >= 2 and picture["image/png"].strip().replace("\n", "") == last
