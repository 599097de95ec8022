"""What the name of a machine of Amazon SageMaker tells, and on which one this process runs.

Families: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/InstanceStorage.html, and the enum of
types of https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ResourceConfig.html.
"""

from __future__ import annotations

import json
import os
import re
from typing import Optional

TYPE, RESOURCES = "SM_CURRENT_INSTANCE_TYPE", "SM_RESOURCE_CONFIG"
# P and G have GPUs; of these only the oldest keep all their files on a volume of EBS
WITH_GPUS = re.compile(r"ml\.[pg]\d")
WITHOUT_DISK = re.compile(r"ml\.(p2|p3|g3s?)\.")
# d in a family's name stands for disks, as in r5d and p3dn; Trainium's machines have them, too
WITH_DISK = re.compile(r"ml\.([pg]\d|trn\d|[a-z]+\d+[a-z]*d)")


def instance_type() -> Optional[str]:
    """The type of the machine that this process's training job runs on; None outside of a job.

    Older versions of AWS's training toolkit set only the job's resources, as JSON.
    """
    name = os.environ.get(TYPE)
    if name is None:
        try:
            name = json.loads(os.environ.get(RESOURCES, "{}"))["current_instance_type"]
        except (ValueError, KeyError, TypeError):
            return None
    return name if isinstance(name, str) and name.startswith("ml.") else None


def has_gpus(instance: str) -> bool:
    """Whether machines of this type have GPUs: ``ml.g5.12xlarge`` has, ``ml.c5.xlarge`` has not."""
    return bool(WITH_GPUS.match(instance))


def has_local_disk(instance: str) -> bool:
    """Whether machines of this type have an NVMe disk of their own, which a job takes whole.

    AWS makes them no volume then: its size is not to be chosen, and its key is refused.
    """
    return bool(WITH_DISK.match(instance)) and not WITHOUT_DISK.match(instance)
