"""python lab_cells.py NOTEBOOK [SOLUTIONS]: run a lab's cells in IPython, without Jupyter.

The standard input is one more cell. With SOLUTIONS, a folder, the cells of exercises are what lies
there. The first cell that fails ends it with its error.
"""

import json
import sys
from pathlib import Path

TAG = "exercise-"


def cell_sources(notebook, solutions=None):
    """The code of each cell, or of the file in ``solutions`` that takes its place."""
    for cell in json.loads(Path(notebook).read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            tags = cell["metadata"].get("tags", [])
            exercise = next((tag[len(TAG) :] for tag in tags if tag.startswith(TAG)), None)
            if exercise is None or solutions is None:
                yield "".join(cell["source"])
            else:
                yield (Path(solutions) / f"{exercise}.py").read_text(encoding="utf-8")


def main():
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance(colors="nocolor")
    for source in [*cell_sources(*sys.argv[1:]), sys.stdin.read()]:
        done = shell.run_cell(source)
        if not done.success:  # it has been printed
            sys.exit(1)


if __name__ == "__main__":
    main()
