"""resize, and a start that finds no machine: nothing that AWS says may cost the files on a volume.

Answers are botocore's Stubber's: moto has no such refusals.
"""

import pytest

AL2 = {"PlatformIdentifier": "notebook-al2-v3", "InstanceType": "ml.p3.2xlarge"}
AL1 = {"PlatformIdentifier": "notebook-al1-v1", "InstanceType": "ml.m5.xlarge"}
AL2023 = {"PlatformIdentifier": "notebook-al2023-v1", "InstanceType": "ml.g4dn.12xlarge"}
CAPACITY = [
    # as users quote them, of notebooks, training jobs, Studio and EC2
    "Insufficient notebook instance capacity. Retry later or with a different instance type.",
    "CapacityError: Unable to provision requested ML compute capacity. Please retry using a "
    "different ML instance type.",
    "EC2InsufficientCapacityError: Instance type 'ml.g5.48xlarge' is temporarily unavailable in "
    "supported availability zones [euw1-az1]. Try again in a few minutes",
    "InsufficientInstanceCapacity",
    "We currently do not have sufficient m5.8xlarge capacity in the zone you requested",
    "There is no Spot capacity available that matches your request.",
]


def error_line(err):
    [line] = [line for line in err.splitlines() if line.startswith("error: ")]
    return line


@pytest.mark.parametrize("reason", CAPACITY, ids=range(len(CAPACITY)))
def test_a_start_without_a_machine_never_asks_to_delete(reason, launch_stubbed, aws):
    aws.statuses("Stopped", **AL2023)
    aws.answer("start_notebook_instance")
    aws.statuses("Pending")
    aws.statuses("Failed", "Failed", FailureReason=reason)
    status, _, err = launch_stubbed("start")
    line = error_line(err)
    assert status == 1
    assert "AWS does not have a free machine of this type now: try again later: python" in line
    assert "launch.py start --name gluonlab; change the type: python" in line
    assert "launch.py resize --name gluonlab --instance TYPE; or create another notebook" in line
    assert "launch.py delete" not in line
    assert line.endswith("its files are still on its volume, which `delete` would destroy")


def test_a_start_that_is_refused_at_once_says_the_same(launch_stubbed, aws):
    aws.statuses("Stopped", **AL2023)
    aws.refuse("start_notebook_instance", "InsufficientInstanceCapacity", "Insufficient capacity.")
    status, _, err = launch_stubbed("start")
    assert status == 1
    assert "resize --name gluonlab --instance TYPE" in error_line(err)
    assert "which `delete` would destroy" in error_line(err)


def test_a_lack_of_anything_else_is_no_lack_of_machines(launch_stubbed, aws):
    aws.statuses("Stopped", **AL2023)
    aws.refuse("start_notebook_instance", "ValidationException", "The service is unavailable")
    assert "not have a free machine" not in error_line(launch_stubbed("start")[2])


def test_ctrl_c_in_a_start_offers_no_delete(launch_stubbed, aws, log):
    log.interrupt_at(1)
    aws.statuses("Stopped", **AL2023)
    status, _, err = launch_stubbed("start")
    assert status == 130
    assert "continue with `python sagemaker/launch.py wait --name gluonlab`" in err
    assert "delete" not in err


def test_a_notebook_that_has_failed_is_not_to_be_deleted_to_make_it_again(launch_stubbed, aws):
    aws.statuses("Failed", FailureReason="Insufficient capacity")
    where = ("--repository", "https://git.example.org/g.git")
    status, _, err = launch_stubbed("create", "--instance", "g5.xlarge", *where)
    assert status == 2
    assert "try again with python sagemaker/launch.py start --name gluonlab" in error_line(err)
    assert "or delete it and all files on its volume with" in error_line(err)


def updates(log):
    return [given for _, name, given in log.calls if name == "UpdateNotebookInstance"]


def test_resize_asks_for_what_is_new_and_waits(launch_stubbed, aws, log):
    aws.statuses("Stopped", VolumeSizeInGB=50, **AL2023)
    aws.answer("list_tags", {"Tags": []})
    aws.answer("update_notebook_instance")
    aws.statuses("Updating", "Updating", "Stopped")
    status, out, err = launch_stubbed("resize", "--instance", "g5.xlarge", "--volume", "80")
    assert (status, log.slept) == (0, [10, 10])
    assert updates(log) == [{"NotebookInstanceName": "gluonlab", "InstanceType": "ml.g5.xlarge", "VolumeSizeInGB": 80}]
    assert "about 1.41 USD per hour while it runs, 33.84 per day if nothing stops it" in err
    assert (
        "80 GB of volume cost money until you delete the notebook, even if it is stopped, about 11.20 USD per month"
        in err
    )
    assert out == "gluonlab is changed; start it with python sagemaker/launch.py start --name gluonlab\n"


def test_what_is_so_already_is_not_asked_for(launch_stubbed, aws, log):
    aws.statuses("InService", VolumeSizeInGB=50, **AL2023)
    status, out, _ = launch_stubbed("resize", "--instance", "g4dn.12xlarge", "--volume", "50")
    assert (status, out, updates(log)) == (0, "gluonlab already has these settings\n", [])


@pytest.mark.parametrize(
    ("status", "notebook", "options", "message"),
    [
        ("InService", AL2023, "--volume 80", "InService, but only a stopped notebook can be chan"),
        ("Updating", AL2023, "--volume 80", "Updating, but only a stopped notebook can be chan"),
        ("Stopped", AL2023, "--volume 20", "--volume 20: the volume already has 50 GB, and AWS can"),
        ("Stopped", AL2023, "--instance p3.2xlarge", "cannot run on ml.p3.2xlarge"),
        ("Stopped", AL2023, "--instance p5.48xlarge", "its GPUs are H100 or H200 (sm_90)"),
        ("Stopped", AL2023, "--platform notebook-al2-v3", "AWS ended support for notebook-al2-v3 on 2026-07-01"),
        ("Stopped", AL2, "--volume 80",
         "uses notebook-al2-v3, which AWS has not supported since 2026-07-01: add --platform notebook-al2023-v1 "
         "--instance ml.g5.xlarge, which keeps the files"),
        ("Stopped", AL2, "--instance g4dn.xlarge",
         "add --platform notebook-al2023-v1, which keeps the files on its volume"),
        ("Stopped", AL1, "--platform notebook-al2023-v1",
         "which AWS has not supported since 2024-03-31, and AWS cannot change it to a newer platform"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line_and_nothing_changes(status, notebook, options, message, launch_stubbed, aws, log):
    aws.statuses(status, VolumeSizeInGB=50, **notebook)
    if status == "Stopped" and options != "--volume 20":
        aws.answer("list_tags", {"Tags": []})
    code, _, err = launch_stubbed("resize", *options.split())
    assert (code, updates(log)) == (2, [])
    assert message in error_line(err)


def test_a_dead_notebook_becomes_a_living_one_with_its_volume(launch_stubbed, aws, log):
    """As AWS's page on Amazon Linux 2 has it: stop, change the platform, start."""
    aws.statuses("Stopped", VolumeSizeInGB=50, **AL2)
    status, _, err = launch_stubbed("start")
    assert status == 2
    way = "resize --name gluonlab --platform notebook-al2023-v1 --instance ml.g5.xlarge, which keeps the"
    assert way in error_line(err)
    aws.statuses("Stopped", VolumeSizeInGB=50, **AL2)
    aws.answer("list_tags", {"Tags": []})
    aws.answer("update_notebook_instance")
    aws.statuses("Stopped")
    new = ("--platform", "notebook-al2023-v1", "--instance", "ml.g5.xlarge")
    assert launch_stubbed("resize", *new)[0] == 0
    [asked] = updates(log)
    assert asked.pop("NotebookInstanceName") == "gluonlab"
    assert asked == {"InstanceType": new[3], "PlatformIdentifier": new[1]}


def test_a_stack_changes_its_notebook_itself(launch_stubbed, aws, log):
    aws.statuses("Stopped", VolumeSizeInGB=50, **AL2023)
    stack = {"Key": "aws:cloudformation:stack-name", "Value": "labs"}
    aws.answer("list_tags", {"Tags": [stack]})
    status, _, err = launch_stubbed("resize", "--volume", "80")
    assert (status, updates(log)) == (2, [])
    assert "belongs to the CloudFormation stack labs" in error_line(err)
    assert "another Platform there means a new, empty volume" in error_line(err)


def test_forced_aws_is_asked_with_a_warning(launch_stubbed, aws, log):
    aws.statuses("Stopped", VolumeSizeInGB=50, **AL2)
    aws.answer("update_notebook_instance")
    status, _, err = launch_stubbed("resize", "--volume", "80", "--force", "--no-wait")
    assert status == 0
    assert "warning: AWS ended support for notebook-al2-v3 on 2026-07-01" in err
    assert updates(log) == [{"NotebookInstanceName": "gluonlab", "VolumeSizeInGB": 80}]


def test_a_platform_that_is_not_known_is_tried_with_a_warning(launch_stubbed, aws, log):
    aws.statuses("Stopped", VolumeSizeInGB=50, **AL2023)
    aws.answer("list_tags", {"Tags": []})
    aws.answer("update_notebook_instance")
    status, _, err = launch_stubbed("resize", "--platform", "notebook-al2026-v1", "--no-wait")
    assert status == 0
    assert "warning: notebook-al2026-v1 is not a known platform" in err
    assert updates(log)[0]["PlatformIdentifier"] == "notebook-al2026-v1"
