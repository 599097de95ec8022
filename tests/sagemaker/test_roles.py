"""The role that notebook.yaml makes and the one that launch.py makes: the same rights, with and
without a bucket and a subnet.
"""

import itertools
import json
import re
import sys

import pytest
from made_up_notebook import SAGEMAKER

sys.path.insert(0, str(SAGEMAKER.parent / "tools"))

import cloudformation

ACCOUNT, REGION = cloudformation.PSEUDO["AWS::AccountId"], cloudformation.PSEUDO["AWS::Region"]
BUCKET = {"Bucket": "my-bucket"}
SUBNET = {"SubnetId": "subnet-01234567", "SecurityGroupIds": "sg-01234567"}


def role(parameters):
    """The properties of the template's role."""
    stack = cloudformation.Stack(
        cloudformation.load_template(SAGEMAKER / "notebook.yaml"), {"Repository": "https://x/g", **parameters}
    )
    [properties] = [about for kind, about in stack.resources().values() if kind == "AWS::IAM::Role"]
    return properties


def listed(value):
    return value if isinstance(value, list) else [value]


def rights(*documents):
    """A set of (effect, action, resource or who, condition), however they are put into statements."""
    result = set()
    for item in itertools.chain(*(document["Statement"] for document in documents)):
        assert set(item) <= {"Effect", "Action", "Resource", "Principal", "Condition"}
        upon = listed(item["Resource"]) if "Resource" in item else [json.dumps(item["Principal"])]
        for action, resource in itertools.product(listed(item["Action"]), upon):
            result.add((item["Effect"], action, resource, json.dumps(item.get("Condition"), sort_keys=True)))
    return result


@pytest.mark.parametrize(
    "parameters", [{}, BUCKET, SUBNET, {**BUCKET, **SUBNET}], ids=lambda parameters: "-".join(parameters) or "alone"
)
def test_launch_py_and_the_template_give_a_notebook_the_same_rights(parameters):
    from gluonlab_sagemaker.role import notebook_permissions

    theirs = rights(*(item["PolicyDocument"] for item in role(parameters)["Policies"]))
    ours = rights(
        notebook_permissions("aws", REGION, ACCOUNT, "gluonlab", parameters.get("Bucket"), "SubnetId" in parameters)
    )
    assert ours == theirs
    assert len(ours) >= 6


def test_launch_py_and_the_template_trust_the_same_service():
    from gluonlab_sagemaker.role import trust_policy

    assert rights(trust_policy(ACCOUNT)) == rights(role({})["AssumeRolePolicyDocument"])


@pytest.mark.parametrize("name", ["one-host", "parameter-server", "horovod", "spot"])
def test_a_job_reads_and_writes_where_its_role_may(name):
    """Data, source, results and checkpoints: all of S3 that the request names."""
    from gluonlab_sagemaker.role import notebook_permissions

    parameters = rights(notebook_permissions("aws", REGION, ACCOUNT, "gluonlab", "my-bucket", False))
    text = (SAGEMAKER / "training" / f"{name}.json").read_text(encoding="utf-8")
    places = re.findall(r"s3://([^\"\\]+)", text)
    assert len(places) == (4 if name == "spot" else 3)
    for place in places:
        assert place.startswith("my-bucket/gluonlab/"), place
    actions = {action for _, action, upon, _ in parameters if upon == "arn:aws:s3:::my-bucket/gluonlab/*"}
    assert actions == {"s3:GetObject", "s3:PutObject", "s3:DeleteObject"}
    [under] = [json.loads(condition) for _, action, _, condition in parameters if action == "s3:ListBucket"]
    assert under == {"StringLike": {"s3:prefix": ["gluonlab", "gluonlab/*"]}}
