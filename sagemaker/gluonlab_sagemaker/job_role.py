"""Permissions for training jobs: a role for the jobs, and a policy for people who submit jobs.

SageMaker assumes the *role* while a job runs. The role allows access to the bucket, AWS's image and
the log. It does not allow starting jobs. The *policy* limits the instance types, and so the price,
of jobs: AWS checks the condition key sagemaker:InstanceTypes when a job is created.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from gluonlab.launch.cluster_job_scripts import JOB_NAME_PREFIX
from gluonlab_sagemaker.calls import Caller
from gluonlab_sagemaker.logs import LOG_GROUP
from gluonlab_sagemaker.role import (
    bucket_statements,
    ensure_sagemaker_role,
    log_statement,
    policy_document,
    policy_statement,
)


class Account(NamedTuple):
    """An AWS account in one region."""

    partition: str
    region: Optional[str]
    number: str

    def arn(self, service: str, resource: str) -> str:
        """Return the ARN of a resource in this region."""
        return f"arn:{self.partition}:{service}:{self.region}:{self.number}:{resource}"


def current_account(caller: Caller) -> Account:
    """Return the account of the credentials."""
    identity = caller("sts", "GetCallerIdentity")
    return Account(identity["Arn"].split(":")[1], caller.region, identity["Account"])


def job_role_name(region: Optional[str]) -> str:
    """Return the name of the role that all jobs of a region share."""
    return f"gluonlab-jobs-{region}"


def job_permissions(account: Account, bucket: str) -> Dict[str, Any]:
    """Return the policy of the role of running jobs."""
    images = f"arn:{account.partition}:ecr:{account.region}:*:repository/mxnet-training"
    return policy_document(
        log_statement(account.partition, account.region, account.number),
        *bucket_statements(account.partition, bucket),
        policy_statement(
            ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"],
            Resource=images,  # AWS's images, which belong to another account in each region
        ),
        policy_statement(["ecr:GetAuthorizationToken"], Resource="*"),
        policy_statement(
            ["cloudwatch:PutMetricData"],
            Resource="*",
            Condition={"StringLike": {"cloudwatch:namespace": "/aws/sagemaker/*"}},
        ),
    )


def ensure_job_role(caller: Caller, bucket: str, tags: List[Dict[str, str]]) -> str:
    """Create the role of all jobs in this region, or update its permissions; return its ARN."""
    account = current_account(caller)
    return ensure_sagemaker_role(
        caller, job_role_name(caller.region), account.number, job_permissions(account, bucket), tags
    )


def submitter_policy(account: Account, bucket: str, instances: Sequence[str]) -> Dict[str, Any]:
    """Return the policy for people who submit jobs, with only these ``instances`` and the role."""
    jobs = account.arn("sagemaker", f"training-job/{JOB_NAME_PREFIX}*")
    role = f"arn:{account.partition}:iam::{account.number}:role/{job_role_name(account.region)}"
    return policy_document(
        policy_statement(
            ["sagemaker:CreateTrainingJob"],
            Resource=jobs,
            Condition={
                "ForAllValues:StringEquals": {"sagemaker:InstanceTypes": list(instances)},
                # ForAllValues is also true for a request without instance types.
                "Null": {"sagemaker:InstanceTypes": "false"},
            },
        ),
        policy_statement(
            ["sagemaker:AddTags", "sagemaker:DescribeTrainingJob", "sagemaker:StopTrainingJob"], Resource=jobs
        ),
        policy_statement(["sagemaker:ListTrainingJobs"], Resource="*"),
        policy_statement(
            ["iam:PassRole"],
            Resource=role,
            Condition={"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}},
        ),
        policy_statement(["iam:GetRole"], Resource=role),
        policy_statement(
            ["logs:DescribeLogStreams", "logs:GetLogEvents"],
            Resource=[
                account.arn("logs", f"log-group:{LOG_GROUP}"),
                account.arn("logs", f"log-group:{LOG_GROUP}:log-stream:{JOB_NAME_PREFIX}*"),
            ],
        ),
        *bucket_statements(account.partition, bucket),
    )
