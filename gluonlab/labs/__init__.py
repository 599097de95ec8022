"""Copies the labs' notebooks to a folder that the user chooses.

In a checkout the notebooks are in ``labs/``. In an installed wheel they are in the folder of this
package, to which setup.py copies them.
"""

from __future__ import annotations

from pathlib import Path
from typing import List, NamedTuple

from gluonlab.errors import OutputError
from gluonlab.files.atomic_files import atomic_path, create_writable_folder, raise_output_errors

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent.parent / "labs"
OTHER_FOLDER_HINT = "choose another folder"


class CopiedFiles(NamedTuple):
    """The result of `copy_labs`. Paths are relative to the folder of the copies.

    ``new``: files that were copied. ``kept``: existing files that differ from the labs' files.
    """

    new: List[Path]
    kept: List[Path]


def notebook_folder(language: str) -> Path:
    """Return the folder with the notebooks in a language, ``"en"`` or ``"ja"``.

    Raises OutputError if this installation has no notebooks.
    """
    for folder in (HERE / language, CHECKOUT / language):
        if any(folder.glob("*.ipynb")):
            return folder
    raise OutputError(
        f"this installation of gluonlab contains no labs in {HERE / language}: install gluonlab again "
        "from a wheel or a checkout"
    )


def copy_labs(language: str, to: Path) -> CopiedFiles:
    """Copy the labs' files into a folder, without replacing existing files.

    Args:
        language: the language of the notebooks, ``"en"`` or ``"ja"``.
        to: the folder for the copies.

    Returns:
        The copied files, and the existing files that differ from the labs' files.

    Raises:
        OutputError: this installation has no notebooks, or a copy cannot be written.
    """
    source, copied = notebook_folder(language), CopiedFiles([], [])
    with create_writable_folder(to, OTHER_FOLDER_HINT):
        for path in sorted(source.rglob("*")):
            name = path.relative_to(source)
            if path.is_file() and not any(part.startswith(".") for part in name.parts):
                _copy(path, to / name, name, copied)
    return copied


def _copy(path: Path, to: Path, name: Path, copied: CopiedFiles) -> None:
    """Copy ``path`` to ``to`` unless ``to`` exists. Record new files, and old files that differ."""
    with raise_output_errors(to, OTHER_FOLDER_HINT):
        content = path.read_bytes()
        if not (to.is_symlink() or to.exists()):
            to.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(to) as temporary:
                temporary.write_bytes(content)
            copied.new.append(name)
        elif not (to.is_file() and to.read_bytes() == content):
            copied.kept.append(name)
