"""Life cycle of one notebook: creation, start, stop and deletion.

Each step first asks AWS for the status, so an interrupted step can be repeated.

Statuses: Pending -> InService -> Stopping -> Stopped -> Pending ..., Stopped -> Deleting -> gone.
Each of them can become Failed.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Optional, Sequence

import instance_pairs as pairs
from gluonlab_sagemaker.calls import Caller, Response
from gluonlab_sagemaker.checks import has_gluonlab_tag
from gluonlab_sagemaker.errors import AWSError, FailedError, RefusedError, failed_error
from gluonlab_sagemaker.instances import resize_options
from gluonlab_sagemaker.role import delete_notebook_role
from gluonlab_sagemaker.startup import delete_lifecycle_config
from gluonlab_sagemaker.waiting import Waiter

SETTLED_STATUSES = ("InService", "Stopped", "Failed", None)
# without the status before the start or stop, which AWS may still show for a moment
START_END_STATUSES, STOP_END_STATUSES = ("InService", "Failed", None), ("Stopped", "Failed", None)
NEW_ROLE_TIMEOUT_S = 60  # SageMaker accepts a new role after some seconds
URL_LIFETIME_S = 12 * 3600
STACK_TAG = "aws:cloudformation:stack-name"
FILES_NOTE = "its files are still on its volume, which `delete` would destroy"
DELETE_ACTIONS = {
    "InService": "StopNotebookInstance",
    "Stopped": "DeleteNotebookInstance",
    "Failed": "DeleteNotebookInstance",
}


def stack_name(tags: Sequence[Dict[str, str]]) -> Optional[str]:
    """Return the name of the CloudFormation stack in a resource's tags, if there is one."""
    return next((tag["Value"] for tag in tags if tag["Key"] == STACK_TAG), None)


class Notebook:
    """The notebook called ``name``.

    ``report`` receives messages. ``name_options`` are the options by which a command finds this
    notebook again.
    """

    def __init__(
        self, caller: Caller, name: str, waiter: Waiter, report: Callable[[str], None], name_options: str
    ) -> None:
        self._call, self.name, self._waiter = caller, name, waiter
        self.report, self._name_options = report, name_options

    def command_line(self, verb: str) -> str:
        """Return the command line of the command ``verb`` for this notebook."""
        return f"python sagemaker/launch.py {verb} {self._name_options}"

    def describe(self) -> Optional[Response]:
        """Return AWS's description of the notebook, or None if it does not exist."""
        try:
            return self._call("sagemaker", "DescribeNotebookInstance", NotebookInstanceName=self.name)
        except AWSError as error:
            if error.is_not_found:
                return None
            raise

    def describe_existing(self) -> Response:
        """Return AWS's description of the notebook; raise RefusedError if it does not exist."""
        description = self.describe()
        if description is None:
            region = self._call.region
            raise RefusedError(
                f"there is no notebook {self.name} in {region}: create it with {self.command_line('create')} "
                "--instance ..."
            )
        return description

    def refuse_existing(self) -> None:
        """Raise RefusedError if the notebook exists."""
        description = self.describe()
        if description is not None:
            status = description["NotebookInstanceStatus"]
            message = f"the notebook {self.name} already exists"
            if status == "Failed":
                raise RefusedError(
                    f"{message}, but has failed ({description.get('FailureReason')}): try again with "
                    f"{self.command_line('start')}, or delete it and all files on its volume with "
                    f"{self.command_line('delete')}"
                )
            raise RefusedError(f"{message} ({status}): see {self.command_line('status')}, or choose another --name")

    def create(self, request: Dict[str, Any], sleep: Callable[[float], None] = time.sleep) -> None:
        """Ask AWS to create the notebook; retry while its role is too new."""
        for waited_s in range(0, NEW_ROLE_TIMEOUT_S + 1, 5):
            try:
                self._call("sagemaker", "CreateNotebookInstance", **request)
                return
            except AWSError as error:
                if not error.is_role_too_new or waited_s == NEW_ROLE_TIMEOUT_S:
                    raise
            sleep(5)

    def start(self, force: bool) -> bool:
        """Start the notebook; return whether it is starting."""
        description = self.describe_existing()
        status = description["NotebookInstanceStatus"]
        if status in ("InService", "Pending"):
            self.report(f"{self.name} is already {status}")
            return bool(status == "Pending")
        if status == "Deleting":
            raise RefusedError(f"{self.name} is being deleted: run {self.command_line('wait')}, then create it again")
        self._refuse_dead_instance(description, force)
        if status != "Stopped":
            status = str(self._waiter.wait_until(self.name, SETTLED_STATUSES, self.current_status) or "gone")
            # AWS's maintenance, or another user, may have started or deleted the notebook.
            if status in ("InService", "gone"):
                self.report(f"{self.name} is {status}")
                return False
        try:
            self._call("sagemaker", "StartNotebookInstance", NotebookInstanceName=self.name)
        except AWSError as error:
            if not error.is_capacity_error:
                raise
            failure = failed_error("notebook", self.name, f"not started: {error.code}", self._capacity_remedy())
            raise AWSError(f"{failure}; {FILES_NOTE}", error.code) from error
        self.report(f"{self.name} is starting")
        return True

    def _refuse_dead_instance(self, description: Response, force: bool) -> None:
        """Refuse an instance type that AWS no longer starts, with advice on how to keep files."""
        instance, platform = description.get("InstanceType"), description.get("PlatformIdentifier")
        reason = pairs.dead_reason(instance or "", platform)
        if reason and force:
            self.report(f"warning: {reason} (continuing because of --force)")
        elif reason:
            options = resize_options(instance, platform)
            remedy = (
                f"run {self.command_line('resize')}{options}, which keeps the files on its volume, then start"
                if options
                else "to save the files on its volume, see `A dead notebook` in sagemaker/README.md"
            )
            raise RefusedError(f"{reason.rstrip('.')}: {remedy}; or add --force to try anyway")

    def stop(self) -> bool:
        """Stop the notebook; return whether it is stopping."""
        status = self.describe_existing()["NotebookInstanceStatus"]
        if status in ("Stopped", "Stopping", "Deleting", "Failed"):
            self.report(f"{self.name} is already {status}")
            return bool(status == "Stopping")
        if status != "InService":
            status = self.wait()
        if status == "InService":
            self._call("sagemaker", "StopNotebookInstance", NotebookInstanceName=self.name)
            self.report(
                f"{self.name} is stopping: then only its volume costs money, until you run "
                f"{self.command_line('delete')}"
            )
        return True

    def wait(self, end_statuses: Sequence[Optional[str]] = SETTLED_STATUSES, is_new: bool = False) -> Optional[str]:
        """Wait until the notebook has one of ``end_statuses``, and return the status.

        Raises FailedError if the notebook failed. ``is_new`` means that its volume has no files.
        """
        status = self._waiter.wait_until(self.name, end_statuses, self.current_status)
        if status == "Failed":
            reason = self.describe_existing().get("FailureReason")
            if is_new:
                advice = f"remove the rest of it with {self.command_line('delete')}"
                raise FailedError(f"{failed_error('notebook', self.name, reason)}; {advice}")
            error = failed_error("notebook", self.name, reason, self._capacity_remedy())
            raise FailedError(f"{error}; {FILES_NOTE}")
        return status

    def next_steps(self, status: Optional[str]) -> str:
        """Return advice on the next command in this status; empty if the notebook is gone."""
        if status == "InService":
            return f"open it: {self.command_line('url')}; stop its machine: {self.command_line('stop')}"
        if status == "Stopped":
            return (
                f"its volume costs money until you run {self.command_line('delete')}, which destroys its files; "
                f"start it again: {self.command_line('start')}"
            )
        if status == "Failed":
            return f"{self._capacity_remedy()}; {FILES_NOTE}"
        return "" if status is None else f"wait for it: {self.command_line('wait')}"

    def _capacity_remedy(self) -> str:
        return (
            f"try again later: {self.command_line('start')}; change the type: {self.command_line('resize')} "
            "--instance TYPE; or create another notebook: create --name OTHER"
        )

    def create_url(self, seconds: int = URL_LIFETIME_S) -> str:
        """Return an address that opens the notebook for anybody within 5 minutes."""
        status = self.describe_existing()["NotebookInstanceStatus"]
        if status != "InService":
            verb = "wait" if status in ("Pending", "Updating") else "start"
            raise RefusedError(
                f"{self.name} is {status}, but has an address only when it is InService: run {self.command_line(verb)}"
            )
        response = self._call(
            "sagemaker",
            "CreatePresignedNotebookInstanceUrl",
            NotebookInstanceName=self.name,
            SessionExpirationDurationInSeconds=seconds,
        )
        return str(response.get("AuthorizedUrl", ""))

    def current_status(self) -> Optional[str]:
        """Return the notebook's status, or None if it does not exist."""
        description = self.describe()
        return None if description is None else str(description["NotebookInstanceStatus"])

    def refuse_foreign(self, force: bool) -> None:
        """Refuse to delete a notebook that has a stack's tag, or lacks gluonlab's tag."""
        description = None if force else self.describe()
        if description is not None:
            tags = self._call("sagemaker", "ListTags", ResourceArn=description["NotebookInstanceArn"]).get("Tags", [])
            stack = stack_name(tags)
            if stack is not None:
                raise RefusedError(
                    f"{self.name} belongs to the CloudFormation stack {stack}: run aws cloudformation delete-stack "
                    f"--stack-name {stack}"
                )
            if not has_gluonlab_tag(tags):
                raise RefusedError(
                    f"{self.name} does not have the tag project=gluonlab, so it was not created by this program: to "
                    "delete it, add --force"
                )

    def delete(self) -> None:
        """Stop and delete the notebook, then delete its lifecycle configuration and role.

        Skips resources that do not exist.
        """
        requested: List[str] = []
        previous: Optional[str] = ""
        for status in self._waiter.poll(self.name, self.current_status):
            if status is None:
                break
            if status in DELETE_ACTIONS and status != previous:
                if status == "Failed" and DELETE_ACTIONS[status] in requested:
                    raise failed_error("notebook", self.name, self.describe_existing().get("FailureReason"))
                self._request_action(DELETE_ACTIONS[status])
                requested.append(DELETE_ACTIONS[status])
            previous = status
        self.report(f"notebook {self.name}: {'deleted, with its volume' if previous else 'there is none'}")
        for kind, delete_resource in (
            ("lifecycle configuration", delete_lifecycle_config),
            ("role", delete_notebook_role),
        ):
            try:
                is_deleted = delete_resource(self._call, self.name)
                outcome = "deleted" if is_deleted else "no such resource was created by this program"
                self.report(f"{kind}: {outcome}")
            except AWSError as error:  # only a warning: neither resource costs anything
                self.report(f"warning: {kind}: {error}")

    def _request_action(self, action: str) -> None:
        try:
            self._call("sagemaker", action, NotebookInstanceName=self.name)
        except AWSError as error:
            # Somebody else, such as the idle stop, may have changed the status first.
            if not (error.is_not_found or error.is_wrong_status):
                raise
