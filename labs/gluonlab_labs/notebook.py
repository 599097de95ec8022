"""A lab as a notebook in one language: the same source makes the same file, byte by byte."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Dict, List, Optional

import nbformat

from gluonlab_labs.exercises import TAG, solution_path
from gluonlab_labs.faults import Faults
from gluonlab_labs.outline import Series
from gluonlab_labs.source import Code, Lab, Text
from gluonlab_labs.text import Writer

KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def notebook(
    lab: Lab, language: str, series: Series, faults: Faults, solutions: Optional[Path] = None
) -> Any:
    """A `nbformat` notebook without outputs; ``solutions``: the folder of those to put in."""
    writer = Writer(lab, language, series, faults)
    cells: List[Any] = []
    names = _Names()
    waiting = [writer.title()]

    def flush() -> None:
        if waiting:
            key = f"{lab.name} {len(cells)}"
            cells.append(
                nbformat.v4.new_markdown_cell("\n\n".join(waiting), id=names.name("text", key))
            )
            waiting.clear()

    for part in lab.parts:
        if isinstance(part, Text):
            waiting += [block for block in [writer.block(part)] if block]
        else:
            flush()
        if isinstance(part, Code):
            source = _solved(part, solutions) if solutions else part.source
            cells.append(
                nbformat.v4.new_code_cell(
                    source, id=names.name("code", part.source), metadata=part.metadata
                )
            )
    flush()
    about = {"language": language, "lab": lab.number}
    metadata = {
        "kernelspec": KERNEL,
        "language_info": {"name": "python"},
        "gluonlab": about,
        "title": lab.title[language],
    }
    return nbformat.v4.new_notebook(cells=cells, metadata=metadata, nbformat_minor=5)


def as_json(made: Any) -> str:
    """The text of the notebook's file."""
    nbformat.validate(made)
    return str(nbformat.writes(made)) + "\n"


def _solved(cell: Code, solutions: Path) -> str:
    ids = [match["id"] for match in map(TAG.fullmatch, cell.tags) if match]
    return (
        solution_path(solutions, ids[0]).read_text(encoding="utf-8").strip() if ids else cell.source
    )


class _Names:
    """Cells' ids, the same in both languages; those of code cells come from their code."""

    def __init__(self) -> None:
        self.seen: Dict[str, int] = {}

    def name(self, kind: str, content: str) -> str:
        made = f"{kind}-{hashlib.sha256(content.encode('utf-8')).hexdigest()[:10]}"
        self.seen[made] = self.seen.get(made, 0) + 1
        return made if self.seen[made] == 1 else f"{made}-{self.seen[made]}"
