"""notebook.yaml, filled in without AWS: what it refuses, what its role may do, and which scripts it
holds.
"""

import base64
import itertools
import re
import sys

import pytest
from made_up_notebook import SAGEMAKER

sys.path.insert(0, str(SAGEMAKER.parent / "tools"))

import aws_shapes
import cloudformation

GOOD = {"Bucket": "my-bucket"}
P3 = {**GOOD, "InstanceType": "ml.p3.16xlarge"}
IN_SUBNET = {**GOOD, "SubnetId": "subnet-01234567"}
GIT = {"Repository": "https://example.com/g.git"}


def make_stack(parameters):
    return cloudformation.Stack(cloudformation.load_template(SAGEMAKER / "notebook.yaml"), parameters)


def resources(kind, parameters):
    """The properties of the stack's resources whose type ends so."""
    return [about for of, about in make_stack(parameters).resources().values() if of.endswith(kind)]


@pytest.mark.parametrize(
    ("parameters", "refusal"),
    [
        (P3, "Amazon Linux 2023 cannot run on P3"),
        ({**GOOD, "Platform": "notebook-al1-v1"}, "on Amazon Linux 1 since 2024-03-31"),
        ({**GOOD, "BudgetEmail": "ada"}, "BudgetEmail"),
        ({**GOOD, "BudgetEmail": f"{'a' * 50}@b"}, "BudgetEmail"),
        ({**GOOD, "BudgetEmail": "a@b", "BudgetAmount": 0}, "BudgetAmount"),
        ({**P3, "Platform": "notebook-al2-v3"}, "on Amazon Linux 2 since 2026-07-01"),
        ({**GOOD, "Platform": "notebook-al2-v1"}, "on Amazon Linux 2 since 2026-07-01"),
        (IN_SUBNET, "A subnet needs SecurityGroupIds"),
        ({**GOOD, "SecurityGroupIds": "sg-01234567"}, "Security groups need a SubnetId"),
        ({}, "Set a Repository to clone gluonlab from, or a Bucket"),
        ({**GIT, "TrainingJobs": "yes"}, "Training jobs need a Bucket"),
        ({**GOOD, "VolumeSizeInGB": 4}, "VolumeSizeInGB: 4 is not between 20 and 16384"),
        ({**GOOD, "NotebookName": "a" * 64}, "NotebookName"),
        ({**GOOD, "NotebookName": "-a"}, "NotebookName"),
        ({"Repository": "https://example.com/'; reboot; '"}, "Repository"),
        ({"Repository": "https://ada:secret@example.com/g.git"}, "Repository"),
        ({**GOOD, "IdleMinutes": -1}, "IdleMinutes"),
        ({**GOOD, "Environment": "HTTPS_PROXY"}, "Environment"),
        ({**GOOD, "Environment": "A=1  B=2"}, "Environment"),
        ({**GOOD, "Environment": "A=1'; reboot; '"}, "Environment"),
        ({**GOOD, "Environment": "HTTPS_PROXY=http://ada:secret@proxy:3128"}, "Environment"),
    ],
)
def test_the_template_refuses_impossible_parameters(parameters, refusal):
    refusals = make_stack(parameters).validation_errors()
    assert refusals
    assert all(refusal in item for item in refusals)


@pytest.mark.parametrize(
    "parameters",
    [
        GOOD,
        {**P3, "ForceDeadPair": "yes"},
        {**P3, "Platform": "notebook-al2-v2", "ForceDeadPair": "yes"},
        {**IN_SUBNET, "SecurityGroupIds": "sg-01234567"},
        {**GOOD, "Environment": "HTTPS_PROXY=http://proxy:3128 PIP_INDEX_URL=https://pypi/a?b=c&d"},
    ],
)
def test_the_template_takes_the_possible_ones(parameters):
    assert make_stack(parameters).validation_errors() == []


def test_the_template_offers_the_machines_of_the_table_and_refuses_the_dead_pairs():
    import instance_pairs as pairs

    template = cloudformation.load_template(SAGEMAKER / "notebook.yaml")
    offered = template["Parameters"]["InstanceType"]["AllowedValues"]
    platforms = template["Parameters"]["Platform"]["AllowedValues"]
    assert set(offered) == {"ml.m5.xlarge", "ml.t3.xlarge", *pairs.load_instances()}
    # CloudFormation's own schema, as cfn-lint has it, does not know that one
    assert set(platforms) == set(pairs.load_platforms()) - {"notebook-al2023-v2"}
    for instance, platform in itertools.product(offered, platforms):
        parameters = {**GOOD, "InstanceType": instance, "Platform": platform}
        refused = cloudformation.Stack(template, parameters).validation_errors()
        assert bool(refused) == bool(pairs.dead_reason(instance, platform)), (instance, platform)


def test_the_readme_has_the_price_of_the_default_machine_and_of_the_one_without_gpus():
    from gluonlab_sagemaker.cost import Prices

    template = cloudformation.load_template(SAGEMAKER / "notebook.yaml")
    machine = template["Parameters"]["InstanceType"]["Default"]
    readme = (SAGEMAKER / "README.md").read_text(encoding="utf-8")
    for row in (f"`{machine}`, the default", "`ml.m5.xlarge`"):
        price = Prices().hour_price(row.split("`")[1], "us-east-1")
        assert re.search(rf"^\| {re.escape(row)}[^|]* \| {price:.2f} USD \|", readme, re.M), row


def test_a_budget_is_made_for_an_address_alone_and_takes_what_the_notebook_is_tagged_with():
    """Its two halves are the parameters of CreateBudget, which the model of the service holds."""
    assert resources("::Budget", GOOD) == []
    parameters = {**GOOD, "BudgetEmail": "ada@example.com", "BudgetAmount": 30}
    [made] = resources("::Budget", parameters)
    [notebook] = resources("Instance", GOOD)
    [tag] = notebook["Tags"]
    assert made["Budget"]["CostFilters"] == {"TagKeyValue": [f"user:{tag['Key']}${tag['Value']}"]}
    assert made["Budget"]["BudgetLimit"] == {"Amount": 30, "Unit": "USD"}
    limit = {"Amount": "30", "Unit": "USD"}  # a text there, a number in CloudFormation
    call = {**made, "AccountId": "111122223333", "Budget": {**made["Budget"], "BudgetLimit": limit}}
    assert aws_shapes.find_request_faults("CreateBudget", call, "budgets") == []
    notes = made["NotificationsWithSubscribers"]
    told = {item["Address"] for note in notes for item in note["Subscribers"]}
    assert told == {"ada@example.com"}


def test_the_scripts_of_the_template_are_those_of_the_folder_with_the_settings():
    import lifecycle

    environment = "HTTPS_PROXY=http://proxy:3128 A=b"
    parameters = {**GOOD, **GIT, "IdleMinutes": 30, "Environment": environment}
    [properties] = resources("LifecycleConfig", parameters)
    settings = {
        "GLUONLAB_BUCKET": "my-bucket", "GLUONLAB_REPOSITORY": GIT["Repository"],
        "GLUONLAB_IDLE_MINUTES": "30", "GLUONLAB_ENVIRONMENT": environment,
    }  # fmt: skip

    def lines(text):
        return [line.replace("'", "") for line in text.splitlines() if line != "#!/bin/bash"]

    for hook, name, parameters in (("OnCreate", "on-create", {}), ("OnStart", "on-start", settings)):
        text = base64.b64decode(properties[hook][0]["Content"]).decode("utf-8")
        assert lines(text) == lines(lifecycle.build_script(name, parameters))


def statements(parameters):
    policies = [item for role in resources("::Role", parameters) for item in role.get("Policies", [])]
    for policy in [*policies, *resources("::RolePolicy", parameters)]:
        for statement in policy["PolicyDocument"]["Statement"]:
            actions = statement["Action"]
            yield {**statement, "Action": [actions] if isinstance(actions, str) else actions}


def test_the_role_may_do_no_more_than_it_must():
    """Without options: look at and stop itself, and write logs.

    No action has a wildcard, and few resources are everything.
    """

    def services(item):
        return {action.split(":")[0] for action in item["Action"]}

    assert set().union(*map(services, statements(GIT))) == {"sagemaker", "logs"}
    for item in statements({**IN_SUBNET, "SecurityGroupIds": "sg-01234567", "TrainingJobs": "yes"}):
        assert item["Effect"] == "Allow"
        assert "*" not in "".join(item["Action"])
        if item["Resource"] == "*":
            assert services(item) <= {"ec2", "ecr", "cloudwatch"}
        if "iam:PassRole" in item["Action"]:
            to = {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}}
            assert item["Condition"] == to
        if item["Action"][0].startswith("s3:"):
            assert "gluonlab" in item["Resource"] + str(item.get("Condition"))


def test_who_may_take_the_role_is_the_service_for_this_account():
    [role] = resources("::Role", GOOD)
    [statement] = role["AssumeRolePolicyDocument"]["Statement"]
    assert statement["Principal"] == {"Service": "sagemaker.amazonaws.com"}
    assert statement["Condition"] == {"StringEquals": {"aws:SourceAccount": "111122223333"}}
