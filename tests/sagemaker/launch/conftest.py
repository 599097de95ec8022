"""launch.py in this process, on moto's AWS or on one that answers what a test tells it to; never on a network."""

import functools
import socket
import sys
from pathlib import Path

import boto3
import botocore.session
import pytest
from botocore.stub import Stubber
from moto import mock_aws

SAGEMAKER = Path(__file__).resolve().parents[3] / "sagemaker"
sys.path[:0] = [str(SAGEMAKER), str(SAGEMAKER.parent)]

from launcher.calls import Caller  # noqa: E402
from launcher.commands import main  # noqa: E402
from launcher.options import World  # noqa: E402

REGION = "us-east-1"


SET_BY_PEOPLE = ("PROFILE", "DEFAULT_PROFILE", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "REGION")

# Each command makes a session, and each session would read AWS's descriptions of its services anew, which takes half a second.
botocore.session.create_loader = functools.lru_cache(maxsize=None)(botocore.session.create_loader)


@pytest.fixture(autouse=True)
def nobody(monkeypatch, tmp_path):
    """No credentials, no configuration and no network: what a person has set up is no part of a test."""
    for name in (
        "AWS_PROFILE",
        "AWS_DEFAULT_PROFILE",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_REGION",
    ):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "no-aws-configuration"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.setattr(socket.socket, "connect", _no_network)


def _no_network(self, address):
    raise AssertionError(f"a test wants to connect to {address}")


@pytest.fixture
def somebody(monkeypatch):
    """Credentials, made up."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAMADEUPMADEUPMADE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "made-up-secret")


class Log:
    """What was called, and how long was slept; ``before`` is called before each call with its number."""

    def __init__(self):
        self.calls, self.slept, self.before = [], [], lambda number: None

    @property
    def operations(self):
        return [operation for _, operation, _ in self.calls]

    def changes(self):
        """Without what only looks."""
        return [name for name in self.operations if not name.startswith(("Describe", "Get", "List"))]

    def recording(self, base=Caller):
        log = self

        class Recording(base):
            def __call__(self, service, operation, **parameters):
                log.before(len(log.calls))
                log.calls.append((service, operation, parameters))
                return super().__call__(service, operation, **parameters)

        return Recording


@pytest.fixture
def log():
    return Log()


def ended(capsys, world, arguments):
    with pytest.raises(SystemExit) as raised:
        main(list(arguments), world)
    said = capsys.readouterr()
    return raised.value.code, said.out, said.err


@pytest.fixture
def launch(capsys, log, somebody):
    """``launch(*arguments)`` -> exit status, standard output, standard error: the command on moto's AWS."""
    with mock_aws():
        yield lambda *arguments: ended(capsys, World(log.recording(), log.slept.append), arguments)


class Answers:
    """An AWS that expects calls in an order and answers them as told, after botocore has checked both sides against the API."""

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

    def say(self, operation, answer=None, service="sagemaker"):
        self._stubber(service).add_response(operation, answer or {})

    def refuse(self, operation, code, message="", service="sagemaker"):
        self._stubber(service).add_client_error(operation, code, message)

    def statuses(self, *statuses, **more):
        """What DescribeNotebookInstance says, one after the other; None: there is none."""
        for status in statuses:
            if status is None:
                self.refuse("describe_notebook_instance", "ValidationException", "RecordNotFound")
            else:
                arn = f"arn:aws:sagemaker:{REGION}:111122223333:notebook-instance/gluonlab"
                about = {"NotebookInstanceName": "gluonlab", "NotebookInstanceArn": arn, "NotebookInstanceStatus": status}
                self.say("describe_notebook_instance", {**about, **more})

    def all_given(self):
        for stubber in self._stubbers.values():
            stubber.assert_no_pending_responses()


@pytest.fixture
def aws():
    return Answers()


@pytest.fixture
def told(capsys, log, aws):
    """``told(*arguments)``: the command on an AWS that answers as ``aws`` is told, all of which it must have asked for."""

    class Told(Caller):
        def client(self, service):
            return aws.client(service)

    def run(*arguments):
        result = ended(capsys, World(log.recording(Told), log.slept.append), arguments)
        aws.all_given()
        return result

    return run


@pytest.fixture
def here():
    """``here(service)``: a client of moto's AWS that launch.py has no part in."""
    return lambda service: boto3.client(service, region_name=REGION)
