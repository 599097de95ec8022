"""The role of training jobs, and the policy of those who submit them: which rights they hold."""

import json

from test_launch_jobs import request

from gluonlab_sagemaker.job_role import Account, job_permissions, submitter_policy

HERE = Account("aws", "us-east-1", "123456789012")
TO = ("--bucket", "their-bucket")
NAME = "gluonlab-jobs-us-east-1"


def listed(value):
    return value if isinstance(value, list) else [value]


def actions(policy):
    return {action for item in policy["Statement"] for action in listed(item["Action"])}


def allows(policy, action, instances):
    """IAM's rules for the condition of CreateTrainingJob: ForAllValues is true of nothing, too."""
    [item] = [item for item in policy["Statement"] if action in item["Action"]]
    condition = dict(item["Condition"])
    allowed = condition.pop("ForAllValues:StringEquals")["sagemaker:InstanceTypes"]
    assert condition == {"Null": {"sagemaker:InstanceTypes": "false"}}  # the key must be there
    return bool(instances) and all(instance in allowed for instance in instances)


def test_who_submits_may_start_jobs_on_the_named_machines_alone():
    policy = submitter_policy(HERE, "their-bucket", ["ml.g5.xlarge", "ml.g5.2xlarge"])
    for instances, may in (
        (["ml.g5.xlarge"], True),
        (["ml.g5.xlarge", "ml.g5.2xlarge"], True),
        (["ml.g5.xlarge", "ml.p4d.24xlarge"], False),
        ([], False),
    ):
        assert allows(policy, "sagemaker:CreateTrainingJob", instances) is may


def test_a_job_can_start_nothing_and_who_submits_cannot_change_the_role():
    job = job_permissions(HERE, "their-bucket")
    person = submitter_policy(HERE, "their-bucket", ["ml.g5.xlarge"])
    assert not [item for item in actions(job) if item.startswith(("sagemaker:", "iam:"))]
    assert "ecr:BatchGetImage" in actions(job) and "logs:PutLogEvents" in actions(job)
    own = {item for item in actions(person) if item.startswith("iam:")}
    assert own == {"iam:PassRole", "iam:GetRole"}
    [passing] = [item for item in person["Statement"] if "iam:PassRole" in item["Action"]]
    assert passing["Resource"] == f"arn:aws:iam::123456789012:role/{NAME}"
    to = {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}}
    assert passing["Condition"] == to
    for policy in (job, person):
        [files] = [item for item in policy["Statement"] if "s3:GetObject" in item["Action"]]
        assert files["Resource"] == "arn:aws:s3:::their-bucket/gluonlab/*"


def test_the_calls_of_every_command_are_in_the_policy(launch, log, moto_client, monkeypatch):
    """Each call to AWS that the commands of jobs make is an action of the same name."""
    monkeypatch.setattr("gluonlab_sagemaker.job_commands.create_archive", lambda report: b"source")
    moto_client("s3").create_bucket(Bucket="their-bucket")
    assert launch("jobs", "role", *TO)[0] == 0
    log.calls.clear()
    name = ("--name", "gluonlab-x")
    assert launch("jobs", "submit", *TO, "--role", NAME, *name)[0] == 0
    for words in (("list",), ("status", *name), ("wait", *name), ("logs", *name), ("stop", *name)):
        launch("jobs", *words)
    called = {f"{service}:{operation}" for service, operation, _ in log.calls}
    assert {"iam:GetRole", "s3:PutObject", "logs:DescribeLogStreams"} <= called
    assert called - actions(submitter_policy(HERE, "their-bucket", ["ml.g5.xlarge"])) == set()


def test_a_role_is_made_once_and_deleted(launch, log, moto_client):
    status, arn, err = launch("jobs", "role", *TO)
    assert (status, arn) == (0, f"arn:aws:iam::123456789012:role/{NAME}\n")
    assert "jobs policy --bucket their-bucket --instance TYPE" in err
    made = moto_client("iam").get_role_policy(RoleName=NAME, PolicyName="gluonlab")["PolicyDocument"]
    assert made == job_permissions(HERE, "their-bucket")
    log.calls.clear()
    assert launch("jobs", "role", "--bucket", "another")[1] == arn
    assert log.changes() == ["PutRolePolicy"]  # an account may use one bucket after another
    moto_client("sagemaker").create_training_job(**{**request(), "RoleArn": arn.strip()})
    assert launch("jobs", "role", "--delete")[1] == f"{NAME} is gone\n"
    assert launch("jobs", "role", "--delete")[1] == f"{NAME} is not there, or not ours\n"


def test_another_ones_role_of_that_name_is_left_alone(launch, moto_client):
    moto_client("iam").create_role(RoleName=NAME, AssumeRolePolicyDocument="{}")
    status, _, err = launch("jobs", "role", *TO)
    assert status == 2 and f"the role {NAME} exists, but was not created by this program" in err
    assert launch("jobs", "role", "--delete")[1] == f"{NAME} is not there, or not ours\n"


def test_the_policy_is_printed_and_iam_takes_it(launch, moto_client):
    status, out, _ = launch("jobs", "policy", *TO, "--instance", "g5.xlarge")
    assert status == 0
    assert json.loads(out) == submitter_policy(HERE, "their-bucket", ["ml.g5.xlarge"])
    moto_client("iam").create_policy(PolicyName="submit", PolicyDocument=out)
