"""--dry-run: the calls that would be made, none of which is."""

import json
import re

import pytest
from launch_world import run_command

from gluonlab_sagemaker.calls import Caller
from gluonlab_sagemaker.options import Dependencies

FROM = ("--repository", "https://git.example.org/gluonlab.git")
P3 = ("--instance", "p3.8xlarge", "--force", *FROM)
NOT_KNOWN_BEFORE = re.compile(r"<account>|\d{12}|20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ")


class Forbidden(Caller):
    def __init__(self, *arguments):
        raise AssertionError("a rehearsal must not reach AWS")


@pytest.fixture
def rehearse(capsys):
    """``rehearse(*arguments)`` -> the calls that it prints, and what it says beside; without
    credentials.
    """

    def run(*arguments):
        status, out, err = run_command(capsys, Dependencies(Forbidden), [*arguments, "--dry-run"])
        assert status == 0, err
        return json.loads(out), err

    return run


def comparable(calls):
    return json.loads(re.sub(NOT_KNOWN_BEFORE, "?", json.dumps(calls)))


@pytest.mark.parametrize(
    ("before", "command"),
    [
        ([], ("create", *P3, "--bucket", "my-bucket", "--idle-minutes", "5")),
        ([], ("create", *P3, "--name", "no-wait", "--no-wait")),
        ([("create", *P3)], ("stop",)),
        ([("create", *P3), ("stop",)], ("start", "--force")),
        ([("create", *P3)], ("wait",)),
        ([("create", *P3)], ("status",)),
        ([("create", *P3)], ("delete", "--yes")),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_rehearsal_prints_what_the_command_then_calls(before, command, launch, log, rehearse):
    printed, notes = rehearse(*command)
    assert "InService" not in notes and "Stopped" not in notes  # made-up statuses
    for earlier in before:
        assert launch(*earlier)[0] == 0
    log.calls.clear()
    assert launch(*command)[0] == 0
    called = [
        {"service": service, "operation": name, "parameters": parameters} for service, name, parameters in log.calls
    ]
    assert comparable(printed) == comparable(called)


@pytest.mark.parametrize(
    ("words", "operations"),
    [
        ("url", ["DescribeNotebookInstance", "CreatePresignedNotebookInstanceUrl"]),
        ("status --all", ["ListNotebookInstances", "ListTrainingJobs"]),
        ("prices", []),
        ("quota --instance g5.xlarge --request 2", ["ListServiceQuotas", "RequestServiceQuotaIncrease"]),
        ("jobs role --bucket b-b", ["GetCallerIdentity", "GetRole", "CreateRole", "PutRolePolicy"]),
        ("jobs role --delete", ["GetRole"]),
        ("jobs policy --bucket b-b --instance g5.xlarge", ["GetCallerIdentity"]),
        ("jobs logs --name gluonlab-x", ["DescribeTrainingJob", "DescribeLogStreams", "GetLogEvents", "GetLogEvents"]),
    ],
)
def test_whatever_calls_is_rehearsed(words, operations, rehearse):
    assert [call["operation"] for call in rehearse(*words.split())[0]] == operations


def test_a_rehearsed_change_has_its_parameters(rehearse):
    calls, _ = rehearse("resize", "--instance", "g5.xlarge", "--volume", "80")
    expected = {"InstanceType": "ml.g5.xlarge", "VolumeSizeInGB": 80}
    assert (calls[-2]["service"], calls[-2]["operation"]) == ("sagemaker", "UpdateNotebookInstance")
    assert calls[-2]["parameters"] == {"NotebookInstanceName": "gluonlab", **expected}
    [call] = rehearse("prices", "--update", "--region", "eu-west-1")[0]
    assert (call["service"], call["operation"]) == ("pricing", "GetProducts")
    assert call["parameters"]["Filters"][0]["Value"] == "eu-west-1"


def test_without_a_region_there_is_a_gap_instead_of_an_error(rehearse, monkeypatch):
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    calls, err = rehearse("create", *P3)
    assert "<region>" in json.dumps(calls)
    assert "cost: the price depends on the region: add --region REGION" in err


def test_a_role_that_is_given_by_name_is_looked_up_but_not_made(rehearse):
    calls, _ = rehearse("create", *P3, "--role", "mine")
    assert [call["operation"] for call in calls if call["service"] == "iam"] == ["GetRole"]
    assert calls[-2]["parameters"]["RoleArn"] == "arn:aws:iam::<account>:role/mine"


def test_a_network_of_ones_own(rehearse):
    network = "--subnet subnet-1 --security-group sg-1 --security-group sg-2"
    calls, _ = rehearse("create", *P3, *network.split())
    made = {call["operation"]: call["parameters"] for call in calls}
    request = made["CreateNotebookInstance"]
    assert (request["SubnetId"], request["SecurityGroupIds"]) == ("subnet-1", ["sg-1", "sg-2"])
    assert request["DirectInternetAccess"] == "Disabled"
    assert "ec2:CreateNetworkInterface" in made["PutRolePolicy"]["PolicyDocument"]


def test_the_source_is_uploaded_only_without_a_repository(rehearse, monkeypatch):
    monkeypatch.setattr("gluonlab_sagemaker.create.create_archive", lambda report: b"12345")
    calls, _ = rehearse("create", "--instance", "g5.48xlarge", "--bucket", "my-bucket")
    [put] = [call["parameters"] for call in calls if call["service"] == "s3"]
    assert put == {"Bucket": "my-bucket", "Key": "gluonlab/source.tar.gz", "Body": "<5 bytes>"}
    calls, _ = rehearse("create", *P3, "--bucket", "my-bucket")
    assert "s3" not in [call["service"] for call in calls]


def test_parameters_are_checked_against_the_api(capsys):
    from gluonlab_sagemaker.calls import DryRunCaller
    from gluonlab_sagemaker.errors import AWSError

    call = DryRunCaller(None, "us-east-1", None)
    message = "AWS would refuse StopNotebookInstance: .*NotebookInstanceNam"
    with pytest.raises(AWSError, match=message):
        call("sagemaker", "StopNotebookInstance", NotebookInstanceNam="x")
