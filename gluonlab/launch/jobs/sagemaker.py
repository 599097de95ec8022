"""A request for SageMaker's CreateTrainingJob, made of a template.

The templates are copies of those in `sagemaker/training`, which an installed gluonlab lacks.

Source: https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateTrainingJob.html.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

from gluonlab.errors import ConfigError
from gluonlab.host.launchers import has_local_disk
from gluonlab.launch.jobs.request import JobRequest
from gluonlab.launch.jobs.yaml_text import Said, yaml_lines
from gluonlab.launch.own_program import is_program

TEMPLATES = Path(__file__).parent / "training"
# the role of sagemaker/notebook.yaml lets a notebook start jobs of such names only
PREFIX = "gluonlab-"
ASYNC = "dist_async"
VOLUME_GB = 50
BUCKET = re.compile(r"s3://[^/]+/gluonlab/")  # the templates' own is made up
COMMENTS = {
    "TrainingJobName": "the job's name, which no other job of the account may have",
    "AlgorithmSpecification": "what runs",
    "TrainingImage": "AWS's image with MXNet, of your region",
    "TrainingInputMode": "data are copied to each host before it starts",
    "MetricDefinitions": "what AWS reads of the lines that the job prints, for its charts",
    "Name": "a chart's name",
    "Regex": "its number is the part in parentheses",
    "RoleArn": "with whose rights it runs",
    "HyperParameters": "for the image, and the options of the run, as JSON",
    "sagemaker_program": "the module that each process runs",
    "sagemaker_submit_directory": "where gluonlab's source lies",
    "sagemaker_region": "in which region",
    "sagemaker_mpi_enabled": "mpirun starts the processes",
    "sagemaker_mpi_num_of_processes_per_host": "so many on each host",
    "sagemaker_parameter_server_enabled": "the image starts scheduler, servers and workers",
    "backend": "how processes exchange gradients",
    "InputDataConfig": "the data",
    "ChannelName": "they come to /opt/ml/input/data/training",
    "DataSource": "where from",
    "S3DataSource": "from S3",
    "S3DataType": "all files whose names begin alike",
    "S3Uri": "namely so",
    "S3DataDistributionType": "all of them to each host",
    "OutputDataConfig": "the run's folder",
    "S3OutputPath": "goes there when the job has ended",
    "ResourceConfig": "the hosts",
    "InstanceType": "the machine, which decides on GPUs, threads and memory",
    "InstanceCount": "how many hosts",
    "VolumeSizeInGB": "the volume of each, which has no disk of its own",
    "StoppingCondition": "how long",
    "MaxRuntimeInSeconds": "after so many seconds AWS ends the job",
    "Tags": "for your bill",
    "Key": "a tag",
    "Value": "its value",
}


def sagemaker(request: JobRequest) -> str:
    """The file for AWS's command line, version 2, which takes YAML: JSON knows no comments.

    Raises ConfigError for words that are not options, for several processes on a host without
    Horovod, and for an update on the servers.
    """
    made = _request(request)
    head = (
        "# Submit it with: aws sagemaker create-training-job --cli-input-yaml file://FILE\n"
        "# Put your own account, region, bucket and role in; sagemaker/README.md says what they are"
    )
    return "\n".join([head, *yaml_lines(_said(made))]) + "\n"


def _request(request: JobRequest) -> Dict[str, Any]:
    """The parameters of CreateTrainingJob."""
    if is_program(request.words):
        raise ConfigError(
            f"--print sagemaker with the program {request.words[0]}: SageMaker's image runs your "
            "own program as its entry point: print another kind, or start the program there"
        )
    horovod = request.backend == "horovod"
    if not horovod and request.processes_per_host != 1:
        raise ConfigError(
            f"processes_per_host = {request.processes_per_host}: SageMaker starts one process of "
            f"{request.backend} on each host: leave it at 1, or choose --backend horovod"
        )
    given_words = options(request.words)
    if request.backend == ASYNC or "update-on-servers" in given_words:
        raise ConfigError(
            f"{f'--backend {ASYNC}' if request.backend == ASYNC else '--update-on-servers'}: the "
            "servers that SageMaker's image starts cannot load gluonlab's optimizers: choose "
            "--backend dist_sync without --update-on-servers, or --backend horovod"
        )
    template = TEMPLATES / f"{'horovod' if horovod else 'parameter-server'}.json"
    made: Dict[str, Any] = json.loads(template.read_text(encoding="utf-8"))
    made = made if request.bucket is None else in_bucket(made, request.bucket)
    name = request.name if request.name.startswith(PREFIX) else PREFIX + request.name
    made.update(TrainingJobName=name, RoleArn=request.role or made["RoleArn"])
    algorithm, resources = made["AlgorithmSpecification"], made["ResourceConfig"]
    algorithm["TrainingImage"] = request.image or algorithm["TrainingImage"]
    resources.update(
        InstanceType=request.instance or resources["InstanceType"], InstanceCount=request.hosts
    )
    with_volume(resources)
    made["StoppingCondition"]["MaxRuntimeInSeconds"] = request.minutes * 60
    given = made["HyperParameters"]
    given["backend"] = json.dumps(request.backend)
    given.pop("gpus", None)  # the template's; each process has its own
    if request.gpus:
        given["gpus"] = str(request.gpus)
    if horovod:
        given["sagemaker_mpi_num_of_processes_per_host"] = str(request.on_a_host)
    given.update({**options(request.launcher), **given_words})
    return made


def options(words: Tuple[str, ...]) -> Dict[str, str]:
    """``--epochs 3 --flip`` as hyperparameters: each an option's name, and its value as JSON."""
    found: Dict[str, str] = {}
    name: Optional[str] = None
    for word in words:
        option = re.fullmatch(r"--([A-Za-z0-9][A-Za-z0-9-]*)(?:=(.*))?", word, re.DOTALL)
        if option:
            name = option[1] if option[2] is None else None
            found[option[1]] = "true" if option[2] is None else json.dumps(option[2])
        elif name is not None:
            found[name], name = json.dumps(word), None
        else:
            raise ConfigError(
                f"{word!r} is no option with a name: SageMaker passes --name value only, as in "
                "--epochs 3"
            )
    return found


def with_volume(resources: Dict[str, Any], size_gb: Optional[int] = None) -> None:
    """Give a request's ResourceConfig what its machine keeps files on.

    AWS makes volumes only for machines without a disk of their own: there a size is required, and
    elsewhere it means nothing. Raises ConfigError for a size, or a volume's key, that AWS does not
    take.
    """
    instance = resources["InstanceType"]
    if not has_local_disk(instance):
        resources["VolumeSizeInGB"] = size_gb or resources.get("VolumeSizeInGB", VOLUME_GB)
        return
    resources.pop("VolumeSizeInGB", None)
    if size_gb is not None:
        raise ConfigError(
            f"a volume of {size_gb} GB: {instance} has a disk of its own, all of which a job gets: "
            "leave the size out"
        )
    if resources.get("VolumeKmsKeyId") is not None:
        raise ConfigError(
            f"VolumeKmsKeyId: {instance} has a disk of its own, which encrypts itself, and AWS "
            "refuses a key for it: take the key out, or choose a machine without, such as "
            "ml.p3.8xlarge; OutputDataConfig.KmsKeyId encrypts the results"
        )


def in_bucket(part: Any, bucket: str) -> Any:
    """A template, or a part of it, with the bucket's name in all of its addresses."""
    if isinstance(part, str):
        return BUCKET.sub(f"s3://{bucket}/gluonlab/", part)
    if isinstance(part, list):
        return [in_bucket(one, bucket) for one in part]
    if isinstance(part, dict):
        return {key: in_bucket(value, bucket) for key, value in part.items()}
    return part


def _said(part: Any) -> Any:
    """The request with its comments."""
    if isinstance(part, list):
        return [_said(one) for one in part]
    if isinstance(part, dict):
        return {
            key: Said(_said(value), COMMENTS.get(key, "an option of the run"))
            for key, value in part.items()
        }
    return part
