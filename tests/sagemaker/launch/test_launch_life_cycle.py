"""Life cycle of a notebook on moto: the calls, their order, and the resources that remain."""

import base64
import json
import re

import pytest
from botocore.exceptions import ClientError
from launch_world import SAGEMAKER

from gluonlab_sagemaker.role import notebook_permissions, trust_policy

FROM = ("--repository", "https://git.example.org/gluonlab.git")
P3 = ("--instance", "p3.8xlarge", "--force", *FROM)  # moto's newest notebooks are P3
ROLE = "gluonlab-notebook-us-east-1-gluonlab"
CREATE = [
    "DescribeNotebookInstance", "GetCallerIdentity", "GetRole", "CreateRole", "PutRolePolicy",
    "DescribeNotebookInstanceLifecycleConfig", "CreateNotebookInstanceLifecycleConfig",
    "CreateNotebookInstance", "DescribeNotebookInstance",
]  # fmt: skip


def describe_notebook(moto_client, name="gluonlab"):
    return moto_client("sagemaker").describe_notebook_instance(NotebookInstanceName=name)


def describe_scripts(moto_client, name="gluonlab"):
    client = moto_client("sagemaker")
    return client.describe_notebook_instance_lifecycle_config(NotebookInstanceLifecycleConfigName=name)


def roles(moto_client):
    return [role["RoleName"] for role in moto_client("iam").list_roles()["Roles"]]


def nothing_is_left(moto_client):
    with pytest.raises(ClientError, match="does not exist"):
        describe_scripts(moto_client)
    return moto_client("sagemaker").list_notebook_instances()["NotebookInstances"] == roles(moto_client) == []


def test_create_makes_role_and_scripts_before_the_notebook(launch, log, moto_client):
    status, out, err = launch("create", *P3, "--idle-minutes", "30", "--owner", "ada")
    assert (status, log.operations) == (0, CREATE)
    assert "gluonlab is in service" in out
    assert "warning: AWS ended support for notebook-al2-v3 on 2026-07-01" in err
    assert "about 14.69 USD per hour" in err

    notebook = describe_notebook(moto_client)
    assert (notebook["NotebookInstanceStatus"], notebook["InstanceType"]) == ("InService", "ml.p3.8xlarge")
    assert (notebook["RootAccess"], notebook["VolumeSizeInGB"]) == ("Disabled", 50)
    assert notebook["RoleArn"] == moto_client("iam").get_role(RoleName=ROLE)["Role"]["Arn"]
    tag_list = moto_client("sagemaker").list_tags(ResourceArn=notebook["NotebookInstanceArn"])["Tags"]
    tags = {tag["Key"]: tag["Value"] for tag in tag_list}
    assert (tags["project"], tags["owner"]) == ("gluonlab", "ada")
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", tags["created"])


def test_a_machine_without_gpus_is_made_like_one_that_lives(launch, log, moto_client):
    """It is for cheap trials, and prints no warning."""
    status, _, err = launch("create", "--instance", "t3.xlarge", *FROM)
    assert (status, log.operations) == (0, CREATE)
    assert "warning" not in err
    assert "a price for ml.t3.xlarge" in err
    assert describe_notebook(moto_client)["InstanceType"] == "ml.t3.xlarge"
    assert log.calls[-2][2]["PlatformIdentifier"] == "notebook-al2023-v1"


def test_the_start_scripts_are_those_of_the_folder_with_this_notebooks_settings(launch, moto_client):
    proxy = ("--environment", "HTTPS_PROXY=http://proxy:3128", "--environment", "A=b")
    launch("create", *P3, "--idle-minutes", "30", *proxy, "--no-wait")
    config = describe_scripts(moto_client)
    for key, name in (("OnCreate", "on-create"), ("OnStart", "on-start")):
        [script] = config[key]
        text = base64.b64decode(script["Content"]).decode()
        assert "export GLUONLAB_IDLE_MINUTES=30\n" in text
        assert "export GLUONLAB_ENVIRONMENT='HTTPS_PROXY=http://proxy:3128 A=b'\n" in text
        assert "export GLUONLAB_REPOSITORY=https://git.example.org/gluonlab.git\n" in text
        assert (SAGEMAKER / f"{name}.sh").read_text().split("\n", 1)[1] in text


def test_iam_gets_the_rights_and_the_trust_that_test_roles_compares_with_the_template(launch, moto_client):
    launch("create", *P3, "--bucket", "my-bucket")
    iam = moto_client("iam")
    account = "123456789012"
    assert iam.get_role(RoleName=ROLE)["Role"]["AssumeRolePolicyDocument"] == trust_policy(account)
    policy = iam.get_role_policy(RoleName=ROLE, PolicyName="gluonlab")["PolicyDocument"]
    assert policy == notebook_permissions("aws", "us-east-1", account, "gluonlab", "my-bucket", False)


def test_a_role_that_is_given_is_used_and_left_alone(launch, moto_client, log):
    notebook = moto_client("iam").create_role(RoleName="mine", AssumeRolePolicyDocument="{}")
    assert launch("create", *P3, "--role", "mine")[0] == 0
    assert "CreateRole" not in log.operations
    assert describe_notebook(moto_client)["RoleArn"] == notebook["Role"]["Arn"]
    assert launch("delete", "--yes")[0] == 0
    assert roles(moto_client) == ["mine"]


def test_a_role_that_is_given_and_not_there_is_named(launch, moto_client):
    status, _, err = launch("create", *P3, "--role", "nobodys")
    assert status == 2
    assert "--role nobodys: this role does not exist" in err
    assert nothing_is_left(moto_client)


def test_a_life(launch, log, moto_client):
    launch("create", *P3)
    log.calls.clear()
    assert launch("stop")[0] == 0
    assert launch("start", "--force")[0] == 0
    assert log.changes() == ["StopNotebookInstance", "StartNotebookInstance"]
    log.calls.clear()
    status, out, _ = launch("delete", "--yes")
    assert status == 0
    changes = log.changes()
    assert changes == [
        "StopNotebookInstance", "DeleteNotebookInstance", "DeleteNotebookInstanceLifecycleConfig",
        "DeleteRolePolicy", "DeleteRole",
    ]  # fmt: skip
    stop, delete = map(log.operations.index, changes[:2])
    assert "DescribeNotebookInstance" in log.operations[stop:delete]  # it waited
    assert "deleted, with its volume" in out
    assert "not deleted, and cheap" in out
    assert nothing_is_left(moto_client)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ("InService", ["open it: {}url", "stop its machine: {}stop"]),
        ("Stopped", ["its volume costs money until you run {}delete", "destroys", "again: {}start"]),
        ("Failed", ["again later: {}start", "{}resize", "files are still on its volume"]),
        ("Updating", ["wait for it: {}wait"]),
    ],
)
def test_status_says_what_to_do_next(status, message, launch_stubbed, aws):
    aws.statuses(status)
    err = launch_stubbed("status")[2]
    for item in message:
        assert item.format("python sagemaker/launch.py ") in err
    aws.statuses(status)
    assert launch_stubbed("status", "--json")[2] == ""


def test_stop_and_start_say_what_to_do_next(launch):
    launch("create", *P3)
    assert "its volume costs money until you run python sagemaker/launch.py delete" in launch("stop")[2]
    assert "stop its machine: python sagemaker/launch.py stop" in launch("start", "--force")[2]
    assert "open it: python sagemaker/launch.py url --name gluonlab" in launch("wait")[2]


def test_what_is_done_already_is_not_done_again(launch, log):
    launch("create", *P3)
    log.calls.clear()
    status, _, err = launch("create", *P3)
    assert (status, log.changes()) == (2, [])
    assert "error: the notebook gluonlab already exists (InService)" in err
    launch("stop")
    log.calls.clear()
    assert launch("stop")[:2] == (0, "gluonlab is already Stopped\n")
    launch("start", "--force")
    log.calls.clear()
    assert launch("start")[:2] == (0, "gluonlab is already InService\n")
    launch("delete", "--yes")
    log.calls.clear()
    status, out, _ = launch("delete", "--yes")
    assert (status, log.changes()) == (0, [])
    assert "notebook gluonlab: there is none" in out


def test_a_stopped_notebook_on_a_dead_platform_is_not_started(launch_stubbed, aws, log):
    about = {"InstanceType": "ml.g5.12xlarge", "PlatformIdentifier": "notebook-al2-v3"}
    aws.statuses("Stopped", **about)
    status, _, err = launch_stubbed("start")
    assert (status, log.changes()) == (2, [])
    assert "AWS ended support for notebook-al2-v3 on 2026-07-01" in err
    assert "--force" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("number", range(len(CREATE)))
def test_create_and_delete_cope_with_a_create_that_was_interrupted_at_any_call(number, again, launch, log, moto_client):
    log.interrupt_at(number)
    status, _, err = launch("create", *P3)
    assert status == 130
    assert "interrupted: nothing was undone: continue with `python sagemaker/launch.py wait --name gluonlab`" in err
    assert "remove everything that was created with `python sagemaker/launch.py delete --name gluonlab`" in err
    assert log.operations == CREATE[:number]
    log.interrupt_no_more()
    if again:
        status, _, err = launch("create", *P3)
        exists = number == len(CREATE) - 1
        assert (status, "already exists" in err) == (2 if exists else 0, exists)
        assert launch("wait")[:2] == (0, "gluonlab is InService\n")
    assert launch("delete", "--yes")[0] == 0
    assert nothing_is_left(moto_client)


@pytest.mark.parametrize("number", range(12))
def test_an_interrupted_delete_is_gone_on_with(number, launch, log, moto_client):
    launch("create", *P3)
    log.calls.clear()
    log.interrupt_at(number)
    assert launch("delete", "--yes")[0] == 130
    log.interrupt_no_more()
    assert launch("delete", "--yes")[0] == 0
    assert nothing_is_left(moto_client)


def test_a_second_create_brings_left_over_scripts_up_to_date(launch_stubbed, aws, log):
    old = base64.b64encode(b"#!/bin/bash\nexport GLUONLAB_IDLE_MINUTES=5\n").decode()
    aws.statuses(None)
    result = {"OnCreate": [{"Content": old}], "OnStart": [{"Content": old}]}
    aws.answer("describe_notebook_instance_lifecycle_config", result)
    aws.answer("update_notebook_instance_lifecycle_config")
    aws.answer("create_notebook_instance", {"NotebookInstanceArn": "arn"})
    role = ("--role", "arn:aws:iam::111122223333:role/r")
    assert launch_stubbed("create", "--instance", "g5.12xlarge", *FROM, *role, "--no-wait")[0] == 0
    assert log.changes() == ["UpdateNotebookInstanceLifecycleConfig", "CreateNotebookInstance"]


def test_what_others_made_is_neither_overwritten_nor_deleted(launch, moto_client):
    script = [{"Content": base64.b64encode(b"#!/bin/bash\necho mine\n").decode()}]
    moto_client("sagemaker").create_notebook_instance_lifecycle_config(
        NotebookInstanceLifecycleConfigName="gluonlab", OnCreate=script, OnStart=script
    )
    status, _, err = launch("create", *P3)
    assert status == 2
    exists = "exists, but was not created by this program"
    assert f"the lifecycle configuration gluonlab {exists}: choose another --name" in err
    message = launch("delete", "--yes")[1]
    assert "lifecycle configuration: no such resource was created by this program" in message
    assert describe_scripts(moto_client)["OnStart"] == script
    moto_client("iam").create_role(RoleName=ROLE, AssumeRolePolicyDocument="{}")
    assert f"the role {ROLE} {exists}" in launch("create", *P3)[2]
    launch("delete", "--yes")
    assert roles(moto_client) == [ROLE]


def make_by_hand(moto_client, name, tags=()):
    moto_client("sagemaker").create_notebook_instance(
        NotebookInstanceName=name, InstanceType="ml.t3.medium", Tags=[*tags], RoleArn="arn:aws:iam::123456789012:role/r"
    )


OF_A_STACK = {"Key": "aws:cloudformation:stack-name", "Value": "labs"}


@pytest.mark.parametrize(
    ("tags", "reason"),
    [
        ([], "gluonlab does not have the tag project=gluonlab"),
        ([OF_A_STACK], "belongs to the CloudFormation stack labs"),
    ],
)
def test_a_notebook_of_others_is_not_deleted(tags, reason, launch, moto_client, log):
    make_by_hand(moto_client, "gluonlab", tags)
    status, _, err = launch("delete", "--yes")
    assert (status, log.changes()) == (2, [])
    assert reason in err
    assert launch("delete", "--yes", "--force")[0] == 0
    assert nothing_is_left(moto_client)


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
    assert "about 14.69 USD per hour" in out
    row = json.loads(launch("status", "--json")[1])
    result = [row[name] for name in ("name", "status", "instance", "volume_gb")]
    assert result == ["gluonlab", "InService", "ml.p3.8xlarge", 50]
    about = pytest.approx
    cost = {"hour": 14.688, "day": about(352.512), "volume_month": about(7.0), "currency": "USD"}
    assert row["cost"] == cost


def test_status_all_lists_what_was_made_here_on_all_pages(launch, moto_client):
    assert launch("status", "--all")[1] == "found no notebook or job of gluonlab in us-east-1\n"
    for number in range(3):
        launch("create", *P3, "--name", f"lab{number}")
    make_by_hand(moto_client, "others")
    names = [row["name"] for row in json.loads(launch("status", "--all", "--json")[1])]
    assert sorted(names) == ["lab0", "lab1", "lab2"]


def test_two_notebooks_share_nothing(launch, moto_client):
    launch("create", *P3, "--name", "one")
    launch("create", *P3, "--name", "two")
    launch("delete", "--name", "one", "--yes")
    assert launch("status", "--name", "two")[0] == 0
    assert roles(moto_client) == ["gluonlab-notebook-us-east-1-two"]
    describe_scripts(moto_client, "two")
