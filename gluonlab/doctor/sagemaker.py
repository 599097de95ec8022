"""Whether this is Amazon SageMaker: notebook instances have a file, training jobs variables."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Iterator, Mapping

from gluonlab.doctor.findings import Finding, listed, ok, warning

METADATA = Path("/opt/ml/metadata/resource-metadata.json")
PERSISTENT = Path("/home/ec2-user/SageMaker")  # all that a notebook instance keeps when it stops


@listed
def sagemaker(
    environ: Mapping[str, str] = os.environ,
    metadata: Path = METADATA,
    persistent: Path = PERSISTENT,
) -> Iterator[Finding]:
    """The notebook or training job that this is, and whether its environment outlives a stop."""
    if "TRAINING_JOB_NAME" in environ or "SM_CURRENT_HOST" in environ:
        yield _job(environ)
    elif not metadata.is_file():
        yield ok("sagemaker", "not on SageMaker")
    else:
        try:
            notebook = json.loads(metadata.read_text())
            what = f"notebook {notebook['ResourceName']}, {notebook['ResourceArn']}"
        except (OSError, ValueError, KeyError, TypeError) as error:
            what, cause = f"{metadata} cannot be read", f"{type(error).__name__}: {error}"
            cure = "restart the notebook instance, which writes it"
            yield warning("sagemaker", what, cause, cure)
            return
        yield ok("sagemaker", what)
        yield from _lost(persistent)


def _job(environ: Mapping[str, str]) -> Finding:
    instance, gpus = environ.get("SM_CURRENT_INSTANCE_TYPE"), environ.get("SM_NUM_GPUS")
    what = f"training job {environ.get('TRAINING_JOB_NAME', '')}".strip()
    what += f", {instance}" if instance is not None else ""
    what += f", {gpus} GPUs" if gpus is not None else ""
    hosts = environ.get("SM_HOSTS", "")
    try:
        count = len(json.loads(hosts)) if hosts else 1
    except (ValueError, TypeError):
        cure = "it is a JSON list of names: do not set it"
        return warning("sagemaker", what, f"SM_HOSTS={hosts} is not a list", cure)
    of_several = f", one of {count}" if count > 1 else ""
    return ok("sagemaker", f"{what}, host {environ.get('SM_CURRENT_HOST', '?')}{of_several}")


def _lost(persistent: Path, package: Path = Path(__file__)) -> Iterator[Finding]:
    """Only one folder outlives a stop of the notebook instance."""
    if persistent.is_dir() and persistent not in package.resolve().parents:
        cause = f"a notebook instance keeps {persistent} alone when it stops; "
        cause += f"gluonlab is installed in {package.resolve().parent.parent}"
        cure = f"make the environment below {persistent}"
        yield warning("sagemaker", "this environment will be gone after a stop", cause, cure)
