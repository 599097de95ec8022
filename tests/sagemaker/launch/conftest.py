"""launch.py in this process, on moto's AWS or on one that answers what a test tells it to; never on
a network.
"""

import functools
import socket

import boto3
import botocore.session
import pytest
from launch_world import REGION, Answers, Log, ended
from moto import mock_aws

from gluonlab_sagemaker.calls import Caller
from gluonlab_sagemaker.options import Dependencies

SET_BY_PEOPLE = (
    "PROFILE", "DEFAULT_PROFILE", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "REGION",
)  # fmt: skip

# Each command makes a session, and each session would read AWS's descriptions of its services anew,
# which takes half a second.
botocore.session.create_loader = functools.lru_cache(maxsize=None)(botocore.session.create_loader)


@pytest.fixture(autouse=True)
def nobody(monkeypatch, tmp_path):
    """No credentials, no configuration and no network: what a person has set up is no part of a
    test.
    """
    for name in SET_BY_PEOPLE:
        monkeypatch.delenv(f"AWS_{name}", raising=False)
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


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def launch(capsys, log, somebody):
    """``launch(*arguments)`` -> exit status, standard output, standard error: the command on moto's
    AWS.
    """
    with mock_aws():
        yield lambda *arguments: ended(
            capsys, Dependencies(log.recording(), log.slept.append), arguments
        )


@pytest.fixture
def aws():
    return Answers()


@pytest.fixture
def told(capsys, log, aws):
    """``told(*arguments)``: the command on an AWS that answers as ``aws`` is told, all of which it
    must have asked for.
    """

    class Told(Caller):
        def service_client(self, service):
            return aws.client(service)

    def run(*arguments):
        result = ended(capsys, Dependencies(log.recording(Told), log.slept.append), arguments)
        aws.all_given()
        return result

    return run


@pytest.fixture
def here():
    """``here(service)``: a client of moto's AWS that launch.py has no part in."""
    return lambda service: boto3.client(service, region_name=REGION)
