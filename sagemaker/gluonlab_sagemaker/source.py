"""This checkout as an archive in S3, for notebooks and jobs that cannot reach its repository."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Callable

from gluonlab_sagemaker.calls import Caller
from gluonlab_sagemaker.errors import RefusedError

CHECKOUT = Path(__file__).resolve().parent.parent.parent
KEY = "gluonlab/source.tar.gz"


def archive(checkout: Path = CHECKOUT, say: Callable[[str], None] = print) -> bytes:
    """The files of the last commit, at the top level of a .tar.gz."""
    changed = _git(checkout, "status", "--porcelain", "--untracked-files=no").decode()
    if changed:
        say(
            "warning: what is not committed is not uploaded: "
            f"{', '.join(line[3:] for line in changed.splitlines()[:3])}"
        )
    return _git(checkout, "archive", "--format=tar.gz", "HEAD")


def upload(caller: Caller, bucket: str, data: bytes) -> str:
    """Put the archive into the bucket; gives its address."""
    caller("s3", "PutObject", Bucket=bucket, Key=KEY, Body=data)
    return f"s3://{bucket}/{KEY}"


def _git(checkout: Path, *arguments: str) -> bytes:
    try:
        return subprocess.run(
            ["git", "-C", str(checkout), *arguments], check=True, capture_output=True
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise RefusedError(
            f"{checkout} is not a git checkout that can be uploaded ({error}): "
            "clone gluonlab with git, or give --repository"
        ) from error
