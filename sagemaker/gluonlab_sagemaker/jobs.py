"""Training jobs: requests built from templates in `sagemaker/training`, and calls about jobs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

import instance_pairs as pairs
from gluonlab.errors import unknown
from gluonlab.launch.cluster_job_scripts import JOB_NAME_PREFIX, replace_bucket, set_volume_size
from gluonlab_sagemaker.calls import Caller, Response
from gluonlab_sagemaker.errors import AWSError, RefusedError, failed_error
from gluonlab_sagemaker.images import image_uri
from gluonlab_sagemaker.instances import refuse_unsupported_gpu
from gluonlab_sagemaker.logs import LOG_GROUP, JobLog, LogLine
from gluonlab_sagemaker.waiting import Waiter

TEMPLATE_FOLDER = Path(__file__).resolve().parent.parent / "training"
FINAL_STATUSES = ("Completed", "Failed", "Stopped")
RESERVED_PREFIX = "sagemaker_"  # of hyperparameters for the image, not for the program
GPU_COUNT_PARAMETERS = ("gpus", "sagemaker_mpi_num_of_processes_per_host")
MULTI_HOST_PARAMETERS = ("sagemaker_parameter_server_enabled", "sagemaker_mpi_enabled")
LOG_DELAY_S = 5  # between two reads of a log; CloudWatch gets lines some seconds late
CHECKPOINT_FOLDER = "gluonlab/checkpoints"  # in the bucket, with a folder for each job


@dataclass(frozen=True)
class JobOptions:
    """Options of a training job; None stands for the template's value."""

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
    checkpoints: Optional[str] = None  # the job whose checkpoints this job resumes from

    def build_request(self, region: Optional[str], role: str, tags: List[Dict[str, str]]) -> Dict[str, Any]:
        """Return the parameters of CreateTrainingJob; raise RefusedError for invalid options."""
        request: Dict[str, Any] = replace_bucket(load_template(self.template), self.bucket)
        request.update(TrainingJobName=self.name, RoleArn=role, Tags=tags)
        request["AlgorithmSpecification"]["TrainingImage"] = self.image or image_uri(region)
        if self.hours is not None:
            _set_max_runtime(request, round(self.hours * 3600))
        if "CheckpointConfig" in request:
            # Each job has its own folder: a job resumes from the checkpoints in its folder.
            folder = f"s3://{self.bucket}/{CHECKPOINT_FOLDER}/{self.checkpoints or self.name}/"
            request["CheckpointConfig"]["S3Uri"] = folder
        elif self.checkpoints is not None:
            alternatives = [name for name in template_names() if "CheckpointConfig" in load_template(name)]
            raise RefusedError(
                f"--checkpoints {self.checkpoints}: the template {self.template} does not write checkpoints: choose "
                f"--template {' or '.join(alternatives)}"
            )
        resources, hyperparameters = request["ResourceConfig"], request.get("HyperParameters", {})
        hosts = resources["InstanceCount"] if self.hosts is None else self.hosts
        if hosts > 1 and not _supports_several_hosts(hyperparameters):
            alternatives = [
                name
                for name in template_names()
                if _supports_several_hosts(load_template(name).get("HyperParameters", {}))
            ]
            advice = f"choose --template {' or '.join(alternatives)}" if alternatives else "remove --hosts"
            raise RefusedError(f"--hosts {hosts}: the template {self.template} uses one machine: {advice}")
        instance = self.instance or resources["InstanceType"]
        if self.image is None:
            refuse_unsupported_gpu(instance, "bring an --image with an MXNet that has")
        request["HyperParameters"] = {
            **_replace_gpu_counts(
                hyperparameters, _gpu_count(resources["InstanceType"]), self.gpus or _gpu_count(instance)
            ),
            "sagemaker_region": json.dumps(region),
            **dict(map(_parse_hyperparameter, self.settings)),
        }
        resources.update(InstanceType=instance, InstanceCount=hosts)
        set_volume_size(resources, self.volume_gb)
        _check_resumable(request)
        return request


def template_names() -> List[str]:
    """Return the names of all templates."""
    return [path.stem for path in sorted(TEMPLATE_FOLDER.glob("*.json"))]


def load_template(name: str) -> Dict[str, Any]:
    """Load a template by its name."""
    if name not in template_names():
        raise RefusedError(unknown("template", name, template_names()))
    template: Dict[str, Any] = json.loads((TEMPLATE_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return template


def max_runtime_s(request: Dict[str, Any]) -> int:
    """Return the seconds after which AWS stops the job; a day by default."""
    return int(request.get("StoppingCondition", {}).get("MaxRuntimeInSeconds", 86400))


def is_spot(request: Dict[str, Any]) -> bool:
    """Return whether the job uses spot machines, which AWS may take away."""
    return bool(request.get("EnableManagedSpotTraining"))


def input_uris(request: Dict[str, Any]) -> List[str]:
    """Return the addresses of the job's data in S3."""
    sources = [channel["DataSource"].get("S3DataSource") for channel in request.get("InputDataConfig", [])]
    return [source["S3Uri"] for source in sources if source]


def describe_job(caller: Caller, name: str) -> Response:
    """Return AWS's description of a job; raise RefusedError if it does not exist."""
    try:
        return caller("sagemaker", "DescribeTrainingJob", TrainingJobName=name)
    except AWSError as error:
        if error.is_not_found:
            raise RefusedError(
                f"there is no training job {name} in {caller.region}: choose one from `jobs list`"
            ) from error
        raise


def create_training_job(caller: Caller, request: Dict[str, Any], status_command: str) -> None:
    """Ask AWS to run the job; errors refer to ``status_command``, which shows the job's status."""
    try:
        caller("sagemaker", "CreateTrainingJob", **request)
    except AWSError as error:
        # botocore retries by itself, so an earlier try of this call may have started the job.
        if error.is_unanswered or error.is_name_in_use:
            raise AWSError(
                f"{error}; the job may run anyway and cost money: check with {status_command}", error.code
            ) from error
        raise


def stop_training_job(caller: Caller, name: str) -> str:
    """Stop a job unless it has ended, and return a message about it."""
    status = describe_job(caller, name)["TrainingJobStatus"]
    if status in (*FINAL_STATUSES, "Stopping"):
        return f"{name} is already {status}"
    caller("sagemaker", "StopTrainingJob", TrainingJobName=name)
    return f"{name} is stopping: AWS stops it within 120 seconds, and files that are in S3 by then are kept"


def wait_for_training_job(caller: Caller, name: str, waiter: Waiter) -> Response:
    """Wait until a job is Completed or Stopped, and return its description.

    Raises FailedError if the job failed.
    """
    description: Response = {}

    def get_status() -> str:
        nonlocal description
        description = describe_job(caller, name)
        status = str(description["TrainingJobStatus"])
        if status == "InProgress":
            return str(description.get("SecondaryStatus") or status)
        return status

    if waiter.wait_until(name, FINAL_STATUSES, get_status) == "Failed":
        error = failed_error("training job", name, description.get("FailureReason"))
        raise type(error)(f"{error}; see its log in CloudWatch, {LOG_GROUP}")
    return description


def follow_log(caller: Caller, name: str, sleep: Callable[[float], None]) -> Iterator[List[LogLine]]:
    """Yield the new lines of a job's log until the job has ended."""
    log = JobLog(caller, name)
    while True:
        has_ended = describe_job(caller, name)["TrainingJobStatus"] in FINAL_STATUSES
        if has_ended:  # the last lines arrive late
            sleep(LOG_DELAY_S)
        yield log.read_new()
        if has_ended:
            return
        sleep(LOG_DELAY_S)


def list_jobs(caller: Caller, status: Optional[str] = None) -> List[Response]:
    """Return the summaries of gluonlab's jobs, newest first."""
    jobs = caller.list_all(
        "sagemaker", "ListTrainingJobs", "TrainingJobSummaries", NameContains=JOB_NAME_PREFIX,
        SortBy="CreationTime", SortOrder="Descending", **({} if status is None else {"StatusEquals": status}),
    )  # fmt: skip
    return [job for job in jobs if job["TrainingJobName"].startswith(JOB_NAME_PREFIX)]


def running_job_names(caller: Caller) -> List[str]:
    """Return the names of gluonlab's jobs in progress."""
    return [job["TrainingJobName"] for job in list_jobs(caller, "InProgress")]


def download_commands(description: Mapping[str, Any]) -> List[str]:
    """Return the commands that download a job's model and run folder from S3."""
    model = (description.get("ModelArtifacts") or {}).get("S3ModelArtifacts")
    checkpoints = (description.get("CheckpointConfig") or {}).get("S3Uri")
    return [
        *([f"aws s3 cp {model} ."] if model else []),
        *([f"aws s3 cp --recursive {checkpoints.rstrip('/')}/run run"] if checkpoints else []),
    ]


def output_uris(request: Dict[str, Any]) -> List[str]:
    """Return the addresses in S3 that the job writes to."""
    checkpoints = request.get("CheckpointConfig", {}).get("S3Uri")
    return [request["OutputDataConfig"]["S3OutputPath"], *([checkpoints] if checkpoints else [])]


def _set_max_runtime(request: Dict[str, Any], seconds: int) -> None:
    stopping_condition = request.setdefault("StoppingCondition", {})
    # MaxWaitTimeInSeconds includes the runtime: keep the time of waiting for spot machines.
    if "MaxWaitTimeInSeconds" in stopping_condition:
        stopping_condition["MaxWaitTimeInSeconds"] += seconds - max_runtime_s(request)
    stopping_condition["MaxRuntimeInSeconds"] = seconds


def _check_resumable(request: Dict[str, Any]) -> None:
    """Raise RefusedError if a restarted job would not find, or not resume, its run."""
    checkpoint_path = request.get("CheckpointConfig", {}).get("LocalPath")
    hyperparameters = {name: json.loads(text) for name, text in request["HyperParameters"].items()}
    out = hyperparameters.get("out")
    if checkpoint_path is not None and not str(out).startswith(f"{checkpoint_path}/"):
        raise RefusedError(
            f"--set out={out}: the checkpoints must be below {checkpoint_path}, which AWS keeps: remove --set out"
        )
    if is_spot(request) and str(hyperparameters.get("autoresume")).lower() != "true":
        raise RefusedError(
            "--set autoresume=false: a spot job must resume when AWS restarts it on another machine: remove this "
            "setting"
        )


def _parse_hyperparameter(text: str) -> Tuple[str, str]:
    """Split ``lr=0.1`` into ``("lr", "0.1")``; the image reads values as JSON."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise RefusedError(f"--set {text}: use NAME=VALUE, such as --set epochs=3")
    if name.startswith(RESERVED_PREFIX):
        raise RefusedError(
            f"--set {text}: the template sets the {RESERVED_PREFIX}... parameters: choose another --template, or "
            f"edit {TEMPLATE_FOLDER.name}/*.json"
        )
    try:
        json.loads(value)
    except ValueError:
        value = json.dumps(value)
    return name, value


def _supports_several_hosts(hyperparameters: Dict[str, str]) -> bool:
    return any(json.loads(hyperparameters.get(name, "false")) for name in MULTI_HOST_PARAMETERS)


def _replace_gpu_counts(hyperparameters: Dict[str, str], old: int, new: int) -> Dict[str, str]:
    """Replace the number of GPUs of the template's machine by that of another machine."""
    return {
        name: str(new) if name in GPU_COUNT_PARAMETERS and value == str(old) else value
        for name, value in hyperparameters.items()
    }


def _gpu_count(instance: str) -> int:
    facts = pairs.load_instances().get(instance)
    if facts is None:
        raise RefusedError(f"--instance {instance}: instances.json does not contain its number of GPUs: add --gpus N")
    return int(facts["gpus"])
