"""Which instance types and platforms AWS still combines, by instances.json."""

import json
from pathlib import Path

HERE = Path(__file__).resolve().parent


def _table(name):
    return json.loads((HERE / "instances.json").read_text(encoding="utf-8"))[name]


def instances():
    """{instance type: GPUs, batch size, platform, status, date}; README.md explains the keys."""
    return _table("instances")


def platforms():
    """{platform: dead_since, a date or None; why; excludes, beginnings of instance types; becomes,
    the platform that AWS changes it to with its volume, or None}.
    """
    return _table("platforms")


def dead(instance_type, platform):
    """Why AWS should refuse this type on this platform, in one dated line; empty if unknown."""
    about = platforms().get(platform)
    if about is None:
        return ""
    if about["dead_since"]:
        return f"{platform} is dead since {about['dead_since']}: {about['why']}"
    if instance_type.startswith(tuple(about["excludes"])):
        instead = instances().get(instance_type, {}).get("instead")
        other = f"; {instead} is the nearest that lives" if instead else ""
        return (
            f"{platform} does not start {instance_type} (as of {about['as_of']}): "
            f"{about['why']}{other}"
        )
    return ""


def ending(instance_type):
    """Why a machine of this type may not be had much longer, in one dated line; empty if alive."""
    for beginning, about in _table("ending").items():
        if instance_type.startswith(beginning):
            instead = instances().get(instance_type, {}).get("instead")
            other = f"; {instead} is the nearest that lives" if instead else ""
            return (
                f"{instance_type} is at its end since {about['since']} "
                f"(as of {about['as_of']}): {about['why']}{other}"
            )
    return ""


def unfit(instance_type):
    """Why MXNet cannot use the GPUs of this type, in one line; empty if it can, or without GPUs."""
    return next(
        (why for beginning, why in _table("unfit").items() if instance_type.startswith(beginning)),
        "",
    )
