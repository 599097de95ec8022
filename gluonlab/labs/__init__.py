"""The labs' notebooks as a person takes them into a folder of their own, to work in.

They lie beside this package's source in a checkout, and in this folder where gluonlab is installed
from a wheel (setup.py puts them there).
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
    """Names below the folder: those that are new there, and those that the person has changed."""

    new: List[Path]
    kept: List[Path]


def notebooks(language: str) -> Path:
    """The folder of the labs in a language. Raises OutputError if this installation lacks them."""
    for place in (HERE / language, CHECKOUT / language):
        if any(place.glob("*.ipynb")):
            return place
    raise OutputError(
        f"this installation of gluonlab has no labs in {HERE / language}: "
        "install it again from its wheel or its checkout"
    )


def copy_labs(language: str, to: Path) -> Copied:
    """Copy what is not there yet; what is, is the person's, and stays as it is.

    Raises OutputError.
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
