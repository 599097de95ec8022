"""deployer-policy-stack.json: what a person needs for notebook.yaml is what AWS's schemas of its
resources say that CloudFormation calls, and what the README's commands call. And what holds of
deployer-policy.json, too: see launch/test_launch_policy.py.
"""

import fnmatch
import json
import re

import botocore.session
import pytest
from made_up_notebook import SAGEMAKER

import cloudformation
from gluonlab_sagemaker.role import notebook_role_name
from gluonlab_sagemaker.source import ARCHIVE_KEY

ACCOUNT = "111122223333"
# For managed policies and for boundaries, of which the template has none. Whoever may attach a
# policy of AWS's to a role may give it every right.
NOT_NEEDED = {
    "iam:AttachRolePolicy",
    "iam:DetachRolePolicy",
    "iam:PutRolePermissionsBoundary",
    "iam:DeleteRolePermissionsBoundary",
}
# For SubnetId and KmsKeyId, which most notebooks go without: the README names them.
FOR_NETWORKS_AND_KEYS = ("ec2:", "kms:")
PREFIX = {"service-quotas": "servicequotas"}
# What deploy calls, by the source of AWS's command line (customizations/cloudformation), what s3's
# commands call, and how the link of step 5 opens the notebook
COMMANDS = {
    "cloudformation:CreateChangeSet", "cloudformation:DescribeChangeSet", "cloudformation:ExecuteChangeSet",
    "cloudformation:GetTemplateSummary", "s3:CreateBucket", "s3:ListBucket", "s3:DeleteBucket", "s3:PutObject",
    "s3:GetObject", "s3:DeleteObject", "sagemaker:CreatePresignedNotebookInstanceUrl",
}  # fmt: skip


LAUNCHER, STACK = "deployer-policy.json", "deployer-policy-stack.json"


def statements(name=STACK):
    return json.loads((SAGEMAKER / name).read_text(encoding="utf-8"))["Statement"]


def allowed_actions():
    return [action for item in statements() for action in item["Action"]]


def schema_permissions():
    """The permissions that AWS's schema of each resource of the template declares."""
    from cfnlint.schema import PROVIDER_SCHEMA_MANAGER

    template = cloudformation.load_template(SAGEMAKER / "notebook.yaml")
    result = set()
    for kind in {resource["Type"] for resource in template["Resources"].values()}:
        schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-east-1", kind).schema
        for name, about in schema["handlers"].items():
            if name != "list":  # of all resources of a kind, which no stack asks for
                result |= set(about["permissions"])
    return result


def readme_operations():
    """Return the operations of the `aws SERVICE OPERATION` commands in steps 1 to 6."""
    readme = (SAGEMAKER / "README.md").read_text(encoding="utf-8")
    steps = readme[readme.index("## 1. ") : readme.index("## launch.py")]
    services = "cloudformation|sagemaker|service-quotas|pricing"
    words = re.findall(rf"aws ({services}) ([a-z]+-[a-z-]+)", steps)
    session = botocore.session.get_session()
    result = set()
    for service, command in words:
        names = session.get_service_model(service).operation_names
        [name] = [item for item in names if item.lower() == command.replace("-", "")]
        result.add(f"{PREFIX.get(service, service)}:{name}")
    return result


def test_the_policy_allows_what_the_stack_and_the_commands_need_and_nothing_else():
    declared = schema_permissions()
    assert {"sagemaker:StopNotebookInstance", "iam:CreateRole", "budgets:ModifyBudget"} <= declared
    others = {action for action in declared if action.startswith(FOR_NETWORKS_AND_KEYS)}
    needed = declared - NOT_NEEDED - others
    assert {"cloudformation:DeleteStack", "pricing:GetProducts"} <= readme_operations()
    assert sorted(allowed_actions()) == sorted(needed | readme_operations() | COMMANDS)


def test_the_readme_names_what_a_subnet_and_a_key_need_besides():
    readme = (SAGEMAKER / "README.md").read_text(encoding="utf-8")
    for action in schema_permissions():
        if action.startswith(FOR_NETWORKS_AND_KEYS):
            assert action in readme or action.split(":")[1] in readme, action


@pytest.mark.parametrize("name", [LAUNCHER, STACK])
def test_a_policy_is_given_in_a_way_that_takes_its_size(name):
    """IAM's quotas, without white space: 2,048 characters of policies that are part of a user
    (put-user-policy), 6,144 of a policy of its own (create-policy).
    """
    size = len(re.sub(r"\s", "", (SAGEMAKER / name).read_text(encoding="utf-8")))
    assert 2048 < size <= 6144 - 500  # another account and a bucket of 63 characters
    readme = (SAGEMAKER / "README.md").read_text(encoding="utf-8")
    assert "put-user-policy" not in readme
    assert f"sagemaker/{name} > policy.json" in readme
    command = "create-policy --policy-name gluonlab --policy-document file://policy.json"
    assert f"aws iam {command}" in readme


@pytest.mark.parametrize("name", [LAUNCHER, STACK])
def test_only_what_has_no_narrower_resource_is_allowed_everywhere(name):
    for item in statements(name):
        assert item["Effect"] == "Allow" and "*" not in "".join(item["Action"])
        if item["Resource"] == "*":
            assert all(action.split(":")[1].startswith(("Get", "List")) for action in item["Action"])
        if "iam:PassRole" in item["Action"]:
            to = {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}}
            assert item["Action"] == ["iam:PassRole"] and item["Condition"] == to


SOME = f"arn:aws:sagemaker:us-east-1:{ACCOUNT}"
ROLES = f"arn:aws:iam::{ACCOUNT}:role"


@pytest.mark.parametrize(
    ("name", "action", "arn"),
    [
        (LAUNCHER, "iam:CreateRole", f"{ROLES}/{notebook_role_name('lab', 'eu-west-1')}"),
        (LAUNCHER, "iam:PassRole", f"{ROLES}/{notebook_role_name('a' * 63, 'ap-northeast-1')}"),
        (LAUNCHER, "iam:PassRole", f"{ROLES}/gluonlab-Role-1ABCDEF"),  # a stack's
        (LAUNCHER, "sagemaker:CreateTrainingJob", f"{SOME}:training-job/gluonlab-one-host-1"),
        (LAUNCHER, "sagemaker:DeleteNotebookInstance", f"{SOME}:notebook-instance/lab"),
        (LAUNCHER, "s3:PutObject", f"arn:aws:s3:::MY-BUCKET/{ARCHIVE_KEY}"),
        (STACK, "cloudformation:DeleteStack", f"arn:aws:cloudformation:eu-west-1:{ACCOUNT}:stack/gluonlab/1"),
        (STACK, "iam:CreateRole", f"{ROLES}/gluonlab-Role-1ABCDEF"),
        (STACK, "iam:PassRole", f"{ROLES}/gluonlab-Role-1ABCDEF"),
        (STACK, "sagemaker:DeleteNotebookInstance", f"{SOME}:notebook-instance/gluonlab"),
        (STACK, "budgets:ModifyBudget", f"arn:aws:budgets::{ACCOUNT}:budget/gluonlab us-east-1 gluonlab"),
        (STACK, "s3:PutObject", f"arn:aws:s3:::MY-BUCKET/{ARCHIVE_KEY}"),
    ],
)
def test_what_the_launcher_or_the_template_makes_is_within_the_resources(name, action, arn):
    resources = []
    for item in statements(name):
        if action in item["Action"]:
            of_it = item["Resource"]
            resources += [of_it] if isinstance(of_it, str) else of_it
    assert any(fnmatch.fnmatchcase(arn, resource) for resource in resources)
    others = arn.replace(ACCOUNT, "999999999999").replace("MY-", "HIS-")
    assert not any(fnmatch.fnmatchcase(others, resource) for resource in resources)
