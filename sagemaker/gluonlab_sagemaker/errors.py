"""Errors of AWS, each explained in one line together with a remedy."""

from __future__ import annotations

import re
from typing import Any, Mapping, NoReturn, Optional

from botocore import exceptions as botocore

from gluonlab.errors import ConfigError, RunError

QUOTAS_PAGE = "https://console.aws.amazon.com/servicequotas/home/services/sagemaker/quotas"
CREDENTIALS_HINT = "set up credentials with `aws configure` or `aws sso login`, or choose others with --profile"

ACCESS_DENIED_CODES = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "NotAuthorized"}
INVALID_CREDENTIAL_CODES = {
    "ExpiredToken", "ExpiredTokenException", "RequestExpired", "UnrecognizedClientException",
    "InvalidClientTokenId", "InvalidAccessKeyId", "SignatureDoesNotMatch",
    "InvalidSignatureException", "IncompleteSignature", "AuthFailure", "MissingAuthenticationToken",
}  # fmt: skip
# codes from a region that the account has not enabled
DISABLED_REGION_CODES = {"UnrecognizedClientException", "InvalidClientTokenId"}
QUOTA_CODES = {"ResourceLimitExceeded", "LimitExceeded", "LimitExceededException"}
ROLE_OPERATIONS = {"GetRole", "CreateRole", "PutRolePolicy"}
THROTTLING_CODES = {"Throttling", "ThrottlingException", "TooManyRequestsException", "RequestLimitExceeded"}
UNCERTAIN_CODES = {"InternalFailure", "InternalServerError", "InternalError", "ServiceUnavailable", "RequestTimeout"}
NOT_FOUND_CODES = {"NoSuchEntity", "ResourceNotFound", "ResourceNotFoundException"}
_NOT_FOUND_PATTERN = re.compile(r"RecordNotFound|does not exist|could not find|not found", re.I)
_NAME_IN_USE_PATTERN = re.compile(r"duplicate|already exists", re.I)
# codes and messages of EC2 and SageMaker
_CAPACITY_PATTERN = re.compile(
    r"sufficient.{0,40}capacity|capacity.?error|not enough capacity|unable to provision.*capacity"
    r"|instance type.*temporarily unavailable|unfulfillable.?capacity|no spot capacity",
    re.I,
)
CAPACITY_REMEDY = "try again later, in another --region or with another --instance"


class RefusedError(ConfigError):
    """A request that is known to be impossible, so that AWS was not asked; exit status 2."""


class AWSError(RunError):
    """A call that AWS refused, or that did not reach AWS.

    ``code`` is AWS's name of the error. It is empty if there was no response.
    """

    def __init__(self, message: str, code: str = "", aws_message: str = "") -> None:
        super().__init__(message)
        self.code, self._aws_message = code, aws_message

    @property
    def is_unanswered(self) -> bool:
        """Return whether AWS may have carried out the call although no answer arrived."""
        return not self.code or self.code in UNCERTAIN_CODES

    @property
    def is_not_found(self) -> bool:
        """Return whether the named resource does not exist."""
        return self.code in NOT_FOUND_CODES or (
            self.code.startswith("Validation") and bool(_NOT_FOUND_PATTERN.search(self._aws_message))
        )

    @property
    def is_name_in_use(self) -> bool:
        """Return whether a resource with this name exists."""
        return self.code in ("EntityAlreadyExists", "ResourceInUse") or bool(
            _NAME_IN_USE_PATTERN.search(self._aws_message)
        )

    @property
    def is_capacity_error(self) -> bool:
        """Return whether AWS currently has no free machine of the instance type."""
        return bool(_CAPACITY_PATTERN.search(f"{self.code} {self._aws_message}"))

    @property
    def is_wrong_status(self) -> bool:
        """Return whether the status of the resource does not allow the call."""
        return self.code.startswith("Validation") and self._aws_message.startswith("Status (")

    @property
    def is_role_too_new(self) -> bool:
        """Return whether SageMaker cannot use the role yet, seconds after its creation."""
        return self.code.startswith("Validation") and "assume" in self._aws_message.lower()


class FailedError(RunError):
    """A notebook or a job with the status Failed; the message contains AWS's reason."""


def raise_explained(error: Exception, operation: str, parameters: Mapping[str, Any]) -> NoReturn:
    """Raise botocore's error from a call of ``operation`` as an AWSError."""
    if not isinstance(error, botocore.ClientError):
        raise _connection_error(error) from error
    details = error.response["Error"]
    code, aws_message = details.get("Code", ""), " ".join(details.get("Message", "").split())
    if code in INVALID_CREDENTIAL_CODES:
        # AWS's message is left out: it contains parts of the signed request.
        hint = f"{CREDENTIALS_HINT}{_other_causes(code)}"
        raise AWSError(f"AWS does not accept the credentials ({code}): {hint}", code) from None
    message = _error_message(code, aws_message, operation, parameters)
    raise AWSError(message, code, aws_message) from error


def _error_message(code: str, aws_message: str, operation: str, parameters: Mapping[str, Any]) -> str:
    if code in ACCESS_DENIED_CODES:
        return _permission_message(aws_message, operation)
    if code in QUOTA_CODES:
        advice = quota_advice(operation, parameters)
        return f"a quota of this account is used up: {aws_message} {advice}"
    if code in THROTTLING_CODES:
        return f"AWS received too many requests ({operation}): wait a minute and run the same command again"
    if _CAPACITY_PATTERN.search(f"{code} {aws_message}"):
        return f"{aws_message} {capacity_advice()}"
    name = parameters.get("NotebookInstanceName") or parameters.get("TrainingJobName") or parameters.get("RoleName")
    if (
        name
        and operation.startswith("Create")
        and (code in ("ResourceInUse", "EntityAlreadyExists") or _NAME_IN_USE_PATTERN.search(aws_message))
    ):
        return (
            f"the name {name} is already used in this account and region: choose another with --name (AWS: "
            f"{aws_message})"
        )
    return f"AWS refused {operation}: {aws_message} ({code})"


def quota_advice(operation: str, parameters: Mapping[str, Any]) -> str:
    """Return advice on which quota to increase, and on which page."""
    instance = parameters.get("InstanceType") or (parameters.get("ResourceConfig") or {}).get("InstanceType")
    if instance is None:
        is_iam = operation in ROLE_OPERATIONS
        return f"(see {QUOTAS_PAGE.replace('sagemaker', 'iam') if is_iam else QUOTAS_PAGE})"
    quota = f"{instance} for {'training job' if 'Training' in operation else 'notebook instance'} usage"
    return (
        f'(request "{quota}" at {QUOTAS_PAGE}, or with `python sagemaker/launch.py quota`, or choose another '
        "--instance; P3 and P4 start at 0, and an answer takes hours to days)"
    )


def capacity_advice(remedy: str = CAPACITY_REMEDY) -> str:
    """Return advice for the case that AWS has no free machine."""
    return f"(AWS does not have a free machine of this type now: {remedy})"


def failed_error(kind: str, name: str, reason: Optional[str], remedy: str = CAPACITY_REMEDY) -> FailedError:
    """Return the error for a FailureReason; ``remedy`` is the advice if AWS has no machine."""
    reason = " ".join((reason or "AWS does not report a reason").split()).rstrip(".")
    if _CAPACITY_PATTERN.search(reason):
        advice = capacity_advice(remedy)
    elif "internal" in reason.lower():
        advice = f"(usually AWS does not have a free machine of this type, or has an internal error: {remedy})"
    elif "lifecycle" in reason.lower():
        advice = (
            "(a start script failed or took longer than 5 minutes: see its log in CloudWatch, "
            "/aws/sagemaker/NotebookInstances)"
        )
    else:
        advice = ""
    return FailedError(f"{kind} {name} failed: {reason} {advice}".strip())


def _other_causes(code: str) -> str:
    if code in DISABLED_REGION_CODES:
        return "; if they work in other regions, enable this region in the account"
    return (
        "; also check this machine's clock, because a wrong clock causes the same error"
        if "Signature" in code or code == "RequestExpired"
        else ""
    )


def _permission_message(aws_message: str, operation: str) -> str:
    action = re.search(r"perform: ([\w-]+:\w+)", aws_message)
    resource = re.search(r"on resource: (\S+)", aws_message)
    permission = (action[1] if action else operation) + (f" on {resource[1]}" if resource else "")
    explicit = " (an explicit deny)" if "explicit deny" in aws_message else ""
    is_role = operation in ROLE_OPERATIONS
    alternative = ", or for a role, and pass its ARN with --role" if is_role else ""
    return (
        f"these credentials do not allow {permission}{explicit}: ask the account's administrator for this "
        f"permission{alternative}"
    )


def _connection_error(error: Exception) -> RunError:
    text = " ".join(str(error).split())
    if isinstance(
        error, (botocore.NoCredentialsError, botocore.PartialCredentialsError, botocore.CredentialRetrievalError)
    ):
        return AWSError(f"found no usable AWS credentials: {CREDENTIALS_HINT}")
    if isinstance(error, (botocore.SSOError, botocore.TokenRetrievalError)):
        return AWSError(
            "the sign-in of this profile has expired: run `aws sso login`, with --profile NAME if you use a profile"
        )
    if isinstance(error, botocore.ProfileNotFound):
        return AWSError(f"{text}: choose a profile from `aws configure list-profiles`")
    if isinstance(error, botocore.NoRegionError):
        return AWSError("no region is set: add --region, such as --region us-east-1, or set AWS_DEFAULT_REGION")
    if isinstance(error, (botocore.HTTPClientError, botocore.ConnectionError)):
        return AWSError(f"cannot reach AWS ({text}): check the network and HTTPS_PROXY, then run the command again")
    return AWSError(f"{type(error).__name__}: {text}")
