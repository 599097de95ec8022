"""The proof as a page of its own: what was found, then each trial's numbers."""

from __future__ import annotations

from typing import Any, Dict, List

from jinja2 import ChoiceLoader, Environment, PackageLoader

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
    # what is around it, and how it looks, is the report's
    loader = ChoiceLoader(
        [
            PackageLoader(package, "template")
            for package in ("gluonlab.doctor.prove", "gluonlab.report")
        ]
    )
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True)
    environment.filters["number"] = number
    return environment.get_template("proof.html").render(
        proof=proof,
        titles=TITLES,
        tables={trial["trial"]: tables(trial["numbers"]) for trial in proof["trials"]},
    )


def tables(numbers: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """The numbers as tables, one for each set of columns; a long table of pairs becomes a square
    one.
    """
    found: Dict[Any, List[Dict[str, Any]]] = {}
    for row in numbers:
        found.setdefault(tuple(row), []).append(row)
    return [
        square(rows) if {"source", "target", "gb_per_s"} <= set(keys) else plain(rows)
        for keys, rows in found.items()
    ]


def plain(rows: List[Dict[str, Any]]) -> Dict[str, Any]:
    """A row for each."""
    return {
        "headings": [name.replace("_", " ") for name in rows[0]],
        "rows": [list(row.values()) for row in rows],
    }


def square(rows: List[Dict[str, Any]]) -> Dict[str, Any]:
    """From each GPU, to each: GB/s, or how many numbers arrived wrongly."""
    names = list(dict.fromkeys(row["source"] for row in rows))
    cells = {(row["source"], row["target"]): row for row in rows}
    return {
        "headings": ["from \\ to, GB/s", *names],
        "rows": [
            [source, *(_cell(cells.get((source, target))) for target in names)] for source in names
        ],
    }


def _cell(row: "Dict[str, Any] | None") -> str:
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
