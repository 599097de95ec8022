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
    "--instance",
    metavar="TYPE",
    help="instance type, such as ml.g5.12xlarge; --instance list shows types and, with --region, prices",
)
@click.option("--repository", metavar="URL", help="git repository from which the notebook clones gluonlab")
@click.option("--bucket", metavar="NAME", help="S3 bucket for results; without --repository also for gluonlab itself")
@click.option("--role", metavar="ROLE", help="ARN or name of an IAM role  [default: create one with few permissions]")
@click.option("--platform", metavar="PLATFORM", help="operating system  [default: the one for the instance type]")
@click.option(
    "--volume",
    "volume_gb",
    metavar="GB",
    type=click.IntRange(MIN_VOLUME_GB, 16384),
    help="size of the volume, which is kept when the notebook stops  [default: 50]",
)
@click.option(
    "--idle-minutes",
    metavar="N",
    type=click.IntRange(0, 10080),
    default=60,
    show_default=True,
    help="stop after this many idle minutes; 0: never",
)
@click.option("--subnet", metavar="SUBNET", help="subnet of your own network, instead of AWS's internet access")
@click.option(
    "--security-group",
    "security_groups",
    metavar="GROUP",
    multiple=True,
    help="security group of that network; may be repeated up to five times",
)
@click.option(
    "--environment",
    metavar="NAME=VALUE",
    multiple=True,
    help="environment variable for the build and the idle stop, such as HTTPS_PROXY=...; may be repeated",
)
@click.option("--kms-key", metavar="KEY", help="key that encrypts the volume")
@click.option(
    "--owner", metavar="NAME", default=current_user, help="value of the tag `owner`  [default: your user name]"
)
@click.option(
    "--force",
    is_flag=True,
    help="send the request to AWS even if AWS is known to refuse it, or MXNet cannot use the machine",
)
@click.option("--no-wait", is_flag=True, help="do not wait until the notebook is in service")
def create_notebook(
    context: CommandContext, name: str, instance: Optional[str], force: bool, no_wait: bool, **values: Any
) -> None:
    """Create a notebook with gluonlab, and wait until it is in service.

    This also creates a role and a lifecycle configuration, which cost nothing. `delete` removes all.
    """
    if instance == "list":
        prices, region = Prices(), context.caller.region
        for name in (instances.CPU_INSTANCE, *pairs.load_instances()):
            click.echo(instances.format_instance(name, prices.describe_hour_price(name, region)))
        print_note(f"prices: {prices.describe_source(region)}")
        return
    if instance is None:
        raise RefusedError(f"create needs an instance type: add --instance TYPE, {instances.instance_examples()}")
    if context.caller.region is None:
        raise RefusedError("create needs a region: add --region REGION, such as us-east-1")
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
        instances.refuse_unsupported_gpu(options.instance, "use it anyway with --force")
    if not options.idle_minutes:
        print_note(
            "warning: with --idle-minutes 0 the notebook runs and costs money until somebody stops it: "
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
        raise FailedError(f"{name} no longer exists: somebody deleted it during its creation")
    context.report(
        f"{name} is in service. Installing gluonlab takes 10 to 20 minutes: gluonlab-READY.txt appears when it is done"
    )
    context.report(
        f"get its address: {notebook.command_line('url')}; stop it when you are done: {notebook.command_line('stop')}"
    )


@command(f"{PROGRAM} status")
@aws_options(status="InService")
@notebook_name_option
@click.option(
    "--all", "show_all", is_flag=True, help="show all notebooks of gluonlab and all running jobs in this region"
)
@click.option("--json", "as_json", is_flag=True, help="print only the result, as JSON, on standard output")
def show_status(context: CommandContext, name: str, show_all: bool, as_json: bool) -> None:
    """Show the notebook's status and cost."""
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
            or f"found no notebook or job of gluonlab in {context.caller.region}"
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
    """Print an address that opens the notebook for anyone; open it within 5 minutes."""
    context.report(context.get_notebook(name).create_url(int(hours * 3600)))


@command(f"{PROGRAM} wait")
@aws_options(status="InService")
@notebook_name_option
def wait_for_notebook(context: CommandContext, name: str) -> None:
    """Wait until the notebook is in service, stopped or gone."""
    notebook = context.get_notebook(name)
    end = notebook.wait()
    context.report(f"{name} is {end or 'gone: it does not exist'}")
    context.print_next_steps(notebook, end)


@command(f"{PROGRAM} stop")
@aws_options(status="InService")
@notebook_name_option
@click.option("--no-wait", is_flag=True, help="do not wait until the notebook is stopped")
def stop_notebook(context: CommandContext, name: str, no_wait: bool) -> None:
    """Stop the notebook's machine. Its volume remains and costs money until delete."""
    notebook = context.get_notebook(name)
    if notebook.stop() and not no_wait:
        end = notebook.wait(STOP_END_STATUSES)
        context.report(f"{name} is {end or 'gone'}")
        context.print_next_steps(notebook, end)


@command(f"{PROGRAM} start")
@aws_options(status="Stopped")
@notebook_name_option
@click.option("--force", is_flag=True, help="send the request to AWS even if AWS is known to refuse it")
@click.option("--no-wait", is_flag=True, help="do not wait until the notebook is in service")
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
@click.option("--yes", is_flag=True, help="delete without asking")
@click.option("--force", is_flag=True, help="also a notebook without the tag project=gluonlab")
def delete_notebook(context: CommandContext, name: str, yes: bool, force: bool) -> None:
    """Stop and delete the notebook, its volume, and everything that was created for it.

    You can run it again at any time.
    """
    notebook = context.get_notebook(name, offer_delete=True)
    notebook.refuse_foreign(force)
    if not yes and not context.caller.is_dry_run and notebook.describe() is not None:
        click.confirm(f"delete the notebook {name} and all files on its volume?", abort=True, err=True)
    notebook.delete()
    _print_remaining_resources(context)


def _print_remaining_resources(context: CommandContext) -> None:
    try:
        jobs = running_job_names(context.caller)
    except AWSError as error:
        print_note(f"warning: could not check for running training jobs: {error}")
    else:
        if jobs:
            print_note(
                f"warning: these training jobs still run and cost money: {', '.join(jobs)}: stop them with {PROGRAM} "
                f"jobs stop --name NAME{context.options}"
            )
    context.report(
        "not deleted, and cheap: files in S3 (gluonlab/ in the bucket) and logs in CloudWatch; see status --all"
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
        "jobs": ("manage training jobs: role, policy, submit, list, wait, status, logs, stop", jobs),
    }
    run_subcommand(PROGRAM, commands, arguments)


def _command_table(
    commands: Sequence[Tuple[str, click.Command]], dependencies: Optional[Dependencies]
) -> Dict[str, Any]:
    return {
        name: (command.get_short_help_str(100), partial(command, obj=dependencies, prog_name=command.name))
        for name, command in commands
    }
