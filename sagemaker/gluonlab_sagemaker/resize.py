"""Change of a notebook's machine, volume or platform with UpdateNotebookInstance.

By AWS's documentation, the notebook must be stopped, and a volume can only grow. The files on the
volume are kept, also when Amazon Linux 2 becomes Amazon Linux 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional

import instance_pairs as pairs
from gluonlab_sagemaker.calls import Caller, Response
from gluonlab_sagemaker.errors import RefusedError
from gluonlab_sagemaker.instances import (
    refuse_dead_instance,
    refuse_unsupported_gpu,
    resize_options,
    unknown_platform_warning,
)
from gluonlab_sagemaker.notebook import Notebook, stack_name

CHANGEABLE_STATUSES = ("Stopped", "Failed")


@dataclass(frozen=True)
class NotebookChange:
    """The new properties of a notebook; None for a property that stays."""

    instance: Optional[str] = None
    volume_gb: Optional[int] = None
    platform: Optional[str] = None

    def changed_parameters(self, description: Response) -> Dict[str, Any]:
        """Return the parameters of UpdateNotebookInstance that differ from ``description``."""
        parameters = {
            "InstanceType": self.instance,
            "VolumeSizeInGB": self.volume_gb,
            "PlatformIdentifier": self.platform,
        }
        return {key: value for key, value in parameters.items() if value not in (None, description.get(key))}


def request_resize(caller: Caller, notebook: Notebook, change: NotebookChange, force: bool) -> Optional[Response]:
    """Ask AWS for the change, and return the notebook's new description.

    Returns None if the notebook has these properties already. Raises RefusedError for changes that
    AWS is known to refuse. ``force`` skips the checks of machines, platforms and stacks.
    """
    if change == NotebookChange():
        raise RefusedError("resize needs a change: add --instance TYPE, --volume GB or --platform PLATFORM")
    description = notebook.describe_existing()
    parameters = change.changed_parameters(description)
    if not parameters:
        return None
    _refuse_smaller_volume(description, change.volume_gb)
    status = description["NotebookInstanceStatus"]
    if status not in CHANGEABLE_STATUSES:
        raise RefusedError(
            f"{notebook.name} is {status}, but only a stopped notebook can be changed: run "
            f"{notebook.command_line('stop')}, then the same command again"
        )
    if not force:
        _refuse_stack(caller, notebook, description)
        _refuse_dead_platform(notebook, description, change)
    new_description = {**description, **parameters}
    if new_description.get("InstanceType"):
        warning = refuse_dead_instance(
            new_description["InstanceType"], new_description.get("PlatformIdentifier"), force
        )
        if warning:
            notebook.report(f"warning: {warning}")
    warning = unknown_platform_warning(change.platform)
    if warning:
        notebook.report(f"warning: {warning}")
    if change.instance and not force:
        refuse_unsupported_gpu(change.instance, "use it anyway with --force")
    caller("sagemaker", "UpdateNotebookInstance", NotebookInstanceName=notebook.name, **parameters)
    return new_description


def _refuse_smaller_volume(description: Response, volume_gb: Optional[int]) -> None:
    current_gb = description.get("VolumeSizeInGB")
    if volume_gb is not None and current_gb is not None and volume_gb < current_gb:
        raise RefusedError(
            f"--volume {volume_gb}: the volume already has {current_gb} GB, and AWS can only enlarge it: use a "
            "larger value, or create a new notebook and copy the files (aws s3 sync)"
        )


def _refuse_stack(caller: Caller, notebook: Notebook, description: Response) -> None:
    response = caller("sagemaker", "ListTags", ResourceArn=description["NotebookInstanceArn"])
    stack = stack_name(response.get("Tags", []))
    if stack is not None:
        raise RefusedError(
            f"{notebook.name} belongs to the CloudFormation stack {stack}: change its InstanceType "
            "or VolumeSizeInGB there (another Platform there means a new, empty volume), or add "
            "--force"
        )


def _refuse_dead_platform(notebook: Notebook, description: Response, change: NotebookChange) -> None:
    """Refuse to keep a dead platform, or to change one that AWS cannot change."""
    platform = description.get("PlatformIdentifier")
    facts = pairs.load_platforms().get(platform)
    if facts is None or not facts["dead_since"]:
        return
    dead = f"{notebook.name} uses {platform}, which AWS has not supported since {facts['dead_since']}"
    if not facts["becomes"]:
        raise RefusedError(
            f"{dead}, and AWS cannot change it to a newer platform: create a new notebook (create --name OTHER), and "
            "see `A dead notebook` in sagemaker/README.md"
        )
    if change.platform is None:
        options = resize_options(change.instance or description.get("InstanceType"), platform)
        raise RefusedError(f"{dead}: add{options}, which keeps the files on its volume")
