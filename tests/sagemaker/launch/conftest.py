"""Fixtures that run launch.py in this process, on moto's AWS or on a stubbed one, offline."""

import functools
import socket

import boto3
import botocore.session
import pytest
from launch_world import REGION, CallLog, StubbedAWS, run_command
from moto import mock_aws

from gluonlab_sagemaker.calls import Caller
from gluonlab_sagemaker.options import Dependencies

SET_BY_PEOPLE = ("PROFILE", "DEFAULT_PROFILE", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "REGION")

# Each command makes a session, which would read AWS's service descriptions again for half a second.
botocore.session.create_loader = functools.lru_cache(maxsize=None)(botocore.session.create_loader)


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch, tmp_path):
    """Remove credentials and configuration of the user, and forbid connections."""
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
def credentials(monkeypatch):
    """Set made-up credentials."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAMADEUPMADEUPMADE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "made-up-secret")


@pytest.fixture
def log():
    return CallLog()


@pytest.fixture
def launch(capsys, log, credentials):
    """Run a command on moto's AWS: ``launch(*arguments)`` returns status, stdout and stderr."""
    with mock_aws():
        yield lambda *arguments: run_command(capsys, Dependencies(log.recording(), log.slept.append), arguments)


@pytest.fixture
def aws():
    return StubbedAWS()


@pytest.fixture
def launch_stubbed(capsys, log, aws):
    """Run a command on the stubbed AWS ``aws``, all of whose answers it must use."""

    class StubbedCaller(Caller):
        def service_client(self, service):
            return aws.client(service)

    def run(*arguments):
        result = run_command(capsys, Dependencies(log.recording(StubbedCaller), log.slept.append), arguments)
        aws.assert_all_used()
        return result

    return run


@pytest.fixture
def moto_client():
    """Return a client of moto's AWS for a service."""
    return lambda service: boto3.client(service, region_name=REGION)
