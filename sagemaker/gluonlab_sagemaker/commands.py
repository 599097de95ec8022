"""Commands about notebooks: `python sagemaker/launch.py NAME`."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, Dict, Optional, Sequence, Tuple

import click

import instance_pairs as pairs
from gluonlab.cli.command import command, run_subcommand
from gluonlab_sagemaker import instances
from gluonlab_sagemaker.cost import Prices
from gluonlab_sagemaker.create import NotebookOptions, request_notebook
from gluonlab_sagemaker.errors import AWSError, FailedError, RefusedError
from gluonlab_sagemaker.job_commands import COMMANDS as JOB_COMMANDS
from gluonlab_sagemaker.jobs import running_job_names
from gluonlab_sagemaker.listing import format_row, list_resources, notebook_row
from gluonlab_sagemaker.machine_commands import COMMANDS as MACHINE_COMMANDS
from gluonlab_sagemaker.notebook import START_END_STATUSES, STOP_END_STATUSES
from gluonlab_sagemaker.options import (
    PROGRAM,
    CommandContext,
    Dependencies,
    aws_options,
    current_user,
    notebook_name_option,
    print_note,
)

MIN_VOLUME_GB = 20  # the environment takes about 12


@command(f"{PROGRAM} create")
@aws_options()
@notebook_name_option
@click.option(
    "--instance", metavar="TYPE", help="the machine, such as ml.g5.12xlarge; --instance list shows those with GPUs"
)
@click.option("--repository", metavar="URL", help="the git repository that the notebook clones gluonlab from")
@click.option(
    "--bucket", metavar="NAME", help="an S3 bucket for its results; without --repository also for gluonlab itself"
)
@click.option("--role", metavar="ROLE", help="ARN or name of a role to use  [default: one is made, with few rights]")
@click.option("--platform", metavar="PLATFORM", help="the operating system  [default: the instance's]")
@click.option(
    "--volume",
    "volume_gb",
    metavar="GB",
    type=click.IntRange(MIN_VOLUME_GB, 16384),
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
@click.option("--subnet", metavar="SUBNET", help="a subnet of your own network, instead of AWS's internet access")
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
@click.option("--owner", metavar="NAME", default=current_user, help="for the tag `owner`  [default: your user name]")
@click.option("--force", is_flag=True, help="ask AWS even for what it is known to refuse, or MXNet cannot use")
@click.option("--no-wait", is_flag=True, help="do not wait until it is in service")
def create_notebook(
    context: CommandContext, name: str, instance: Optional[str], force: bool, no_wait: bool, **values: Any
) -> None:
    """Make a notebook with gluonlab, and wait until it is in service.

    Made for it, at no cost: a role and a lifecycle configuration. `delete` takes all of it away.
    """
    if instance == "list":
        prices, region = Prices(), context.caller.region
        for name in pairs.load_instances():
            click.echo(instances.format_instance(name, prices.describe_hour_price(name, region)))
        print_note(f"prices: {prices.describe_source(region)}")
        return
    if instance is None:
        raise RefusedError(f"create lacks the machine: write --instance TYPE, {instances.instance_examples()}")
    if context.caller.region is None:
        raise RefusedError("create lacks the region: add --region REGION, such as us-east-1")
    options = NotebookOptions(instance=instances.normalize_instance_type(instance), **values)
    options.check()
    request = instances.notebook_request(options.instance)
    platform = instances.check_platform(options.platform or request["PlatformIdentifier"])
    notebook = context.get_notebook(name, offer_delete=True)
    warning = instances.refuse_dead_instance(options.instance, platform, force)
    if warning:
        print_note(f"warning: {warning}")
    warning = instances.unknown_platform_warning(platform)
    if warning:
        print_note(f"warning: {warning}")
    if not force:
        instances.refuse_unsupported_gpu(options.instance, "take it all the same with --force")
    if not options.idle_minutes:
        print_note(
            "warning: with --idle-minutes 0 it runs, and costs, until somebody stops it: "
            f"{notebook.command_line('stop')}"
        )
    print_note(
        Prices().describe_notebook_cost(
            options.instance, options.volume_gb or request["VolumeSizeInGB"], context.caller.region
        )
    )
    request_notebook(context.caller, notebook, options, context.report, context.sleep)
    if no_wait:
        return
    if notebook.wait(START_END_STATUSES, is_new=True) is None:
        raise FailedError(f"{name} is gone: somebody deleted it while it was being made")
    context.report(
        f"{name} is in service, and installs gluonlab for 10 to 20 minutes: gluonlab-READY.txt appears when it is done"
    )
    context.report(f"its address: {notebook.command_line('url')}; when you are done: {notebook.command_line('stop')}")


@command(f"{PROGRAM} status")
@aws_options(status="InService")
@notebook_name_option
@click.option(
    "--all", "show_all", is_flag=True, help="every notebook of gluonlab and every running job, in this region"
)
@click.option("--json", "as_json", is_flag=True, help="print the result as JSON, and nothing else, on standard output")
def show_status(context: CommandContext, name: str, show_all: bool, as_json: bool) -> None:
    """Say what the notebook does, and what it costs."""
    notebook = context.get_notebook(name)
    rows = (
        list_resources(context.caller)
        if show_all
        else [notebook_row(notebook.describe_existing(), context.caller.region)]
    )
    if as_json:
        context.report(json.dumps(rows if show_all else rows[0]))
    else:
        context.report(
            "\n".join(format_row(row, context.caller.region) for row in rows)
            or f"no notebook or job of gluonlab in {context.caller.region}"
        )
        if not show_all:
            context.print_next_steps(notebook, rows[0]["status"])


@command(f"{PROGRAM} url")
@aws_options(status="InService")
@notebook_name_option
@click.option(
    "--hours",
    metavar="N",
    type=click.FloatRange(0.5, 12),
    default=12.0,
    show_default=True,
    help="how long the browser stays signed in",
)
def print_url(context: CommandContext, name: str, hours: float) -> None:
    """Print an address that opens the notebook for whoever has it; open it within 5 minutes."""
    context.report(context.get_notebook(name).create_url(int(hours * 3600)))


@command(f"{PROGRAM} wait")
@aws_options(status="InService")
@notebook_name_option
def wait_for_notebook(context: CommandContext, name: str) -> None:
    """Wait until the notebook is in service, stopped or gone."""
    notebook = context.get_notebook(name)
    end = notebook.wait()
    context.report(f"{name} is {end or 'gone: there is no such notebook'}")
    context.print_next_steps(notebook, end)


@command(f"{PROGRAM} stop")
@aws_options(status="InService")
@notebook_name_option
@click.option("--no-wait", is_flag=True, help="do not wait until it is stopped")
def stop_notebook(context: CommandContext, name: str, no_wait: bool) -> None:
    """Stop the notebook's machine. Its volume stays, and is paid for, until delete."""
    notebook = context.get_notebook(name)
    if notebook.stop() and not no_wait:
        end = notebook.wait(STOP_END_STATUSES)
        context.report(f"{name} is {end or 'gone'}")
        context.print_next_steps(notebook, end)


@command(f"{PROGRAM} start")
@aws_options(status="Stopped")
@notebook_name_option
@click.option("--force", is_flag=True, help="ask AWS also for what it is known to refuse")
@click.option("--no-wait", is_flag=True, help="do not wait until it is in service")
def start_notebook(context: CommandContext, name: str, force: bool, no_wait: bool) -> None:
    """Start a stopped notebook again."""
    notebook = context.get_notebook(name)
    if notebook.start(force) and not no_wait:
        end = notebook.wait(START_END_STATUSES)
        context.report(f"{name} is {end or 'gone'}")
        context.print_next_steps(notebook, end)


@command(f"{PROGRAM} delete")
@aws_options(status="InService")
@notebook_name_option
@click.option("--yes", is_flag=True, help="do not ask")
@click.option("--force", is_flag=True, help="also a notebook without the tag project=gluonlab")
def delete_notebook(context: CommandContext, name: str, yes: bool, force: bool) -> None:
    """Delete the notebook, its volume, and what was made for it; stops it first.

    Can be run again at any time.
    """
    notebook = context.get_notebook(name, offer_delete=True)
    notebook.refuse_foreign(force)
    if not yes and not context.caller.is_dry_run and notebook.describe() is not None:
        click.confirm(f"delete the notebook {name} with all files on its volume?", abort=True, err=True)
    notebook.delete()
    _print_remaining_resources(context)


def _print_remaining_resources(context: CommandContext) -> None:
    try:
        jobs = running_job_names(context.caller)
    except AWSError as error:
        print_note(f"warning: training jobs that may still run were not looked for: {error}")
    else:
        if jobs:
            print_note(
                f"warning: training jobs still run, and cost: {', '.join(jobs)}: "
                f"{PROGRAM} jobs stop --name NAME{context.options}"
            )
    context.report(
        "left, at little cost: what was saved in S3 (gluonlab/ in its bucket), and logs in CloudWatch; see status --all"
    )


COMMANDS = (
    ("create", create_notebook),
    ("status", show_status),
    ("url", print_url),
    ("wait", wait_for_notebook),
    ("stop", stop_notebook),
    ("start", start_notebook),
    ("delete", delete_notebook),
)


def main(arguments: Sequence[str], dependencies: Optional[Dependencies] = None) -> None:
    """Run the command that ``arguments`` begin with; always raise SystemExit."""
    jobs = partial(run_subcommand, f"{PROGRAM} jobs", _command_table(JOB_COMMANDS, dependencies))
    commands = {
        **_command_table(COMMANDS, dependencies),
        **_command_table(MACHINE_COMMANDS, dependencies),
        "jobs": ("training jobs: their role, submit, list, wait, logs, stop", jobs),
    }
    run_subcommand(PROGRAM, commands, arguments)


def _command_table(
    commands: Sequence[Tuple[str, click.Command]], dependencies: Optional[Dependencies]
) -> Dict[str, Any]:
    return {
        name: (command.get_short_help_str(100), partial(command, obj=dependencies, prog_name=command.name))
        for name, command in commands
    }
