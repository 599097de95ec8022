"""python sagemaker/launch.py jobs NAME: options in, what was done out."""

from __future__ import annotations

import json
import time
from typing import Any, Callable, Mapping, Optional, Tuple

import click

from gluonlab.cli.command import command
from gluonlab.launch.job_files import JOB_NAME_PREFIX
from gluonlab_sagemaker import instances, jobs
from gluonlab_sagemaker.checks import check_bucket, check_name, check_owner, tags
from gluonlab_sagemaker.cost import Prices
from gluonlab_sagemaker.errors import AWSError, FailedError, RefusedError
from gluonlab_sagemaker.job_role_commands import COMMANDS as ROLES
from gluonlab_sagemaker.logs import Log, written
from gluonlab_sagemaker.options import PROGRAM, Place, anywhere, going_on, note, owner
from gluonlab_sagemaker.role import given_role
from gluonlab_sagemaker.source import archive, upload


def job_named(function: Callable[..., None]) -> Callable[..., None]:
    """--name, for every command about one job."""
    return click.option("--name", metavar="NAME", help="the job's name, as `jobs list` shows it")(
        function
    )


@command(f"{PROGRAM} jobs submit", interrupted="nothing was submitted")
@anywhere()
@click.option(
    "--template",
    metavar="NAME",
    default="one-host",
    show_default=True,
    help="a file of sagemaker/training",
)
@click.option(
    "--name", metavar="NAME", help="begins with gluonlab-  [default: of the template and the time]"
)
@click.option(
    "--bucket",
    metavar="NAME",
    help="the S3 bucket of source, data and results, all below gluonlab/",
)
@click.option(
    "--role",
    metavar="ROLE",
    help="ARN or name of a role with rights to the bucket and to AWS's images",
)
@click.option(
    "--instance",
    metavar="TYPE",
    help="the machine, such as ml.g5.12xlarge  [default: the template's]",
)
@click.option(
    "--hosts",
    metavar="N",
    type=click.IntRange(1, 100),
    help="number of machines  [default: the template's]",
)
@click.option(
    "--gpus",
    metavar="N",
    type=click.IntRange(1, 16),
    help="GPUs of each machine  [default: as instances.json has it]",
)
@click.option(
    "--hours",
    metavar="N",
    type=click.FloatRange(0.02, 672),
    help="hours after which AWS stops it  [default: the template's]",
)
@click.option(
    "--volume",
    "volume_gb",
    metavar="GB",
    type=click.IntRange(1, 16384),
    help="size of the volume of a machine without a disk of its own, as P3  [default: 50]",
)
@click.option(
    "--checkpoints",
    metavar="JOB",
    help="go on from the checkpoints of this earlier job, with --template spot",
)
@click.option(
    "--image", metavar="IMAGE", help="a training image of your own  [default: AWS's, MXNet 1.9.0]"
)
@click.option(
    "--set",
    "settings",
    metavar="NAME=VALUE",
    multiple=True,
    help="a hyperparameter, such as epochs=3; may be repeated",
)
@click.option(
    "--owner", metavar="NAME", default=owner, help="for the tag `owner`  [default: your user name]"
)
@click.option("--no-upload", is_flag=True, help="the source is in the bucket already")
@click.option("--wait", "wait_too", is_flag=True, help="wait until it has ended")
def submit(
    here: Place,
    template: str,
    name: Optional[str],
    bucket: Optional[str],
    role: Optional[str],
    instance: Optional[str],
    owner: str,
    no_upload: bool,
    wait_too: bool,
    **given: Any,
) -> None:
    """Upload the last commit of this checkout to S3, and run it as a training job."""
    if bucket is None or role is None:
        lacks = (
            "a bucket: add --bucket NAME"
            if bucket is None
            else "a role: add --role ROLE; `jobs role` makes one"
        )
        raise RefusedError(f"submit lacks {lacks}")
    name = check_name(
        "--name",
        name or f"{JOB_NAME_PREFIX}{template}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}",
    )
    if not name.startswith(JOB_NAME_PREFIX):
        raise RefusedError(
            f"--name {name}: begin it with {JOB_NAME_PREFIX}, by which roles and "
            f"`jobs list` know it, such as {JOB_NAME_PREFIX}{name}"
        )
    machine = (
        None if instance is None else instances.instance_type(instance, "TrainingInstanceType")
    )
    if given["checkpoints"] is not None:
        check_name("--checkpoints", given["checkpoints"])
    job = jobs.Job(template, name, check_bucket(bucket), machine, **given)
    tagged = tags(check_owner(owner))
    request = job.request(here.caller.region, given_role(here.caller, role), tagged)
    resources = request["ResourceConfig"]
    hosts = resources["InstanceCount"]
    note(
        Prices().job(resources["InstanceType"], hosts, jobs.longest_s(request), here.caller.region)
    )
    note(
        f"it reads {', '.join(jobs.inputs(request)) or 'no data'}, "
        f"and writes below {' and '.join(jobs.outputs(request))}"
    )
    if jobs.inputs(request):
        note("the data must lie there before: sagemaker/README.md, Training jobs, has the commands")
    instances.warn_of_end(resources["InstanceType"], note)
    if jobs.is_spot(request):
        waits = request["StoppingCondition"]["MaxWaitTimeInSeconds"] / 3600
        note(
            "AWS may take the machine away, and starts the job again when there is one, up to "
            f"{waits:g} h from now; spot machines cost less than that"
        )
    if not no_upload:
        here.say(f"uploaded {upload(here.caller, bucket, archive(say=note))}")
    jobs.submit(here.caller, request, f"{PROGRAM} jobs status --name {name}{here.options}")
    here.say(f"submitted {name}: {PROGRAM} jobs wait --name {name}{here.options}")
    if wait_too:
        _wait(here, name)


@command(f"{PROGRAM} jobs list")
@anywhere()
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="print the result as JSON, and nothing else, on standard output",
)
def list_jobs(here: Place, as_json: bool) -> None:
    """List the jobs whose names begin with gluonlab-, the newest first."""
    rows = [
        {
            "name": job["TrainingJobName"],
            "status": job["TrainingJobStatus"],
            "created": job["CreationTime"].isoformat(),
        }
        for job in jobs.listed(here.caller)
    ]
    if as_json:
        here.say(json.dumps(rows))
    else:
        here.say(
            "\n".join("{name:<50}{status:<12}{created}".format(**row) for row in rows)
            or f"no jobs in {here.caller.region}"
        )


@command(f"{PROGRAM} jobs wait")
@anywhere(status="Completed")
@job_named
def wait(here: Place, name: Optional[str]) -> None:
    """Wait until a job has ended; exit status 1 if it failed."""
    _wait(here, _required(name))


@command(f"{PROGRAM} jobs status")
@anywhere(status="Completed")
@job_named
def status(here: Place, name: Optional[str]) -> None:
    """Say what a job does."""
    found = jobs.describe(here.caller, _required(name))
    parts = [
        str(found[key])
        for key in ("TrainingJobStatus", "SecondaryStatus", "FailureReason")
        if found.get(key)
    ]
    billed = (
        f", {found['BillableTimeInSeconds']}{_of_all(found)} s are billed for each host"
        if found.get("BillableTimeInSeconds")
        else ""
    )
    here.say(f"{name}: {', '.join(dict.fromkeys(parts))}{billed}")
    _say_results(here, found)


def _say_results(here: Place, found: Mapping[str, Any]) -> None:
    """Say beside the result how to fetch what a job that has ended has left."""
    fetch = jobs.results(found) if found["TrainingJobStatus"] in jobs.ENDED else []
    if fetch and not here.caller.rehearses:
        note(f"its results: {'; '.join(fetch)}")


def _of_all(found: Mapping[str, Any]) -> str:
    """Of a spot job, how long it has trained; what is billed is in proportion to its price."""
    trained = found.get("TrainingTimeInSeconds")
    return f" of {trained}" if found.get("EnableManagedSpotTraining") and trained else ""


@command(f"{PROGRAM} jobs logs")
@anywhere(status="Completed")
@job_named
@click.option("--follow", "-f", is_flag=True, help="go on until the job has ended")
def logs(here: Place, name: Optional[str], follow: bool) -> None:
    """Print what a job has printed; with several hosts each line begins with its host."""
    name = _required(name)
    hosts = jobs.describe(here.caller, name).get("ResourceConfig", {}).get("InstanceCount", 1)
    going_on(f"the job runs on: `{PROGRAM} jobs logs -f --name {name}{here.options}` goes on")
    found = 0
    for lines in (
        jobs.follow(here.caller, name, here.sleep) if follow else [Log(here.caller, name).new()]
    ):
        found += len(lines)
        for text in written(lines, hosts > 1):
            here.say(text)
    if not found and not here.caller.rehearses:
        note(f"{name} has printed nothing yet: a machine takes some minutes to start")


@command(f"{PROGRAM} jobs stop")
@anywhere(status="InProgress")
@job_named
def stop(here: Place, name: Optional[str]) -> None:
    """Stop a job; what it has saved is kept."""
    here.say(jobs.stop(here.caller, _required(name)))


def _wait(here: Place, name: str) -> None:
    job = f"--name {name}{here.options}"
    going_on(
        f"the job runs on: `{PROGRAM} jobs wait {job}` goes on, `{PROGRAM} jobs stop {job}` ends it"
    )
    try:
        found = jobs.wait(here.caller, name, here.waiter(30, float("inf")))
    except FailedError as error:
        _show_last(here, name)
        raise FailedError(
            f"{error}; all of it: {PROGRAM} jobs logs --name {name}{here.options}"
        ) from None
    here.say(f"{name} is {found['TrainingJobStatus']}")
    _say_results(here, found)


def _show_last(here: Place, name: str) -> None:
    """The end of a log, if it can be read: why a job failed matters more than why it cannot."""
    try:
        last = Log(here.caller, name).last()
    except AWSError as error:
        note(f"warning: its log cannot be read: {error}")
        return
    for text in written(last, len({line.host for line in last}) > 1):
        note(f"| {text}")


def _required(name: Optional[str]) -> str:
    if name is None:
        raise RefusedError("the job's name is missing: add --name NAME; `jobs list` shows them")
    return check_name("--name", name)


COMMANDS: Tuple[Tuple[str, click.Command], ...] = (
    *ROLES,
    ("submit", submit),
    ("list", list_jobs),
    ("status", status),
    ("logs", logs),
    ("wait", wait),
    ("stop", stop),
)
