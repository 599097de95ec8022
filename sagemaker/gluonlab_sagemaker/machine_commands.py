"""Commands about machines: `python sagemaker/launch.py resize`, `prices` and `quota`."""

from __future__ import annotations

from typing import Optional, Tuple

import click

import instance_pairs as pairs
from gluonlab.cli.command import command
from gluonlab_sagemaker import instances, price_list
from gluonlab_sagemaker.cost import Prices
from gluonlab_sagemaker.errors import RefusedError
from gluonlab_sagemaker.notebook import STOP_END_STATUSES
from gluonlab_sagemaker.options import PROGRAM, CommandContext, aws_options, notebook_name_option, print_note
from gluonlab_sagemaker.quota import USES, list_quotas, quota_name, request_increase
from gluonlab_sagemaker.resize import NotebookChange, request_resize


@command(f"{PROGRAM} resize")
@aws_options(status="Stopped")
@notebook_name_option
@click.option("--instance", metavar="TYPE", help="new instance type")
@click.option(
    "--volume",
    "volume_gb",
    metavar="GB",
    type=click.IntRange(5, 16384),
    help="new size of the volume, which can only grow",
)
@click.option(
    "--platform",
    metavar="PLATFORM",
    help="newer operating system, such as notebook-al2023-v1 for a notebook on Amazon Linux 2",
)
@click.option("--force", is_flag=True, help="send the request to AWS even if AWS is known to refuse it")
@click.option("--no-wait", is_flag=True, help="do not wait until the notebook is changed")
def resize_notebook(
    context: CommandContext,
    name: str,
    instance: Optional[str],
    volume_gb: Optional[int],
    platform: Optional[str],
    force: bool,
    no_wait: bool,
) -> None:
    """Change a stopped notebook's machine, disk or platform; its files are kept."""
    notebook = context.get_notebook(name)
    change = NotebookChange(
        None if instance is None else instances.normalize_instance_type(instance),
        volume_gb,
        None if platform is None else instances.check_platform(platform),
    )
    description = request_resize(context.caller, notebook, change, force)
    if description is None:
        context.report(f"{name} already has these settings")
        return
    new_type, new_gb = description.get("InstanceType"), description.get("VolumeSizeInGB")
    if new_type and new_gb:
        print_note(Prices().describe_notebook_cost(new_type, new_gb, context.caller.region))
    if not no_wait:
        notebook.wait(STOP_END_STATUSES)
    context.report(f"{name} is {'being ' if no_wait else ''}changed; start it with {notebook.command_line('start')}")


@command(f"{PROGRAM} prices")
@aws_options()
@click.option("--update", is_flag=True, help="read AWS's price list and write prices.json")
def show_prices(context: CommandContext, update: bool) -> None:
    """Show the prices of machines in a region, from prices.json."""
    region = context.caller.region
    if region is None:
        raise RefusedError("prices needs a region: add --region REGION, such as us-east-1")
    if update:
        products = price_list.fetch_products(context.caller)
        if context.caller.is_dry_run:
            return
        table = price_list.build_price_table(products, region, price_list.utc_today())
        price_list.write_prices(region, table)
        context.report(f"received the prices of {len(table['instance_hour'])} instance types for notebooks in {region}")
    elif context.caller.is_dry_run:
        return
    prices = Prices()
    context.report(f"{'':<18}{'an hour':>12}{'a day':>12}{'training/h':>12}")
    for instance in (instances.CPU_INSTANCE, *pairs.load_instances()):
        context.report(prices.format_row(instance, region))
    context.report(f"GB-month of a volume: {prices.format_gb_month_price(region)}; {prices.describe_source(region)}")


@command(f"{PROGRAM} quota")
@aws_options()
@click.option("--instance", metavar="TYPE", help="instance type, such as ml.g5.12xlarge")
@click.option(
    "--use",
    type=click.Choice(list(USES)),
    default="notebook",
    show_default=True,
    help="use of the machines that --request asks for",
)
@click.option(
    "--request",
    "count",
    metavar="N",
    type=click.IntRange(1, 100),
    help="request a quota of N machines at the same time",
)
def show_quota(context: CommandContext, instance: Optional[str], use: str, count: Optional[int]) -> None:
    """Show the quota of this account for an instance type, or request more."""
    if instance is None:
        raise RefusedError(f"quota needs an instance type: add --instance TYPE, {instances.instance_examples()}")
    kind = "InstanceType" if use == "notebook" else "TrainingInstanceType"
    instance = instances.normalize_instance_type(instance, kind)
    quotas = list_quotas(context.caller, instance)
    for quota in quotas.values():
        context.report(f"{quota.name}: {quota.value:g} in {context.caller.region}")
    if use not in quotas:
        raise RefusedError(
            f"AWS does not list the quota {quota_name(instance, use)!r} in {context.caller.region}: choose another "
            "--instance or --region"
        )
    if count is not None:
        context.report(request_increase(context.caller, quotas[use], count))
        if not context.caller.is_dry_run:
            show_command = f"{PROGRAM} quota --instance {instance}{context.options}"
            print_note(f"an answer takes hours to days; check with {show_command}")
    elif quotas[use].value < 1 and not context.caller.is_dry_run:
        context.report(
            f"the quota is 0: request one machine with {PROGRAM} quota --instance {instance} --use {use} --request "
            f"1{context.options}; an answer takes hours to days"
        )


COMMANDS: Tuple[Tuple[str, click.Command], ...] = (
    ("resize", resize_notebook),
    ("prices", show_prices),
    ("quota", show_quota),
)
