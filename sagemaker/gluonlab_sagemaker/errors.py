"""Errors of AWS, said in one line together with what to do about them.

Messages about credentials and signatures are not repeated: AWS puts parts of the request into them.
"""

from __future__ import annotations

import re
from typing import Any, Mapping, NoReturn, Optional

from botocore import exceptions as botocore

from gluonlab.errors import ConfigError, RunError

QUOTAS = "https://console.aws.amazon.com/servicequotas/home/services/sagemaker/quotas"
CREDENTIALS = "set them up with `aws configure` or `aws sso login`, or choose others with --profile"

DENIED = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "NotAuthorized"}
INVALID_CREDENTIALS = {
    "ExpiredToken", "ExpiredTokenException", "RequestExpired", "UnrecognizedClientException",
    "InvalidClientTokenId", "InvalidAccessKeyId", "SignatureDoesNotMatch",
    "InvalidSignatureException", "IncompleteSignature", "AuthFailure", "MissingAuthenticationToken",
}  # fmt: skip
# what a region says that an account has not opted into
ELSEWHERE = {"UnrecognizedClientException", "InvalidClientTokenId"}
QUOTA = {"ResourceLimitExceeded", "LimitExceeded", "LimitExceededException"}
ROLE_CALLS = {"GetRole", "CreateRole", "PutRolePolicy"}
THROTTLED = {
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
    "RequestLimitExceeded",
}
UNCERTAIN = {
    "InternalFailure",
    "InternalServerError",
    "InternalError",
    "ServiceUnavailable",
    "RequestTimeout",
}
MISSING = {"NoSuchEntity", "ResourceNotFound", "ResourceNotFoundException"}
_MISSING_TEXT = re.compile(r"RecordNotFound|does not exist|could not find|not found", re.I)
_TAKEN_TEXT = re.compile(r"duplicate|already exists", re.I)
# EC2's wordings and SageMaker's, of codes and of messages
_CAPACITY_TEXT = re.compile(
    r"sufficient.{0,40}capacity|capacity.?error|not enough capacity|unable to provision.*capacity"
    r"|instance type.*temporarily unavailable|unfulfillable.?capacity|no spot capacity",
    re.I,
)
ELSEWHERE_OR_LATER = "try again later, in another --region or with another --instance"


class RefusedError(ConfigError):
    """What was asked for cannot be, and so AWS was not asked: another choice cures it.

    Exit status 2.
    """


class AWSError(RunError):
    """AWS refused a call, or cannot be reached.

    ``code``: AWS's name for the error; an empty string where AWS did not answer.
    """

    def __init__(self, message: str, code: str = "", said: str = "") -> None:
        super().__init__(message)
        self.code, self._said = code, said

    @property
    def unanswered(self) -> bool:
        """Whether AWS may have done it all the same: its answer did not come."""
        return not self.code or self.code in UNCERTAIN

    @property
    def missing(self) -> bool:
        """Whether what was named does not exist."""
        return self.code in MISSING or (
            self.code.startswith("Validation") and bool(_MISSING_TEXT.search(self._said))
        )

    @property
    def taken(self) -> bool:
        """Whether the name is in use."""
        return self.code in ("EntityAlreadyExists", "ResourceInUse") or bool(
            _TAKEN_TEXT.search(self._said)
        )

    @property
    def no_machine(self) -> bool:
        """Whether AWS has no machine of that type free at the moment."""
        return bool(_CAPACITY_TEXT.search(f"{self.code} {self._said}"))

    @property
    def wrong_status(self) -> bool:
        """Whether it was, at that moment, in a status that does not allow the call."""
        return self.code.startswith("Validation") and self._said.startswith("Status (")

    @property
    def role_is_too_new(self) -> bool:
        """Whether SageMaker cannot use a role yet, as in its first seconds."""
        return self.code.startswith("Validation") and "assume" in self._said.lower()


class FailedError(RunError):
    """A notebook or a job ended as Failed; the message has AWS's reason and the remedy."""


def raise_explained(error: Exception, operation: str, parameters: Mapping[str, Any]) -> NoReturn:
    """Raise an error of botocore, from a call of ``operation``, as one line."""
    if not isinstance(error, botocore.ClientError):
        raise _no_answer(error) from error
    code, said = (
        error.response["Error"].get("Code", ""),
        " ".join(error.response["Error"].get("Message", "").split()),
    )
    if code in INVALID_CREDENTIALS:
        raise AWSError(
            f"AWS does not accept the credentials ({code}): {CREDENTIALS}{_elsewhere(code)}", code
        ) from None
    raise AWSError(_explain(code, said, operation, parameters), code, said) from error


def _explain(code: str, said: str, operation: str, parameters: Mapping[str, Any]) -> str:
    if code in DENIED:
        return _denied(said, operation)
    if code in QUOTA:
        return f"a quota of this account is used up: {said} {quota_advice(operation, parameters)}"
    if code in THROTTLED:
        return (
            f"AWS has had too many requests ({operation}): "
            "wait a minute and run the same command again"
        )
    if _CAPACITY_TEXT.search(f"{code} {said}"):
        return f"{said} {capacity_advice()}"
    name = (
        parameters.get("NotebookInstanceName")
        or parameters.get("TrainingJobName")
        or parameters.get("RoleName")
    )
    if (
        name
        and operation.startswith("Create")
        and (code in ("ResourceInUse", "EntityAlreadyExists") or _TAKEN_TEXT.search(said))
    ):
        return (
            f"the name {name} is taken in this account and region: "
            f"choose another with --name (AWS: {said})"
        )
    return f"AWS refused {operation}: {said} ({code})"


def quota_advice(operation: str, parameters: Mapping[str, Any]) -> str:
    """Which quota to ask for, and where."""
    instance = parameters.get("InstanceType") or (parameters.get("ResourceConfig") or {}).get(
        "InstanceType"
    )
    if instance is None:
        return f"(see {QUOTAS.replace('sagemaker', 'iam') if operation in ROLE_CALLS else QUOTAS})"
    quota = (
        f"{instance} for {'training job' if 'Training' in operation else 'notebook instance'} usage"
    )
    return (
        f'(ask for "{quota}" at {QUOTAS}, or by `python sagemaker/launch.py quota`; P3 and P4 '
        "begin at 0, and an answer takes hours to days; or choose another --instance)"
    )


def capacity_advice(remedy: str = ELSEWHERE_OR_LATER) -> str:
    """What to do when AWS has no machine."""
    return f"(AWS has no such machine free at the moment: {remedy})"


def failure(
    kind: str, name: str, reason: Optional[str], remedy: str = ELSEWHERE_OR_LATER
) -> FailedError:
    """What a FailureReason means; ``remedy``: what to do when AWS has no machine."""
    reason = " ".join((reason or "AWS gives no reason").split()).rstrip(".")
    if _CAPACITY_TEXT.search(reason):
        advice = capacity_advice(remedy)
    elif "internal" in reason.lower():
        advice = f"(mostly AWS has no such machine free, or a fault of its own: {remedy})"
    elif "lifecycle" in reason.lower():
        advice = (
            "(a start script failed or took longer than 5 minutes; its log is in CloudWatch: "
            "/aws/sagemaker/NotebookInstances)"
        )
    else:
        advice = ""
    return FailedError(f"{kind} {name} failed: {reason} {advice}".strip())


def _elsewhere(code: str) -> str:
    if code in ELSEWHERE:
        return "; if they work in other regions, this one is switched off in the account"
    return (
        "; a clock of this machine that is wrong does the same"
        if "Signature" in code or code == "RequestExpired"
        else ""
    )


def _denied(said: str, operation: str) -> str:
    action = re.search(r"perform: ([\w-]+:\w+)", said)
    resource = re.search(r"on resource: (\S+)", said)
    right = (action[1] if action else operation) + (f" on {resource[1]}" if resource else "")
    explicit = " (an explicit deny)" if "explicit deny" in said else ""
    other = ", or for a role, whose ARN --role takes" if operation in ROLE_CALLS else ""
    return (
        f"these credentials may not {right}{explicit}: "
        f"ask whoever administers the account for that permission{other}"
    )


def _no_answer(error: Exception) -> RunError:
    text = " ".join(str(error).split())
    if isinstance(
        error,
        (
            botocore.NoCredentialsError,
            botocore.PartialCredentialsError,
            botocore.CredentialRetrievalError,
        ),
    ):
        return AWSError(f"no usable AWS credentials were found: {CREDENTIALS}")
    if isinstance(error, (botocore.SSOError, botocore.TokenRetrievalError)):
        return AWSError(
            "the sign-in of this profile has ended: run `aws sso login`, "
            "with --profile NAME if you use one"
        )
    if isinstance(error, botocore.ProfileNotFound):
        return AWSError(f"{text}: `aws configure list-profiles` names those that exist")
    if isinstance(error, botocore.NoRegionError):
        return AWSError(
            "no region is set: give one, such as --region us-east-1, or set AWS_DEFAULT_REGION"
        )
    if isinstance(error, (botocore.HTTPClientError, botocore.ConnectionError)):
        return AWSError(
            f"AWS cannot be reached: {text}: check the network and a proxy (HTTPS_PROXY), "
            "then run it again"
        )
    return AWSError(f"{type(error).__name__}: {text}")
