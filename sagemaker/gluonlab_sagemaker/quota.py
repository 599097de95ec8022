"""Quotas of an account for instance types, and requests to increase them.

SageMaker has a quota for each instance type and use, with the name that the console shows.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional

from gluonlab_sagemaker.calls import Caller
from gluonlab_sagemaker.errors import AWSError, RefusedError

SERVICE = "sagemaker"
USES = {"notebook": "notebook instance usage", "training": "training job usage", "spot": "spot training job usage"}


class Quota(NamedTuple):
    """A quota of this account in one region."""

    name: str
    code: str
    value: float


def quota_name(instance: str, use: str) -> str:
    """Return a name like ``ml.g5.12xlarge for notebook instance usage``."""
    return f"{instance} for {USES[use]}"


def list_quotas(caller: Caller, instance: str) -> Dict[str, Quota]:
    """Return the quotas of an instance type by use, without uses that AWS does not list."""
    uses_by_name = {quota_name(instance, use): use for use in USES}
    if caller.is_dry_run:
        caller("service-quotas", "ListServiceQuotas", ServiceCode=SERVICE)
        return {use: Quota(name, f"<code of {name}>", 0) for name, use in uses_by_name.items()}
    quotas = caller.list_all("service-quotas", "ListServiceQuotas", "Quotas", ServiceCode=SERVICE)
    return {
        uses_by_name[name]: Quota(name, quota["QuotaCode"], quota.get("Value", 0))
        for quota in quotas
        for name in [quota.get("QuotaName")]
        if name in uses_by_name
    }


def request_increase(caller: Caller, quota: Quota, count: int) -> str:
    """Ask AWS to increase a quota to ``count``, and return a message about the request.

    Raises RefusedError if the quota is ``count`` or more already.
    """
    if count <= quota.value:
        raise RefusedError(f"--request {count}: {quota.name} is already {quota.value:g} in {caller.region}")
    try:
        request: Dict[str, Any] = caller(
            "service-quotas",
            "RequestServiceQuotaIncrease",
            ServiceCode=SERVICE,
            QuotaCode=quota.code,
            DesiredValue=float(count),
        ).get("RequestedQuota", {})
    except AWSError as error:
        if error.code == "ResourceAlreadyExistsException":
            pending = _describe_pending_request(caller, quota)
            raise AWSError(
                f"AWS has not answered an earlier request for {quota.name} yet{pending}: wait for its answer",
                error.code,
            ) from error
        raise
    return f"requested {count} x {quota.name}: {request.get('Status', 'PENDING')}"


def _describe_pending_request(caller: Caller, quota: Quota) -> str:
    """Describe the pending request for a quota; empty if the credentials do not allow it."""
    try:
        history: List[Dict[str, Any]] = caller.list_all(
            "service-quotas",
            "ListRequestedServiceQuotaChangeHistoryByQuota",
            "RequestedQuotas",
            ServiceCode=SERVICE,
            QuotaCode=quota.code,
        )
    except AWSError:
        return ""
    for request in history:
        if request.get("Status") in ("PENDING", "CASE_OPENED"):
            value: Optional[float] = request.get("DesiredValue")
            return f" (for {value:g}, {request['Status']})" if value is not None else ""
    return ""
