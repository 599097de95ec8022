"""The role of one notebook: what the programs on it may do, which is little.

It costs nothing, and ends with its notebook.

`notebook.yaml` makes an equal one; --role takes whatever role there is.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Dict, List, Optional

from gluonlab_sagemaker.calls import Caller
from gluonlab_sagemaker.checks import is_ours
from gluonlab_sagemaker.errors import AWSError, RefusedError

LONGEST_ROLE = 64
POLICY = "gluonlab"
NETWORK = [
    "ec2:CreateNetworkInterface",
    "ec2:CreateNetworkInterfacePermission",
    "ec2:DeleteNetworkInterface",
    "ec2:DeleteNetworkInterfacePermission",
    "ec2:DescribeDhcpOptions",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSubnets",
    "ec2:DescribeVpcs",
]


def role_name(name: str, region: Optional[str]) -> str:
    """Roles are shared by all regions, notebooks are not."""
    whole = f"gluonlab-notebook-{region}-{name}"
    if len(whole) <= LONGEST_ROLE:
        return whole
    return f"{whole[: LONGEST_ROLE - 9]}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def trust(account: str) -> Dict[str, Any]:
    """SageMaker may take the role, for this account only."""
    return document(
        statement(
            ["sts:AssumeRole"],
            Principal={"Service": "sagemaker.amazonaws.com"},
            Condition={"StringEquals": {"aws:SourceAccount": account}},
        )
    )


def permissions(
    partition: str,
    region: Optional[str],
    account: str,
    name: str,
    bucket: Optional[str],
    in_subnet: bool,
) -> Dict[str, Any]:
    """Stop the notebook itself, write logs, use gluonlab/ in one bucket, and join a network."""
    here = f"{region}:{account}"
    statements = [
        statement(
            ["sagemaker:DescribeNotebookInstance", "sagemaker:StopNotebookInstance"],
            Resource=[
                f"arn:{partition}:sagemaker:{here}:notebook-instance/{one}"
                for one in sorted({name, name.lower()})
            ],
        ),
        log_rights(partition, region, account),
    ]
    if bucket:
        statements += bucket_rights(partition, bucket)
    if in_subnet:  # EC2 knows no narrower resources for the describing ones
        statements.append(statement(NETWORK, Resource="*"))
    return document(*statements)


def log_rights(partition: str, region: Optional[str], account: str) -> Dict[str, Any]:
    """Write logs of SageMaker."""
    return statement(
        [
            "logs:CreateLogGroup",
            "logs:CreateLogStream",
            "logs:DescribeLogStreams",
            "logs:PutLogEvents",
        ],
        Resource=f"arn:{partition}:logs:{region}:{account}:log-group:/aws/sagemaker/*",
    )


def bucket_rights(partition: str, bucket: str) -> List[Dict[str, Any]]:
    """Use gluonlab/ in one bucket."""
    everything = f"arn:{partition}:s3:::{bucket}"
    prefix = {"StringLike": {"s3:prefix": ["gluonlab", "gluonlab/*"]}}
    return [
        statement(
            ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"],
            Resource=f"{everything}/gluonlab/*",
        ),
        statement(["s3:ListBucket"], Resource=everything, Condition=prefix),
    ]


def ensure_role(
    caller: Caller, name: str, bucket: Optional[str], in_subnet: bool, tags: List[Dict[str, str]]
) -> str:
    """The ARN of this notebook's role, made if there is none; its permissions are written anew."""
    role = role_name(name, caller.region)
    identity = caller("sts", "GetCallerIdentity")
    partition, account = identity["Arn"].split(":")[1], identity["Account"]
    rights = permissions(partition, caller.region, account, name, bucket, in_subnet)
    return ensure(caller, role, account, rights, tags)


def ensure(
    caller: Caller, role: str, account: str, rights: Dict[str, Any], tags: List[Dict[str, str]]
) -> str:
    """The ARN of a role that SageMaker takes, made if there is none; its rights are these."""
    try:
        found = caller("iam", "GetRole", RoleName=role)["Role"]
        if not is_ours(found.get("Tags", [])):
            raise RefusedError(
                f"the role {role} exists and was not made here: "
                "choose another --name, or give one with --role"
            )
    except AWSError as error:
        if not error.missing:
            raise
        text = json.dumps(trust(account))
        found = caller(
            "iam", "CreateRole", RoleName=role, AssumeRolePolicyDocument=text, Tags=tags
        )["Role"]
    text = json.dumps(rights)
    caller("iam", "PutRolePolicy", RoleName=role, PolicyName=POLICY, PolicyDocument=text)
    return str(found["Arn"])


def given_role(caller: Caller, given: str) -> str:
    """The ARN of a role given by its ARN or name. Raises RefusedError for one that is not there."""
    if given.startswith("arn:"):
        return given
    try:
        return str(caller("iam", "GetRole", RoleName=given)["Role"]["Arn"])
    except AWSError as error:
        if caller.rehearses:
            return f"arn:aws:iam::<account>:role/{given}"
        if error.missing:
            raise RefusedError(
                f"--role {given}: there is no such role in this account: "
                "give its ARN, or leave --role out"
            ) from error
        raise


def delete_role(caller: Caller, name: str) -> bool:
    """Delete the role that `ensure_role` made; False if there is none, or not ours."""
    return delete(caller, role_name(name, caller.region))


def delete(caller: Caller, role: str) -> bool:
    """Delete a role that `ensure` made; False if there is none, or not ours."""
    try:
        if not is_ours(caller("iam", "GetRole", RoleName=role)["Role"].get("Tags", [])):
            return False
    except AWSError as error:
        if error.missing:
            return False
        raise
    try:
        caller("iam", "DeleteRolePolicy", RoleName=role, PolicyName=POLICY)
    except AWSError as error:
        if not error.missing:  # an interrupted create may not have come to it
            raise
    caller("iam", "DeleteRole", RoleName=role)
    return True


def statement(actions: List[str], **rest: Any) -> Dict[str, Any]:
    """A part of a policy that allows ``actions``."""
    return {"Effect": "Allow", "Action": actions, **rest}


def document(*statements: Dict[str, Any]) -> Dict[str, Any]:
    """A policy of statements."""
    return {"Version": "2012-10-17", "Statement": list(statements)}
