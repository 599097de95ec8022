"""What the tests of launch.py work with: the command in this process, a log of its calls, and an
AWS that answers as it is told.
"""

import sys
from pathlib import Path

import boto3
import pytest
from botocore import exceptions
from botocore.stub import Stubber

SAGEMAKER = Path(__file__).resolve().parents[3] / "sagemaker"
sys.path[:0] = [str(SAGEMAKER), str(SAGEMAKER.parent)]

from gluonlab_sagemaker.calls import Caller  # noqa: E402
from gluonlab_sagemaker.commands import main  # noqa: E402

REGION = "us-east-1"


class Log:
    """What was called, and how long was slept."""

    def __init__(self):
        self.calls, self.slept = [], []
        self.interrupt_no_more()

    @property
    def operations(self):
        return [operation for _, operation, _ in self.calls]

    def changes(self):
        """Without what only looks."""
        return [
            name for name in self.operations if not name.startswith(("Describe", "Get", "List"))
        ]

    def interrupt_at(self, call):
        """Ctrl-C comes when the command makes the call of this number."""

        def before(number):
            if number == call:
                raise KeyboardInterrupt

        self.before = before

    def interrupt_no_more(self):
        self.before = lambda number: None

    def recording(self, base=Caller):
        log = self

        class Recording(base):
            def __call__(self, service, operation, **parameters):
                log.before(len(log.calls))
                log.calls.append((service, operation, parameters))
                return super().__call__(service, operation, **parameters)

        return Recording


def ended(capsys, world, arguments):
    with pytest.raises(SystemExit) as raised:
        main(list(arguments), world)
    said = capsys.readouterr()
    return raised.value.code, said.out, said.err


class Answers:
    """An AWS that expects calls in an order and answers them as told, after botocore has checked
    both sides against the API.
    """

    def __init__(self):
        self._stubbers = {}

    def client(self, service):
        return self._stubber(service).client

    def _stubber(self, service):
        if service not in self._stubbers:
            client = boto3.client(
                service, region_name=REGION, aws_access_key_id="x", aws_secret_access_key="x"
            )
            self._stubbers[service] = Stubber(client)
            self._stubbers[service].activate()
        return self._stubbers[service]

    def say(self, operation, answer=None, service="sagemaker"):
        self._stubber(service).add_response(operation, answer or {})

    def refuse(self, operation, code, message="", service="sagemaker"):
        self._stubber(service).add_client_error(operation, code, message)

    def silent(self, operation):
        """Nothing comes back, though AWS may have done it."""

        def time_out(**ignored):
            raise exceptions.ReadTimeoutError(endpoint_url="https://x")

        self.client("sagemaker").meta.events.register(
            f"provide-client-params.sagemaker.{operation}", time_out
        )

    def statuses(self, *statuses, **more):
        """What DescribeNotebookInstance says, one after the other; None: there is none."""
        for status in statuses:
            if status is None:
                self.refuse("describe_notebook_instance", "ValidationException", "RecordNotFound")
            else:
                arn = f"arn:aws:sagemaker:{REGION}:111122223333:notebook-instance/gluonlab"
                about = {
                    "NotebookInstanceName": "gluonlab",
                    "NotebookInstanceArn": arn,
                    "NotebookInstanceStatus": status,
                }
                self.say("describe_notebook_instance", {**about, **more})

    def no_scripts(self):
        """There is no lifecycle configuration of the notebook."""
        operation = "describe_notebook_instance_lifecycle_config"
        self.refuse(operation, "ValidationException", "it does not exist.")

    def scripts_are_made(self):
        self.no_scripts()
        self.say("create_notebook_instance_lifecycle_config")

    def no_role(self):
        self.refuse("get_role", "NoSuchEntity", "cannot be found", "iam")

    def without_a_role(self):
        """There is neither the notebook nor the role that it would have; the caller is ada."""
        self.statuses(None)
        self.caller_is_ada()
        self.no_role()

    def caller_is_ada(self):
        ada = {"Account": "111122223333", "Arn": "arn:aws:iam::111122223333:user/ada"}
        self.say("get_caller_identity", ada, "sts")

    def all_given(self):
        for stubber in self._stubbers.values():
            stubber.assert_no_pending_responses()
