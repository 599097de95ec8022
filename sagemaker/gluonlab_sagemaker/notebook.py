"""One notebook from its making to its end.

Each step looks first what is there, so one that was interrupted can be taken again.

States: Pending -> InService -> Stopping -> Stopped -> Pending ..., Stopped -> Deleting -> gone;
from each of them Failed.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Optional, Sequence

import instance_pairs as pairs
from gluonlab_sagemaker.calls import Answer, Caller
from gluonlab_sagemaker.checks import is_ours
from gluonlab_sagemaker.errors import AWSError, FailedError, RefusedError, failure
from gluonlab_sagemaker.instances import way_out
from gluonlab_sagemaker.role import delete_role
from gluonlab_sagemaker.startup import delete_config
from gluonlab_sagemaker.waiting import Waiter

SETTLED = ("InService", "Stopped", "Failed", None)
# AWS may show the old status for a moment
STARTED, STOPPED = ("InService", "Failed", None), ("Stopped", "Failed", None)
NEW_ROLE_S = 60  # SageMaker learns of a new role within seconds
URL_S = 12 * 3600
STACK = "aws:cloudformation:stack-name"
ENDING = {
    "InService": "StopNotebookInstance",
    "Stopped": "DeleteNotebookInstance",
    "Failed": "DeleteNotebookInstance",
}


def stack_of(tags: Sequence[Dict[str, str]]) -> Optional[str]:
    """The CloudFormation stack that made what bears these tags, if one did."""
    return next((tag["Value"] for tag in tags if tag["Key"] == STACK), None)


class Notebook:
    """The notebook called ``name``.

    ``say`` gets what was done; ``here`` is what a command needs to find this notebook again.
    """

    def __init__(
        self, caller: Caller, name: str, waiter: Waiter, say: Callable[[str], None], here: str
    ) -> None:
        self._call, self.name, self._waiter, self.say, self._here = caller, name, waiter, say, here

    def command(self, verb: str) -> str:
        """The command line that does ``verb`` with this notebook."""
        return f"python sagemaker/launch.py {verb} {self._here}"

    def describe(self) -> Optional[Answer]:
        """What AWS says of it; None if there is no such notebook."""
        try:
            return self._call(
                "sagemaker", "DescribeNotebookInstance", NotebookInstanceName=self.name
            )
        except AWSError as error:
            if error.missing:
                return None
            raise

    def existing(self) -> Answer:
        """What AWS says of it; RefusedError if there is no such notebook."""
        found = self.describe()
        if found is None:
            region = self._call.region
            raise RefusedError(
                f"there is no notebook {self.name} in {region}: "
                f"{self.command('create')} --instance ... makes one"
            )
        return found

    def refuse_existing(self) -> None:
        """Refuse to make what is there."""
        found = self.describe()
        if found is not None:
            status, what = (
                found["NotebookInstanceStatus"],
                f"the notebook {self.name} exists already",
            )
            if status == "Failed":
                raise RefusedError(
                    f"{what}, and has failed ({found.get('FailureReason')}): "
                    f"{self.command('start')} tries again; {self.command('delete')} deletes it "
                    "with all files on its volume"
                )
            raise RefusedError(
                f"{what} ({status}): see {self.command('status')}, or choose another --name"
            )

    def make(self, request: Dict[str, Any], sleep: Callable[[float], None] = time.sleep) -> None:
        """Ask AWS for it; patient with a role that was made a moment ago."""
        for waited_s in range(0, NEW_ROLE_S + 1, 5):
            try:
                self._call("sagemaker", "CreateNotebookInstance", **request)
                return
            except AWSError as error:
                if not error.role_is_too_new or waited_s == NEW_ROLE_S:
                    raise
            sleep(5)

    def start(self, force: bool) -> bool:
        """Start it; False if it runs already."""
        found = self.existing()
        status = found["NotebookInstanceStatus"]
        if status in ("InService", "Pending"):
            self.say(f"{self.name} is {status} already")
            return bool(status == "Pending")
        if status == "Deleting":
            raise RefusedError(
                f"{self.name} is being deleted: {self.command('wait')}, then create it anew"
            )
        self._refuse_dead(found, force)
        if status != "Stopped":
            status = str(self._waiter.until(self.name, SETTLED, self.status) or "gone")
            # AWS does maintenance of its own, and somebody else may have been faster
            if status in ("InService", "gone"):
                self.say(f"{self.name} is {status}")
                return False
        try:
            self._call("sagemaker", "StartNotebookInstance", NotebookInstanceName=self.name)
        except AWSError as error:
            if not error.no_machine:
                raise
            refused = failure("notebook", self.name, f"not started: {error.code}", self._remedy())
            raise AWSError(f"{refused}; {self._kept()}", error.code) from error
        self.say(f"{self.name} is starting")
        return True

    def _refuse_dead(self, found: Answer, force: bool) -> None:
        """Refuse to start what AWS no longer starts, with the way to keep its files."""
        instance, platform = found.get("InstanceType"), found.get("PlatformIdentifier")
        reason = pairs.dead(instance or "", platform)
        if reason and force:
            self.say(f"warning: {reason} (--force: AWS is asked all the same)")
        elif reason:
            options = way_out(instance, platform)
            cure = (
                f"{self.command('resize')}{options} keeps the files on its volume, then start"
                if options
                else "see `A dead notebook` in sagemaker/README.md for what is on its volume"
            )
            raise RefusedError(
                f"{reason.rstrip('.')}: {cure}; or ask AWS all the same with --force"
            )

    def stop(self) -> bool:
        """Stop it; False if it does not run."""
        status = self.existing()["NotebookInstanceStatus"]
        if status in ("Stopped", "Stopping", "Deleting", "Failed"):
            self.say(f"{self.name} is {status} already")
            return bool(status == "Stopping")
        if status != "InService":
            status = self.wait()
        if status == "InService":
            self._call("sagemaker", "StopNotebookInstance", NotebookInstanceName=self.name)
            self.say(
                f"{self.name} is stopping: its volume alone costs something from then on, "
                f"until {self.command('delete')}"
            )
        return True

    def wait(self, ends: Sequence[Optional[str]] = SETTLED, new: bool = False) -> Optional[str]:
        """Wait until its status is one of ``ends``: that one.

        FailedError, with the reason, if it failed. ``new``: there are no files on its volume yet.
        """
        status = self._waiter.until(self.name, ends, self.status)
        if status == "Failed":
            reason = self.existing().get("FailureReason")
            if new:
                rest = f"{self.command('delete')} removes what is left of it"
                raise FailedError(f"{failure('notebook', self.name, reason)}; {rest}")
            error = failure("notebook", self.name, reason, self._remedy())
            raise FailedError(f"{error}; {self._kept()}")
        return status

    def what_next(self, status: Optional[str]) -> str:
        """What can be done with it in this status; nothing if it is gone."""
        if status == "InService":
            return f"open it: {self.command('url')}; end its machine: {self.command('stop')}"
        if status == "Stopped":
            return (
                f"its volume is paid for until {self.command('delete')}, which destroys its files; "
                f"start it again: {self.command('start')}"
            )
        if status == "Failed":
            return f"{self._remedy()}; {self._kept()}"
        return "" if status is None else f"wait for it: {self.command('wait')}"

    def _remedy(self) -> str:
        """What to do when there is no machine for a notebook whose volume may hold files."""
        return (
            f"try again later: {self.command('start')}; change the type: "
            f"{self.command('resize')} --instance TYPE; "
            "or make a new one beside it: create --name OTHER"
        )

    def _kept(self) -> str:
        return "its files are still on its volume, which `delete` would destroy"

    def url(self, seconds: int = URL_S) -> str:
        """An address that admits anybody who opens it within 5 minutes."""
        status = self.existing()["NotebookInstanceStatus"]
        if status != "InService":
            verb = "wait" if status in ("Pending", "Updating") else "start"
            raise RefusedError(
                f"{self.name} is {status}: it has an address when it is InService: "
                f"{self.command(verb)}"
            )
        answer = self._call(
            "sagemaker",
            "CreatePresignedNotebookInstanceUrl",
            NotebookInstanceName=self.name,
            SessionExpirationDurationInSeconds=seconds,
        )
        return str(answer.get("AuthorizedUrl", ""))

    def status(self) -> Optional[str]:
        """Its status; None if there is no such notebook."""
        found = self.describe()
        return None if found is None else str(found["NotebookInstanceStatus"])

    def refuse_foreign(self, force: bool) -> None:
        """Refuse to delete a notebook that was not made here: its tags say so."""
        found = None if force else self.describe()
        if found is not None:
            tags = self._call(
                "sagemaker", "ListTags", ResourceArn=found["NotebookInstanceArn"]
            ).get("Tags", [])
            stack = stack_of(tags)
            if stack is not None:
                raise RefusedError(
                    f"{self.name} belongs to the CloudFormation stack {stack}: "
                    f"aws cloudformation delete-stack --stack-name {stack}"
                )
            if not is_ours(tags):
                raise RefusedError(
                    f"{self.name} lacks the tag project=gluonlab, so it was not made here: "
                    "to delete it, add --force"
                )

    def delete(self) -> None:
        """Stop it, wait, delete it, wait, and delete what was made for it.

        What is gone already is passed over.
        """
        asked: List[str] = []
        last: Optional[str] = ""
        for status in self._waiter.watch(self.name, self.status):
            if status is None:
                break
            if status in ENDING and status != last:
                if status == "Failed" and ENDING[status] in asked:
                    raise failure("notebook", self.name, self.existing().get("FailureReason"))
                self._end(ENDING[status])
                asked.append(ENDING[status])
            last = status
        self.say(
            f"notebook {self.name}: "
            f"{'deleted, and its volume with it' if last else 'there is none'}"
        )
        for what, end in (("lifecycle configuration", delete_config), ("role", delete_role)):
            try:
                ended = end(self._call, self.name)
                self.say(f"{what}: {'deleted' if ended else 'there is none that was made here'}")
            except AWSError as error:  # neither costs anything
                self.say(f"warning: {what}: {error}")

    def _end(self, action: str) -> None:
        try:
            self._call("sagemaker", action, NotebookInstanceName=self.name)
        except AWSError as error:
            # someone else, such as the idle stop, was faster
            if not (error.missing or error.wrong_status):
                raise
