"""python sagemaker/launch.py NAME: options in, what was done out."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, Dict, Optional, Sequence, Tuple

import click

import instance_pairs as pairs
from gluonlab.cli.command import command, dispatch
from gluonlab_sagemaker import instances
from gluonlab_sagemaker.cost import Prices
from gluonlab_sagemaker.create import Wishes
from gluonlab_sagemaker.create import create as create_notebook
from gluonlab_sagemaker.errors import AWSError, FailedError, RefusedError
from gluonlab_sagemaker.job_commands import COMMANDS as JOBS
from gluonlab_sagemaker.jobs import running
from gluonlab_sagemaker.listing import everything, line, row
from gluonlab_sagemaker.machine_commands import COMMANDS as MACHINES
from gluonlab_sagemaker.notebook import STARTED, STOPPED
from gluonlab_sagemaker.options import PROGRAM, Place, World, anywhere, named, note, owner

Given = Optional[str]
SMALLEST_GB = 20  # the environment takes about 12


@command(f"{PROGRAM} create")
@anywhere()
@named
@click.option(
    "--instance",
    metavar="TYPE",
    help="the machine, such as ml.g5.12xlarge; --instance list shows those with GPUs",
)
@click.option(
    "--repository", metavar="URL", help="the git repository that the notebook clones gluonlab from"
)
@click.option(
    "--bucket",
    metavar="NAME",
    help="an S3 bucket for its results; without --repository also for gluonlab itself",
)
@click.option(
    "--role",
    metavar="ROLE",
    help="ARN or name of a role to use  [default: one is made, with few rights]",
)
@click.option(
    "--platform", metavar="PLATFORM", help="the operating system  [default: the instance's]"
)
@click.option(
    "--volume",
    "volume_gb",
    metavar="GB",
    type=click.IntRange(SMALLEST_GB, 16384),
    help="size of the disk, which outlives a stop  [default: 50]",
)
@click.option(
    "--idle-minutes",
    metavar="N",
    type=click.IntRange(0, 10080),
    default=60,
    show_default=True,
    help="stop when idle for this long; 0: never",
)
@click.option(
    "--subnet",
    metavar="SUBNET",
    help="a subnet of your own network, instead of AWS's internet access",
)
@click.option(
    "--security-group",
    "security_groups",
    metavar="GROUP",
    multiple=True,
    help="a security group of that network; up to five times",
)
@click.option(
    "--environment",
    metavar="NAME=VALUE",
    multiple=True,
    help="of the build and the idle stop, such as HTTPS_PROXY=...; may be given several times",
)
@click.option("--kms-key", metavar="KEY", help="the key that encrypts its disk")
@click.option(
    "--owner", metavar="NAME", default=owner, help="for the tag `owner`  [default: your user name]"
)
@click.option(
    "--force", is_flag=True, help="ask AWS even for what it is known to refuse, or MXNet cannot use"
)
@click.option("--no-wait", is_flag=True, help="do not wait until it is in service")
def create(
    here: Place, name: str, instance: Given, force: bool, no_wait: bool, **given: Any
) -> None:
    """Make a notebook with gluonlab, and wait until it is in service.

    Made for it, at no cost: a role and a lifecycle configuration. `delete` takes all of it away.
    """
    if instance == "list":
        prices, region = Prices(), here.caller.region
        for one in pairs.instances():
            click.echo(instances.summary(one, prices.each(one, region)))
        note(f"prices: {prices.about(region)}")
        return
    if instance is None:
        raise RefusedError(
            f"create lacks the machine: write --instance TYPE, {instances.examples()}"
        )
    if here.caller.region is None:
        raise RefusedError("create lacks the region: add --region REGION, such as us-east-1")
    wishes = Wishes(instance=instances.instance_type(instance), **given)
    wishes.check()
    request = instances.request(wishes.instance)
    platform = instances.platform(wishes.platform or request["PlatformIdentifier"])
    notebook = here.notebook(name, ours=True)
    warning = instances.refuse_dead(wishes.instance, platform, force)
    if warning:
        note(f"warning: {warning}")
    if instances.unknown_platform(platform):
        note(f"warning: {instances.unknown_platform(platform)}")
    if not force:
        instances.refuse_unfit(wishes.instance, "take it all the same with --force")
    if not wishes.idle_minutes:
        note(
            "warning: with --idle-minutes 0 it runs, and costs, until somebody stops it: "
            f"{notebook.command('stop')}"
        )
    note(
        Prices().notebook(
            wishes.instance, wishes.volume_gb or request["VolumeSizeInGB"], here.caller.region
        )
    )
    create_notebook(here.caller, notebook, wishes, here.say, here.sleep)
    if no_wait:
        return
    if notebook.wait(STARTED, new=True) is None:
        raise FailedError(f"{name} is gone: somebody deleted it while it was being made")
    here.say(
        f"{name} is in service, and installs gluonlab for 10 to 20 minutes: "
        "gluonlab-READY.txt appears when it is done"
    )
    here.say(
        f"its address: {notebook.command('url')}; when you are done: {notebook.command('stop')}"
    )


@command(f"{PROGRAM} status")
@anywhere(status="InService")
@named
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="every notebook of gluonlab and every running job, in this region",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="print the result as JSON, and nothing else, on standard output",
)
def status(here: Place, name: str, every: bool, as_json: bool) -> None:
    """Say what the notebook does, and what it costs."""
    notebook = here.notebook(name)
    found = everything(here.caller) if every else [row(notebook.existing(), here.caller.region)]
    if as_json:
        here.say(json.dumps(found if every else found[0]))
    else:
        here.say(
            "\n".join(line(one, here.caller.region) for one in found)
            or f"no notebook or job of gluonlab in {here.caller.region}"
        )
        if not every:
            here.say_next(notebook, found[0]["status"])


@command(f"{PROGRAM} url")
@anywhere(status="InService")
@named
@click.option(
    "--hours",
    metavar="N",
    type=click.FloatRange(0.5, 12),
    default=12.0,
    show_default=True,
    help="how long the browser stays signed in",
)
def url(here: Place, name: str, hours: float) -> None:
    """Print an address that opens the notebook for whoever has it; open it within 5 minutes."""
    here.say(here.notebook(name).url(int(hours * 3600)))


@command(f"{PROGRAM} wait")
@anywhere(status="InService")
@named
def wait(here: Place, name: str) -> None:
    """Wait until the notebook is in service, stopped or gone."""
    notebook = here.notebook(name)
    end = notebook.wait()
    here.say(f"{name} is {end or 'gone: there is no such notebook'}")
    here.say_next(notebook, end)


@command(f"{PROGRAM} stop")
@anywhere(status="InService")
@named
@click.option("--no-wait", is_flag=True, help="do not wait until it is stopped")
def stop(here: Place, name: str, no_wait: bool) -> None:
    """Stop the notebook's machine. Its volume stays, and is paid for, until delete."""
    notebook = here.notebook(name)
    if notebook.stop() and not no_wait:
        end = notebook.wait(STOPPED)
        here.say(f"{name} is {end or 'gone'}")
        here.say_next(notebook, end)


@command(f"{PROGRAM} start")
@anywhere(status="Stopped")
@named
@click.option("--force", is_flag=True, help="ask AWS also for what it is known to refuse")
@click.option("--no-wait", is_flag=True, help="do not wait until it is in service")
def start(here: Place, name: str, force: bool, no_wait: bool) -> None:
    """Start a stopped notebook again."""
    notebook = here.notebook(name)
    if notebook.start(force) and not no_wait:
        end = notebook.wait(STARTED)
        here.say(f"{name} is {end or 'gone'}")
        here.say_next(notebook, end)


@command(f"{PROGRAM} delete")
@anywhere(status="InService")
@named
@click.option("--yes", is_flag=True, help="do not ask")
@click.option("--force", is_flag=True, help="also a notebook without the tag project=gluonlab")
def delete(here: Place, name: str, yes: bool, force: bool) -> None:
    """Delete the notebook, its volume, and what was made for it; stops it first.

    Can be run again at any time.
    """
    notebook = here.notebook(name, ours=True)
    notebook.refuse_foreign(force)
    if not yes and not here.caller.rehearses and notebook.describe() is not None:
        click.confirm(
            f"delete the notebook {name} with all files on its volume?", abort=True, err=True
        )
    notebook.delete()
    _say_what_remains(here)


def _say_what_remains(here: Place) -> None:
    try:
        jobs = running(here.caller)
    except AWSError as error:
        note(f"warning: training jobs that may still run were not looked for: {error}")
    else:
        if jobs:
            note(
                f"warning: training jobs still run, and cost: {', '.join(jobs)}: "
                f"{PROGRAM} jobs stop --name NAME{here.options}"
            )
    here.say(
        "left, at little cost: what was saved in S3 (gluonlab/ in its bucket), "
        "and logs in CloudWatch; see status --all"
    )


COMMANDS = tuple(
    (str(made.name).split()[-1], made) for made in (create, status, url, wait, stop, start, delete)
)


def main(args: Sequence[str], world: Optional[World] = None) -> None:
    """Hand the remaining options to the command that is named first."""
    jobs = partial(dispatch, f"{PROGRAM} jobs", _table(JOBS, world))
    commands = {
        **_table(COMMANDS, world),
        **_table(MACHINES, world),
        "jobs": ("training jobs: their role, submit, list, wait, logs, stop", jobs),
    }
    dispatch(PROGRAM, commands, args)


def _table(commands: Sequence[Tuple[str, click.Command]], world: Optional[World]) -> Dict[str, Any]:
    return {
        name: (made.get_short_help_str(100), partial(made, obj=world, prog_name=made.name))
        for name, made in commands
    }
