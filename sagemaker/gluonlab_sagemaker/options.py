"""Options that several commands share, and the context that commands receive."""

from __future__ import annotations

import functools
import getpass
import json
import time
from typing import Any, Callable, NamedTuple, Optional, Type

import click

from gluonlab_sagemaker.calls import Caller, DryRunCaller
from gluonlab_sagemaker.checks import check_name
from gluonlab_sagemaker.notebook import Notebook
from gluonlab_sagemaker.waiting import Waiter

DEFAULT_NAME = "gluonlab"
PROGRAM = "python sagemaker/launch.py"


class Dependencies(NamedTuple):
    """The ways in which commands reach AWS and the clock; tests replace them."""

    caller: Type[Caller] = Caller
    sleep: Callable[[float], None] = time.sleep


class CommandContext(NamedTuple):
    """The connection to AWS of a command, and its output."""

    caller: Caller
    region: Optional[str]  # the value of --region
    profile: Optional[str]
    sleep: Callable[[float], None]

    @property
    def options(self) -> str:
        """Return --region and --profile for the text of another command."""
        values = (("--region", self.region), ("--profile", self.profile))
        return "".join(f" {option} {value}" for option, value in values if value is not None)

    def report(self, text: str) -> None:
        """Print a result, or a warning on standard error; print nothing in a dry run."""
        if not self.caller.is_dry_run:
            print_note(text) if text.startswith("warning: ") else click.echo(text)

    def make_waiter(self, interval_s: float = 10, timeout_s: float = 3600) -> Waiter:
        return Waiter(interval_s, timeout_s, self.sleep, prints_progress=not self.caller.is_dry_run)

    def print_next_steps(self, notebook: Notebook, status: Optional[str]) -> None:
        """Print advice on the next command for a notebook in this status."""
        text = notebook.next_steps(status)
        if text and not self.caller.is_dry_run:
            print_note(text)

    def get_notebook(self, name: str, offer_delete: bool = False) -> Notebook:
        """Return the notebook of that name, and set the message that Ctrl-C prints.

        With ``offer_delete``, the message also names the command that deletes the notebook.
        """
        name_options = f"--name {check_name('--name', name)}{self.options}"
        notebook = Notebook(self.caller, name, self.make_waiter(), self.report, name_options)
        message = f"continue with `{notebook.command_line('wait')}`"
        if offer_delete:
            message += f", or remove everything that was created with `{notebook.command_line('delete')}`"
        set_interrupt_message(message)
        return notebook

    def print_recorded_calls(self) -> None:
        """Print the calls of a dry run as JSON."""
        if isinstance(self.caller, DryRunCaller):
            calls = [call._asdict() for call in self.caller.recorded_calls]
            click.echo(json.dumps(calls, indent=2, default=_describe_bytes))


def aws_options(status: Optional[str] = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add --region, --profile and --dry-run, which the function receives as a `CommandContext`.

    ``status`` is the notebook's or job's status in a dry run; None means that it does not exist.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @click.option("--region", metavar="REGION", help="AWS region, such as us-east-1  [default: from the profile]")
        @click.option("--profile", metavar="NAME", help="profile of the AWS configuration")
        @click.option("--dry-run", is_flag=True, help="print the calls to AWS as JSON, but do not send them")
        @functools.wraps(function)
        def run_with_context(region: Optional[str], profile: Optional[str], dry_run: bool, **options: Any) -> None:
            dependencies = click.get_current_context().obj or Dependencies()
            caller, sleep = (
                (DryRunCaller(profile, region, status), lambda seconds: None)
                if dry_run
                else (dependencies.caller(profile, region), dependencies.sleep)
            )
            context = CommandContext(caller, region, profile, sleep)
            function(context, **options)
            context.print_recorded_calls()

        return run_with_context

    return decorate


def notebook_name_option(function: Callable[..., None]) -> Callable[..., None]:
    """Add --name, the name of a notebook."""
    help = "name of the notebook in this account and region"
    return click.option("--name", metavar="NAME", default=DEFAULT_NAME, show_default=True, help=help)(function)


def set_interrupt_message(text: str) -> None:
    """Set the message that Ctrl-C prints from now on."""
    setattr(click.get_current_context().command, "interrupted", f"nothing was undone: {text}")  # noqa: B010


def current_user() -> str:
    """Return the name of the current user, for a tag."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user id without a name
        return "unknown"


def print_note(text: str) -> None:
    """Print a line on standard error."""
    click.echo(text, err=True)


def _describe_bytes(data: Any) -> str:
    return f"<{len(data):,} bytes>" if isinstance(data, bytes) else str(data)
