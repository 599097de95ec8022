"""An indexed job for Kubernetes, with the service by which its pods find each other.

Source: https://kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication/.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List

from gluonlab.errors import ConfigError
from gluonlab.launch.jobs.request import JobRequest
from gluonlab.launch.jobs.yaml_text import Said, yaml_lines

PORTS = (9091, 9092)  # each pod has ports of its own; one may be the scheduler's
IMAGE = "gluonlab:latest"


def kubernetes(request: JobRequest) -> str:
    """The file for kubectl: one pod for each process. Raises ConfigError for several in a pod."""
    if request.processes_per_host != 1:
        raise ConfigError(
            f"processes_per_host = {request.processes_per_host}: in Kubernetes each process has a "
            "pod of its own: leave it at 1, and give each process more GPUs"
        )
    head = "# Submit it with: kubectl apply -f FILE; kubectl logs -f job/" + request.name
    parts = [yaml_lines(_service(request)), ["---"], yaml_lines(_job(request))]
    return "\n".join([head, *(line for part in parts for line in part)]) + "\n"


def _service(request: JobRequest) -> Dict[str, Any]:
    name = request.name
    return {
        "apiVersion": Said("v1", "a service, in Kubernetes's first API"),
        "kind": Said("Service", "what gives the pods names that others can look up"),
        "metadata": Said({"name": Said(name, f"pods are called {name}-0.{name} and so on")},
                         "of the service"),
        "spec": Said({
            "clusterIP": Said("None", "no address of its own: names lead to the pods"),
            "publishNotReadyAddresses": Said(True, "from the moment they start"),
            "selector": Said({"job-name": Said(name, "the pods of this job")}, "which pods"),
        }, "what is asked for"),
    }  # fmt: skip


def _job(request: JobRequest) -> Dict[str, Any]:
    name, count = request.name, request.processes
    pod = {
        "subdomain": Said(name, "the service above"),
        "restartPolicy": Said("Never", "a process alone cannot come back into its group"),
        "containers": Said([{
            "name": Said("train", "the only container of a pod"),
            "image": Said(request.image or IMAGE, "an image in which gluonlab is installed"),
            "command": Said(_words(request), "one process of the training"),
            "env": Said(_variables(request), "what Kubernetes does not tell a pod"),
            "resources": Said({"limits": Said(_limits(request), "as much is kept free for it")},
                              "of each pod"),
            "volumeMounts": Said([{
                "name": Said("shm", "the volume below"),
                "mountPath": Said("/dev/shm", "where decoders of images share memory"),
            }], "what it finds in its files"),
        }], "what runs in a pod"),
        "volumes": Said([{
            "name": Said("shm", "Kubernetes's own is 64 MB"),
            "emptyDir": Said({"medium": Said("Memory", "a part of the memory above")}, "new"),
        }], "what a pod may mount"),
    }  # fmt: skip
    return {
        "apiVersion": Said("batch/v1", "indexed jobs: Kubernetes 1.24 or newer"),
        "kind": Said("Job", "pods that run until they are done"),
        "metadata": Said({"name": Said(name, "the job's name")}, "of the job"),
        "spec": Said({
            "completionMode": Said("Indexed", "each pod knows its number, which is its rank"),
            "completions": Said(count, "processes"),
            "parallelism": Said(count, "all at the same time"),
            "backoffLimit": Said(0, "if one fails, all end"),
            "activeDeadlineSeconds": Said(request.minutes * 60, "the longest that it may take"),
            "template": Said({"spec": Said(pod, "what a pod is made of")}, "of each pod"),
        }, "what is asked for"),
    }  # fmt: skip


def _words(request: JobRequest) -> List[Said]:
    """Kubernetes replaces $(NAME) in words, and $$ by $."""
    comments = [
        "the interpreter of the image", "runs a module", "which joins the group", "over",
        "this way of exchanging gradients", *_comments(request.launcher), "the rest is the run's",
        *_comments(request.words),
    ]  # fmt: skip
    return [
        Said(word.replace("$", "$$"), comment) for word, comment in zip(request.command, comments)
    ]


def _comments(words: Iterable[str]) -> List[str]:
    return ["an option" if word.startswith("-") else "its value" for word in words]


def _variables(request: JobRequest) -> List[Dict[str, Said]]:
    port = next(each for each in PORTS if str(each) not in request.launcher)
    given = (
        ("GLUONLAB_PROCESSES", str(request.processes), "how many pods there are"),
        ("GLUONLAB_ROOT", f"{request.name}-0.{request.name}", "the name of the first one"),
        ("GLUONLAB_PORT", str(port), "where it listens"),
    )
    return [
        {"name": Said(name, comment), "value": Said(value, "its value")}
        for name, value, comment in given
    ]


def _limits(request: JobRequest) -> Dict[str, Said]:
    limits = {
        "cpu": Said(str(request.threads), "threads"),
        "memory": Said(f"{request.memory_mb}M", "memory, the one in /dev/shm included"),
    }
    if request.gpus:
        limits["nvidia.com/gpu"] = Said(str(request.gpus), "GPUs")
    return limits
