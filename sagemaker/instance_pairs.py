"""Combinations of instance types and platforms that AWS still starts, by instances.json."""

import json
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def _load_table(name):
    return json.loads((FOLDER / "instances.json").read_text(encoding="utf-8"))[name]


def load_instances():
    """Return the facts about each instance type; README.md explains their keys."""
    return _load_table("instances")


def load_platforms():
    """Return the facts about each platform.

    Keys: ``dead_since``, a date or None; ``why``; ``excludes``, prefixes of instance types;
    ``becomes``, the platform that AWS can change it to without loss of the volume, or None.
    """
    return _load_table("platforms")


def dead_reason(instance_type, platform):
    """Explain why AWS refuses this type on this platform; empty if it does not, or if unknown."""
    facts = load_platforms().get(platform)
    if facts is None:
        return ""
    if facts["dead_since"]:
        return f"AWS ended support for {platform} on {facts['dead_since']}: {facts['why']}"
    if instance_type.startswith(tuple(facts["excludes"])):
        return (
            f"{platform} cannot run on {instance_type} (as of {facts['as_of']}): "
            f"{facts['why']}{_alternative_note(instance_type)}"
        )
    return ""


def _alternative_note(instance_type):
    instead = load_instances().get(instance_type, {}).get("instead")
    return f"; {instead} is the closest available type" if instead else ""


def ending_reason(instance_type):
    """Explain why AWS may soon stop offering this type; empty if AWS has not announced it."""
    for prefix, facts in _load_table("ending").items():
        if instance_type.startswith(prefix):
            return (
                f"AWS has been phasing out {instance_type} since {facts['since']} (as of {facts['as_of']}): "
                f"{facts['why']}{_alternative_note(instance_type)}"
            )
    return ""


def unfit_reason(instance_type):
    """Explain why MXNet cannot use the GPUs of this type; empty if it can, or without GPUs."""
    reasons = _load_table("unfit").items()
    return next((why for prefix, why in reasons if instance_type.startswith(prefix)), "")
