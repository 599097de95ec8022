"""Copies of the labs' notebooks in a folder of the user.

In a checkout the notebooks are in ``labs/``. An installed wheel has them in this package's folder,
where setup.py puts them.
"""

from __future__ import annotations

from pathlib import Path
from typing import List, NamedTuple

from gluonlab.errors import OutputError
from gluonlab.files.atomic_files import atomic_path, create_writable_folder, raise_output_errors

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent.parent / "labs"
REMEDY = "choose another folder"


class Copied(NamedTuple):
    """The copied files, and the files that the user has changed, as paths below the folder."""

    new: List[Path]
    kept: List[Path]


def notebooks(language: str) -> Path:
    """Return the folder of the labs in a language. Raises OutputError if there is none."""
    for folder in (HERE / language, CHECKOUT / language):
        if any(folder.glob("*.ipynb")):
            return folder
    raise OutputError(
        f"this installation of gluonlab has no labs in {HERE / language}: "
        "install it again from its wheel or its checkout"
    )


def copy_labs(language: str, to: Path) -> Copied:
    """Copy the files that are not there yet; existing files belong to the user and stay.

    Args:
        language: the language of the notebooks, ``"en"`` or ``"ja"``.
        to: the folder for the copies.

    Returns:
        The copied files and the changed ones.

    Raises:
        OutputError: there are no notebooks, or they cannot be written.
    """
    source, copied = notebooks(language), Copied([], [])
    with create_writable_folder(to, REMEDY):
        for path in sorted(source.rglob("*")):
            name = path.relative_to(source)
            if path.is_file() and not any(part.startswith(".") for part in name.parts):
                _copy(path, to / name, name, copied)
    return copied


def _copy(path: Path, to: Path, name: Path, copied: Copied) -> None:
    with raise_output_errors(to, REMEDY):
        content = path.read_bytes()
        if not (to.is_symlink() or to.exists()):
            to.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(to) as temporary:
                temporary.write_bytes(content)
            copied.new.append(name)
        elif not (to.is_file() and to.read_bytes() == content):
            copied.kept.append(name)
