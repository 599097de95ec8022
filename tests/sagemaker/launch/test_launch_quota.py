"""quota: what an account may have, found by the name in the console; and asking for more."""

import pytest

NAME = "ml.g5.12xlarge for notebook instance usage"


def listed(name, code, value):
    return {"ServiceCode": "sagemaker", "QuotaName": name, "QuotaCode": code, "Value": value}


QUOTAS = [
    listed("ml.g5.12xlarge for endpoint usage", "L-0", 9.0),
    listed(NAME, "L-1", 0.0),
    listed("ml.g5.12xlarge for training job usage", "L-2", 2.0),
    listed("ml.g5.12xlarge for spot training job usage", "L-3", 1.0),
]


@pytest.fixture
def pages(aws):
    """Two pages of quotas, as ListServiceQuotas gives them."""
    first = {"Quotas": QUOTAS[:2], "NextToken": "bW9yZQ=="}
    aws.answer("list_service_quotas", first, "service-quotas")
    aws.answer("list_service_quotas", {"Quotas": QUOTAS[2:]}, "service-quotas")


def test_every_use_has_its_quota(launch_stubbed, pages):
    status, out, _ = launch_stubbed("quota", "--instance", "g5.12xlarge")
    assert status == 0
    assert out.splitlines() == [
        f"{NAME}: 0 in us-east-1",
        "ml.g5.12xlarge for training job usage: 2 in us-east-1",
        "ml.g5.12xlarge for spot training job usage: 1 in us-east-1",
        "the quota is 0: request one machine with python sagemaker/launch.py quota --instance ml.g5.12xlarge "
        "--use notebook --request 1; an answer takes hours to days",
    ]


def test_more_is_asked_for_by_the_code(launch_stubbed, aws, log, pages):
    answer = {"RequestedQuota": {"Status": "PENDING", "DesiredValue": 1.0}}
    aws.answer("request_service_quota_increase", answer, "service-quotas")
    status, out, err = launch_stubbed("quota", "--instance", "g5.12xlarge", "--request", "1")
    assert status == 0
    assert "check with python sagemaker/launch.py quota --instance ml.g5.12" in err
    assert out.splitlines()[-1] == f"requested 1 x {NAME}: PENDING"
    expected = {"ServiceCode": "sagemaker", "QuotaCode": "L-1", "DesiredValue": 1.0}
    assert log.calls[-1][2] == expected


def test_what_one_has_is_not_asked_for(launch_stubbed, pages, log):
    words = "quota --instance g5.12xlarge --use training --request 2"
    status, _, err = launch_stubbed(*words.split())
    assert (status, log.changes()) == (2, [])
    assert "--request 2: ml.g5.12xlarge for training job usage is already 2 in us-east-1" in err


def test_a_request_that_waits_is_named(launch_stubbed, aws, pages):
    expected = ("request_service_quota_increase", "ResourceAlreadyExistsException", "")
    aws.refuse(*expected, "service-quotas")
    history = [{"DesiredValue": 4.0, "Status": "CASE_OPENED"}, {"Status": "DENIED"}]
    operation = "list_requested_service_quota_change_history_by_quota"
    aws.answer(operation, {"RequestedQuotas": history}, "service-quotas")
    status, _, err = launch_stubbed("quota", "--instance", "g5.12xlarge", "--request", "1")
    assert status == 1
    assert f"AWS has not answered an earlier request for {NAME} yet (for 4, CASE_OPENED)" in err


def test_a_type_without_a_quota_is_not_offered_there(launch_stubbed, aws):
    aws.answer("list_service_quotas", {"Quotas": QUOTAS[:1]}, "service-quotas")
    status, _, err = launch_stubbed("quota", "--instance", "g5.12xlarge")
    assert status == 2
    assert f"AWS does not list the quota {NAME!r} in us-east-1" in err
