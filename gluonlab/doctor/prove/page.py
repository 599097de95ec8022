"""The proof as a page of its own: what was found, then each trial's numbers."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from gluonlab.drawing.page import environment

TITLES = {
    "copies": "Copies from GPU to GPU",
    "arithmetic": "Arithmetic, beside the CPU's",
    "stores": "Sums and training with every kvstore",
    "bits": "The same seed, the same bits",
    "counts": "What a step queues",
    "speeds": "Speeds",
}


def as_page(proof: Dict[str, Any]) -> str:
    """An HTML page about the object that `proof.as_object` makes."""
    # the page's frame and style are the report's
    templates = environment("gluonlab.doctor.prove", "gluonlab.report", trim_blocks=True)
    templates.filters["number"] = number
    return templates.get_template("proof.html").render(
        proof=proof,
        titles=TITLES,
        tables={trial["trial"]: tables(trial["numbers"]) for trial in proof["trials"]},
    )


def tables(numbers: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """The numbers as tables, one for each set of columns; a long table of pairs becomes square."""
    groups: Dict[Any, List[Dict[str, Any]]] = {}
    for row in numbers:
        groups.setdefault(tuple(row), []).append(row)
    return [
        square(rows) if {"source", "target", "gb_per_s"} <= set(keys) else plain(rows)
        for keys, rows in groups.items()
    ]


def plain(rows: List[Dict[str, Any]]) -> Dict[str, Any]:
    """A row for each."""
    headings = [name.replace("_", " ") for name in rows[0]]
    return {"headings": headings, "rows": [list(row.values()) for row in rows]}


def square(rows: List[Dict[str, Any]]) -> Dict[str, Any]:
    """From each GPU, to each: GB/s, or how many numbers arrived wrongly."""
    names = list(dict.fromkeys(row["source"] for row in rows))
    cells = {(row["source"], row["target"]): row for row in rows}
    table = [[source, *(_cell(cells.get((source, to))) for to in names)] for source in names]
    return {"headings": ["from \\ to, GB/s", *names], "rows": table}


def _cell(row: Optional[Dict[str, Any]]) -> str:
    if row is None:
        return ""
    return f"{row['wrong']:,} wrong" if row["wrong"] else f"{row['gb_per_s']:.1f}"


def number(value: Any) -> str:
    """A cell of a table."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)
