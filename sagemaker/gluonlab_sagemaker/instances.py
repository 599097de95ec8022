"""Instance types and platforms: checks against `sagemaker/instances.json` and the API."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Callable, Collection, Dict, List, Optional

import botocore.session

import instance_pairs as pairs
from gluonlab.errors import unknown
from gluonlab_sagemaker.errors import RefusedError

PLATFORM_PATTERN = re.compile(r"notebook-[a-z0-9]+-v[0-9]+")
FOLDER = Path(__file__).resolve().parent.parent
CPU_INSTANCE = "ml.m5.xlarge"  # a cheap machine without GPUs, see README.md
CPU_INSTANCE_SIZE = (4, 16)  # its vCPUs, and its memory in GiB


def normalize_instance_type(instance: str, kind: str = "InstanceType") -> str:
    """Return the API's name of an instance type: ``ml.p3.8xlarge`` for ``p3.8xlarge``.

    Raises RefusedError for a type that neither `instances.json` nor the API's enumeration ``kind``
    contains: "InstanceType" for notebooks, "TrainingInstanceType" for jobs.
    """
    name = instance if instance.startswith("ml.") else f"ml.{instance}"
    if name not in pairs.load_instances() and name not in _api_instance_types(kind):
        raise RefusedError(unknown("instance", name, pairs.load_instances()))
    return name


def _api_instance_types(kind: str) -> Collection[str]:
    names: Collection[str] = botocore.session.get_session().get_service_model("sagemaker").shape_for(kind).enum
    return names


def check_platform(platform: str) -> str:
    """Return ``platform``; raise RefusedError if it is not named like a platform."""
    if platform not in pairs.load_platforms() and not PLATFORM_PATTERN.fullmatch(platform):
        raise RefusedError(unknown("platform", platform, pairs.load_platforms()))
    return platform


def unknown_platform_warning(platform: Optional[str]) -> str:
    """Return a warning about a platform that `instances.json` lacks, or an empty string."""
    platforms = pairs.load_platforms()
    if platform is None or platform in platforms:
        return ""
    newest = max(facts["as_of"] for facts in platforms.values())
    return (
        f"{platform} is not a known platform (as of {newest}), so gluonlab may not start or install there: choose "
        f"from {', '.join(platforms)}"
    )


def resize_options(instance: Optional[str], platform: Optional[str]) -> str:
    """Return the options of `resize` that make AWS start this pair; empty if there are none."""
    facts = pairs.load_platforms().get(platform)
    if facts is None or (facts["dead_since"] and not facts["becomes"]):
        return ""
    options = f" --platform {facts['becomes']}" if facts["becomes"] else ""
    if instance is not None and pairs.dead_reason(instance, facts["becomes"] or platform):
        instead = (pairs.load_instances().get(instance) or {}).get("instead")
        options += f" --instance {instead or 'TYPE'}"
    return options


def notebook_request(instance: str) -> Dict[str, Any]:
    """Load the request that creates a notebook on an instance type, without the notebook's name."""
    table = pairs.load_instances()
    similar = instance if instance in table else alive_types()[0]
    request: Dict[str, Any] = json.loads((FOLDER / table[similar]["request"]).read_text(encoding="utf-8"))
    return {**request, "InstanceType": instance}


def refuse_dead_instance(instance: str, platform: Optional[str], force: bool) -> Optional[str]:
    """Refuse a type that AWS no longer starts on a platform.

    With ``force``, returns a warning instead of raising RefusedError.
    """
    reason = pairs.dead_reason(instance, platform)
    if not reason:
        return None
    if force:
        return f"{reason} (continuing because of --force)"
    facts = pairs.load_instances().get(instance) or {}
    instead = (
        f"choose --instance {facts['instead']}" if facts.get("instead") else "choose another --instance or --platform"
    )
    raise RefusedError(f"{reason.rstrip('.')}: {instead}, or add --force to try anyway")


def warn_of_retirement(instance: str, print_note: Callable[[str], None]) -> None:
    """Print a warning about an instance type that AWS is retiring."""
    reason = pairs.ending_reason(instance)
    if reason:
        print_note(f"warning: {reason}")


def refuse_unsupported_gpu(instance: str, workaround: str) -> None:
    """Refuse an instance type whose GPUs cannot run MXNet.

    The message ends with ``workaround``, which tells users how to get the type nevertheless.
    """
    reason = pairs.unfit_reason(instance)
    if reason:
        raise RefusedError(f"--instance {instance}: {reason}: choose {', '.join(alive_types())}, or {workaround}")


def alive_types() -> List[str]:
    """Return the instance types that AWS still starts."""
    return [name for name, facts in pairs.load_instances().items() if facts["status"] == "alive"]


def instance_examples() -> str:
    """Return examples of instance types for an error message."""
    return (
        f"such as {', '.join(alive_types())}, or {CPU_INSTANCE} without GPUs (`create --instance list` describes them)"
    )


def format_instance(instance: str, price: str) -> str:
    """Format an instance type and its price as a line."""
    if instance == CPU_INSTANCE:
        vcpus, memory_gib = CPU_INSTANCE_SIZE
        return f"{instance:<18}{'no GPU':<17}{vcpus:>3} vCPUs {memory_gib:>5} GiB  {'':<10}{price:<20}".rstrip()
    facts = pairs.load_instances()[instance]
    gpus = f"{facts['gpus']} x {facts['gpu']} {facts['gpu_memory_gb']} GB"
    state = "" if facts["status"] == "alive" else f"  {facts['status']} as of {facts['as_of']}"
    size = f"{facts['vcpus']:>3} vCPUs {facts['memory_gib']:>5} GiB"
    return f"{instance:<18}{gpus:<17}{size}  {facts['links']:<10}{price:<20}{state}".rstrip()
