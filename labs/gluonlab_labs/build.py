"""All sources in, all files out: {path below labs/: content}."""

from __future__ import annotations

from pathlib import Path
from typing import Collection, Dict, List, NamedTuple, Optional, Tuple

from gluonlab_labs.deck import check_deck, read_deck
from gluonlab_labs.exercises import check_exercises
from gluonlab_labs.faults import Faults, raise_if_any
from gluonlab_labs.figures import check_figure, in_language
from gluonlab_labs.guesses import check_guesses
from gluonlab_labs.notebook import as_json, notebook
from gluonlab_labs.outline import Series
from gluonlab_labs.parity import compare
from gluonlab_labs.source import LANGUAGES, Lab, read


class Place(NamedTuple):
    """A folder with ``source/``, ``source/figures/``, ``source/slides/`` and ``solutions/``."""

    root: Path

    @property
    def sources(self) -> Path:
        """The texts of the labs."""
        return self.root / "source"

    @property
    def slides(self) -> Path:
        """Their lecture decks."""
        return self.root / "source" / "slides"

    @property
    def figures(self) -> Path:
        """Their pictures."""
        return self.root / "source" / "figures"

    @property
    def solutions(self) -> Path:
        """What replaces the stubs."""
        return self.root / "solutions"


def read_all(
    place: Place,
    checkers: Optional[Collection[str]] = None,
    questions: Optional[Collection[str]] = None,
) -> Series:
    """The labs of a folder.

    ``checkers``: the ids of exercises that have one; ``questions``: those of guesses that have
    one; None: not asked. Raises SourceError.
    """
    lines: List[str] = []
    faults = {path: Faults(path) for path in sorted(place.sources.glob("*.md"))}
    labs = [read(path, found) for path, found in faults.items()]
    series = Series(labs)
    for lab in labs:
        found = faults[lab.path]
        others = sorted(
            other.path.name for other in labs if other.number == lab.number and other is not lab
        )
        if others:
            found.add(1, f"{others[0]} has the number {lab.number}, too: choose another")
        for number in lab.needs:
            if number not in series.by_number:
                found.add(
                    1, f"needs {number}: there is no such lab; choose {', '.join(series.by_number)}"
                )
        for text in lab.texts():
            compare(text, found)
        check_exercises(lab, series, place.solutions, checkers, found)
        check_guesses(lab, questions, found)
        for name in series.outlines[lab.number].figures:
            if not (place.figures / f"{name}.svg").is_file():
                found.add(
                    _line_of(lab, name),
                    f"figures/{name}.svg is missing: draw it in {place.figures}",
                )
        for language in LANGUAGES:
            notebook(lab, language, series, found)
        lines += sorted(set(found.lines), key=_by_line)
    for path in sorted(place.slides.glob("*.md")):
        of_deck = Faults(path)
        found_lab = next((one for one in labs if one.path.name == path.name), None)
        if found_lab is None:
            of_deck.add(1, f"there is no lab {place.sources / path.name}: name it as its lab")
        else:
            check_deck(read_deck(path, found_lab, of_deck), found_lab, series, of_deck)
        lines += sorted(set(of_deck.lines), key=_by_line)
    for path in sorted(place.figures.glob("*.svg")):
        of_figure = Faults(path)
        check_figure(path, of_figure)
        if not any(path.stem in outline.figures for outline in series.outlines.values()):
            of_figure.add(1, "is not used by any lab: remove it")
        lines += of_figure.lines
    raise_if_any(lines)
    return series


def files(series: Series, place: Place, solutions: bool = False) -> Dict[Path, str]:
    """The files made of the labs, notebooks and pictures, by their paths below ``labs/``."""
    made: Dict[Path, str] = {}
    for lab in series.labs:
        for language in LANGUAGES:
            of = notebook(
                lab, language, series, Faults(lab.path), place.solutions if solutions else None
            )
            made[Path(language) / f"{lab.name}.ipynb"] = as_json(of)
            for name in series.outlines[lab.number].figures:
                made[Path(language) / "figures" / f"{name}.svg"] = in_language(
                    place.figures / f"{name}.svg", language
                )
    return made


def differences(made: Dict[Path, str], root: Path) -> List[Path]:
    """The files below ``root`` that differ from what the sources make, stale ones included."""
    differ = [path for path, content in made.items() if not _is(root / path, content)]
    return sorted([*differ, *left_over(made, root)])


def left_over(made: Dict[Path, str], root: Path) -> List[Path]:
    """Notebooks and pictures below ``root`` that no source makes any more."""
    patterns = [
        f"{language}/{pattern}"
        for language in LANGUAGES
        for pattern in ("*.ipynb", "figures/*.svg")
    ]
    there = [path.relative_to(root) for pattern in patterns for path in root.glob(pattern)]
    return sorted(path for path in there if path not in made)


def _is(path: Path, content: str) -> bool:
    try:
        return path.read_bytes() == content.encode("utf-8")
    except OSError:
        return False


def _by_line(fault: str) -> Tuple[int, str]:
    """``file.md:12: text`` -> 12, and then the text."""
    return int(fault.split(".md:", 1)[1].split(":")[0]), fault


def _line_of(lab: Lab, figure: str) -> int:
    lines = (line for text in lab.texts() for line in text.blocks["en"])
    return next(number for number, text in lines if f"figures/{figure}.svg" in text)
