"""Notebooks and jobs as rows of `status`, for text and JSON."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from gluonlab_sagemaker.calls import Caller, Response
from gluonlab_sagemaker.checks import has_gluonlab_tag
from gluonlab_sagemaker.cost import Prices
from gluonlab_sagemaker.jobs import list_jobs

Row = Dict[str, Any]


def notebook_row(description: Response, region: Optional[str]) -> Row:
    """Convert a notebook of DescribeNotebookInstance or ListNotebookInstances to a row."""
    created = description.get("CreationTime")
    cost = Prices().notebook_cost(description.get("InstanceType", ""), description.get("VolumeSizeInGB", 0), region)
    return {
        "name": description["NotebookInstanceName"],
        "kind": "notebook",
        "status": description["NotebookInstanceStatus"],
        "instance": description.get("InstanceType"),
        "platform": description.get("PlatformIdentifier"),
        "volume_gb": description.get("VolumeSizeInGB"),
        "created": created.isoformat() if created is not None else None,
        "failure": description.get("FailureReason"),
        "cost": {
            "hour": cost.hour_price,
            "volume_month": cost.volume_month_price,
            "currency": cost.currency,
            "day": cost.day_price,
        },
    }


def list_resources(caller: Caller) -> List[Row]:
    """Return the rows of notebooks with gluonlab's tag, and of training jobs in progress."""
    notebooks = []
    for notebook in caller.list_all("sagemaker", "ListNotebookInstances", "NotebookInstances"):
        response = caller("sagemaker", "ListTags", ResourceArn=notebook["NotebookInstanceArn"])
        if has_gluonlab_tag(response.get("Tags", [])):
            notebooks.append(notebook_row(notebook, caller.region))
    jobs = [
        {
            "name": job["TrainingJobName"],
            "kind": "job",
            "status": job["TrainingJobStatus"],
            "created": job["CreationTime"].isoformat(),
        }
        for job in list_jobs(caller, "InProgress")
    ]
    return [*notebooks, *jobs]


def format_row(row: Row, region: Optional[str]) -> str:
    """Format a row as text, with the cost of a notebook."""
    text = f"{row['name']}: {row['status']}"
    if row["kind"] == "job":
        return f"{text}, a training job created {row['created']}"
    text += "".join(f", {row[key]}" for key in ("instance", "platform") if row[key])
    text += f", created {row['created']}" if row["created"] else ""
    text += f": {row['failure']}" if row["failure"] else ""
    if row["instance"] and row["volume_gb"]:
        text += f"\n  {Prices().describe_notebook_cost(row['instance'], row['volume_gb'], region)}"
    return text
