"""Mistakes that are a small change of the solution, as students make them."""

from support.lab_answers import REPOSITORY, define_cell_names


def change(id, *texts):
    """Return the answer in labs/solutions/ID.py with replaced text; ``texts``: old, new, old, new, ..."""
    source = (REPOSITORY / "labs" / "solutions" / f"{id}.py").read_text(encoding="utf-8")
    for old, new in zip(texts[::2], texts[1::2]):
        assert old in source, f"{id} has no {old!r}"
        source = source.replace(old, new)
    return list(define_cell_names(source, id[:2]).values())[-1]


def forgets_to_return(*given):
    given = list(given)
