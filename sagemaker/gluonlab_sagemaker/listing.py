"""What there is, in rows: for `status`, as text and as JSON."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from gluonlab_sagemaker.calls import Answer, Caller
from gluonlab_sagemaker.checks import is_ours
from gluonlab_sagemaker.cost import Prices
from gluonlab_sagemaker.jobs import listed

Row = Dict[str, Any]


def row(found: Answer, region: Optional[str]) -> Row:
    """A notebook, as DescribeNotebookInstance or ListNotebookInstances gives it, and its costs."""
    created = found.get("CreationTime")
    cost = Prices().cost(found.get("InstanceType", ""), found.get("VolumeSizeInGB", 0), region)
    return {
        "name": found["NotebookInstanceName"],
        "kind": "notebook",
        "status": found["NotebookInstanceStatus"],
        "instance": found.get("InstanceType"),
        "platform": found.get("PlatformIdentifier"),
        "volume_gb": found.get("VolumeSizeInGB"),
        "created": created.isoformat() if created is not None else None,
        "failure": found.get("FailureReason"),
        "cost": {**cost._asdict(), "day": cost.day},
    }


def everything(caller: Caller) -> List[Row]:
    """Notebooks with our tag, and training jobs that run."""
    notebooks = caller.all("sagemaker", "ListNotebookInstances", "NotebookInstances")
    ours = [
        one
        for one in notebooks
        if is_ours(
            caller("sagemaker", "ListTags", ResourceArn=one["NotebookInstanceArn"]).get("Tags", [])
        )
    ]
    jobs = [
        {
            "name": job["TrainingJobName"],
            "kind": "job",
            "status": job["TrainingJobStatus"],
            "created": job["CreationTime"].isoformat(),
        }
        for job in listed(caller, "InProgress")
    ]
    return [*(row(one, caller.region) for one in ours), *jobs]


def line(one: Row, region: Optional[str]) -> str:
    """A row as text, with what it costs."""
    text = f"{one['name']}: {one['status']}"
    if one["kind"] == "job":
        return f"{text}, a training job since {one['created']}"
    text += "".join(f", {one[key]}" for key in ("instance", "platform") if one[key])
    text += f", since {one['created']}" if one["created"] else ""
    text += f": {one['failure']}" if one["failure"] else ""
    if one["instance"] and one["volume_gb"]:
        text += f"\n  {Prices().notebook(one['instance'], one['volume_gb'], region)}"
    return text
