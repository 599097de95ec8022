"""One notebook from its making to its end, on moto: the calls, their order, and what AWS has
afterwards.
"""

import base64
import json
import re

import pytest
from botocore.exceptions import ClientError
from launch_world import SAGEMAKER

FROM = ("--repository", "https://git.example.org/gluonlab.git")
P3 = ("--instance", "p3.8xlarge", "--force", *FROM)  # moto's newest notebooks are P3
ROLE = "gluonlab-notebook-us-east-1-gluonlab"
CREATE = [
    "DescribeNotebookInstance",
    "GetCallerIdentity",
    "GetRole",
    "CreateRole",
    "PutRolePolicy",
    "DescribeNotebookInstanceLifecycleConfig",
    "CreateNotebookInstanceLifecycleConfig",
    "CreateNotebookInstance",
    "DescribeNotebookInstance",
]


def nothing_is_left(here):
    sagemaker = here("sagemaker")
    assert sagemaker.list_notebook_instances()["NotebookInstances"] == []
    with pytest.raises(ClientError, match="does not exist"):
        sagemaker.describe_notebook_instance_lifecycle_config(
            NotebookInstanceLifecycleConfigName="gluonlab"
        )
    assert [role["RoleName"] for role in here("iam").list_roles()["Roles"]] == []
    return True


def test_create_makes_role_and_scripts_before_the_notebook(launch, log, here):
    status, out, err = launch("create", *P3, "--idle-minutes", "30", "--owner", "ada")
    assert (status, log.operations) == (0, CREATE)
    assert "gluonlab is in service" in out
    assert "warning: notebook-al2-v3 is dead since 2026-07-01" in err
    assert "about 14.69 USD an hour" in err

    made = here("sagemaker").describe_notebook_instance(NotebookInstanceName="gluonlab")
    assert (made["NotebookInstanceStatus"], made["InstanceType"]) == ("InService", "ml.p3.8xlarge")
    assert (made["RootAccess"], made["VolumeSizeInGB"]) == ("Disabled", 50)
    assert made["RoleArn"] == here("iam").get_role(RoleName=ROLE)["Role"]["Arn"]
    tags = {
        tag["Key"]: tag["Value"]
        for tag in here("sagemaker").list_tags(ResourceArn=made["NotebookInstanceArn"])["Tags"]
    }
    assert (tags["project"], tags["owner"]) == ("gluonlab", "ada")
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", tags["created"])


def test_a_machine_without_gpus_is_made_like_one_that_lives(launch, log, here):
    """To try everything for less; and nothing about it is dead."""
    status, _, err = launch("create", "--instance", "t3.xlarge", *FROM)
    assert (status, log.operations) == (0, CREATE)
    assert "warning" not in err
    assert "no price of ml.t3.xlarge" in err
    assert (
        here("sagemaker").describe_notebook_instance(NotebookInstanceName="gluonlab")[
            "InstanceType"
        ]
        == "ml.t3.xlarge"
    )
    assert log.calls[-2][2]["PlatformIdentifier"] == "notebook-al2023-v1"


def test_the_start_scripts_are_those_of_the_folder_with_this_notebooks_settings(launch, here):
    proxy = ("--environment", "HTTPS_PROXY=http://proxy:3128", "--environment", "A=b")
    launch("create", *P3, "--idle-minutes", "30", *proxy, "--no-wait")
    config = here("sagemaker").describe_notebook_instance_lifecycle_config(
        NotebookInstanceLifecycleConfigName="gluonlab"
    )
    for key, name in (("OnCreate", "on-create"), ("OnStart", "on-start")):
        [script] = config[key]
        text = base64.b64decode(script["Content"]).decode()
        assert "export GLUONLAB_IDLE_MINUTES=30\n" in text
        assert "export GLUONLAB_ENVIRONMENT='HTTPS_PROXY=http://proxy:3128 A=b'\n" in text
        assert "export GLUONLAB_REPOSITORY=https://git.example.org/gluonlab.git\n" in text
        assert (SAGEMAKER / f"{name}.sh").read_text().split("\n", 1)[1] in text


def test_the_role_may_do_little(launch, here):
    launch("create", *P3, "--bucket", "my-bucket")
    trust = here("iam").get_role(RoleName=ROLE)["Role"]["AssumeRolePolicyDocument"]["Statement"]
    assert [one["Principal"] for one in trust] == [{"Service": "sagemaker.amazonaws.com"}]
    assert [one["Condition"] for one in trust] == [
        {"StringEquals": {"aws:SourceAccount": "123456789012"}}
    ]
    policy = here("iam").get_role_policy(RoleName=ROLE, PolicyName="gluonlab")["PolicyDocument"][
        "Statement"
    ]
    actions = {action for one in policy for action in one["Action"]}
    assert {action.split(":")[0] for action in actions} == {"sagemaker", "logs", "s3"}
    assert not any("*" in action for action in actions)
    everywhere = json.dumps([one["Resource"] for one in policy])
    assert '"*"' not in everywhere
    assert "notebook-instance/gluonlab" in everywhere
    assert "arn:aws:s3:::my-bucket/gluonlab/*" in everywhere


def test_a_role_that_is_given_is_used_and_left_alone(launch, here, log):
    iam = here("iam")
    arn = iam.create_role(RoleName="mine", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    assert launch("create", *P3, "--role", "mine")[0] == 0
    assert "CreateRole" not in log.operations
    assert (
        here("sagemaker").describe_notebook_instance(NotebookInstanceName="gluonlab")["RoleArn"]
        == arn
    )
    assert launch("delete", "--yes")[0] == 0
    assert [role["RoleName"] for role in iam.list_roles()["Roles"]] == ["mine"]


def test_a_role_that_is_given_and_not_there_is_named(launch, here):
    status, _, err = launch("create", *P3, "--role", "nobodys")
    assert status == 2
    assert "--role nobodys: there is no such role" in err
    assert nothing_is_left(here)


def test_a_life(launch, log, here):
    launch("create", *P3)
    log.calls.clear()
    assert launch("stop")[0] == 0
    assert launch("start", "--force")[0] == 0
    assert log.changes() == ["StopNotebookInstance", "StartNotebookInstance"]
    log.calls.clear()
    status, out, _ = launch("delete", "--yes")
    assert status == 0
    assert log.changes() == [
        "StopNotebookInstance",
        "DeleteNotebookInstance",
        "DeleteNotebookInstanceLifecycleConfig",
        "DeleteRolePolicy",
        "DeleteRole",
    ]
    stop, delete = (
        log.operations.index("StopNotebookInstance"),
        log.operations.index("DeleteNotebookInstance"),
    )
    assert "DescribeNotebookInstance" in log.operations[stop:delete]  # it waited
    assert "deleted, and its volume with it" in out
    assert "left, at little cost" in out
    assert nothing_is_left(here)


@pytest.mark.parametrize(
    ("status", "says"),
    [
        ("InService", ["open it: {}url", "end its machine: {}stop"]),
        ("Stopped", ["its volume is paid for until {}delete", "destroys", "again: {}start"]),
        ("Failed", ["again later: {}start", "{}resize", "files are still on its volume"]),
        ("Updating", ["wait for it: {}wait"]),
    ],
)
def test_status_says_what_to_do_next(status, says, told, aws):
    aws.statuses(status)
    err = told("status")[2]
    for one in says:
        assert one.format("python sagemaker/launch.py ") in err
    aws.statuses(status)
    assert told("status", "--json")[2] == ""


def test_stop_and_start_say_what_to_do_next(launch):
    launch("create", *P3)
    assert "its volume is paid for until python sagemaker/launch.py delete" in launch("stop")[2]
    assert "end its machine: python sagemaker/launch.py stop" in launch("start", "--force")[2]
    assert "open it: python sagemaker/launch.py url --name gluonlab" in launch("wait")[2]


def test_what_is_done_already_is_not_done_again(launch, log):
    launch("create", *P3)
    launch("stop")
    log.calls.clear()
    assert launch("stop")[:2] == (0, "gluonlab is Stopped already\n")
    launch("start", "--force")
    log.calls.clear()
    assert launch("start")[:2] == (0, "gluonlab is InService already\n")
    launch("delete", "--yes")
    log.calls.clear()
    status, out, _ = launch("delete", "--yes")
    assert (status, log.changes()) == (0, [])
    assert "notebook gluonlab: there is none" in out


def test_a_stopped_notebook_on_a_dead_platform_is_not_started(told, aws, log):
    about = {"InstanceType": "ml.g5.12xlarge", "PlatformIdentifier": "notebook-al2-v3"}
    aws.statuses("Stopped", **about)
    status, _, err = told("start")
    assert (status, log.changes()) == (2, [])
    assert "notebook-al2-v3 is dead since 2026-07-01" in err
    assert "--force" in err
    assert len(err.splitlines()) == 1


def test_the_name_is_taken(launch, log, here):
    launch("create", *P3)
    log.calls.clear()
    status, _, err = launch("create", *P3)
    assert (status, log.changes()) == (2, [])
    assert "error: the notebook gluonlab exists already (InService)" in err


@pytest.mark.parametrize("number", range(len(CREATE)))
def test_create_and_delete_cope_with_a_create_that_was_interrupted_at_any_call(
    number, launch, log, here
):
    def interrupt(now):
        if now == number:
            raise KeyboardInterrupt

    log.before = interrupt
    status, _, err = launch("create", *P3)
    assert status == 130
    assert (
        "interrupted: nothing is undone: `python sagemaker/launch.py wait --name gluonlab` goes on"
        in err
    )
    assert "`python sagemaker/launch.py delete --name gluonlab` removes what was made" in err
    assert log.operations == CREATE[:number]
    log.before = lambda now: None

    status, _, err = launch("create", *P3)
    assert (status, "exists already" in err) == (
        (2, True) if number == len(CREATE) - 1 else (0, False)
    )
    assert launch("wait")[:2] == (0, "gluonlab is InService\n")
    assert launch("delete", "--yes")[0] == 0
    assert nothing_is_left(here)


@pytest.mark.parametrize("number", range(len(CREATE)))
def test_delete_alone_takes_away_what_an_interrupted_create_made(number, launch, log, here):
    def interrupt(now):
        if now == number:
            raise KeyboardInterrupt

    log.before = interrupt
    launch("create", *P3)
    log.before = lambda now: None
    assert launch("delete", "--yes")[0] == 0
    assert nothing_is_left(here)


@pytest.mark.parametrize("number", range(12))
def test_an_interrupted_delete_is_gone_on_with(number, launch, log, here):
    def interrupt(now):
        if now == number:
            raise KeyboardInterrupt

    launch("create", *P3)
    log.calls.clear()
    log.before = interrupt
    assert launch("delete", "--yes")[0] == 130
    log.before = lambda now: None
    assert launch("delete", "--yes")[0] == 0
    assert nothing_is_left(here)


def test_a_second_create_brings_left_over_scripts_up_to_date(told, aws, log):
    old = base64.b64encode(b"#!/bin/bash\nexport GLUONLAB_IDLE_MINUTES=5\n").decode()
    aws.statuses(None)
    aws.say(
        "describe_notebook_instance_lifecycle_config",
        {"OnCreate": [{"Content": old}], "OnStart": [{"Content": old}]},
    )
    aws.say("update_notebook_instance_lifecycle_config")
    aws.say("create_notebook_instance", {"NotebookInstanceArn": "arn"})
    assert (
        told(
            "create",
            "--instance",
            "g5.12xlarge",
            *FROM,
            "--role",
            "arn:aws:iam::111122223333:role/r",
            "--no-wait",
        )[0]
        == 0
    )
    assert log.changes() == ["UpdateNotebookInstanceLifecycleConfig", "CreateNotebookInstance"]


def test_what_others_made_is_neither_overwritten_nor_deleted(launch, here):
    script = [{"Content": base64.b64encode(b"#!/bin/bash\necho mine\n").decode()}]
    here("sagemaker").create_notebook_instance_lifecycle_config(
        NotebookInstanceLifecycleConfigName="gluonlab", OnCreate=script, OnStart=script
    )
    status, _, err = launch("create", *P3)
    assert status == 2
    assert (
        "the lifecycle configuration gluonlab exists and was not made here: choose another --name"
        in err
    )
    assert (
        "lifecycle configuration: there is none that was made here" in launch("delete", "--yes")[1]
    )
    found = here("sagemaker").describe_notebook_instance_lifecycle_config(
        NotebookInstanceLifecycleConfigName="gluonlab"
    )
    assert found["OnStart"] == script

    here("iam").create_role(RoleName=ROLE, AssumeRolePolicyDocument="{}")
    assert (
        "the role gluonlab-notebook-us-east-1-gluonlab exists and was not made here"
        in launch("create", *P3)[2]
    )
    launch("delete", "--yes")
    assert here("iam").get_role(RoleName=ROLE)["Role"]["RoleName"] == ROLE


@pytest.mark.parametrize(
    ("tags", "reason"),
    [
        ([], "gluonlab lacks the tag project=gluonlab"),
        (
            [{"Key": "aws:cloudformation:stack-name", "Value": "labs"}],
            "belongs to the CloudFormation stack labs",
        ),
    ],
)
def test_a_notebook_of_others_is_not_deleted(tags, reason, launch, here, log):
    here("sagemaker").create_notebook_instance(
        NotebookInstanceName="gluonlab",
        InstanceType="ml.t3.medium",
        RoleArn="arn:aws:iam::123456789012:role/r",
        Tags=tags,
    )
    status, _, err = launch("delete", "--yes")
    assert (status, log.changes()) == (2, [])
    assert reason in err
    assert launch("delete", "--yes", "--force")[0] == 0
    assert nothing_is_left(here)


def test_delete_asks_before_it_deletes_files(launch, log, monkeypatch):
    launch("create", *P3)
    log.calls.clear()
    monkeypatch.setattr("sys.stdin", open("/dev/null"))  # noqa: SIM115
    assert launch("delete")[0] == 130
    assert log.changes() == []


def test_status_says_what_it_does_and_costs(launch):
    launch("create", *P3)
    out = launch("status")[1]
    assert out.startswith("gluonlab: InService, ml.p3.8xlarge")
    assert "about 14.69 USD an hour" in out
    row = json.loads(launch("status", "--json")[1])
    assert (row["name"], row["status"], row["instance"], row["volume_gb"]) == (
        "gluonlab",
        "InService",
        "ml.p3.8xlarge",
        50,
    )
    assert row["cost"] == {
        "hour": 14.688,
        "day": pytest.approx(352.512),
        "volume_month": pytest.approx(7.0),
        "currency": "USD",
    }


def test_status_all_lists_what_was_made_here_on_all_pages(launch, here):
    assert launch("status", "--all")[1] == "no notebook or job of gluonlab in us-east-1\n"
    for number in range(3):
        launch("create", *P3, "--name", f"lab{number}")
    here("sagemaker").create_notebook_instance(
        NotebookInstanceName="others",
        InstanceType="ml.t3.medium",
        RoleArn="arn:aws:iam::123456789012:role/r",
    )
    names = [row["name"] for row in json.loads(launch("status", "--all", "--json")[1])]
    assert sorted(names) == ["lab0", "lab1", "lab2"]


def test_two_notebooks_share_nothing(launch, here):
    launch("create", *P3, "--name", "one")
    launch("create", *P3, "--name", "two")
    launch("delete", "--name", "one", "--yes")
    assert launch("status", "--name", "two")[0] == 0
    assert [role["RoleName"] for role in here("iam").list_roles()["Roles"]] == [
        "gluonlab-notebook-us-east-1-two"
    ]
    here("sagemaker").describe_notebook_instance_lifecycle_config(
        NotebookInstanceLifecycleConfigName="two"
    )
