"""Who may do what for training jobs: two principals, each with its own rights.

The *role* is what SageMaker takes while a job runs: it reads and writes the bucket, fetches AWS's
image and writes the log. It can start nothing. The *policy* is for whoever submits jobs: which
machines, and so at what price, is decided there, since the condition key sagemaker:InstanceTypes is
looked at when a job is created.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from gluonlab.launch.job_files import JOB_NAME_PREFIX
from gluonlab_sagemaker.calls import Caller
from gluonlab_sagemaker.logs import GROUP
from gluonlab_sagemaker.role import bucket_rights, document, ensure, log_rights, statement


class Account(NamedTuple):
    """Where rights hold."""

    partition: str
    region: Optional[str]
    number: str

    def arn(self, service: str, resource: str) -> str:
        """Of a resource in this region."""
        return f"arn:{self.partition}:{service}:{self.region}:{self.number}:{resource}"


def account_of(caller: Caller) -> Account:
    """The account of the credentials."""
    identity = caller("sts", "GetCallerIdentity")
    return Account(identity["Arn"].split(":")[1], caller.region, identity["Account"])


def role_name(region: Optional[str]) -> str:
    """One role for all jobs of a region."""
    return f"gluonlab-jobs-{region}"


def permissions(account: Account, bucket: str) -> Dict[str, Any]:
    """What a job that runs may do."""
    images = f"arn:{account.partition}:ecr:{account.region}:*:repository/mxnet-training"
    return document(
        log_rights(account.partition, account.region, account.number),
        *bucket_rights(account.partition, bucket),
        statement(
            ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"],
            Resource=images,  # AWS's, of which each region has its account
        ),
        statement(["ecr:GetAuthorizationToken"], Resource="*"),
        statement(
            ["cloudwatch:PutMetricData"],
            Resource="*",
            Condition={"StringLike": {"cloudwatch:namespace": "/aws/sagemaker/*"}},
        ),
    )


def ensure_job_role(caller: Caller, bucket: str, tags: List[Dict[str, str]]) -> str:
    """The ARN of the role of all jobs here; its permissions are written anew."""
    account = account_of(caller)
    return ensure(
        caller, role_name(caller.region), account.number, permissions(account, bucket), tags
    )


def submitter(account: Account, bucket: str, instances: Sequence[str]) -> Dict[str, Any]:
    """What whoever submits jobs needs: to start them on ``instances`` alone, under the role.

    ForAllValues is true of a request without any type: such a one is refused by Null.
    """
    jobs = account.arn("sagemaker", f"training-job/{JOB_NAME_PREFIX}*")
    named = f"arn:{account.partition}:iam::{account.number}:role/{role_name(account.region)}"
    return document(
        statement(
            ["sagemaker:CreateTrainingJob"],
            Resource=jobs,
            Condition={
                "ForAllValues:StringEquals": {"sagemaker:InstanceTypes": list(instances)},
                "Null": {"sagemaker:InstanceTypes": "false"},
            },
        ),
        statement(
            ["sagemaker:AddTags", "sagemaker:DescribeTrainingJob", "sagemaker:StopTrainingJob"],
            Resource=jobs,
        ),
        statement(["sagemaker:ListTrainingJobs"], Resource="*"),
        statement(
            ["iam:PassRole"],
            Resource=named,
            Condition={"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}},
        ),
        statement(["iam:GetRole"], Resource=named),
        statement(
            ["logs:DescribeLogStreams", "logs:GetLogEvents"],
            Resource=[
                account.arn("logs", f"log-group:{GROUP}"),
                account.arn("logs", f"log-group:{GROUP}:log-stream:{JOB_NAME_PREFIX}*"),
            ],
        ),
        *bucket_rights(account.partition, bucket),
    )
