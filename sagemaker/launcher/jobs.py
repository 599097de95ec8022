"""Training jobs: a request made of a template in `sagemaker/training`, and what becomes of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import pairs
from gluonlab.errors import unknown
from launcher.calls import Answer, Caller
from launcher.errors import AWSError, RefusedError, failure
from launcher.images import image
from launcher.waiting import Waiter

TEMPLATES = Path(__file__).resolve().parent.parent / "training"
PREFIX = "gluonlab-"  # the role of notebook.yaml lets a notebook start jobs of such names only
ENDED = ("Completed", "Failed", "Stopped")
OWN = "sagemaker_"  # hyperparameters that are for the image, not for the program
PER_HOST = "sagemaker_mpi_num_of_processes_per_host"
SEVERAL_HOSTS = ("sagemaker_parameter_server_enabled", "sagemaker_mpi_enabled")
PLACEHOLDER = "s3://BUCKET/"


@dataclass(frozen=True)
class Job:
    """What somebody wants a job to be; None stands for what the template says."""

    template: str
    name: str
    bucket: str
    instance: Optional[str] = None
    hosts: Optional[int] = None
    hours: Optional[float] = None
    image: Optional[str] = None
    settings: Tuple[str, ...] = ()  # NAME=VALUE, hyperparameters of the program

    def request(self, region: Optional[str], role: str, tags: List[Dict[str, str]]) -> Dict[str, Any]:
        """The parameters of CreateTrainingJob."""
        request: Dict[str, Any] = _in_bucket(template(self.template), self.bucket)
        request.update(TrainingJobName=self.name, RoleArn=role, Tags=tags)
        request["AlgorithmSpecification"]["TrainingImage"] = self.image or image(region)
        resources = request["ResourceConfig"]
        resources["InstanceType"] = self.instance or resources["InstanceType"]
        resources["InstanceCount"] = self.hosts or resources["InstanceCount"]
        if self.hours is not None:
            request.setdefault("StoppingCondition", {})["MaxRuntimeInSeconds"] = int(self.hours * 3600)
        request["HyperParameters"] = self._hyperparameters(request.get("HyperParameters", {}), resources)
        return request

    def _hyperparameters(self, given: Dict[str, str], resources: Dict[str, Any]) -> Dict[str, str]:
        several = any(json.loads(given.get(name, "false")) for name in SEVERAL_HOSTS)
        if resources["InstanceCount"] > 1 and not several:
            raise RefusedError(
                f"--hosts {resources['InstanceCount']}: {self.template} is for 1: choose --template parameter-server or horovod"
            )
        made = {**given, **dict(map(_setting, self.settings))}
        if PER_HOST in made and resources["InstanceType"] in pairs.instances():
            made[PER_HOST] = json.dumps(pairs.instances()[resources["InstanceType"]]["gpus"])
        return made


def template(name: str) -> Dict[str, Any]:
    """A template by its name."""
    names = [path.stem for path in sorted(TEMPLATES.glob("*.json"))]
    if name not in names:
        raise RefusedError(unknown("template", name, names))
    found: Dict[str, Any] = json.loads((TEMPLATES / f"{name}.json").read_text(encoding="utf-8"))
    return found


def longest_s(request: Dict[str, Any]) -> int:
    """After how many seconds AWS stops the job; a day if nothing is said."""
    return int(request.get("StoppingCondition", {}).get("MaxRuntimeInSeconds", 86400))


def describe(caller: Caller, name: str) -> Answer:
    """What AWS says of a job; RefusedError if there is none of that name."""
    try:
        return caller("sagemaker", "DescribeTrainingJob", TrainingJobName=name)
    except AWSError as error:
        if error.missing:
            raise RefusedError(
                f"there is no training job {name} in {caller.region}: `jobs list` shows those that there are"
            ) from error
        raise


def submit(caller: Caller, request: Dict[str, Any]) -> None:
    """Ask AWS to run it."""
    caller("sagemaker", "CreateTrainingJob", **request)


def stop(caller: Caller, name: str) -> str:
    """Stop a job, unless it has ended; what was done."""
    status = describe(caller, name)["TrainingJobStatus"]
    if status in (*ENDED, "Stopping"):
        return f"{name} is {status} already"
    caller("sagemaker", "StopTrainingJob", TrainingJobName=name)
    return f"{name} is stopping: it has 2 minutes to save its work, which is paid for"


def wait(caller: Caller, name: str, waiter: Waiter) -> str:
    """Wait until a job has ended, as Completed or Stopped; FailedError, with the reason, if it failed."""

    def status() -> str:
        found = describe(caller, name)
        kind = str(found["TrainingJobStatus"])
        return str(found.get("SecondaryStatus") or kind) if kind == "InProgress" else kind

    end = waiter.until(name, ENDED, status)
    if end == "Failed":
        error = failure("training job", name, describe(caller, name).get("FailureReason"))
        raise type(error)(f"{error}; its log is in CloudWatch: /aws/sagemaker/TrainingJobs")
    return str(end)


def listed(caller: Caller, status: Optional[str] = None) -> List[Answer]:
    """The jobs that were submitted here, the newest first."""
    given = {} if status is None else {"StatusEquals": status}
    newest = {"SortBy": "CreationTime", "SortOrder": "Descending"}
    return caller.all("sagemaker", "ListTrainingJobs", "TrainingJobSummaries", NameContains=PREFIX, **newest, **given)


def running(caller: Caller) -> List[str]:
    """The names of jobs that cost something now."""
    return [job["TrainingJobName"] for job in listed(caller, "InProgress")]


def _setting(text: str) -> Tuple[str, str]:
    """``lr=0.1`` -> ("lr", "0.1"), ``network=lenet`` -> ("network", '"lenet"'): values are JSON, as the image reads them."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise RefusedError(f"--set {text}: write NAME=VALUE, such as --set epochs=3")
    if name.startswith(OWN):
        raise RefusedError(f"--set {text}: {OWN}... are the template's: choose another --template, or edit {TEMPLATES.name}/*.json")
    try:
        json.loads(value)
    except ValueError:
        value = json.dumps(value)
    return name, value


def _in_bucket(part: Any, bucket: str) -> Any:
    """The template with the bucket's name in all its addresses."""
    if isinstance(part, str):
        return part.replace(PLACEHOLDER, f"s3://{bucket}/")
    if isinstance(part, list):
        return [_in_bucket(one, bucket) for one in part]
    return {key: _in_bucket(value, bucket) for key, value in part.items()} if isinstance(part, dict) else part
