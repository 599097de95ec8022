"""Make a lab's notebook in one language; the same source makes the same file, byte by byte."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Dict, List, Optional

import nbformat

from gluonlab_labs.exercises import TAG, solution_path
from gluonlab_labs.faults import Faults
from gluonlab_labs.outline import Series
from gluonlab_labs.source import Code, Lab, Text
from gluonlab_labs.text import MarkdownWriter

KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def make_notebook(lab: Lab, language: str, series: Series, faults: Faults, solutions: Optional[Path] = None) -> Any:
    """Return a `nbformat` notebook without outputs; ``solutions``: their folder, to use them."""
    writer = MarkdownWriter(lab, language, series, faults)
    cells: List[Any] = []
    cell_ids = _CellIds()
    pending_text = [writer.write_title()]

    def flush() -> None:
        if pending_text:
            key = f"{lab.name} {len(cells)}"
            cells.append(nbformat.v4.new_markdown_cell("\n\n".join(pending_text), id=cell_ids.make_id("text", key)))
            pending_text.clear()

    for part in lab.parts:
        if isinstance(part, Text):
            pending_text += [block for block in [writer.write_block(part)] if block]
        else:
            flush()
        if isinstance(part, Code):
            source = _source_with_solution(part, solutions) if solutions else part.source
            cells.append(
                nbformat.v4.new_code_cell(source, id=cell_ids.make_id("code", part.source), metadata=part.metadata)
            )
    flush()
    lab_metadata = {"language": language, "lab": lab.number}
    metadata = {
        "kernelspec": KERNEL,
        "language_info": {"name": "python"},
        "gluonlab": lab_metadata,
        "title": lab.title[language],
    }
    return nbformat.v4.new_notebook(cells=cells, metadata=metadata, nbformat_minor=5)


def notebook_json(notebook: Any) -> str:
    """Return the text of the notebook's file."""
    nbformat.validate(notebook)
    return str(nbformat.writes(notebook)) + "\n"


def _source_with_solution(cell: Code, solutions: Path) -> str:
    ids = [match["id"] for match in map(TAG.fullmatch, cell.tags) if match]
    return solution_path(solutions, ids[0]).read_text(encoding="utf-8").strip() if ids else cell.source


class _CellIds:
    """Makes ids of cells, the same in both languages; those of code cells depend on their code."""

    def __init__(self) -> None:
        self.counts: Dict[str, int] = {}

    def make_id(self, kind: str, content: str) -> str:
        cell_id = f"{kind}-{hashlib.sha256(content.encode('utf-8')).hexdigest()[:10]}"
        self.counts[cell_id] = self.counts.get(cell_id, 0) + 1
        return cell_id if self.counts[cell_id] == 1 else f"{cell_id}-{self.counts[cell_id]}"
