"""IAM roles for SageMaker, mainly the role of one notebook with few permissions.

The role costs nothing, and is deleted with its notebook. `notebook.yaml` creates an equal role.
With --role, a notebook uses an existing role instead.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Dict, List, Optional

from gluonlab_sagemaker.calls import Caller
from gluonlab_sagemaker.checks import has_gluonlab_tag
from gluonlab_sagemaker.errors import AWSError, RefusedError

MAX_ROLE_NAME_LENGTH = 64
POLICY_NAME = "gluonlab"
NETWORK_ACTIONS = [
    "ec2:CreateNetworkInterface", "ec2:CreateNetworkInterfacePermission", "ec2:DeleteNetworkInterface",
    "ec2:DeleteNetworkInterfacePermission", "ec2:DescribeDhcpOptions", "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSecurityGroups", "ec2:DescribeSubnets", "ec2:DescribeVpcs",
]  # fmt: skip


def notebook_role_name(name: str, region: Optional[str]) -> str:
    """Return the name of a notebook's role, shortened to the length that AWS allows."""
    # The region is part of the name because roles belong to all regions, notebooks to one.
    full_name = f"gluonlab-notebook-{region}-{name}"
    if len(full_name) <= MAX_ROLE_NAME_LENGTH:
        return full_name
    digest = hashlib.sha256(full_name.encode()).hexdigest()[:8]
    return f"{full_name[: MAX_ROLE_NAME_LENGTH - 9]}-{digest}"


def trust_policy(account: str) -> Dict[str, Any]:
    """Return the policy that lets SageMaker assume the role, for this account only."""
    return policy_document(
        policy_statement(
            ["sts:AssumeRole"],
            Principal={"Service": "sagemaker.amazonaws.com"},
            Condition={"StringEquals": {"aws:SourceAccount": account}},
        )
    )


def notebook_permissions(
    partition: str, region: Optional[str], account: str, name: str, bucket: Optional[str], in_subnet: bool
) -> Dict[str, Any]:
    """Return the policy of a notebook's role.

    The notebook may stop itself, write logs, use gluonlab/ in one bucket, and join a network.
    """
    statements = [
        policy_statement(
            ["sagemaker:DescribeNotebookInstance", "sagemaker:StopNotebookInstance"],
            Resource=[
                f"arn:{partition}:sagemaker:{region}:{account}:notebook-instance/{spelling}"
                for spelling in sorted({name, name.lower()})
            ],
        ),
        log_statement(partition, region, account),
    ]
    if bucket:
        statements += bucket_statements(partition, bucket)
    if in_subnet:  # EC2's Describe actions do not support narrower resources
        statements.append(policy_statement(NETWORK_ACTIONS, Resource="*"))
    return policy_document(*statements)


def log_statement(partition: str, region: Optional[str], account: str) -> Dict[str, Any]:
    """Return the statement that allows writing logs of SageMaker."""
    return policy_statement(
        ["logs:CreateLogGroup", "logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"],
        Resource=f"arn:{partition}:logs:{region}:{account}:log-group:/aws/sagemaker/*",
    )


def bucket_statements(partition: str, bucket: str) -> List[Dict[str, Any]]:
    """Return the statements that allow access to gluonlab/ in one bucket."""
    arn = f"arn:{partition}:s3:::{bucket}"
    prefix = {"StringLike": {"s3:prefix": ["gluonlab", "gluonlab/*"]}}
    return [
        policy_statement(["s3:GetObject", "s3:PutObject", "s3:DeleteObject"], Resource=f"{arn}/gluonlab/*"),
        policy_statement(["s3:ListBucket"], Resource=arn, Condition=prefix),
    ]


def ensure_notebook_role(
    caller: Caller, name: str, bucket: Optional[str], in_subnet: bool, tags: List[Dict[str, str]]
) -> str:
    """Create a notebook's role, or update its permissions; return its ARN."""
    role = notebook_role_name(name, caller.region)
    identity = caller("sts", "GetCallerIdentity")
    partition, account = identity["Arn"].split(":")[1], identity["Account"]
    permissions = notebook_permissions(partition, caller.region, account, name, bucket, in_subnet)
    return ensure_sagemaker_role(caller, role, account, permissions, tags)


def ensure_sagemaker_role(
    caller: Caller, role: str, account: str, permissions: Dict[str, Any], tags: List[Dict[str, str]]
) -> str:
    """Create a role for SageMaker with ``permissions``, or update the role; return its ARN."""
    try:
        description = caller("iam", "GetRole", RoleName=role)["Role"]
        if not has_gluonlab_tag(description.get("Tags", [])):
            raise RefusedError(
                f"the role {role} exists, but was not created by this program: choose another --name, or pass a role "
                "with --role"
            )
    except AWSError as error:
        if not error.is_not_found:
            raise
        text = json.dumps(trust_policy(account))
        description = caller("iam", "CreateRole", RoleName=role, AssumeRolePolicyDocument=text, Tags=tags)["Role"]
    text = json.dumps(permissions)
    caller("iam", "PutRolePolicy", RoleName=role, PolicyName=POLICY_NAME, PolicyDocument=text)
    return str(description["Arn"])


def resolve_role(caller: Caller, role: str) -> str:
    """Return the ARN of a role, given as ARN or name; raise RefusedError if it does not exist."""
    if role.startswith("arn:"):
        return role
    try:
        return str(caller("iam", "GetRole", RoleName=role)["Role"]["Arn"])
    except AWSError as error:
        if caller.is_dry_run:
            return f"arn:aws:iam::<account>:role/{role}"
        if error.is_not_found:
            raise RefusedError(
                f"--role {role}: this role does not exist in the account: pass its ARN, or remove --role"
            ) from error
        raise


def delete_notebook_role(caller: Caller, name: str) -> bool:
    """Delete a notebook's role; return False if there is none with gluonlab's tag."""
    return delete_role(caller, notebook_role_name(name, caller.region))


def delete_role(caller: Caller, role: str) -> bool:
    """Delete a role; return False if there is none with gluonlab's tag."""
    try:
        if not has_gluonlab_tag(caller("iam", "GetRole", RoleName=role)["Role"].get("Tags", [])):
            return False
    except AWSError as error:
        if error.is_not_found:
            return False
        raise
    try:
        caller("iam", "DeleteRolePolicy", RoleName=role, PolicyName=POLICY_NAME)
    except AWSError as error:
        if not error.is_not_found:  # an interrupted create may have left no policy
            raise
    caller("iam", "DeleteRole", RoleName=role)
    return True


def policy_statement(actions: List[str], **elements: Any) -> Dict[str, Any]:
    """Return the statement of a policy that allows ``actions``."""
    return {"Effect": "Allow", "Action": actions, **elements}


def policy_document(*statements: Dict[str, Any]) -> Dict[str, Any]:
    """Return a policy of ``statements``."""
    return {"Version": "2012-10-17", "Statement": list(statements)}
