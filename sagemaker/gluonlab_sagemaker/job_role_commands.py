"""python sagemaker/launch.py jobs role, jobs policy: who may do what."""

from __future__ import annotations

import json
from typing import Optional, Tuple

import click

from gluonlab.cli.command import command
from gluonlab_sagemaker import instances, job_role
from gluonlab_sagemaker.checks import check_bucket, check_owner, tags
from gluonlab_sagemaker.errors import RefusedError
from gluonlab_sagemaker.options import PROGRAM, Place, anywhere, note, owner
from gluonlab_sagemaker.role import delete


@command(f"{PROGRAM} jobs role")
@anywhere()
@click.option("--bucket", metavar="NAME", help="the S3 bucket of source, data and results")
@click.option(
    "--owner", metavar="NAME", default=owner, help="for the tag `owner`  [default: your user name]"
)
@click.option("--delete", "gone", is_flag=True, help="delete the role")
def role(here: Place, bucket: Optional[str], owner: str, gone: bool) -> None:
    """Make the role that jobs run under, without a notebook; it costs nothing."""
    name = job_role.role_name(here.caller.region)
    if gone:
        here.say(f"{name} is {'gone' if delete(here.caller, name) else 'not there, or not ours'}")
        return
    if bucket is None:
        raise RefusedError("role lacks a bucket: add --bucket NAME")
    made = job_role.ensure_job_role(here.caller, check_bucket(bucket), tags(check_owner(owner)))
    here.say(made)
    note(
        f"its name is for `jobs submit --role {name}`; what whoever submits jobs needs besides is "
        f"printed by `{PROGRAM} jobs policy --bucket {bucket} --instance TYPE{here.options}`"
    )


@command(f"{PROGRAM} jobs policy")
@anywhere()
@click.option("--bucket", metavar="NAME", help="the S3 bucket of source, data and results")
@click.option(
    "--instance",
    "machines",
    metavar="TYPE",
    multiple=True,
    help="a machine that jobs may take, such as ml.g5.12xlarge; may be repeated",
)
def policy(here: Place, bucket: Optional[str], machines: Tuple[str, ...]) -> None:
    """Print the IAM policy for people who submit jobs, on these machines and no others."""
    if bucket is None or not machines:
        lacks = "a bucket: add --bucket NAME" if bucket is None else "machines: add --instance TYPE"
        raise RefusedError(f"policy lacks {lacks}")
    allowed = [instances.instance_type(one, "TrainingInstanceType") for one in machines]
    account = job_role.account_of(here.caller)
    here.say(json.dumps(job_role.submitter(account, check_bucket(bucket), allowed), indent=2))


COMMANDS: Tuple[Tuple[str, click.Command], ...] = (("role", role), ("policy", policy))
