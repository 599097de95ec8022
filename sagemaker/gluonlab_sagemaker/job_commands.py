"""Commands about training jobs: `python sagemaker/launch.py jobs NAME`."""

from __future__ import annotations

import json
import time
from typing import Any, Callable, Mapping, Optional, Tuple

import click

from gluonlab.cli.command import command
from gluonlab.launch.cluster_job_scripts import JOB_NAME_PREFIX
from gluonlab_sagemaker import instances, jobs
from gluonlab_sagemaker.checks import check_bucket, check_name, check_owner, resource_tags
from gluonlab_sagemaker.cost import Prices
from gluonlab_sagemaker.errors import AWSError, FailedError, RefusedError
from gluonlab_sagemaker.job_role_commands import COMMANDS as ROLE_COMMANDS
from gluonlab_sagemaker.logs import JobLog, format_lines
from gluonlab_sagemaker.options import (
    PROGRAM,
    CommandContext,
    aws_options,
    current_user,
    print_note,
    set_interrupt_message,
)
from gluonlab_sagemaker.role import resolve_role
from gluonlab_sagemaker.source import create_archive, upload_archive


def job_name_option(function: Callable[..., None]) -> Callable[..., None]:
    """Add --name, the name of a job."""
    return click.option("--name", metavar="NAME", help="name of the job, see `jobs list`")(function)


@command(f"{PROGRAM} jobs submit", interrupted="nothing was submitted")
@aws_options()
@click.option(
    "--template", metavar="NAME", default="one-host", show_default=True, help="template, a file in sagemaker/training"
)
@click.option(
    "--name",
    metavar="NAME",
    help="name of the job, which starts with gluonlab-  [default: from the template and the time]",
)
@click.option("--bucket", metavar="NAME", help="S3 bucket for source, data and results, all below gluonlab/")
@click.option("--role", metavar="ROLE", help="ARN or name of an IAM role with access to the bucket and AWS's images")
@click.option("--instance", metavar="TYPE", help="instance type, such as ml.g5.12xlarge  [default: from the template]")
@click.option(
    "--hosts", metavar="N", type=click.IntRange(1, 100), help="number of machines  [default: from the template]"
)
@click.option(
    "--gpus", metavar="N", type=click.IntRange(1, 16), help="GPUs per machine  [default: from instances.json]"
)
@click.option(
    "--hours",
    metavar="N",
    type=click.FloatRange(0.02, 672),
    help="hours after which AWS stops the job  [default: from the template]",
)
@click.option(
    "--volume",
    "volume_gb",
    metavar="GB",
    type=click.IntRange(1, 16384),
    help="volume size for machines without their own disk, such as P3  [default: 50]",
)
@click.option(
    "--checkpoints", metavar="JOB", help="with --template spot: resume from the checkpoints of this earlier job"
)
@click.option("--image", metavar="IMAGE", help="your own training image  [default: AWS's image with MXNet 1.9.0]")
@click.option(
    "--set", "settings", metavar="NAME=VALUE", multiple=True, help="hyperparameter, such as epochs=3; may be repeated"
)
@click.option(
    "--owner", metavar="NAME", default=current_user, help="value of the tag `owner`  [default: your user name]"
)
@click.option("--no-upload", is_flag=True, help="do not upload the source: it is already in the bucket")
@click.option("--wait", is_flag=True, help="wait until the job has ended")
def submit_job(
    context: CommandContext,
    template: str,
    name: Optional[str],
    bucket: Optional[str],
    role: Optional[str],
    instance: Optional[str],
    owner: str,
    no_upload: bool,
    wait: bool,
    **options: Any,
) -> None:
    """Upload the last commit of this checkout to S3, and run it as a training job."""
    if bucket is None or role is None:
        lacks = (
            "a bucket: add --bucket NAME"
            if bucket is None
            else "a role: add --role ROLE, or create one with `jobs role`"
        )
        raise RefusedError(f"submit needs {lacks}")
    name = check_name("--name", name or f"{JOB_NAME_PREFIX}{template}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}")
    if not name.startswith(JOB_NAME_PREFIX):
        raise RefusedError(
            f"--name {name}: start the name with {JOB_NAME_PREFIX}, because roles and `jobs list` need this prefix: "
            f"{JOB_NAME_PREFIX}{name}"
        )
    instance_type = None if instance is None else instances.normalize_instance_type(instance, "TrainingInstanceType")
    if options["checkpoints"] is not None:
        check_name("--checkpoints", options["checkpoints"])
    job = jobs.JobOptions(template, name, check_bucket(bucket), instance_type, **options)
    tags = resource_tags(check_owner(owner))
    request = job.build_request(context.caller.region, resolve_role(context.caller, role), tags)
    resources = request["ResourceConfig"]
    hosts = resources["InstanceCount"]
    print_note(
        Prices().describe_job_cost(resources["InstanceType"], hosts, jobs.max_runtime_s(request), context.caller.region)
    )
    print_note(
        f"the job reads {', '.join(jobs.input_uris(request)) or 'no data'} and writes below "
        f"{' and '.join(jobs.output_uris(request))}"
    )
    if jobs.input_uris(request):
        print_note('upload the data there first: see "Training jobs" in sagemaker/README.md')
    instances.warn_of_retirement(resources["InstanceType"], print_note)
    if jobs.is_spot(request):
        max_wait_h = request["StoppingCondition"]["MaxWaitTimeInSeconds"] / 3600
        print_note(
            f"AWS may take the spot machine away and restart the job later, up to {max_wait_h:g} h from now; spot "
            "machines cost less than this estimate"
        )
    if not no_upload:
        address = upload_archive(context.caller, bucket, create_archive(report=print_note))
        context.report(f"uploaded {address}")
    jobs.create_training_job(context.caller, request, f"{PROGRAM} jobs status --name {name}{context.options}")
    context.report(f"submitted {name}; wait for it with {PROGRAM} jobs wait --name {name}{context.options}")
    if wait:
        _wait_and_report(context, name)


@command(f"{PROGRAM} jobs list")
@aws_options()
@click.option("--json", "as_json", is_flag=True, help="print only the result, as JSON, on standard output")
def list_jobs(context: CommandContext, as_json: bool) -> None:
    """List the jobs whose names start with gluonlab-, newest first."""
    rows = [
        {"name": job["TrainingJobName"], "status": job["TrainingJobStatus"], "created": job["CreationTime"].isoformat()}
        for job in jobs.list_jobs(context.caller)
    ]
    if as_json:
        context.report(json.dumps(rows))
    else:
        context.report(
            "\n".join("{name:<50}{status:<12}{created}".format(**row) for row in rows)
            or f"found no jobs in {context.caller.region}"
        )


@command(f"{PROGRAM} jobs wait")
@aws_options(status="Completed")
@job_name_option
def wait_for_job(context: CommandContext, name: Optional[str]) -> None:
    """Wait until a job has ended; exit with status 1 if it failed."""
    _wait_and_report(context, _check_job_name(name))


@command(f"{PROGRAM} jobs status")
@aws_options(status="Completed")
@job_name_option
def show_status(context: CommandContext, name: Optional[str]) -> None:
    """Show the status of a job."""
    description = jobs.describe_job(context.caller, _check_job_name(name))
    parts = [
        str(description[key])
        for key in ("TrainingJobStatus", "SecondaryStatus", "FailureReason")
        if description.get(key)
    ]
    text = f"{name}: {', '.join(dict.fromkeys(parts))}"
    billed_s = description.get("BillableTimeInSeconds")
    if billed_s:
        text += f", {billed_s}{_training_time(description)} s are billed per host"
    context.report(text)
    _print_download_commands(context, description)


def _print_download_commands(context: CommandContext, description: Mapping[str, Any]) -> None:
    if description["TrainingJobStatus"] not in jobs.FINAL_STATUSES or context.caller.is_dry_run:
        return
    commands = jobs.download_commands(description)
    if commands:
        print_note(f"download its results: {'; '.join(commands)}")


def _training_time(description: Mapping[str, Any]) -> str:
    """Return the training time of a spot job, of which AWS bills only a part; empty for others."""
    training_s = description.get("TrainingTimeInSeconds")
    is_spot = description.get("EnableManagedSpotTraining")
    return f" of {training_s}" if is_spot and training_s else ""


@command(f"{PROGRAM} jobs logs")
@aws_options(status="Completed")
@job_name_option
@click.option("--follow", "-f", is_flag=True, help="follow the log until the job has ended")
def print_logs(context: CommandContext, name: Optional[str], follow: bool) -> None:
    """Print the log of a job; with several hosts, each line starts with its host."""
    name = _check_job_name(name)
    hosts = jobs.describe_job(context.caller, name).get("ResourceConfig", {}).get("InstanceCount", 1)
    set_interrupt_message(
        f"the job is still running: follow its log with `{PROGRAM} jobs logs -f --name {name}{context.options}`"
    )
    line_count = 0
    for lines in (
        jobs.follow_log(context.caller, name, context.sleep) if follow else [JobLog(context.caller, name).read_new()]
    ):
        line_count += len(lines)
        for text in format_lines(lines, hosts > 1):
            context.report(text)
    if not line_count and not context.caller.is_dry_run:
        print_note(f"{name} has not printed anything yet: a machine needs some minutes to start")


@command(f"{PROGRAM} jobs stop")
@aws_options(status="InProgress")
@job_name_option
def stop_job(context: CommandContext, name: Optional[str]) -> None:
    """Stop a job; its saved files are kept."""
    context.report(jobs.stop_training_job(context.caller, _check_job_name(name)))


def _wait_and_report(context: CommandContext, name: str) -> None:
    job = f"--name {name}{context.options}"
    set_interrupt_message(
        f"the job is still running: wait for it with `{PROGRAM} jobs wait {job}`, or stop it with `{PROGRAM} jobs "
        f"stop {job}`"
    )
    try:
        description = jobs.wait_for_training_job(context.caller, name, context.make_waiter(30, float("inf")))
    except FailedError as error:
        _print_last_lines(context, name)
        raise FailedError(
            f"{error}; see the whole log with {PROGRAM} jobs logs --name {name}{context.options}"
        ) from None
    context.report(f"{name} is {description['TrainingJobStatus']}")
    _print_download_commands(context, description)


def _print_last_lines(context: CommandContext, name: str) -> None:
    try:
        lines = JobLog(context.caller, name).read_last()
    except AWSError as error:  # only a warning: the failure of the job itself is more important
        print_note(f"warning: cannot read its log: {error}")
        return
    for text in format_lines(lines, len({line.host for line in lines}) > 1):
        print_note(f"| {text}")


def _check_job_name(name: Optional[str]) -> str:
    if name is None:
        raise RefusedError("the job's name is missing: add --name NAME, see `jobs list`")
    return check_name("--name", name)


COMMANDS: Tuple[Tuple[str, click.Command], ...] = (
    *ROLE_COMMANDS,
    ("submit", submit_job),
    ("list", list_jobs),
    ("status", show_status),
    ("logs", print_logs),
    ("wait", wait_for_job),
    ("stop", stop_job),
)
