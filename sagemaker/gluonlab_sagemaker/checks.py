"""Checks of option values before AWS is called."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Any, Dict, Iterable, List, Sequence

from gluonlab.errors import unknown
from gluonlab_sagemaker.errors import RefusedError

MAX_NAME_LENGTH = 63
MAX_SECURITY_GROUPS = 5
NAME_PATTERN = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*")
BUCKET_PATTERN = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
REPOSITORY_PATTERN = re.compile(r"https://[^\s'\"\\]+")
# the same pattern as in notebook.yaml
VARIABLE_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=[A-Za-z0-9._~:/?#!&,;=%+-]*")
MAX_ENVIRONMENT_LENGTH = 512  # of all assignments, with the blanks between them
OWNER_PATTERN = re.compile(r"[\w .:/=+@-]{1,256}")
PROJECT_TAG = {"Key": "project", "Value": "gluonlab"}


def check_name(kind: str, name: str) -> str:
    """Return ``name``; raise RefusedError unless it has at most 63 letters, digits and hyphens."""
    rule = f"use at most {MAX_NAME_LENGTH} letters (a-z, A-Z), digits and hyphens, without a hyphen at the start or end"
    if len(name) > MAX_NAME_LENGTH:
        raise RefusedError(f"{kind} {name} has {len(name)} characters: {rule}")
    if not re.fullmatch(NAME_PATTERN, name):
        raise RefusedError(f"{kind} {name!r} is not a valid name for AWS: {rule}")
    return name


def check_bucket(name: str) -> str:
    """Return ``name``; raise RefusedError for anything but a bucket name, such as an address."""
    if not re.fullmatch(BUCKET_PATTERN, name):
        raise RefusedError(
            f"--bucket {name} is not a bucket name: use only the name, such as my-bucket, without s3:// and folders"
        )
    return name


def check_repository(address: str) -> str:
    """Return ``address``; raise RefusedError if it is not https:// or contains a password."""
    if not re.fullmatch(REPOSITORY_PATTERN, address) or "@" in address:
        raise RefusedError(
            f"--repository {address.split('@')[-1]}: use an https:// address that does not need a password"
        )
    return address


def check_environment(variables: Sequence[str]) -> str:
    """Join the assignments for the start scripts; raise RefusedError if the scripts reject one."""
    for assignment in variables:
        if not re.fullmatch(VARIABLE_PATTERN, assignment):
            raise RefusedError(
                f"--environment {assignment.partition('=')[0]}: use NAME=VALUE, such as "
                "HTTPS_PROXY=http://proxy:3128, without blanks, quotes and @; write passwords and other values to "
                "the file ~/SageMaker/.gluonlab/environment"
            )
    names = [assignment.partition("=")[0] for assignment in variables]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate:
        raise RefusedError(f"--environment {duplicate}=... was given twice: pass it once")
    text = " ".join(variables)
    if len(text) > MAX_ENVIRONMENT_LENGTH:
        raise RefusedError(
            f"--environment has {len(text)} characters in total: use at most {MAX_ENVIRONMENT_LENGTH}, and write the "
            "rest to the file ~/SageMaker/.gluonlab/environment"
        )
    return text


def check_region(region: str, available_regions: Iterable[str]) -> str:
    """Return ``region``; raise RefusedError for a region that boto3 does not know."""
    regions = sorted(available_regions)
    if region not in regions:  # the name of its host would not resolve
        remedy = f"{unknown('region', region, regions)}; if the region is new, run pip install -U boto3"
        raise RefusedError(remedy)
    return region


def check_owner(owner: str) -> str:
    """Return ``owner``; raise RefusedError if it is not valid as the value of a tag."""
    if not re.fullmatch(OWNER_PATTERN, owner):
        raise RefusedError(
            f"--owner {owner!r} is not a valid tag: use 1 to 256 letters, digits, spaces and . : / = + @ - _"
        )
    return owner


def check_network(subnet: object, security_groups: Sequence[str]) -> None:
    """Raise RefusedError unless there is a subnet with one to five security groups, or neither."""
    if subnet and not security_groups:
        raise RefusedError(f"--subnet {subnet} needs security groups: add --security-group sg-..., once or more")
    if len(security_groups) > MAX_SECURITY_GROUPS:
        raise RefusedError(
            f"--security-group was given {len(security_groups)} times: use at most {MAX_SECURITY_GROUPS}"
        )
    if security_groups and not subnet:
        raise RefusedError(f"--security-group {security_groups[0]} needs a subnet: add --subnet subnet-...")


def resource_tags(owner: str, **other_tags: str) -> List[Dict[str, str]]:
    """Return the tags of new resources: project, owner, time of creation (UTC) and others."""
    created = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return [
        PROJECT_TAG,
        *({"Key": key, "Value": value} for key, value in {"owner": owner, "created": created, **other_tags}.items()),
    ]


def has_gluonlab_tag(tags: Iterable[Dict[str, Any]]) -> bool:
    """Return whether ``tags`` contains the project tag of `resource_tags`."""
    return PROJECT_TAG in [{"Key": tag["Key"], "Value": tag["Value"]} for tag in tags]
