"""What AWS refuses: one line that says what and what to do, and no more than that.

Answers are botocore's Stubber's.
"""

import pytest
from botocore import exceptions
from launch_world import ended

from gluonlab_sagemaker.calls import Caller
from gluonlab_sagemaker.errors import AWSError, raise_explained
from gluonlab_sagemaker.options import World

ROLE = ("--role", "arn:aws:iam::111122223333:role/mine")
G5 = ("--instance", "g5.12xlarge", "--repository", "https://git.example.org/gluonlab.git", *ROLE)
REMOVES = "`python sagemaker/launch.py delete --name gluonlab` removes it"


def one_line(err):
    [line] = [line for line in err.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in err
    return line


@pytest.fixture
def refused(told, aws):
    """``refused(code, message)``: what create says when AWS refuses the notebook so."""

    def run(code, message, *arguments):
        aws.statuses(None)
        aws.refuse(
            "describe_notebook_instance_lifecycle_config",
            "ValidationException",
            "it does not exist.",
        )
        aws.say("create_notebook_instance_lifecycle_config")
        aws.refuse("create_notebook_instance", code, message)
        status, _, err = told("create", *G5, *arguments)
        assert status == 1
        return one_line(err)

    return run


def test_a_quota_is_named_with_the_place_to_ask_for_more(refused):
    said = (
        "The account-level service limit 'ml.g5.12xlarge for notebook instance usage' is 0 "
        "Instances"
    )
    line = refused("ResourceLimitExceeded", said)
    assert said in line
    assert (
        'ask for "ml.g5.12xlarge for notebook instance usage" at '
        "https://console.aws.amazon.com/servicequotas"
    ) in line
    assert "no notebook was made" in line
    assert REMOVES.replace("`", "") in line


def test_a_permission_is_named(refused):
    said = (
        "User: arn:aws:iam::111122223333:user/ada is not authorized to perform: "
        "sagemaker:CreateNotebookInstance on resource: "
        "arn:aws:sagemaker:us-east-1:111122223333:notebook-instance/gluonlab because no "
        "identity-based policy allows it"
    )
    line = refused("AccessDeniedException", said)
    assert (
        "these credentials may not sagemaker:CreateNotebookInstance on arn:aws:sagemaker:us-east-1"
        in line
    )
    assert "ask whoever administers the account" in line


@pytest.mark.parametrize(
    ("code", "said"),
    [
        # botocore has asked twice
        ("ValidationException", "Cannot create a duplicate Notebook Instance (arn)"),
        ("InternalFailure", ""),
        (None, None),
    ],
)
def test_a_notebook_that_may_have_been_made_is_not_said_not_to_be(code, said, told, aws):
    """It would cost money without anybody knowing of it."""
    aws.statuses(None)
    aws.refuse(
        "describe_notebook_instance_lifecycle_config", "ValidationException", "it does not exist."
    )
    aws.say("create_notebook_instance_lifecycle_config")
    aws.silent("CreateNotebookInstance") if code is None else aws.refuse(
        "create_notebook_instance", code, said
    )
    status, _, err = told("create", *G5)
    assert status == 1
    assert "no notebook was made" not in err
    tells = (
        "may exist all the same, and cost money: "
        "python sagemaker/launch.py status --name gluonlab shows it"
    )
    assert tells in one_line(err)


def test_whoever_may_make_no_role_hears_that_one_can_be_given(told, aws):
    aws.statuses(None)
    aws.say(
        "get_caller_identity",
        {"Account": "111122223333", "Arn": "arn:aws:iam::111122223333:user/ada"},
        "sts",
    )
    aws.refuse(
        "get_role",
        "AccessDenied",
        "User: ada is not authorized to perform: iam:GetRole on resource: role r",
        "iam",
    )
    line = one_line(told("create", *G5[:-2])[2])
    assert "these credentials may not iam:GetRole on role: ask whoever" in line
    assert "or for a role, whose ARN --role takes" in line


def test_a_quota_of_roles_is_not_looked_for_among_sagemakers(told, aws):
    aws.without_a_role()
    aws.refuse(
        "create_role", "LimitExceeded", "Cannot exceed quota for RolesPerAccount: 1000", "iam"
    )
    line = one_line(told("create", *G5[:-2])[2])
    assert (
        "RolesPerAccount: 1000 (see "
        "https://console.aws.amazon.com/servicequotas/home/services/iam/quotas)"
    ) in line


@pytest.mark.parametrize(
    ("code", "said", "means"),
    [
        ("ThrottlingException", "Rate exceeded", "too many requests"),
        (
            "ValidationException",
            "Cannot create a duplicate Notebook Instance (arn)",
            "the name gluonlab is taken",
        ),
        (
            "InsufficientCapacity",
            "Insufficient capacity.",
            "AWS has no such machine free at the moment",
        ),
        (
            "ValidationException",
            "Something\nnew  is wrong",
            "AWS refused CreateNotebookInstance: Something new is wrong",
        ),
        ("InternalFailure", "", "AWS refused CreateNotebookInstance"),
    ],
)
def test_a_refusal_has_a_remedy(code, said, means, refused):
    assert means in refused(code, said)


@pytest.mark.parametrize(
    ("code", "more"),
    [
        ("ExpiredTokenException", ""),
        (
            "UnrecognizedClientException",
            "; if they work in other regions, this one is switched off in the account",
        ),
        ("SignatureDoesNotMatch", "; a clock of this machine that is wrong does the same"),
    ],
)
def test_nothing_of_credentials_is_repeated_not_even_in_a_traceback(code, more, told, aws, capsys):
    secret = "The Canonical String should have been x-amz-security-token:SECRET"
    aws.refuse("describe_notebook_instance", code, secret)
    status, out, err = told("status")
    assert status == 1
    assert one_line(err) == (
        (
            f"error: AWS does not accept the credentials ({code}): "
            "set them up with `aws configure` or `aws sso login`, or choose others with --profile"
        )
        + more
    )
    assert "SECRET" not in out + err

    error = exceptions.ClientError({"Error": {"Code": code, "Message": secret}}, "Describe")
    with pytest.raises(AWSError) as raised:
        raise_explained(error, "Describe", {})
    assert raised.value.__suppress_context__
    assert raised.value.__cause__ is None


def test_no_credentials(capsys):
    """The real thing: boto3 looks everywhere, and finds none."""
    for arguments in (("status",), ("create", *G5), ("delete", "--yes"), ("jobs", "list")):
        status, _, err = ended(capsys, World(), arguments)
        assert status == 1
        assert "no usable AWS credentials were found: set them up with `aws configure`" in one_line(
            err
        )


def test_no_region(capsys, somebody, monkeypatch):
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    status, _, err = ended(capsys, World(), ["status"])
    assert status == 1
    assert one_line(err) == (
        "error: no region is set: give one, such as --region us-east-1, or set AWS_DEFAULT_REGION"
    )


def test_an_unknown_region_is_refused_without_asking_for_it(capsys, somebody):
    status, _, err = ended(capsys, World(), ["status", "--region", "us-wst-2"])
    assert status == 2
    assert "unknown region 'us-wst-2'" in err
    assert "did you mean 'us-west-2'?" in err


def test_an_unknown_profile(capsys):
    status, _, err = ended(capsys, World(), ["status", "--profile", "nobody"])
    assert status == 1
    assert "nobody" in one_line(err)
    assert "`aws configure list-profiles`" in err


@pytest.mark.parametrize(
    ("error", "means"),
    [
        (exceptions.EndpointConnectionError(endpoint_url="https://x"), "AWS cannot be reached"),
        (exceptions.ConnectTimeoutError(endpoint_url="https://x"), "AWS cannot be reached"),
        (exceptions.ReadTimeoutError(endpoint_url="https://x"), "AWS cannot be reached"),
        (exceptions.UnauthorizedSSOTokenError(), "run `aws sso login`"),
        (
            exceptions.TokenRetrievalError(provider="sso", error_msg="expired"),
            "run `aws sso login`",
        ),
        (
            exceptions.PartialCredentialsError(provider="env", cred_var="x"),
            "no usable AWS credentials",
        ),
        (
            exceptions.ParamValidationError(report="Missing\nRoleArn"),
            "ParamValidationError: Parameter validation failed: Missing RoleArn",
        ),
    ],
)
def test_what_keeps_a_call_from_aws_is_one_line(error, means):
    with pytest.raises(AWSError, match=means) as raised:
        raise_explained(error, "DescribeNotebookInstance", {})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("reason", "means"),
    [
        (
            "Insufficient capacity to launch ml.g5.12xlarge",
            "AWS has no such machine free at the moment: try again later",
        ),
        ("InternalFailure", "mostly AWS has no such machine free"),
        (
            "Notebook Instance Lifecycle Config 'x' for the notebook took longer than 5 minutes",
            "/aws/sagemaker/NotebookInstances",
        ),
        (None, "AWS gives no reason"),
    ],
)
def test_a_notebook_that_fails_says_why(reason, means, told, aws):
    why = {} if reason is None else {"FailureReason": reason}
    aws.statuses("Pending")
    aws.statuses("Failed", "Failed", **why)
    status, _, err = told("wait")
    assert status == 1
    line = one_line(err)
    assert "error: notebook gluonlab failed: " + (reason or "") in line
    assert means in line
    assert line.endswith("its files are still on its volume, which `delete` would destroy")


def test_a_notebook_that_never_stops_is_warned_of(told, aws):
    aws.statuses(None)
    aws.refuse(
        "describe_notebook_instance_lifecycle_config", "ValidationException", "it does not exist."
    )
    aws.say("create_notebook_instance_lifecycle_config")
    aws.say("create_notebook_instance")
    _, _, err = told("create", *G5, "--idle-minutes", "0", "--no-wait")
    assert (
        "warning: with --idle-minutes 0 it runs, and costs, until somebody stops it: "
        "python sagemaker/launch.py stop"
    ) in err


def test_create_sees_the_failure_of_what_it_made(told, aws):
    aws.statuses(None)
    aws.refuse(
        "describe_notebook_instance_lifecycle_config", "ValidationException", "it does not exist."
    )
    aws.say("create_notebook_instance_lifecycle_config")
    aws.say("create_notebook_instance")
    aws.statuses("Pending", "Pending")
    aws.statuses("Failed", "Failed", FailureReason="Insufficient capacity")
    status, _, err = told("create", *G5)
    assert status == 1
    assert "no such machine free" in one_line(err)
    assert "python sagemaker/launch.py delete --name gluonlab removes what is left" in one_line(err)


def test_create_notices_that_its_notebook_is_gone(told, aws):
    aws.statuses(None)
    aws.refuse(
        "describe_notebook_instance_lifecycle_config", "ValidationException", "it does not exist."
    )
    aws.say("create_notebook_instance_lifecycle_config")
    aws.say("create_notebook_instance")
    aws.statuses("Pending", None)
    status, _, err = told("create", *G5)
    assert status == 1
    assert one_line(err) == "error: gluonlab is gone: somebody deleted it while it was being made"


def test_create_waits_for_a_role_that_is_too_new(told, aws, log):
    aws.without_a_role()
    role = {"Path": "/", "RoleName": "r", "RoleId": "A" * 16, "Arn": ROLE[1], "CreateDate": 0}
    aws.say("create_role", {"Role": role}, "iam")
    aws.say("put_role_policy", None, "iam")
    aws.refuse(
        "describe_notebook_instance_lifecycle_config", "ValidationException", "it does not exist."
    )
    aws.say("create_notebook_instance_lifecycle_config")
    for _ in range(3):
        aws.refuse(
            "create_notebook_instance",
            "ValidationException",
            "Could not assume role arn. Please ensure that the role exists",
        )
    aws.say("create_notebook_instance")
    assert told("create", *G5[:-2], "--no-wait")[0] == 0
    assert log.slept == [5, 5, 5]


def test_only_a_role_is_waited_for(refused, log):
    refused("ValidationException", "No such subnet")
    assert log.slept == []


def test_the_address_is_printed_alone_and_only_by_url(told, aws, log):
    aws.statuses("InService", Url="gluonlab.notebook.us-east-1.sagemaker.aws")
    aws.say(
        "create_presigned_notebook_instance_url",
        {"AuthorizedUrl": "https://x.example/?authToken=t"},
    )
    assert told("url", "--hours", "2") == (0, "https://x.example/?authToken=t\n", "")
    assert log.calls[-1][2] == {
        "NotebookInstanceName": "gluonlab",
        "SessionExpirationDurationInSeconds": 7200,
    }


@pytest.mark.parametrize(("status", "verb"), [("Stopped", "start"), ("Pending", "wait")])
def test_a_notebook_that_does_not_run_has_no_address(status, verb, told, aws):
    aws.statuses(status)
    code, out, err = told("url")
    assert (code, out) == (2, "")
    assert (
        f"gluonlab is {status}: it has an address when it is InService: "
        f"python sagemaker/launch.py {verb} --name gluonlab"
    ) in err


def test_an_error_without_a_caller_is_not_swallowed(somebody):
    with pytest.raises(AttributeError):
        Caller(None, "us-east-1")("sagemaker", "MisspeltOperation")
