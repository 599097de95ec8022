"""Whether this is Amazon SageMaker: a notebook instance leaves a file, a training job its
variables.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import List, Mapping

from gluonlab.doctor.findings import Finding, ok, warning

METADATA = Path("/opt/ml/metadata/resource-metadata.json")
PERSISTENT = Path("/home/ec2-user/SageMaker")  # all that a notebook instance keeps when it stops


def sagemaker(
    environ: Mapping[str, str] = os.environ,
    metadata: Path = METADATA,
    persistent: Path = PERSISTENT,
) -> List[Finding]:
    """What SageMaker tells of itself, and what of this environment it will not keep."""
    job = environ.get("TRAINING_JOB_NAME", "")
    if job or "SM_CURRENT_HOST" in environ:
        return [_job(job, environ)]
    if not metadata.is_file():
        return [ok("sagemaker", "not on SageMaker")]
    try:
        told = json.loads(metadata.read_text())
        what = f"notebook {told['ResourceName']}, {told['ResourceArn']}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        cure = "restart the notebook instance, which writes it"
        return [
            warning(
                "sagemaker", f"{metadata} cannot be read", f"{type(error).__name__}: {error}", cure
            )
        ]
    return [ok("sagemaker", what), *_kept(persistent)]


def _job(job: str, environ: Mapping[str, str]) -> Finding:
    hosts = environ.get("SM_HOSTS", "")
    facts = [f"training job {job}".strip()]
    facts += [f"{environ['SM_CURRENT_INSTANCE_TYPE']}"] * ("SM_CURRENT_INSTANCE_TYPE" in environ)
    facts += [f"{environ['SM_NUM_GPUS']} GPUs"] * ("SM_NUM_GPUS" in environ)
    try:
        count = len(json.loads(hosts)) if hosts else 1
    except (ValueError, TypeError):
        return warning(
            "sagemaker",
            ", ".join(facts),
            f"SM_HOSTS={hosts} is no list",
            "it is a JSON list of names: do not set it",
        )
    facts += [
        f"host {environ.get('SM_CURRENT_HOST', '?')}" + (f", one of {count}" if count > 1 else "")
    ]
    return ok("sagemaker", ", ".join(facts))


def _kept(persistent: Path, package: Path = Path(__file__)) -> List[Finding]:
    """Only one folder outlives a stop of the notebook instance."""
    if not persistent.is_dir() or persistent in package.resolve().parents:
        return []
    cause = (
        f"a notebook instance keeps {persistent} alone when it stops; "
        f"gluonlab is installed in {package.resolve().parent.parent}"
    )
    return [
        warning(
            "sagemaker",
            "this environment will be gone after a stop",
            cause,
            f"make the environment below {persistent}",
        )
    ]
