"""Writes ready-to-submit job files for schedulers and clouds, with a comment on each line.

`JOB_FILE_KINDS` contains a function for each kind of file. Each function takes a `JobRequest` and
returns the text of the file. The job's processes find their ranks with
`gluonlab.launch.process_membership`. This module writes the YAML for Kubernetes and SageMaker
itself, because YAML libraries write no comments.
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from gluonlab.errors import ConfigError, unknown
from gluonlab.host.launcher_environment import instance_has_local_disk
from gluonlab.launch.check_launcher_arguments import parse_whole_number
from gluonlab.launch.user_program import is_program

# Job names that Slurm, LSF, Kubernetes (RFC 1035, with "-0" appended) and SageMaker all accept.
NAME_PATTERN = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
QUEUE_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:-]*")
IMAGE_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")


@dataclass(frozen=True)
class JobRequest:
    """Description of a job: its processes, their resources and their arguments.

    Args:
        words: the words after ``--``, which are options of gluonlab run, or a program
        processes: number of processes
        processes_per_host: largest number of processes on one host
        gpus: number of GPUs per process
        threads: number of threads per process
        memory_mb: memory of each host, or of each pod in Kubernetes, in MB
        minutes: time limit of the job, in minutes
        backend: how processes exchange gradients (--backend)
        name: name of the job
        queue: LSF's queue or Slurm's partition; None for the cluster's default
        image: container image for Kubernetes and SageMaker
        instance: machine type for SageMaker; None for the type in the template
        bucket: S3 bucket for SageMaker; None for the bucket in the template
        role: IAM role for SageMaker; None for the role in the template
        python: Python command that starts the processes
        launcher: the launcher's own options before ``--``, such as Horovod's settings

    Raises:
        ConfigError: for values that no scheduler accepts
    """

    words: Tuple[str, ...]
    processes: int = 2
    processes_per_host: int = 1
    gpus: int = 1
    threads: int = 20
    memory_mb: int = 128000
    minutes: int = 60
    backend: str = "dist_sync"
    name: str = "gluonlab-train"
    queue: Optional[str] = None
    image: Optional[str] = None
    instance: Optional[str] = None
    bucket: Optional[str] = None
    role: Optional[str] = None
    python: str = "python"
    launcher: Tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field, least in (
            ("processes", 1), ("processes_per_host", 1), ("gpus", 0), ("threads", 1), ("memory_mb", 1), ("minutes", 1),
        ):  # fmt: skip
            if not least <= getattr(self, field) <= 10**9:
                raise ConfigError(f"{field}={getattr(self, field)}: must be a whole number from {least} to 1000000000")
        for field, pattern, example in (
            ("name", NAME_PATTERN, "gluonlab-resnet18 (at most 40 lower-case letters, digits and hyphens)"),
            ("queue", QUEUE_PATTERN, "waic-medium"),
            ("image", IMAGE_PATTERN, "registry.example/gluonlab:1"),
            ("instance", QUEUE_PATTERN, "ml.g5.12xlarge"),
            ("bucket", QUEUE_PATTERN, "my-bucket"),
            ("role", IMAGE_PATTERN, "arn:aws:iam::111122223333:role/gluonlab-notebook"),
        ):
            value = getattr(self, field)
            if value is not None and pattern.fullmatch(value) is None:
                raise ConfigError(f"{field}={value!r} is not a valid {field}: use a value such as {example}")
        for word in (self.python, self.backend, *self.launcher, *self.words):
            if "\0" in word or any("\ud800" <= letter <= "\udfff" for letter in word):
                raise ConfigError(f"{word!r} contains a character that a job file cannot contain: remove it")

    @property
    def host_count(self) -> int:
        """Number of hosts. The last host may have fewer processes than the others."""
        return -(-self.processes // self.processes_per_host)

    @property
    def max_processes_on_host(self) -> int:
        """The largest number of processes on one host."""
        return min(self.processes, self.processes_per_host)

    @property
    def command(self) -> List[str]:
        """Command line of each process."""
        launch = [self.python, "-m", "gluonlab.launch", "--backend", self.backend]
        return [*launch, *self.launcher, "--", *self.words]


def parse_job_request(
    backend: str, processes: Optional[int], job: Sequence[str], launcher: Sequence[str], words: Tuple[str, ...]
) -> JobRequest:
    """Return the JobRequest for the options of a launch. Raises ConfigError.

    Args:
        backend: see --backend
        processes: number of processes; None for the default
        job: values of --job, each NAME=VALUE, where NAME is a field of `JobRequest`
        launcher: the launcher's own options to repeat in the job
        words: the words after ``--``
    """
    other_options = {"words", "backend", "processes", "launcher"}
    fields = {f.name: f.default for f in dataclasses.fields(JobRequest) if f.name not in other_options}
    values: Dict[str, Any] = {}
    for pair in job:
        name, equals, value = pair.partition("=")
        if name not in fields:
            raise ConfigError(unknown("--job", name, fields))
        if not equals:
            raise ConfigError(f"--job {pair} has no value: use {name}=VALUE")
        is_number = isinstance(fields[name], int)
        values[name] = parse_whole_number(f"--job {name}", value, 10**9, 0) if is_number else value
    if processes is not None:
        values["processes"] = processes
    return JobRequest(words=words, backend=backend, launcher=tuple(launcher), **values)


def _bash_line(words: List[str]) -> str:
    """Quote words for bash, and join them into one line. Line breaks in words are escaped."""
    return " ".join(map(_bash_word, words))


def _bash_word(word: str) -> str:
    """Quote a word for bash, if it needs quotes."""
    if word and re.fullmatch(r"[A-Za-z0-9_@%+=:,./-]+", word):
        return word
    if all(letter.isprintable() for letter in word):
        return "'" + word.replace("'", "'\"'\"'") + "'"
    return "$'" + "".join(map(_escape_letter, word)) + "'"


def _escape_letter(letter: str) -> str:
    """Escape a character for use in bash's $'...' quotes.

    Unprintable characters become octal bytes, because the meaning of \\u depends on the locale.
    """
    if letter in "\\'":
        return f"\\{letter}"
    if letter.isprintable():
        return letter
    return "".join(f"\\{byte:03o}" for byte in letter.encode())


# --- Slurm: https://slurm.schedmd.com/sbatch.html


def slurm_job_file(request: JobRequest) -> str:
    """Return a job file for sbatch. In the job, srun starts one task for each process."""
    gpus = request.gpus * request.max_processes_on_host
    options = [
        ("name of the job in the queue", f"--job-name={request.name}"),
        ("file for the output; %j is the job ID", "--output=%x-%j.out"),
        ("hosts", f"--nodes={request.host_count}"),
        ("processes on all hosts together", f"--ntasks={request.processes}"),
        ("largest number of processes on one host", f"--ntasks-per-node={request.max_processes_on_host}"),
        ("CPU threads per process", f"--cpus-per-task={request.threads}"),
        ("memory per host", f"--mem={request.memory_mb}M"),
        ("time limit in minutes, after which Slurm stops the job", f"--time={request.minutes}"),
    ]
    if gpus:
        options.insert(6, ("GPUs per host, for all of its processes", f"--gpus-per-node={gpus}"))
    if request.queue is not None:
        options.append(
            ("partition, which decides on the hosts and the longest time limit", f"--partition={request.queue}")
        )
    # A task sees all GPUs of its host, and selects its own by the local rank.
    visibility = ["--gpu-bind=none"] if gpus else []
    may_lose_hosts = "--min-np" in request.launcher  # when a host is lost
    failure_options = ["--no-kill", "--kill-on-bad-exit=0"] if may_lose_hosts else ["--kill-on-bad-exit=1"]
    failure_comment = "if a host is lost, the others continue" if may_lose_hosts else "if one process fails, all stop"
    command = ["srun", *failure_options, *visibility, *request.command]
    return "\n".join(
        [
            "#!/bin/bash",
            "# Submit it with: sbatch FILE",
            *(line for comment, option in options for line in (f"# {comment}", f"#SBATCH {option}")),
            "",
            f"# one task per process; rank 0 prints the output; {failure_comment}",
            f"{_bash_line(command)}\n",
        ]
    )


# --- LSF: bsub and blaunch at https://www.ibm.com/docs/en/spectrum-lsf/10.1.0


def _lsf_resources(request: JobRequest) -> List[Tuple[str, List[str]]]:
    """Return a comment and a bsub option for each resource, for both kinds of LSF job files."""
    gpus = request.gpus * request.max_processes_on_host
    options = [
        ("name of the job in the queue", ["-J", request.name]),
        ("number of processes, with one slot each", ["-n", str(request.processes)]),
        ("largest number of processes on one host", ["-R", f"span[ptile={request.max_processes_on_host}]"]),
        ("GPUs per host, which no other job may use", ["-gpu", f"num={gpus}:j_exclusive=yes"]),
        ("memory, in MB unless the cluster uses another unit", ["-R", f"rusage[mem={request.memory_mb}]"]),
        ("hardware threads per process", ["-R", f"affinity[thread*{request.threads}]"]),
        ("time limit in minutes, after which LSF stops the job", ["-W", str(request.minutes)]),
    ]
    if not gpus:
        del options[3]
    if request.queue is not None:
        options.insert(1, ("queue, which decides on the hosts and the longest time limit", ["-q", request.queue]))
    return options


def lsf_job_file(request: JobRequest) -> str:
    """Return a job file for bsub. In the job, blaunch starts one task in each slot."""
    resources = [*_lsf_resources(request), ("file for the output; %J is the job ID", ["-o", "%J.out"])]
    options = [line for comment, words in resources for line in (f"# {comment}", f'#BSUB {words[0]} "{words[1]}"')]
    command = _bash_line(["blaunch", "-no-shell", *request.command])
    return "\n".join(
        [
            "#!/bin/bash",
            "# Submit it with: bsub < FILE",
            *options,
            "",
            "# one task per slot; without a shell, which would parse the arguments again",
            f"{command}\n",
        ]
    )


def lsf_interactive_job_file(request: JobRequest) -> str:
    """Return a script for a login host that opens a shell on the first host of an LSF job."""
    options = [
        line for comment, words in _lsf_resources(request) for line in (f"    # {comment}", f"    {_bash_line(words)}")
    ]
    command = request.command
    command[3:3] = ["-n", str(request.processes)]
    return "\n".join(
        [
            "#!/bin/bash",
            "# Run this script on a login host: bash FILE. It opens a shell on a host of the job.",
            "# In that shell, start the processes on all hosts of the job with:",
            f"# {_bash_line(command)}",
            "options=(",
            *options,
            ")",
            "# opens a shell with a terminal as soon as the resources are free",
            'bsub "${options[@]}" -Is /bin/bash\n',
        ]
    )


# --- Kubernetes: an indexed job, and a service that lets its pods find each other by name
#
# https://kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication/

# Port of rank 0. The second port is used if the launcher's options contain the first, as --port.
KUBERNETES_PORTS = (9091, 9092)
KUBERNETES_TEMPLATE = """\
# Submit it with: kubectl apply -f FILE; kubectl logs -f job/{name}
apiVersion: "v1"  # API version of services
kind: "Service"  # gives the pods host names
metadata:  # name of the service
  name: "{name}"  # the host names are {name}-0.{name} and so on
spec:  # settings of the service
  clusterIP: "None"  # no IP address, because the names resolve to the pods
  publishNotReadyAddresses: true  # resolve names before the pods are ready
  selector:  # pods of the service
    job-name: "{name}"  # all pods of this job
---
apiVersion: "batch/v1"  # indexed jobs require Kubernetes 1.24 or newer
kind: "Job"  # runs pods until they have finished
metadata:  # name of the job
  name: "{name}"  # name of the job
spec:  # settings of the job
  completionMode: "Indexed"  # the index of a pod is its rank
  completions: {processes}  # number of processes
  parallelism: {processes}  # run all at the same time
  backoffLimit: 0  # if one process fails, stop all
  activeDeadlineSeconds: {seconds}  # time limit
  template:  # settings of each pod
    spec:  # contents of a pod
      subdomain: "{name}"  # name of the service above
      restartPolicy: "Never"  # a single process cannot rejoin the others
      containers:  # containers of a pod
        - name: "train"  # the only container of a pod
          image: "{image}"  # an image in which gluonlab is installed
          command:  # command line of a training process
{command}
          env:  # variables for the process
            - name: "GLUONLAB_WORLD_SIZE"  # number of processes
              value: "{processes}"  # one per pod
            - name: "GLUONLAB_MASTER_ADDR"  # host name of rank 0
              value: "{name}-0.{name}"  # the first pod
            - name: "GLUONLAB_PORT"  # port of rank 0
              value: "{port}"  # a free port
          resources:  # resources of each pod
            limits:  # also reserved for the pod
              cpu: "{threads}"  # CPU threads
              memory: "{memory_mb}M"  # memory, including /dev/shm
{gpus}          volumeMounts:  # mounted volumes
            - name: "shm"  # the volume below
              mountPath: "/dev/shm"  # shared memory for the data-loading workers
      volumes:  # volumes of the pod
        - name: "shm"  # larger than the default of 64 MB
          emptyDir:  # empty at the start
            medium: "Memory"  # uses the memory of the pod
"""


def kubernetes_job_file(request: JobRequest) -> str:
    """Return a job file for kubectl, with one pod for each process.

    Raises ConfigError if ``processes_per_host`` is not 1.
    """
    if request.processes_per_host != 1:
        raise ConfigError(
            f"processes_per_host={request.processes_per_host} is not possible in Kubernetes, because each "
            "pod runs one process: set processes_per_host=1, and use more GPUs per process"
        )
    comments = [
        "Python in the image", "run a module", "join the process group", "with --backend",
        "method of gradient reduction", *_argument_comments(request.launcher), "options of the run follow",
        *_argument_comments(request.words),
    ]  # fmt: skip
    command = [  # Kubernetes replaces $(NAME) in words, and $$ by $
        f"            - {_yaml_string(word.replace('$', '$$'))}  # {comment}"
        for word, comment in zip(request.command, comments)
    ]
    return KUBERNETES_TEMPLATE.format(
        name=request.name,
        processes=request.processes,
        seconds=request.minutes * 60,
        image=request.image or "gluonlab:latest",
        command="\n".join(command),
        port=next(each for each in KUBERNETES_PORTS if str(each) not in request.launcher),
        threads=request.threads,
        memory_mb=request.memory_mb,
        gpus=f'              nvidia.com/gpu: "{request.gpus}"  # GPUs\n' if request.gpus else "",
    )


def _argument_comments(words: Iterable[str]) -> List[str]:
    return ["an option" if word.startswith("-") else "its value" for word in words]


def _yaml_string(text: str) -> str:
    """Quote a text for YAML. Unprintable characters become JSON escapes."""
    letters = json.dumps(text, ensure_ascii=False)
    return "".join(
        letter if letter.isprintable() or ord(letter) > 0xFFFF else f"\\u{ord(letter):04x}" for letter in letters
    )


# --- SageMaker: the parameters of CreateTrainingJob, based on a template
#
# The templates are copies of the files in `sagemaker/training`, because an installed gluonlab does
# not contain that folder.
# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateTrainingJob.html

TEMPLATE_FOLDER = Path(__file__).parent / "training"
# The role of sagemaker/notebook.yaml only lets a notebook start jobs with this prefix.
JOB_NAME_PREFIX = "gluonlab-"
ASYNC_BACKEND = "dist_async"
DEFAULT_VOLUME_GB = 50
TEMPLATE_BUCKET = re.compile(r"s3://[^/]+/gluonlab/")  # the placeholder in the templates
YAML_COMMENTS = {
    "TrainingJobName": "name of the job, unique in the AWS account",
    "AlgorithmSpecification": "what the job runs",
    "TrainingImage": "AWS's image with MXNet, in your region",
    "TrainingInputMode": "copy the data to each host before the job starts",
    "MetricDefinitions": "values that AWS reads from the job's output, for its charts",
    "Name": "name of a chart",
    "Regex": "the value is the group in parentheses",
    "RoleArn": "role with the permissions of the job",
    "HyperParameters": "settings of the image, and options of the run, as JSON",
    "sagemaker_program": "the module that each process runs",
    "sagemaker_submit_directory": "location of gluonlab's source",
    "sagemaker_region": "AWS region of the job",
    "sagemaker_mpi_enabled": "mpirun starts the processes",
    "sagemaker_mpi_num_of_processes_per_host": "number of processes per host",
    "sagemaker_parameter_server_enabled": "the image starts the scheduler, servers and workers",
    "backend": "method of gradient reduction",
    "InputDataConfig": "the training data",
    "ChannelName": "copied to /opt/ml/input/data/training",
    "DataSource": "location of the data",
    "S3DataSource": "in an S3 bucket",
    "S3DataType": "all files whose names start with this prefix",
    "S3Uri": "address of the data",
    "S3DataDistributionType": "all files to each host",
    "OutputDataConfig": "results of the run",
    "S3OutputPath": "uploaded here when the job has ended",
    "ResourceConfig": "hosts of the job",
    "InstanceType": "machine type, which decides on GPUs, threads and memory",
    "InstanceCount": "number of hosts",
    "VolumeSizeInGB": "size of the volume of each host, which has no local disk",
    "StoppingCondition": "time limit",
    "MaxRuntimeInSeconds": "in seconds, after which AWS stops the job",
    "Tags": "tags for the AWS bill",
    "Key": "name of the tag",
    "Value": "value of the tag",
}


def sagemaker_job_file(request: JobRequest) -> str:
    """Return the parameters of CreateTrainingJob as YAML, for AWS CLI version 2.

    Raises ConfigError for:

    - the user's own program
    - words that are not options
    - several processes on a host without Horovod
    - options with which the servers update the weights
    """
    parameters = _sagemaker_parameters(request)
    head = (
        "# Submit it with: aws sagemaker create-training-job --cli-input-yaml file://FILE\n# Fill "
        "in your own account, region, bucket and role; see sagemaker/README.md"
    )
    return "\n".join([head, *_yaml_lines(parameters)]) + "\n"


def _sagemaker_parameters(request: JobRequest) -> Dict[str, Any]:
    """Return the parameters of CreateTrainingJob: the template, changed as requested."""
    if is_program(request.words):
        raise ConfigError(
            f"--print sagemaker does not support the program {request.words[0]}, because "
            "SageMaker's image starts your program itself: choose another kind of job file"
        )
    horovod = request.backend == "horovod"
    if not horovod and request.processes_per_host != 1:
        raise ConfigError(
            f"processes_per_host={request.processes_per_host} is not possible with {request.backend}, because "
            "SageMaker starts one process per host: set processes_per_host=1, or choose --backend horovod"
        )
    run_options = options_to_hyperparameters(request.words)
    if request.backend == ASYNC_BACKEND or "update-on-servers" in run_options:
        is_async = request.backend == ASYNC_BACKEND
        raise ConfigError(
            f"{f'--backend {ASYNC_BACKEND}' if is_async else '--update-on-servers'} is not possible, because "
            "SageMaker's servers cannot load gluonlab's optimizers: choose --backend dist_sync without "
            "--update-on-servers, or choose --backend horovod"
        )
    template = TEMPLATE_FOLDER / f"{'horovod' if horovod else 'parameter-server'}.json"
    parameters: Dict[str, Any] = json.loads(template.read_text(encoding="utf-8"))
    parameters = parameters if request.bucket is None else replace_bucket(parameters, request.bucket)
    name = request.name if request.name.startswith(JOB_NAME_PREFIX) else JOB_NAME_PREFIX + request.name
    parameters.update(TrainingJobName=name, RoleArn=request.role or parameters["RoleArn"])
    algorithm, resources = parameters["AlgorithmSpecification"], parameters["ResourceConfig"]
    algorithm["TrainingImage"] = request.image or algorithm["TrainingImage"]
    resources.update(InstanceType=request.instance or resources["InstanceType"], InstanceCount=request.host_count)
    set_volume_size(resources)
    parameters["StoppingCondition"]["MaxRuntimeInSeconds"] = request.minutes * 60
    hyperparameters = parameters["HyperParameters"]
    hyperparameters["backend"] = json.dumps(request.backend)
    hyperparameters.pop("gpus", None)  # the template's; each process has its own
    if request.gpus and "devices" not in run_options:
        hyperparameters["gpus"] = str(request.gpus)
    if horovod:
        hyperparameters["sagemaker_mpi_num_of_processes_per_host"] = str(request.max_processes_on_host)
    hyperparameters.update({**options_to_hyperparameters(request.launcher), **run_options})
    return parameters


def options_to_hyperparameters(words: Tuple[str, ...]) -> Dict[str, str]:
    """Convert options to hyperparameters: ``--epochs 3`` to ``{"epochs": '"3"'}``.

    Each value is JSON. Options without a value become ``true``. Raises ConfigError for a word that
    does not belong to an option.
    """
    values: Dict[str, str] = {}
    name: Optional[str] = None
    for word in words:
        option = re.fullmatch(r"--([A-Za-z0-9][A-Za-z0-9-]*)(?:=(.*))?", word, re.DOTALL)
        if option:
            name = option[1] if option[2] is None else None
            values[option[1]] = "true" if option[2] is None else json.dumps(option[2])
        elif name is not None:
            values[name], name = json.dumps(word), None
        else:
            raise ConfigError(
                f"{word!r} is not the value of an option: pass every option to SageMaker as "
                "--name value, as in --epochs 3"
            )
    return values


def set_volume_size(resources: Dict[str, Any], size_gb: Optional[int] = None) -> None:
    """Set the volume size in ``resources``, the ResourceConfig of a training job.

    AWS requires a size for machines without a local disk, and creates no volume for other machines.
    ``size_gb`` is None for the default size. Raises ConfigError for a size or an encryption key
    that AWS would not use.
    """
    instance = resources["InstanceType"]
    if not instance_has_local_disk(instance):
        resources["VolumeSizeInGB"] = size_gb or resources.get("VolumeSizeInGB", DEFAULT_VOLUME_GB)
        return
    resources.pop("VolumeSizeInGB", None)
    if size_gb is not None:
        raise ConfigError(
            f"a volume of {size_gb} GB is not possible, because {instance} has a local disk, "
            "which the job uses: omit the size"
        )
    if resources.get("VolumeKmsKeyId") is not None:
        raise ConfigError(
            f"VolumeKmsKeyId is not possible for {instance}, whose local disk is always "
            "encrypted: remove the key and use OutputDataConfig.KmsKeyId for the results, or "
            "choose another instance type, such as ml.p3.8xlarge"
        )


def replace_bucket(value: Any, bucket: str) -> Any:
    """Replace the placeholder bucket in all S3 addresses in a template, or in a part of one."""
    if isinstance(value, str):
        return TEMPLATE_BUCKET.sub(f"s3://{bucket}/gluonlab/", value)
    if isinstance(value, list):
        return [replace_bucket(item, bucket) for item in value]
    if isinstance(value, dict):
        return {key: replace_bucket(item, bucket) for key, item in value.items()}
    return value


def _yaml_lines(mapping: Dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a mapping as YAML, each with the comment that belongs to its key."""
    for key, value in mapping.items():
        comment = f"  # {YAML_COMMENTS.get(key, 'an option of the run')}"
        if isinstance(value, dict):
            yield f"{key}:{comment}"
            yield from (f"  {line}" for line in _yaml_lines(value))
        elif isinstance(value, list):
            yield f"{key}:{comment}"
            for item in value:
                first, *rest = _yaml_lines(item)
                yield from (f"  - {first}", *(f"    {line}" for line in rest))
        else:
            scalar = _yaml_string(value) if isinstance(value, str) else json.dumps(value)
            yield f"{key}: {scalar}{comment}"


JOB_FILE_KINDS: Dict[str, Callable[[JobRequest], str]] = {
    "slurm": slurm_job_file, "lsf": lsf_job_file, "lsf-interactive": lsf_interactive_job_file,
    "k8s": kubernetes_job_file, "sagemaker": sagemaker_job_file,
}  # fmt: skip


def job_file(kind: str, request: JobRequest) -> str:
    """Return the text of a job file of this kind, such as ``slurm``.

    Args:
        kind: a key of JOB_FILE_KINDS, such as ``slurm``
        request: the job

    Raises:
        ConfigError: for an unknown kind, or for a request that the kind does not support
    """
    if kind not in JOB_FILE_KINDS:
        raise ConfigError(unknown("--print", kind, JOB_FILE_KINDS))
    return JOB_FILE_KINDS[kind](request)
