"""Fetch Pyodide, a Python for browsers, and copy it into a site."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import tarfile
from pathlib import Path

from gluonlab.errors import ConfigError, RunError
from gluonlab.files.atomic_files import atomic_path, create_writable_folder

VERSION = "314.0.7"
# the integrity that the npm registry publishes for this version
INTEGRITY = "sha512-0YvXxEhfEdpLfb/XkM2BFAeMROq0iMUX2bzzH9pOttyMcWkwq+HbE5uyuGD82LN7y2q+SNvi/6V5JEsOlD2R1A=="
FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json", "README.md")


def fetch_pyodide(folder: Path) -> Path:
    """Return the archive of Pyodide in ``folder``, which is downloaded with npm if it is missing.

    Raises ConfigError without npm, and RunError if the download fails or differs from INTEGRITY.
    """
    archive = folder / f"pyodide-{VERSION}.tgz"
    with create_writable_folder(folder):
        if not archive.is_file():
            _download_archive(folder)
    algorithm, _, expected = INTEGRITY.partition("-")
    digest = base64.b64encode(hashlib.new(algorithm, archive.read_bytes()).digest()).decode()
    if digest != expected:
        archive.unlink()
        raise RunError(
            f"pyodide-{VERSION}.tgz: the file's {algorithm} is {digest}, expected {expected}: the file was deleted; "
            "try again"
        )
    return archive


def _download_archive(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise ConfigError(
            "no npm here, which downloads Pyodide: install it (apt-get install npm), or build the site on a machine "
            f"that has npm, or put pyodide-{VERSION}.tgz into {folder}"
        )
    command = [npm, "pack", f"pyodide@{VERSION}", "--silent", "--pack-destination", str(folder)]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise RunError(f"npm could not download pyodide@{VERSION} in 300 s: check the network") from None
    if result.returncode:
        lines = (result.stderr or result.stdout).strip().splitlines() or ["no message"]
        raise RunError(f"npm could not download pyodide@{VERSION}: {lines[-1]}: check the network")


def unpack_pyodide(archive: Path, folder: Path) -> None:
    """Write the files of the archive that a page needs to ``folder``."""
    with create_writable_folder(folder), tarfile.open(archive) as content:
        for name in FILES:
            member = content.extractfile(f"package/{name}")
            if member is None:
                raise RunError(f"{archive}: contains no package/{name}: use Pyodide {VERSION}")
            with atomic_path(folder / name) as temporary:
                temporary.write_bytes(member.read())
