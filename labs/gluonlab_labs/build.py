"""Read and check all sources, and make the notebooks' files: {path below labs/: content}."""

from __future__ import annotations

from pathlib import Path
from typing import Collection, Dict, List, NamedTuple, Optional, Tuple

from gluonlab_labs.deck import check_deck, read_deck
from gluonlab_labs.exercises import check_exercises
from gluonlab_labs.faults import Faults, raise_faults
from gluonlab_labs.figures import check_figure, svg_in_language
from gluonlab_labs.guesses import check_guesses
from gluonlab_labs.notebook import make_notebook, notebook_json
from gluonlab_labs.outline import Series
from gluonlab_labs.parity import check_parity
from gluonlab_labs.source import LANGUAGES, Lab, read_lab


class LabFolders(NamedTuple):
    """A folder with ``source/``, ``source/figures/``, ``source/slides/`` and ``solutions/``."""

    root: Path

    @property
    def sources(self) -> Path:
        """The folder of the labs' texts."""
        return self.root / "source"

    @property
    def slides(self) -> Path:
        """The folder of the lecture decks."""
        return self.root / "source" / "slides"

    @property
    def figures(self) -> Path:
        """The folder of the pictures."""
        return self.root / "source" / "figures"

    @property
    def solutions(self) -> Path:
        """The folder of the solutions, which replace stubs."""
        return self.root / "solutions"


def read_labs(
    folders: LabFolders, checkers: Optional[Collection[str]] = None, questions: Optional[Collection[str]] = None
) -> Series:
    """Read the labs of a folder. Raises SourceError with all faults.

    ``checkers``: the ids of exercises with a checker. ``questions``: the ids of registered guesses.
    None skips the check.
    """
    lines: List[str] = []
    faults = {path: Faults(path) for path in sorted(folders.sources.glob("*.md"))}
    labs = [read_lab(path, lab_faults) for path, lab_faults in faults.items()]
    series = Series(labs)
    for lab in labs:
        lab_faults = faults[lab.path]
        others = sorted(other.path.name for other in labs if other.number == lab.number and other is not lab)
        if others:
            lab_faults.add(1, f"{others[0]} also has the number {lab.number}: choose another number")
        for number in lab.needs:
            if number not in series.by_number:
                lab_faults.add(1, f"needs: {number} is not a lab: choose from {', '.join(series.by_number)}")
        for text in lab.text_pairs():
            check_parity(text, lab_faults)
        check_exercises(lab, series, folders.solutions, checkers, lab_faults)
        check_guesses(lab, questions, lab_faults)
        for name in series.outlines[lab.number].figures:
            if not (folders.figures / f"{name}.svg").is_file():
                lab_faults.add(_figure_line(lab, name), f"figures/{name}.svg is missing: draw it in {folders.figures}")
        for language in LANGUAGES:
            make_notebook(lab, language, series, lab_faults)
        lines += sorted(set(lab_faults.lines), key=_line_sort_key)
    for path in sorted(folders.slides.glob("*.md")):
        deck_faults = Faults(path)
        deck_lab = next((one for one in labs if one.path.name == path.name), None)
        if deck_lab is None:
            deck_faults.add(
                1, f"there is no lab {folders.sources / path.name}: rename this file to the name of its lab"
            )
        else:
            check_deck(read_deck(path, deck_lab, deck_faults), deck_lab, series, deck_faults)
        lines += sorted(set(deck_faults.lines), key=_line_sort_key)
    for path in sorted(folders.figures.glob("*.svg")):
        figure_faults = Faults(path)
        check_figure(path, figure_faults)
        if not any(path.stem in outline.figures for outline in series.outlines.values()):
            figure_faults.add(1, "is not used by any lab: remove it")
        lines += figure_faults.lines
    raise_faults(lines)
    return series


def make_files(series: Series, folders: LabFolders, solutions: bool = False) -> Dict[Path, str]:
    """Return the notebooks and pictures of the labs, by their paths below ``labs/``."""
    files: Dict[Path, str] = {}
    for lab in series.labs:
        for language in LANGUAGES:
            notebook = make_notebook(lab, language, series, Faults(lab.path), folders.solutions if solutions else None)
            files[Path(language) / f"{lab.name}.ipynb"] = notebook_json(notebook)
            for name in series.outlines[lab.number].figures:
                files[Path(language) / "figures" / f"{name}.svg"] = svg_in_language(
                    folders.figures / f"{name}.svg", language
                )
    return files


def find_differences(files: Dict[Path, str], root: Path) -> List[Path]:
    """Return the files below ``root`` that differ from the made ones, including stale files."""
    different = [path for path, content in files.items() if not _has_content(root / path, content)]
    return sorted([*different, *find_stale_files(files, root)])


def find_stale_files(files: Dict[Path, str], root: Path) -> List[Path]:
    """Return notebooks and pictures below ``root`` that no source makes."""
    patterns = [f"{language}/{pattern}" for language in LANGUAGES for pattern in ("*.ipynb", "figures/*.svg")]
    existing = [path.relative_to(root) for pattern in patterns for path in root.glob(pattern)]
    return sorted(path for path in existing if path not in files)


def _has_content(path: Path, content: str) -> bool:
    try:
        return path.read_bytes() == content.encode("utf-8")
    except OSError:
        return False


def _line_sort_key(fault: str) -> Tuple[int, str]:
    """Return the line and the text of ``file.md:12: text``."""
    return int(fault.split(".md:", 1)[1].split(":")[0]), fault


def _figure_line(lab: Lab, figure: str) -> int:
    lines = (line for text in lab.text_pairs() for line in text.blocks["en"])
    return next(number for number, text in lines if f"figures/{figure}.svg" in text)
