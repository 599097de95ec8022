"""deployer-policy.json: what a person needs for launch.py is what launch.py calls, and no more."""

import ast
import json

import botocore.session
import pytest
from launch_world import SAGEMAKER

SERVICES = ("sagemaker", "iam", "sts", "s3", "pricing", "service-quotas", "logs")
PREFIX = {"service-quotas": "servicequotas"}  # in policies, where it is not boto3's name
OTHERWISE = {"s3:ListObjectsV2": "s3:ListBucket", "s3:HeadObject": "s3:GetObject"}
# what AWS asks for beside the call itself: roles are passed, and tags are given on creation
BESIDE = {
    "sagemaker:CreateNotebookInstance": {"iam:PassRole", "sagemaker:AddTags"},
    "sagemaker:CreateTrainingJob": {"iam:PassRole", "sagemaker:AddTags"},
    "sagemaker:CreateNotebookInstanceLifecycleConfig": {"sagemaker:AddTags"},
    "iam:CreateRole": {"iam:TagRole"},
}


@pytest.fixture(scope="module")
def operations():
    """{operation: the service that has it}, of all services that launch.py may call."""
    session = botocore.session.get_session()
    return {
        name: service for service in reversed(SERVICES) for name in session.get_service_model(service).operation_names
    }


def texts():
    """Every text in the launcher's code; in texts with gaps, the module's own constants in them."""
    for path in sorted((SAGEMAKER / "gluonlab_sagemaker").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants = {
            statement.targets[0].id: statement.value.value
            for statement in tree.body
            if isinstance(statement, ast.Assign)
            and isinstance(statement.targets[0], ast.Name)
            and isinstance(statement.value, ast.Constant)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.JoinedStr):
                yield "".join(
                    str(part.value)
                    if isinstance(part, ast.Constant)
                    else str(constants.get(getattr(part.value, "id", None), "?"))
                    for part in node.values
                )


def called(operations):
    """The actions of policies that are needed for what the launcher's code names."""
    actions = set()
    for name in {text for text in texts() if text in operations}:
        service = operations[name]
        action = f"{PREFIX.get(service, service)}:{name}"
        actions |= {OTHERWISE.get(action, action), *BESIDE.get(action, ())}
    return actions


def statements():
    return json.loads((SAGEMAKER / "deployer-policy.json").read_text())["Statement"]


def test_the_policy_allows_what_is_called_and_nothing_else(operations):
    allowed = [action for item in statements() for action in item["Action"]]
    needed = called(operations)
    assert "sagemaker:UpdateNotebookInstanceLifecycleConfig" in needed  # a text with a gap
    assert set(allowed) == needed, "deployer-policy.json: allowed, and called, are not the same"


def test_every_action_is_an_operation_of_its_service(operations):
    """Passing a role is the one right without an operation of its own."""
    named = {f"{PREFIX.get(service, service)}:{name}" for name, service in operations.items()}
    allowed = {action for item in statements() for action in item["Action"]}
    assert allowed - named <= {"iam:PassRole", *OTHERWISE.values()}
