"""Helpers for the tests of launch.py: commands in this process, a log of calls, a stubbed AWS."""

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


class CallLog:
    """A log of the calls to AWS, and of the seconds slept."""

    def __init__(self):
        self.calls, self.slept = [], []
        self.interrupt_no_more()

    @property
    def operations(self):
        return [operation for _, operation, _ in self.calls]

    def changes(self):
        """Return the operations that change something."""
        return [name for name in self.operations if not name.startswith(("Describe", "Get", "List"))]

    def interrupt_at(self, call):
        """Simulate Ctrl-C at the call with this number."""
        self.interrupt_call = call

    def interrupt_no_more(self):
        self.interrupt_call = None

    def recording(self, base=Caller):
        log = self

        class Recording(base):
            def __call__(self, service, operation, **parameters):
                if len(log.calls) == log.interrupt_call:
                    raise KeyboardInterrupt
                log.calls.append((service, operation, parameters))
                return super().__call__(service, operation, **parameters)

        return Recording


def run_command(capsys, world, arguments):
    with pytest.raises(SystemExit) as raised:
        main(list(arguments), world)
    output = capsys.readouterr()
    return raised.value.code, output.out, output.err


class StubbedAWS:
    """An AWS that expects calls in order, with answers that botocore checks against the API."""

    def __init__(self):
        self._stubbers = {}

    def client(self, service):
        return self._stubber(service).client

    def _stubber(self, service):
        if service not in self._stubbers:
            client = boto3.client(service, region_name=REGION, aws_access_key_id="x", aws_secret_access_key="x")
            self._stubbers[service] = Stubber(client)
            self._stubbers[service].activate()
        return self._stubbers[service]

    def answer(self, operation, answer=None, service="sagemaker"):
        self._stubber(service).add_response(operation, answer or {})

    def refuse(self, operation, code, message="", service="sagemaker"):
        self._stubber(service).add_client_error(operation, code, message)

    def time_out(self, operation):
        """Simulate a call without an answer, which AWS may have carried out."""

        def raise_timeout(**ignored):
            raise exceptions.ReadTimeoutError(endpoint_url="https://x")

        self.client("sagemaker").meta.events.register(f"provide-client-params.sagemaker.{operation}", raise_timeout)

    def statuses(self, *statuses, **more):
        """Answer DescribeNotebookInstance with these statuses; None means that it is not found."""
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
                self.answer("describe_notebook_instance", {**about, **more})

    def answer_no_scripts(self):
        """Answer that the notebook has no lifecycle configuration."""
        operation = "describe_notebook_instance_lifecycle_config"
        self.refuse(operation, "ValidationException", "it does not exist.")

    def answer_scripts_created(self):
        self.answer_no_scripts()
        self.answer("create_notebook_instance_lifecycle_config")

    def answer_no_role(self):
        self.refuse("get_role", "NoSuchEntity", "cannot be found", "iam")

    def answer_no_notebook_and_role(self):
        """Answer that there is neither the notebook nor its role, and that the caller is ada."""
        self.statuses(None)
        self.answer_caller()
        self.answer_no_role()

    def answer_caller(self):
        ada = {"Account": "111122223333", "Arn": "arn:aws:iam::111122223333:user/ada"}
        self.answer("get_caller_identity", ada, "sts")

    def assert_all_used(self):
        for stubber in self._stubbers.values():
            stubber.assert_no_pending_responses()
