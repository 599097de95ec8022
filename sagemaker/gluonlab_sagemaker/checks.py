"""What can be known to be wrong before AWS is asked."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Any, Dict, Iterable, List, Sequence

from gluonlab.errors import unknown
from gluonlab_sagemaker.errors import RefusedError

LONGEST_NAME = 63
MOST_GROUPS = 5
NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*")
BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
REPOSITORY = re.compile(r"https://[^\s'\"\\]+")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=[A-Za-z0-9._~:/?#!&,;=%+-]*")  # as notebook.yaml
LONGEST_ENVIRONMENT = 512  # with the blanks between
OWNER = re.compile(r"[\w .:/=+@-]{1,256}")
MINE = {"Key": "project", "Value": "gluonlab"}


def check_name(kind: str, name: str) -> str:
    """Raise RefusedError for a name that is not at most 63 letters, digits and hyphens."""
    rule = (
        f"write at most {LONGEST_NAME} letters (a-z, A-Z), digits and hyphens, "
        "with no hyphen first or last"
    )
    if len(name) > LONGEST_NAME:
        raise RefusedError(f"{kind} {name}: {len(name)} characters: {rule}")
    if not re.fullmatch(NAME, name):
        raise RefusedError(f"{kind} {name!r} is not a name that AWS takes: {rule}")
    return name


def check_bucket(name: str) -> str:
    """Raise RefusedError for a bucket that is not given by its name alone."""
    if not re.fullmatch(BUCKET, name):
        raise RefusedError(
            f"--bucket {name}: write the bucket's name alone, such as my-bucket, "
            "without s3:// and folders"
        )
    return name


def check_repository(address: str) -> str:
    """Raise RefusedError for a git address that a notebook without keys cannot clone."""
    if not re.fullmatch(REPOSITORY, address) or "@" in address:
        raise RefusedError(
            f"--repository {address.split('@')[-1]}: "
            "write an https:// address that needs no password"
        )
    return address


def check_environment(variables: Sequence[str]) -> str:
    """The variables as the start scripts take them; RefusedError for what these leave out."""
    for given in variables:
        if not re.fullmatch(VARIABLE, given):
            raise RefusedError(
                f"--environment {given.partition('=')[0]}: write NAME=VALUE, such as "
                "HTTPS_PROXY=http://proxy:3128, without blanks, quotes and @; passwords and others "
                "belong into the file ~/SageMaker/.gluonlab/environment"
            )
    names = [given.partition("=")[0] for given in variables]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise RefusedError(f"--environment {twice}=...: it is there twice: give it once")
    text = " ".join(variables)
    if len(text) > LONGEST_ENVIRONMENT:
        raise RefusedError(
            f"--environment has {len(text)} characters in all: give at most {LONGEST_ENVIRONMENT}, "
            "and the rest in the file ~/SageMaker/.gluonlab/environment"
        )
    return text


def check_region(region: str, known: Iterable[str]) -> str:
    """Raise RefusedError for a region that boto3 does not know: its host would not resolve."""
    regions = sorted(known)
    if region not in regions:
        remedy = (
            f"{unknown('region', region, regions)}; for a newer region, a newer boto3: "
            "pip install -U boto3"
        )
        raise RefusedError(remedy)
    return region


def check_owner(owner: str) -> str:
    """Raise RefusedError for an owner that a tag cannot hold."""
    if not re.fullmatch(OWNER, owner):
        raise RefusedError(
            f"--owner {owner!r}: a tag holds 1 to 256 letters, digits, spaces and . : / = + @ - _"
        )
    return owner


def check_network(subnet: object, security_groups: Sequence[str]) -> None:
    """Raise RefusedError for a subnet without one to five security groups, or groups without it."""
    if subnet and not security_groups:
        raise RefusedError(
            f"--subnet {subnet} lacks its security groups: "
            "add --security-group sg-..., once or more"
        )
    if len(security_groups) > MOST_GROUPS:
        raise RefusedError(
            f"--security-group is given {len(security_groups)} times: "
            f"AWS takes at most {MOST_GROUPS}"
        )
    if security_groups and not subnet:
        raise RefusedError(
            f"--security-group {security_groups[0]} lacks its subnet: add --subnet subnet-..."
        )


def tags(owner: str, **more: str) -> List[Dict[str, str]]:
    """What everything that is made here is tagged with: project, owner, created (UTC)."""
    created = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return [
        MINE,
        *(
            {"Key": key, "Value": value}
            for key, value in {"owner": owner, "created": created, **more}.items()
        ),
    ]


def is_ours(found: Iterable[Dict[str, Any]]) -> bool:
    """Whether something bears the tag that `tags` gives."""
    return MINE in [{"Key": tag["Key"], "Value": tag["Value"]} for tag in found]
