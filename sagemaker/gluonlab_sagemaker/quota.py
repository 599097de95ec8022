"""How many machines of a type an account may have at once, and a request for more.

SageMaker has a quota for each type and use, named as in the console.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional

from gluonlab_sagemaker.calls import Caller
from gluonlab_sagemaker.errors import AWSError, RefusedError

SERVICE = "sagemaker"
USES = {
    "notebook": "notebook instance usage",
    "training": "training job usage",
    "spot": "spot training job usage",
}


class Quota(NamedTuple):
    """One quota of this account in one region."""

    name: str
    code: str
    value: float


def name_of(instance: str, use: str) -> str:
    """``ml.g5.12xlarge for notebook instance usage``"""
    return f"{instance} for {USES[use]}"


def quotas(caller: Caller, instance: str) -> Dict[str, Quota]:
    """{use: its quota} of a type of instance; uses that AWS does not list are left out."""
    wanted = {name_of(instance, use): use for use in USES}
    if caller.rehearses:
        caller("service-quotas", "ListServiceQuotas", ServiceCode=SERVICE)
        return {use: Quota(name, f"<code of {name}>", 0) for name, use in wanted.items()}
    listed = caller.all("service-quotas", "ListServiceQuotas", "Quotas", ServiceCode=SERVICE)
    return {
        wanted[one["QuotaName"]]: Quota(one["QuotaName"], one["QuotaCode"], one.get("Value", 0))
        for one in listed
        if one.get("QuotaName") in wanted
    }


def ask_for(caller: Caller, quota: Quota, wanted: int) -> str:
    """Ask AWS for more; what became of it. Raises RefusedError where there is that much already."""
    if wanted <= quota.value:
        raise RefusedError(
            f"--request {wanted}: {quota.name} is {quota.value:g} in {caller.region} already"
        )
    try:
        answer: Dict[str, Any] = caller(
            "service-quotas",
            "RequestServiceQuotaIncrease",
            ServiceCode=SERVICE,
            QuotaCode=quota.code,
            DesiredValue=float(wanted),
        ).get("RequestedQuota", {})
    except AWSError as error:
        if error.code == "ResourceAlreadyExistsException":
            pending = _pending(caller, quota)
            raise AWSError(
                f"AWS has a request for {quota.name} that it has not answered{pending}: wait for "
                "that one",
                error.code,
            ) from error
        raise
    return f"asked for {wanted} x {quota.name}: {answer.get('Status', 'PENDING')}"


def _pending(caller: Caller, quota: Quota) -> str:
    """Which request it is, if these credentials may see it."""
    try:
        history: List[Dict[str, Any]] = caller.all(
            "service-quotas",
            "ListRequestedServiceQuotaChangeHistoryByQuota",
            "RequestedQuotas",
            ServiceCode=SERVICE,
            QuotaCode=quota.code,
        )
    except AWSError:
        return ""
    open_ones = [one for one in history if one.get("Status") in ("PENDING", "CASE_OPENED")]
    if not open_ones:
        return ""
    newest: Optional[float] = open_ones[0].get("DesiredValue")
    return f" (for {newest:g}, {open_ones[0]['Status']})" if newest is not None else ""
