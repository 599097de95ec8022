"""Training jobs: a request made of a template in `sagemaker/training`, and what becomes of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

import instance_pairs as pairs
from gluonlab.errors import unknown
from gluonlab.launch.job_files import JOB_NAME_PREFIX, replace_bucket, set_volume_size
from gluonlab_sagemaker.calls import Answer, Caller
from gluonlab_sagemaker.errors import AWSError, RefusedError, failure
from gluonlab_sagemaker.images import image
from gluonlab_sagemaker.instances import refuse_unfit
from gluonlab_sagemaker.logs import GROUP, Line, Log
from gluonlab_sagemaker.waiting import Waiter

TEMPLATES = Path(__file__).resolve().parent.parent / "training"
ENDED = ("Completed", "Failed", "Stopped")
OWN = "sagemaker_"  # hyperparameters that are for the image, not for the program
COUNTS = ("gpus", "sagemaker_mpi_num_of_processes_per_host")
SEVERAL_HOSTS = ("sagemaker_parameter_server_enabled", "sagemaker_mpi_enabled")
LATE_S = 5  # between two looks at a log, and before the last
CHECKPOINTS = "gluonlab/checkpoints"  # in the bucket; each job has a folder there


@dataclass(frozen=True)
class Job:
    """The options of a training job; None stands for the template's value."""

    template: str
    name: str
    bucket: str
    instance: Optional[str] = None
    hosts: Optional[int] = None
    hours: Optional[float] = None
    gpus: Optional[int] = None  # of each host
    volume_gb: Optional[int] = None
    image: Optional[str] = None
    settings: Tuple[str, ...] = ()  # NAME=VALUE, hyperparameters of the program
    checkpoints: Optional[str] = None  # the job whose checkpoints it goes on from

    def request(
        self, region: Optional[str], role: str, tags: List[Dict[str, str]]
    ) -> Dict[str, Any]:
        """The parameters of CreateTrainingJob."""
        request: Dict[str, Any] = replace_bucket(template(self.template), self.bucket)
        request.update(TrainingJobName=self.name, RoleArn=role, Tags=tags)
        request["AlgorithmSpecification"]["TrainingImage"] = self.image or image(region)
        if self.hours is not None:
            _run_at_most(request, round(self.hours * 3600))
        if (
            "CheckpointConfig" in request
        ):  # of a folder of its own: a job goes on from what is there
            place = f"s3://{self.bucket}/{CHECKPOINTS}/{self.checkpoints or self.name}/"
            request["CheckpointConfig"]["S3Uri"] = place
        elif self.checkpoints is not None:
            with_some = [name for name in templates() if "CheckpointConfig" in template(name)]
            raise RefusedError(
                f"--checkpoints {self.checkpoints}: {self.template} writes none: "
                f"choose --template {' or '.join(with_some)}"
            )
        resources, given = request["ResourceConfig"], request.get("HyperParameters", {})
        hosts = resources["InstanceCount"] if self.hosts is None else self.hosts
        if hosts > 1 and not _for_several_hosts(given):
            others = [
                name
                for name in templates()
                if _for_several_hosts(template(name).get("HyperParameters", {}))
            ]
            choice = f"choose --template {' or '.join(others)}" if others else "leave --hosts out"
            raise RefusedError(f"--hosts {hosts}: {self.template} is for one: {choice}")
        instance = self.instance or resources["InstanceType"]
        if self.image is None:
            refuse_unfit(instance, "bring an --image with an MXNet that has")
        request["HyperParameters"] = {
            **_of_gpus(given, _gpus(resources["InstanceType"]), self.gpus or _gpus(instance)),
            "sagemaker_region": json.dumps(region),
            **dict(map(_setting, self.settings)),
        }
        resources.update(InstanceType=instance, InstanceCount=hosts)
        set_volume_size(resources, self.volume_gb)
        _check_kept(request)
        return request


def templates() -> List[str]:
    """The names of all templates."""
    return [path.stem for path in sorted(TEMPLATES.glob("*.json"))]


def template(name: str) -> Dict[str, Any]:
    """A template by its name."""
    if name not in templates():
        raise RefusedError(unknown("template", name, templates()))
    found: Dict[str, Any] = json.loads((TEMPLATES / f"{name}.json").read_text(encoding="utf-8"))
    return found


def longest_s(request: Dict[str, Any]) -> int:
    """After how many seconds AWS stops the job; a day if nothing is said."""
    return int(request.get("StoppingCondition", {}).get("MaxRuntimeInSeconds", 86400))


def is_spot(request: Dict[str, Any]) -> bool:
    """Whether its machines are spot ones, which AWS may take away."""
    return bool(request.get("EnableManagedSpotTraining"))


def inputs(request: Dict[str, Any]) -> List[str]:
    """Where its data must lie."""
    sources = [
        channel["DataSource"].get("S3DataSource") for channel in request.get("InputDataConfig", [])
    ]
    return [source["S3Uri"] for source in sources if source]


def describe(caller: Caller, name: str) -> Answer:
    """What AWS says of a job; RefusedError if there is none of that name."""
    try:
        return caller("sagemaker", "DescribeTrainingJob", TrainingJobName=name)
    except AWSError as error:
        if error.missing:
            raise RefusedError(
                f"there is no training job {name} in {caller.region}: "
                "`jobs list` shows those that there are"
            ) from error
        raise


def submit(caller: Caller, request: Dict[str, Any], see: str) -> None:
    """Ask AWS to run the job. ``see``: the command that shows its status."""
    try:
        caller("sagemaker", "CreateTrainingJob", **request)
    except AWSError as error:
        if error.unanswered or error.taken:  # botocore asks again by itself
            raise AWSError(
                f"{error}; the job may run all the same, and cost money: {see} shows it", error.code
            ) from error
        raise


def stop(caller: Caller, name: str) -> str:
    """Stop a job, unless it has ended; what was done."""
    status = describe(caller, name)["TrainingJobStatus"]
    if status in (*ENDED, "Stopping"):
        return f"{name} is {status} already"
    caller("sagemaker", "StopTrainingJob", TrainingJobName=name)
    return f"{name} is stopping: AWS ends it within 120 seconds; what lies in S3 by then is kept"


def wait(caller: Caller, name: str, waiter: Waiter) -> Answer:
    """What AWS says of a job as soon as it is Completed or Stopped; FailedError if it failed."""
    found: Answer = {}

    def status() -> str:
        nonlocal found
        found = describe(caller, name)
        kind = str(found["TrainingJobStatus"])
        return str(found.get("SecondaryStatus") or kind) if kind == "InProgress" else kind

    end = waiter.until(name, ENDED, status)
    if end == "Failed":
        error = failure("training job", name, found.get("FailureReason"))
        raise type(error)(f"{error}; its log is in CloudWatch: {GROUP}")
    return found


def follow(caller: Caller, name: str, sleep: Callable[[float], None]) -> Iterator[List[Line]]:
    """What a job prints, until it has ended. CloudWatch has the last lines some seconds late."""
    log = Log(caller, name)
    while True:
        ended = describe(caller, name)["TrainingJobStatus"] in ENDED
        if ended:
            sleep(LATE_S)
        yield log.new()
        if ended:
            return
        sleep(LATE_S)


def listed(caller: Caller, status: Optional[str] = None) -> List[Answer]:
    """The jobs that were submitted here, the newest first."""
    given = {} if status is None else {"StatusEquals": status}
    newest = {"SortBy": "CreationTime", "SortOrder": "Descending"}
    found = caller.all(
        "sagemaker",
        "ListTrainingJobs",
        "TrainingJobSummaries",
        NameContains=JOB_NAME_PREFIX,
        **newest,
        **given,
    )
    return [job for job in found if job["TrainingJobName"].startswith(JOB_NAME_PREFIX)]


def running(caller: Caller) -> List[str]:
    """The names of jobs that cost something now."""
    return [job["TrainingJobName"] for job in listed(caller, "InProgress")]


def results(found: Mapping[str, Any]) -> List[str]:
    """The commands that fetch what a job, as AWS describes it, has left in S3."""
    model = (found.get("ModelArtifacts") or {}).get("S3ModelArtifacts")
    kept = (found.get("CheckpointConfig") or {}).get("S3Uri")
    return [
        *([f"aws s3 cp {model} ."] if model else []),
        *([f"aws s3 cp --recursive {kept.rstrip('/')}/run run"] if kept else []),
    ]


def outputs(request: Dict[str, Any]) -> List[str]:
    """Where it writes to."""
    checkpoints = request.get("CheckpointConfig", {}).get("S3Uri")
    return [request["OutputDataConfig"]["S3OutputPath"], *([checkpoints] if checkpoints else [])]


def _run_at_most(request: Dict[str, Any], seconds: int) -> None:
    """How long it may run; how long it waits for spot machines besides stays as it was."""
    stopping = request.setdefault("StoppingCondition", {})
    if "MaxWaitTimeInSeconds" in stopping:  # it counts the time of running, too
        stopping["MaxWaitTimeInSeconds"] += seconds - longest_s(request)
    stopping["MaxRuntimeInSeconds"] = seconds


def _check_kept(request: Dict[str, Any]) -> None:
    """Raise RefusedError where a job would not find its run when it is started again."""
    kept = request.get("CheckpointConfig", {}).get("LocalPath")
    given = {name: json.loads(text) for name, text in request["HyperParameters"].items()}
    out = given.get("out")
    if kept is not None and not str(out).startswith(f"{kept}/"):
        raise RefusedError(
            f"--set out={out}: what a job goes on from must lie below {kept}, which AWS keeps: "
            "leave it out"
        )
    if is_spot(request) and str(given.get("autoresume")).lower() != "true":
        raise RefusedError(
            "--set autoresume=false: AWS starts a spot job again when it has taken the machine "
            "away, and the run must go on then: leave it out"
        )


def _setting(text: str) -> Tuple[str, str]:
    """``lr=0.1`` -> ``("lr", "0.1")``; values are JSON, which the image reads."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise RefusedError(f"--set {text}: write NAME=VALUE, such as --set epochs=3")
    if name.startswith(OWN):
        raise RefusedError(
            f"--set {text}: {OWN}... are the template's: "
            f"choose another --template, or edit {TEMPLATES.name}/*.json"
        )
    try:
        json.loads(value)
    except ValueError:
        value = json.dumps(value)
    return name, value


def _for_several_hosts(hyperparameters: Dict[str, str]) -> bool:
    return any(json.loads(hyperparameters.get(name, "false")) for name in SEVERAL_HOSTS)


def _of_gpus(given: Dict[str, str], before: int, now: int) -> Dict[str, str]:
    """The hyperparameters that hold the number of GPUs, for another machine than the template's."""
    return {
        name: str(now) if name in COUNTS and value == str(before) else value
        for name, value in given.items()
    }


def _gpus(instance: str) -> int:
    facts = pairs.instances().get(instance)
    if facts is None:
        raise RefusedError(
            f"--instance {instance}: how many GPUs it has is not in instances.json: add --gpus N"
        )
    return int(facts["gpus"])
