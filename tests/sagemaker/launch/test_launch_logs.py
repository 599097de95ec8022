"""A job's log, as launch.py shows it: on moto's CloudWatch, and on one that answers as told."""

import time

import pytest
from test_launch_jobs import job, request

from gluonlab_sagemaker.logs import LOG_GROUP

NAME = ("--name", "gluonlab-x")


@pytest.fixture
def cloudwatch(moto_client):
    """``cloudwatch(stream, *texts)``: a stream of the group; CloudWatch takes no old lines."""
    client = moto_client("logs")

    def write(stream, *texts):
        names = [item["logGroupName"] for item in client.describe_log_groups()["logGroups"]]
        if LOG_GROUP not in names:
            client.create_log_group(logGroupName=LOG_GROUP)
        client.create_log_stream(logGroupName=LOG_GROUP, logStreamName=stream)
        events = [{"timestamp": int(time.time() * 1000) + number, "message": text} for number, text in enumerate(texts)]
        client.put_log_events(logGroupName=LOG_GROUP, logStreamName=stream, logEvents=events)

    return write


def answer(token, *events):
    lines = [{"timestamp": at, "message": text} for at, text in events]
    return {"events": lines, "nextForwardToken": token, "nextBackwardToken": "b"}


def streams(aws, *names):
    result = [{"logStreamName": item} for item in names]
    aws.answer("describe_log_streams", {"logStreams": result}, "logs")


def of(status, **more):
    return job(status, **{"ResourceConfig": {"InstanceCount": more.pop("hosts", 1)}, **more})


def test_the_whole_log_is_read_page_after_page_until_a_token_comes_back(launch_stubbed, aws, log):
    aws.answer("describe_training_job", of("Completed"))
    streams(aws, "gluonlab-x/algo-1-1800000000")
    aws.answer("get_log_events", answer("f/1", (1, "one"), (2, "two")), "logs")
    aws.answer("get_log_events", answer("f/2", (3, "three\n")), "logs")
    aws.answer("get_log_events", answer("f/2"), "logs")
    assert launch_stubbed("jobs", "logs", *NAME) == (0, "one\ntwo\nthree\n", "")
    given = [parameters for _, operation, parameters in log.calls if operation == "GetLogEvents"]
    assert [item.get("nextToken") for item in given] == [None, "f/1", "f/2"]
    assert all(item["startFromHead"] is True for item in given)


def test_lines_of_several_hosts_stand_in_the_order_of_their_times(launch_stubbed, aws):
    """Streams come in pages, too; those of jobs whose names only begin alike are not asked for."""
    aws.answer("describe_training_job", of("Completed", hosts=2))
    first = {"logStreams": [{"logStreamName": "gluonlab-x/algo-1-18"}], "nextToken": "more"}
    aws.answer("describe_log_streams", first, "logs")
    streams(aws, "gluonlab-x/algo-2-18")
    for item, other in ((1, 4), (2, 3)):
        aws.answer("get_log_events", answer("f", (item, f"at {item}"), (other, f"at {other}")), "logs")
        aws.answer("get_log_events", answer("f"), "logs")
    assert launch_stubbed("jobs", "logs", *NAME)[1].splitlines() == [
        "algo-1: at 1", "algo-2: at 2", "algo-2: at 3", "algo-1: at 4",
    ]  # fmt: skip


def test_a_log_that_is_followed_ends_with_the_job_and_shows_each_line_once(launch_stubbed, aws, log):
    """Before the first line there is no group; the last lines come after the end."""
    aws.answer("describe_training_job", of("InProgress"))
    aws.answer("describe_training_job", of("InProgress"))
    aws.refuse("describe_log_streams", "ResourceNotFoundException", "no group", "logs")
    for status, pages in (
        ("InProgress", [("f/1", (1, "one")), ("f/1",)]),
        ("Completed", [("f/2", (2, "two")), ("f/2",)]),
    ):
        aws.answer("describe_training_job", of(status))
        streams(aws, "gluonlab-x/algo-1-18")
        for page in pages:
            aws.answer("get_log_events", answer(*page), "logs")
    assert launch_stubbed("jobs", "logs", "-f", *NAME)[:2] == (0, "one\ntwo\n")
    assert len(log.slept) == 3
    tokens = [item.get("nextToken") for _, operation, item in log.calls if operation == "GetLogEvents"]
    assert tokens == [None, "f/1", "f/1", "f/2"]


def test_the_log_of_a_job_is_read_from_cloudwatch(launch, cloudwatch, moto_client):
    cloudwatch("gluonlab-x/algo-1-18", "one", "two")
    cloudwatch("gluonlab-xy/algo-1-18", "another's")
    moto_client("sagemaker").create_training_job(**request())
    assert launch("jobs", "logs", *NAME)[:2] == (0, "one\ntwo\n")
    assert launch("jobs", "logs", "-f", *NAME)[:2] == (0, "one\ntwo\n")


def test_a_job_that_has_printed_nothing_says_so(launch_stubbed, aws):
    aws.answer("describe_training_job", of("InProgress"))
    streams(aws)
    status, out, err = launch_stubbed("jobs", "logs", *NAME)
    assert (status, out) == (0, "") and "gluonlab-x has not printed anything yet" in err


def failed(aws):
    aws.answer("describe_training_job", of("Failed", FailureReason="exit code 1"))


def test_the_last_30_lines_of_a_job_that_has_failed_are_shown(launch_stubbed, aws, log):
    failed(aws)
    streams(aws, "gluonlab-x/algo-1-18", "gluonlab-x/algo-2-18")
    for host in (0, 1):
        events = [(2 * number + host, f"line {2 * number + host}") for number in range(30)]
        aws.answer("get_log_events", answer("f", *events), "logs")
    status, out, err = launch_stubbed("jobs", "wait", *NAME)
    *shown, error = err.splitlines()
    assert (status, out) == (1, "")
    assert shown == [f"| algo-{at % 2 + 1}: line {at}" for at in range(30, 60)]
    assert error.startswith("error: training job gluonlab-x failed: exit code 1")
    assert error.endswith("see the whole log with python sagemaker/launch.py jobs logs --name gluonlab-x")
    parameters = [item for _, operation, item in log.calls if operation == "GetLogEvents"]
    assert [(item["limit"], item["startFromHead"]) for item in parameters] == [(30, False)] * 2


def test_a_log_that_may_not_be_read_does_not_hide_why_the_job_failed(launch_stubbed, aws):
    failed(aws)
    message = "not authorized to perform: logs:DescribeLogStreams on resource: arn:x"
    aws.refuse("describe_log_streams", "AccessDeniedException", message, "logs")
    status, _, err = launch_stubbed("jobs", "wait", *NAME)
    warning, error = err.splitlines()
    assert status == 1 and "logs:DescribeLogStreams" in warning
    assert error.startswith("error: training job gluonlab-x failed: exit code 1")


def test_ctrl_c_says_how_to_go_on(launch_stubbed, aws, log):
    log.interrupt_at(3)
    for _ in range(2):
        aws.answer("describe_training_job", of("InProgress"))
    streams(aws)
    status, _, err = launch_stubbed("jobs", "logs", "-f", *NAME)
    assert status == 130
    assert (
        "the job is still running: follow its log with `python sagemaker/launch.py jobs logs -f --name gluonlab-x`"
        in err
    )
