"""Whether a file of parameters is what its own headers promise, looked at before MXNet believes them (`gluonlab.arrays`)."""

from __future__ import annotations

from pathlib import Path

from gluonlab.arrays import VERSION_3, skip_arrays


def check_params_file(path: Path) -> None:
    """Raise ValueError when a file is not a list of dense arrays with names, or not as long as it says."""
    with path.open("rb") as file:
        for header in skip_arrays(file):
            if header.version == VERSION_3:
                raise ValueError("an array written after npx.set_np()")
