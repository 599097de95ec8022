"""The machines of `sagemaker/instances.json`, and which of them AWS still starts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Callable, Collection, Dict, Optional

import botocore.session

import instance_pairs as pairs
from gluonlab.errors import unknown
from gluonlab_sagemaker.errors import RefusedError

PLATFORM = re.compile(r"notebook-[a-z0-9]+-v[0-9]+")
FOLDER = Path(__file__).resolve().parent.parent


def instance_type(given: str, kind: str = "InstanceType") -> str:
    """The API's name of an instance type: ``p3.8xlarge`` and ``ml.p3.8xlarge`` are the same.

    One that `instances.json` lacks must be one that the API takes for ``kind``: "InstanceType"
    (notebooks), "TrainingInstanceType".
    """
    name = given if given.startswith("ml.") else f"ml.{given}"
    if name not in pairs.instances() and name not in _known_to_aws(kind):
        raise RefusedError(unknown("instance", name, pairs.instances()))
    return name


def _known_to_aws(kind: str) -> Collection[str]:
    names: Collection[str] = (
        botocore.session.get_session().get_service_model("sagemaker").shape_for(kind).enum
    )
    return names


def platform(given: str) -> str:
    """A platform that is known here, or named like one. Raises RefusedError for another."""
    if given not in pairs.platforms() and not PLATFORM.fullmatch(given):
        raise RefusedError(unknown("platform", given, pairs.platforms()))
    return given


def unknown_platform(given: Optional[str]) -> str:
    """A warning about a platform of which nothing is known here; empty for a known one."""
    if given is None or given in pairs.platforms():
        return ""
    newest = max(about["as_of"] for about in pairs.platforms().values())
    return (
        f"{given} is no platform that is known here (as of {newest}): what it starts, and whether "
        f"gluonlab installs itself there, is not known; known are {', '.join(pairs.platforms())}"
    )


def way_out(instance: Optional[str], platform: Optional[str]) -> str:
    """The options of `resize` that make this pair one that AWS starts; empty if there are none."""
    about = pairs.platforms().get(platform)
    if about is None or (about["dead_since"] and not about["becomes"]):
        return ""
    options = f" --platform {about['becomes']}" if about["becomes"] else ""
    if instance is not None and pairs.dead(instance, about["becomes"] or platform):
        instead = (pairs.instances().get(instance) or {}).get("instead")
        options += f" --instance {instead or 'TYPE'}"
    return options


def request(instance: str) -> Dict[str, Any]:
    """The request to make a notebook on this instance type, with names still to be filled in."""
    table = pairs.instances()
    like = (
        instance
        if instance in table
        else next(name for name, facts in table.items() if facts["status"] == "alive")
    )
    found: Dict[str, Any] = json.loads(
        (FOLDER / table[like]["request"]).read_text(encoding="utf-8")
    )
    return {**found, "InstanceType": instance}


def refuse_dead(instance: str, platform: Optional[str], force: bool) -> Optional[str]:
    """Refuse a type that AWS no longer starts; with ``force``, return a warning instead."""
    reason = pairs.dead(instance, platform)
    if not reason:
        return None
    if force:
        return f"{reason} (--force: AWS is asked all the same)"
    facts = pairs.instances().get(instance) or {}
    instead = (
        f"choose --instance {facts['instead']}"
        if facts.get("instead")
        else "choose another --instance or --platform"
    )
    raise RefusedError(f"{reason.rstrip('.')}: {instead}, or ask AWS all the same with --force")


def warn_of_end(instance: str, note: Callable[[str], None]) -> None:
    """Say of a machine that AWS has given up that it may not be had."""
    reason = pairs.ending(instance)
    if reason:
        note(f"warning: {reason}")


def refuse_unfit(instance: str, otherwise: str) -> None:
    """Refuse a machine whose GPUs cannot run MXNet; ``otherwise``: how to get it all the same."""
    reason = pairs.unfit(instance)
    if reason:
        alive = [name for name, facts in pairs.instances().items() if facts["status"] == "alive"]
        raise RefusedError(
            f"--instance {instance}: {reason}: choose {', '.join(alive)}, or {otherwise}"
        )


def examples() -> str:
    """The types that AWS still starts, for a message."""
    alive = [name for name, facts in pairs.instances().items() if facts["status"] == "alive"]
    return f"such as {', '.join(alive)} (`create --instance list` says what they are)"


def summary(instance: str, costs: str) -> str:
    """An instance type in a line; ``costs``: its price in words."""
    facts = pairs.instances()[instance]
    gpus = f"{facts['gpus']} x {facts['gpu']} {facts['gpu_memory_gb']} GB"
    state = "" if facts["status"] == "alive" else f"  {facts['status']} as of {facts['as_of']}"
    size = f"{facts['vcpus']:>3} vCPUs {facts['memory_gib']:>5} GiB"
    return f"{instance:<18}{gpus:<17}{size}  {facts['links']:<10}{costs:<20}{state}".rstrip()
