"""Another machine for a notebook, what machines cost, and how many of them one may have."""

from __future__ import annotations

from typing import Optional, Tuple

import click

import instance_pairs as pairs
from gluonlab.cli.command import command
from gluonlab_sagemaker import instances, price_list
from gluonlab_sagemaker.cost import Prices
from gluonlab_sagemaker.errors import RefusedError
from gluonlab_sagemaker.notebook import STOPPED
from gluonlab_sagemaker.options import PROGRAM, Place, anywhere, named, note
from gluonlab_sagemaker.quota import USES, ask_for, name_of, quotas
from gluonlab_sagemaker.resize import Change
from gluonlab_sagemaker.resize import resize as resize_notebook

WITHOUT_GPUS = "ml.m5.xlarge"  # to look around on, see README.md


@command(f"{PROGRAM} resize")
@anywhere(status="Stopped")
@named
@click.option("--instance", metavar="TYPE", help="the machine that it runs on from then on")
@click.option(
    "--volume",
    "volume_gb",
    metavar="GB",
    type=click.IntRange(5, 16384),
    help="the new size of its disk, which can only grow",
)
@click.option(
    "--platform",
    metavar="PLATFORM",
    help="a newer operating system, such as notebook-al2023-v1 for one on Amazon Linux 2",
)
@click.option("--force", is_flag=True, help="ask AWS also for what it is known to refuse")
@click.option("--no-wait", is_flag=True, help="do not wait until it is changed")
def resize(
    here: Place,
    name: str,
    instance: Optional[str],
    volume_gb: Optional[int],
    platform: Optional[str],
    force: bool,
    no_wait: bool,
) -> None:
    """Change a stopped notebook's machine, disk or platform; its files are kept."""
    notebook = here.notebook(name)
    change = Change(
        None if instance is None else instances.instance_type(instance),
        volume_gb,
        None if platform is None else instances.platform(platform),
    )
    after = resize_notebook(here.caller, notebook, change, force)
    if after is None:
        here.say(f"{name} is so already")
        return
    if after.get("InstanceType") and after.get("VolumeSizeInGB"):
        note(Prices().notebook(after["InstanceType"], after["VolumeSizeInGB"], here.caller.region))
    if not no_wait:
        notebook.wait(STOPPED)
    here.say(f"{name} is {'being ' if no_wait else ''}changed: {notebook.command('start')}")


@command(f"{PROGRAM} prices")
@anywhere()
@click.option("--update", is_flag=True, help="ask AWS's price list, and write prices.json")
def prices(here: Place, update: bool) -> None:
    """Show what machines cost in a region, by prices.json."""
    region = here.caller.region
    if region is None:
        raise RefusedError("prices lacks the region: add --region REGION, such as us-east-1")
    if update:
        found = price_list.ask(here.caller)
        if here.caller.rehearses:
            return
        made = price_list.table(found, region, price_list.utc_today())
        price_list.write(region, made)
        here.say(f"asked AWS: {len(made['instance_hour'])} machines for notebooks in {region}")
    elif here.caller.rehearses:
        return
    table = Prices()
    here.say(f"{'':<18}{'an hour':>12}{'a day':>12}{'training/h':>12}")
    for instance in (WITHOUT_GPUS, *pairs.instances()):
        here.say(table.line(instance, region))
    here.say(f"GB-month of a volume: {table.volume(region)}; {table.about(region)}")


@command(f"{PROGRAM} quota")
@anywhere()
@click.option("--instance", metavar="TYPE", help="the machine, such as ml.g5.12xlarge")
@click.option(
    "--use",
    type=click.Choice(list(USES)),
    default="notebook",
    show_default=True,
    help="what --request is for",
)
@click.option(
    "--request",
    "wanted",
    metavar="N",
    type=click.IntRange(1, 100),
    help="ask AWS for N machines at once",
)
def quota(here: Place, instance: Optional[str], use: str, wanted: Optional[int]) -> None:
    """Say how many machines of a type this account may have at once, or ask for more."""
    if instance is None:
        raise RefusedError(
            f"quota lacks the machine: write --instance TYPE, {instances.examples()}"
        )
    kind = "InstanceType" if use == "notebook" else "TrainingInstanceType"
    instance = instances.instance_type(instance, kind)
    found = quotas(here.caller, instance)
    for one in found.values():
        here.say(f"{one.name}: {one.value:g} in {here.caller.region}")
    if use not in found:
        raise RefusedError(
            f"AWS lists no quota {name_of(instance, use)!r} in {here.caller.region}: "
            "choose another --instance or --region"
        )
    if wanted is not None:
        here.say(ask_for(here.caller, found[use], wanted))
        if not here.caller.rehearses:
            again = f"{PROGRAM} quota --instance {instance}{here.options}"
            note(f"it takes hours to days, and counts when this shows it: {again}")
    elif found[use].value < 1 and not here.caller.rehearses:
        here.say(
            f"none may be had: {PROGRAM} quota --instance {instance} --use {use} --request 1"
            f"{here.options} asks AWS, which takes hours to days"
        )


COMMANDS: Tuple[Tuple[str, click.Command], ...] = (
    ("resize", resize),
    ("prices", prices),
    ("quota", quota),
)
