"""Program that runs make test under every Python from 3.8 on in PATH and in pyenv.

Each Python gets a virtual environment in .venvs/. The program prints a table, and exits with status
1 if a test run failed.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

VERSIONS = [f"3.{minor}" for minor in range(8, 15)]


def has_version(python, version):
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        result = subprocess.run([str(python), "-c", code], capture_output=True, text=True, timeout=60)
    except OSError:
        return False
    return result.stdout.strip() == version


def candidate_paths(version):
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        yield Path(folder) / f"python{version}"
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    if versions.is_dir():
        yield from (
            folder / "bin" / "python"
            for folder in sorted(versions.iterdir())
            if re.match(rf"{version}(\.|$)", folder.name)
        )


def find_python(version):
    return next((python for python in candidate_paths(version) if has_version(python, version)), None)


def main():
    outcomes = {}
    for version in sys.argv[1:] or VERSIONS:
        python = find_python(version)
        if python is None:
            outcomes[version] = "not found here"
            continue
        began = time.time()
        status = subprocess.call(["make", "test", f"PYTHON={python}", f"VENV=.venvs/{version}"])
        outcomes[version] = f"{'passed' if not status else 'FAILED'} in {time.time() - began:.0f} s"
    print("\n".join(f"Python {version:<5} {text}" for version, text in outcomes.items()))
    sys.exit(any("FAILED" in text for text in outcomes.values()))


if __name__ == "__main__":
    main()
