"""Options that several commands share, and what a command is given to work with."""

from __future__ import annotations

import functools
import getpass
import json
import time
from typing import Any, Callable, NamedTuple, Optional, Type

import click

from gluonlab_sagemaker.calls import Caller, Rehearsal
from gluonlab_sagemaker.checks import check_name
from gluonlab_sagemaker.notebook import Notebook
from gluonlab_sagemaker.waiting import Waiter

NAME = "gluonlab"
PROGRAM = "python sagemaker/launch.py"


class World(NamedTuple):
    """What commands reach the outside by; tests give others."""

    caller: Type[Caller] = Caller
    sleep: Callable[[float], None] = time.sleep


class Place(NamedTuple):
    """Where a command works, and how it answers."""

    caller: Caller
    region: Optional[str]  # as given
    profile: Optional[str]
    sleep: Callable[[float], None]

    @property
    def options(self) -> str:
        """The options that another command needs to work in the same place."""
        given = (("--region", self.region), ("--profile", self.profile))
        return "".join(f" {option} {value}" for option, value in given if value is not None)

    def say(self, text: str) -> None:
        """Say what was done: nothing, in a rehearsal."""
        if not self.caller.rehearses:
            note(text) if text.startswith("warning: ") else click.echo(text)

    def waiter(self, every_s: float = 10, longest_s: float = 3600) -> Waiter:
        """How to wait here."""
        return Waiter(every_s, longest_s, self.sleep)

    def say_next(self, notebook: Notebook, status: Optional[str]) -> None:
        """Say beside the result what can be done with a notebook in this status."""
        text = notebook.what_next(status)
        if text and not self.caller.rehearses:
            note(text)

    def notebook(self, name: str, ours: bool = False) -> Notebook:
        """The notebook of that name; Ctrl-C then says how to find it again.

        ``ours``: the command makes or deletes it, so that `delete` is the way back from it.
        """
        here = f"--name {check_name('--name', name)}{self.options}"
        notebook = Notebook(self.caller, name, self.waiter(), self.say, here)
        back = f", `{notebook.command('delete')}` removes what was made" if ours else ""
        going_on(f"`{notebook.command('wait')}` goes on{back}")
        return notebook

    def finish(self) -> None:
        """Print what a rehearsal noted."""
        if isinstance(self.caller, Rehearsal):
            calls = [call._asdict() for call in self.caller.noted]
            click.echo(json.dumps(calls, indent=2, default=_size))


def anywhere(status: Optional[str] = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add --region, --profile and --dry-run, which the function gets as one `Place`.

    ``status``: the notebook's, as a rehearsal takes it to be; None: there is no notebook.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @click.option(
            "--region", metavar="REGION", help="such as us-east-1  [default: that of the profile]"
        )
        @click.option(
            "--profile", metavar="NAME", help="the profile of the AWS configuration to use"
        )
        @click.option(
            "--dry-run", is_flag=True, help="print the calls to AWS as JSON, and make none"
        )
        @functools.wraps(function)
        def anywhere(
            region: Optional[str], profile: Optional[str], dry_run: bool, **options: Any
        ) -> None:
            world = click.get_current_context().obj or World()
            if dry_run:
                here = Place(
                    Rehearsal(profile, region, status), region, profile, lambda seconds: None
                )
            else:
                here = Place(world.caller(profile, region), region, profile, world.sleep)
            function(here, **options)
            here.finish()

        return anywhere

    return decorate


def named(function: Callable[..., None]) -> Callable[..., None]:
    """--name, for every command about one notebook."""
    help = "the notebook's name in this account and region"
    return click.option("--name", metavar="NAME", default=NAME, show_default=True, help=help)(
        function
    )


def going_on(text: str) -> None:
    """What Ctrl-C leaves to be said from now on."""
    setattr(click.get_current_context().command, "interrupted", f"nothing is undone: {text}")  # noqa: B010


def owner() -> str:
    """Who is at the keyboard, for a tag."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user id without a name
        return "unknown"


def note(text: str) -> None:
    """Say something beside the result."""
    click.echo(text, err=True)


def _size(data: Any) -> str:
    return f"<{len(data):,} bytes>" if isinstance(data, bytes) else str(data)
