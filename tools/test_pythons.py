"""make test under every Python from 3.8 on that is found here: in PATH, and among pyenv's.

Each gets an environment of its own below .venvs/. Ends with a table, and with status 1 if one of
them failed.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

WANTED = [f"3.{minor}" for minor in range(8, 15)]


def works(python, version):
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        result = subprocess.run(
            [str(python), "-c", code], capture_output=True, text=True, timeout=60
        )
    except OSError:
        return False
    return result.stdout.strip() == version


def candidates(version):
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        yield Path(folder) / f"python{version}"
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    if versions.is_dir():
        yield from (
            folder / "bin" / "python"
            for folder in sorted(versions.iterdir())
            if re.match(rf"{version}(\.|$)", folder.name)
        )


def find(version):
    return next((python for python in candidates(version) if works(python, version)), None)


def main():
    only = sys.argv[1:] or WANTED
    outcome = {}
    for version in only:
        python = find(version)
        if python is None:
            outcome[version] = "not found here"
            continue
        began = time.time()
        status = subprocess.call(["make", "test", f"PYTHON={python}", f"VENV=.venvs/{version}"])
        outcome[version] = f"{'passed' if not status else 'FAILED'} in {time.time() - began:.0f} s"
    print("\n".join(f"Python {version:<5} {text}" for version, text in outcome.items()))
    sys.exit(any("FAILED" in text for text in outcome.values()))


if __name__ == "__main__":
    main()
