"""Archive of this checkout in S3, for notebooks and jobs that cannot reach a repository."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Callable

from gluonlab_sagemaker.calls import Caller
from gluonlab_sagemaker.errors import RefusedError

CHECKOUT = Path(__file__).resolve().parent.parent.parent
ARCHIVE_KEY = "gluonlab/source.tar.gz"


def create_archive(checkout: Path = CHECKOUT, report: Callable[[str], None] = print) -> bytes:
    """Return a .tar.gz of the last commit's files; warn about files that are not committed."""
    changed = _run_git(checkout, "status", "--porcelain", "--untracked-files=no").decode()
    if changed:
        report(
            "warning: changes that are not committed are not uploaded: "
            f"{', '.join(line[3:] for line in changed.splitlines()[:3])}"
        )
    return _run_git(checkout, "archive", "--format=tar.gz", "HEAD")


def upload_archive(caller: Caller, bucket: str, data: bytes) -> str:
    """Store the archive in the bucket, and return its address."""
    caller("s3", "PutObject", Bucket=bucket, Key=ARCHIVE_KEY, Body=data)
    return f"s3://{bucket}/{ARCHIVE_KEY}"


def _run_git(checkout: Path, *arguments: str) -> bytes:
    try:
        return subprocess.run(["git", "-C", str(checkout), *arguments], check=True, capture_output=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise RefusedError(
            f"{checkout} is not a git checkout that can be uploaded ({error}): clone gluonlab with git, or add "
            "--repository"
        ) from error
