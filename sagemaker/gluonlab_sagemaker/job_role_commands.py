"""Commands about permissions: `python sagemaker/launch.py jobs role` and `jobs policy`."""

from __future__ import annotations

import json
from typing import Optional, Tuple

import click

from gluonlab.cli.command import command
from gluonlab_sagemaker import instances, job_role
from gluonlab_sagemaker.checks import check_bucket, check_owner, resource_tags
from gluonlab_sagemaker.errors import RefusedError
from gluonlab_sagemaker.options import PROGRAM, CommandContext, aws_options, current_user, print_note
from gluonlab_sagemaker.role import delete_role


@command(f"{PROGRAM} jobs role")
@aws_options()
@click.option("--bucket", metavar="NAME", help="S3 bucket for source, data and results")
@click.option(
    "--owner", metavar="NAME", default=current_user, help="value of the tag `owner`  [default: your user name]"
)
@click.option("--delete", is_flag=True, help="delete the role")
def make_role(context: CommandContext, bucket: Optional[str], owner: str, delete: bool) -> None:
    """Create the role for jobs without a notebook; it costs nothing."""
    name = job_role.job_role_name(context.caller.region)
    if delete:
        is_deleted = delete_role(context.caller, name)
        context.report(f"{name} is {'gone' if is_deleted else 'not there, or not ours'}")
        return
    if bucket is None:
        raise RefusedError("role needs a bucket: add --bucket NAME")
    tags = resource_tags(check_owner(owner))
    context.report(job_role.ensure_job_role(context.caller, check_bucket(bucket), tags))
    print_note(
        f"use it with `jobs submit --role {name}`; the permissions for submitting jobs are printed by `{PROGRAM} "
        f"jobs policy --bucket {bucket} --instance TYPE{context.options}`"
    )


@command(f"{PROGRAM} jobs policy")
@aws_options()
@click.option("--bucket", metavar="NAME", help="S3 bucket for source, data and results")
@click.option(
    "--instance",
    "instance_types",
    metavar="TYPE",
    multiple=True,
    help="instance type that jobs may use, such as ml.g5.12xlarge; may be repeated",
)
def print_policy(context: CommandContext, bucket: Optional[str], instance_types: Tuple[str, ...]) -> None:
    """Print the IAM policy for people who submit jobs on these instance types only."""
    if bucket is None or not instance_types:
        lacks = "a bucket: add --bucket NAME" if bucket is None else "instance types: add --instance TYPE"
        raise RefusedError(f"policy needs {lacks}")
    allowed = [instances.normalize_instance_type(name, "TrainingInstanceType") for name in instance_types]
    account = job_role.current_account(context.caller)
    policy = job_role.submitter_policy(account, check_bucket(bucket), allowed)
    context.report(json.dumps(policy, indent=2))


COMMANDS: Tuple[Tuple[str, click.Command], ...] = (("role", make_role), ("policy", print_policy))
