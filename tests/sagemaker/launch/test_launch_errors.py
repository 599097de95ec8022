"""Errors of AWS, from botocore's Stubber: one line with the reason and the remedy."""

import pytest
from botocore import exceptions
from launch_world import run_command

from gluonlab_sagemaker.calls import Caller
from gluonlab_sagemaker.errors import AWSError, raise_explained
from gluonlab_sagemaker.options import Dependencies

ROLE = ("--role", "arn:aws:iam::111122223333:role/mine")
G5 = ("--instance", "g5.12xlarge", "--repository", "https://git.example.org/gluonlab.git", *ROLE)


def error_line(err):
    [line] = [line for line in err.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in err
    return line


@pytest.fixture
def create_refused(launch_stubbed, aws):
    """``refused(code, message)``: what create says when AWS refuses the notebook so."""

    def run(code, message, *arguments):
        aws.statuses(None)
        aws.answer_scripts_created()
        aws.refuse("create_notebook_instance", code, message)
        status, _, err = launch_stubbed("create", *G5, *arguments)
        assert status == 1
        return error_line(err)

    return run


SERVICE_LIMIT = "The account-level service limit 'ml.g5.12xlarge for notebook instance usage' is 0 Instances"
CONSOLE = "https://console.aws.amazon.com/servicequotas"
NOT_ALLOWED = (
    "User: arn:aws:iam::111122223333:user/ada is not authorized to perform: "
    "sagemaker:CreateNotebookInstance on resource: "
    "arn:aws:sagemaker:us-east-1:111122223333:notebook-instance/gluonlab because no "
    "identity-based policy allows it"
)
DUPLICATE = "Cannot create a duplicate Notebook Instance (arn)"


@pytest.mark.parametrize(
    ("code", "message", "means"),
    [
        ("ResourceLimitExceeded", SERVICE_LIMIT, SERVICE_LIMIT),
        ("ResourceLimitExceeded", SERVICE_LIMIT,
         f'request "ml.g5.12xlarge for notebook instance usage" at {CONSOLE}'),
        ("ResourceLimitExceeded", SERVICE_LIMIT, "no notebook was created"),
        ("ResourceLimitExceeded", SERVICE_LIMIT,
         "remove them with python sagemaker/launch.py delete --name gluonlab"),
        ("AccessDeniedException", NOT_ALLOWED,
         "these credentials do not allow sagemaker:CreateNotebookInstance on arn:aws:sagemaker:"),
        ("AccessDeniedException", NOT_ALLOWED, "ask the account's administrator"),
        ("ThrottlingException", "Rate exceeded", "too many requests"),
        ("ValidationException", DUPLICATE, "the name gluonlab is already used"),
        ("InsufficientCapacity", "Insufficient capacity.", "AWS does not have a free machine of this type"),
        ("ValidationException", "Something\nnew  is wrong",
         "AWS refused CreateNotebookInstance: Something new is wrong"),
        ("InternalFailure", "", "AWS refused CreateNotebookInstance"),
    ],
)  # fmt: skip
def test_a_refusal_has_a_remedy(code, message, means, create_refused):
    assert means in create_refused(code, message)


@pytest.mark.parametrize(
    ("code", "message"), [("ValidationException", DUPLICATE), ("InternalFailure", ""), (None, None)]
)
def test_a_notebook_that_may_have_been_made_is_not_said_not_to_be(code, message, launch_stubbed, aws):
    """botocore retries, so the notebook may exist and cost money after an error."""
    aws.statuses(None)
    aws.answer_scripts_created()
    aws.time_out("CreateNotebookInstance") if code is None else aws.refuse("create_notebook_instance", code, message)
    status, _, err = launch_stubbed("create", *G5)
    assert status == 1
    assert "no notebook was created" not in err
    tells = "may exist anyway and cost money: check with python sagemaker/launch.py status --name gluonlab"
    assert tells in error_line(err)


def test_whoever_may_make_no_role_hears_that_one_can_be_given(launch_stubbed, aws):
    aws.statuses(None)
    aws.answer_caller()
    denied = "User: ada is not authorized to perform: iam:GetRole on resource: role r"
    aws.refuse("get_role", "AccessDenied", denied, "iam")
    line = error_line(launch_stubbed("create", *G5[:-2])[2])
    assert "these credentials do not allow iam:GetRole on role: ask the account's administrator" in line
    assert "or for a role, and pass its ARN with --role" in line


def test_a_quota_of_roles_is_not_looked_for_among_sagemakers(launch_stubbed, aws):
    aws.answer_no_notebook_and_role()
    message = "Cannot exceed quota for RolesPerAccount: 1000"
    aws.refuse("create_role", "LimitExceeded", message, "iam")
    line = error_line(launch_stubbed("create", *G5[:-2])[2])
    assert f"RolesPerAccount: 1000 (see {CONSOLE}/home/services/iam/quotas)" in line


@pytest.mark.parametrize(
    ("code", "more"),
    [
        ("ExpiredTokenException", ""),
        ("UnrecognizedClientException", "; if they work in other regions, enable this region in the account"),
        ("SignatureDoesNotMatch", "; also check this machine's clock, because a wrong clock causes the same error"),
    ],
)
def test_nothing_of_credentials_is_repeated_not_even_in_a_traceback(code, more, launch_stubbed, aws, capsys):
    secret = "The Canonical String should have been x-amz-security-token:SECRET"
    aws.refuse("describe_notebook_instance", code, secret)
    status, out, err = launch_stubbed("status")
    assert status == 1
    assert error_line(err) == (
        f"error: AWS does not accept the credentials ({code}): set up credentials with `aws configure` or `aws sso "
        f"login`, or choose others with --profile{more}"
    )
    assert "SECRET" not in out + err

    error = exceptions.ClientError({"Error": {"Code": code, "Message": secret}}, "Describe")
    with pytest.raises(AWSError) as raised:
        raise_explained(error, "Describe", {})
    assert raised.value.__suppress_context__
    assert raised.value.__cause__ is None


def test_no_credentials(capsys):
    """The real thing: boto3 looks everywhere, and finds none."""
    message = "found no usable AWS credentials: set up credentials with `aws configure`"
    for arguments in (("status",), ("create", *G5), ("delete", "--yes"), ("jobs", "list")):
        status, _, err = run_command(capsys, Dependencies(), arguments)
        assert status == 1 and message in error_line(err)


def test_no_region(capsys, credentials, monkeypatch):
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    message = "error: no region is set: add --region, such as --region us-east-1, or set AWS_DEFAULT_REGION"
    assert run_command(capsys, Dependencies(), ["status"]) == (1, "", f"{message}\n")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("--region us-wst-2", 2, "(did you mean 'us-west-2'?)"),
        ("--profile nobody", 1, "nobody"),
        ("--profile nobody", 1, "`aws configure list-profiles`"),
    ],
)
def test_an_unknown_region_or_profile_is_refused_without_asking_for_it(words, code, message, capsys, credentials):
    status, _, err = run_command(capsys, Dependencies(), ["status", *words.split()])
    assert status == code and message in error_line(err)


@pytest.mark.parametrize(
    ("error", "means"),
    [
        (exceptions.EndpointConnectionError(endpoint_url="https://x"), "cannot reach AWS"),
        (exceptions.ConnectTimeoutError(endpoint_url="https://x"), "cannot reach AWS"),
        (exceptions.ReadTimeoutError(endpoint_url="https://x"), "cannot reach AWS"),
        (exceptions.UnauthorizedSSOTokenError(), "run `aws sso login`"),
        (exceptions.TokenRetrievalError(provider="sso", error_msg="x"), "run `aws sso login`"),
        (exceptions.PartialCredentialsError(provider="env", cred_var="x"), "no usable AWS cred"),
        (exceptions.ParamValidationError(report="Missing\nRoleArn"),
         "ParamValidationError: Parameter validation failed: Missing RoleArn"),
    ],
)  # fmt: skip
def test_what_keeps_a_call_from_aws_is_one_line(error, means):
    with pytest.raises(AWSError, match=means) as raised:
        raise_explained(error, "DescribeNotebookInstance", {})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("reason", "means"),
    [
        ("Insufficient capacity to launch ml.g5.12xlarge",
         "AWS does not have a free machine of this type now: try again later"),
        ("InternalFailure", "usually AWS does not have a free machine of this type"),
        ("Notebook Instance Lifecycle Config 'x' for the notebook took longer than 5 minutes",
         "/aws/sagemaker/NotebookInstances"),
        (None, "AWS does not report a reason"),
    ],
)  # fmt: skip
def test_a_notebook_that_fails_says_why(reason, means, launch_stubbed, aws):
    why = {} if reason is None else {"FailureReason": reason}
    aws.statuses("Pending")
    aws.statuses("Failed", "Failed", **why)
    status, _, err = launch_stubbed("wait")
    assert status == 1
    line = error_line(err)
    assert "error: notebook gluonlab failed: " + (reason or "") in line
    assert means in line
    assert line.endswith("its files are still on its volume, which `delete` would destroy")


@pytest.fixture
def notebook_created(aws):
    """AWS makes the notebook."""
    aws.statuses(None)
    aws.answer_scripts_created()
    aws.answer("create_notebook_instance")


def test_create_sees_the_failure_of_what_it_made(notebook_created, launch_stubbed, aws):
    aws.statuses("Pending", "Pending")
    aws.statuses("Failed", "Failed", FailureReason="Insufficient capacity")
    status, _, err = launch_stubbed("create", *G5)
    assert status == 1
    assert "not have a free machine of this type" in error_line(err)
    assert "remove the rest of it with python sagemaker/launch.py delete --name gluonlab" in error_line(err)


def test_create_notices_that_its_notebook_is_gone(notebook_created, launch_stubbed, aws):
    aws.statuses("Pending", None)
    message = "error: gluonlab no longer exists: somebody deleted it during its creation"
    assert error_line(launch_stubbed("create", *G5)[2]) == message


def test_a_notebook_that_never_stops_is_warned_of(notebook_created, launch_stubbed):
    assert (
        "warning: with --idle-minutes 0 the notebook runs and costs money until somebody stops it: python "
        "sagemaker/launch.py stop"
    ) in launch_stubbed("create", *G5, "--idle-minutes", "0", "--no-wait")[2]


def test_create_waits_for_a_role_that_is_too_new(launch_stubbed, aws, log):
    aws.answer_no_notebook_and_role()
    role = {"Path": "/", "RoleName": "r", "RoleId": "A" * 16, "Arn": ROLE[1], "CreateDate": 0}
    aws.answer("create_role", {"Role": role}, "iam")
    aws.answer("put_role_policy", None, "iam")
    aws.answer_scripts_created()
    message = "Could not assume role arn. Please ensure that the role exists"
    for _ in range(3):
        aws.refuse("create_notebook_instance", "ValidationException", message)
    aws.answer("create_notebook_instance")
    assert launch_stubbed("create", *G5[:-2], "--no-wait")[0] == 0
    assert log.slept == [5, 5, 5]


def test_only_a_role_is_waited_for(create_refused, log):
    create_refused("ValidationException", "No such subnet")
    assert log.slept == []


def test_the_address_is_printed_alone_and_only_by_url(launch_stubbed, aws, log):
    aws.statuses("InService", Url="gluonlab.notebook.us-east-1.sagemaker.aws")
    url = "https://x.example/?authToken=t"
    aws.answer("create_presigned_notebook_instance_url", {"AuthorizedUrl": url})
    assert launch_stubbed("url", "--hours", "2") == (0, f"{url}\n", "")
    parameters = {"NotebookInstanceName": "gluonlab", "SessionExpirationDurationInSeconds": 7200}
    assert log.calls[-1][2] == parameters


@pytest.mark.parametrize(("status", "verb"), [("Stopped", "start"), ("Pending", "wait")])
def test_a_notebook_that_does_not_run_has_no_address(status, verb, launch_stubbed, aws):
    aws.statuses(status)
    message = f"gluonlab is {status}, but has an address only when it is InService: run "
    code, out, err = launch_stubbed("url")
    assert (code, out) == (2, "")
    assert f"{message}python sagemaker/launch.py {verb} --name gluonlab" in err


def test_an_error_without_a_caller_is_not_swallowed(credentials):
    with pytest.raises(AttributeError):
        Caller(None, "us-east-1")("sagemaker", "MisspelledOperation")
