"""Another machine, a larger volume or a newer platform for a notebook: UpdateNotebookInstance.

What AWS's documentation says of it: the notebook must be stopped; a volume can grow, and never
shrink; the files on it are kept, also when Amazon Linux 2 becomes Amazon Linux 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional

import instance_pairs as pairs
from gluonlab_sagemaker.calls import Answer, Caller
from gluonlab_sagemaker.errors import RefusedError
from gluonlab_sagemaker.instances import refuse_dead, refuse_unfit, unknown_platform, way_out
from gluonlab_sagemaker.notebook import Notebook, stack_of

CHANGEABLE = ("Stopped", "Failed")


@dataclass(frozen=True)
class Change:
    """What shall become different; None: nothing."""

    instance: Optional[str] = None
    volume_gb: Optional[int] = None
    platform: Optional[str] = None

    def of(self, found: Answer) -> Dict[str, Any]:
        """The parameters of UpdateNotebookInstance for a notebook as AWS describes it."""
        wanted = {
            "InstanceType": self.instance,
            "VolumeSizeInGB": self.volume_gb,
            "PlatformIdentifier": self.platform,
        }
        return {key: value for key, value in wanted.items() if value not in (None, found.get(key))}


def resize(caller: Caller, notebook: Notebook, change: Change, force: bool) -> Optional[Answer]:
    """Ask AWS for the change: the notebook as it will be, None if it is so already.

    Raises RefusedError for what AWS is known to refuse; ``force`` leaves machines and platforms,
    and notebooks of a stack, to AWS.
    """
    if change == Change():
        raise RefusedError(
            "resize lacks what to change: add --instance TYPE, --volume GB or --platform PLATFORM"
        )
    found = notebook.existing()
    changed = change.of(found)
    if not changed:
        return None
    _refuse_smaller(found, change.volume_gb)
    status = found["NotebookInstanceStatus"]
    if status not in CHANGEABLE:
        raise RefusedError(
            f"{notebook.name} is {status}: only a stopped notebook can be changed: "
            f"{notebook.command('stop')}, then the same command again"
        )
    if not force:
        _refuse_stack(caller, notebook, found)
        _refuse_lost_platform(notebook, found, change)
    after = {**found, **changed}
    if after.get("InstanceType"):
        warning = refuse_dead(after["InstanceType"], after.get("PlatformIdentifier"), force)
        if warning:
            notebook.say(f"warning: {warning}")
    if unknown_platform(change.platform):
        notebook.say(f"warning: {unknown_platform(change.platform)}")
    if change.instance and not force:
        refuse_unfit(change.instance, "take it all the same with --force")
    caller("sagemaker", "UpdateNotebookInstance", NotebookInstanceName=notebook.name, **changed)
    return after


def _refuse_smaller(found: Answer, volume_gb: Optional[int]) -> None:
    now = found.get("VolumeSizeInGB")
    if volume_gb is not None and now is not None and volume_gb < now:
        raise RefusedError(
            f"--volume {volume_gb}: the volume has {now} GB, and AWS lets a volume grow only: "
            "give more, or make a new notebook and copy the files (aws s3 sync)"
        )


def _refuse_stack(caller: Caller, notebook: Notebook, found: Answer) -> None:
    answer = caller("sagemaker", "ListTags", ResourceArn=found["NotebookInstanceArn"])
    stack = stack_of(answer.get("Tags", []))
    if stack is not None:
        raise RefusedError(
            f"{notebook.name} belongs to the CloudFormation stack {stack}: change its InstanceType "
            "or VolumeSizeInGB there (another Platform there means a new, empty volume), or add "
            "--force"
        )


def _refuse_lost_platform(notebook: Notebook, found: Answer, change: Change) -> None:
    """Refuse to keep a platform that is dead, or to leave one that AWS changes to no other."""
    now = found.get("PlatformIdentifier")
    about = pairs.platforms().get(now)
    if about is None or not about["dead_since"]:
        return
    dead = f"{notebook.name} is on {now}, dead since {about['dead_since']}"
    if not about["becomes"]:
        raise RefusedError(
            f"{dead}: AWS changes it to no newer platform, so nothing starts it again: make a new "
            "notebook (create --name OTHER), and see `A dead notebook` in sagemaker/README.md"
        )
    if change.platform is None:
        options = way_out(change.instance or found.get("InstanceType"), now)
        raise RefusedError(f"{dead}: add{options}, which keeps the files on its volume")
