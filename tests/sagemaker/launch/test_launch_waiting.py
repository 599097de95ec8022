"""Waiting, for a notebook to change its status and to be gone: what is asked, when, and what is
said meanwhile.
"""

import pytest
from launch_world import run_command

from gluonlab_sagemaker.calls import Caller
from gluonlab_sagemaker.errors import FailedError
from gluonlab_sagemaker.options import Dependencies
from gluonlab_sagemaker.waiting import Waiter


def nothing_else(aws, *jobs):
    """No scripts and no role; these jobs run."""
    aws.answer_no_scripts()
    aws.answer_no_role()
    aws.answer("list_training_jobs", {"TrainingJobSummaries": [*jobs]})


def test_delete_waits_for_what_cannot_be_stopped_yet(launch_stubbed, aws, log):
    tags = {"Tags": [{"Key": "project", "Value": "gluonlab"}]}
    aws.statuses("Pending")
    aws.answer("list_tags", tags)
    aws.statuses("Pending", "Pending", "InService")
    aws.answer("stop_notebook_instance")
    aws.statuses("InService", "Stopping", "Stopped")
    aws.answer("delete_notebook_instance")
    aws.statuses("Stopped", "Deleting", None)
    nothing_else(aws)
    status, _, err = launch_stubbed("delete", "--yes")
    assert (status, log.changes()) == (0, ["StopNotebookInstance", "DeleteNotebookInstance"])
    assert err.splitlines() == [
        f"gluonlab: {item}" for item in ("Pending", "InService", "Stopping", "Stopped", "Deleting")
    ]
    assert len(log.slept) == 8


def test_delete_is_not_upset_when_the_idle_stop_is_faster(launch_stubbed, aws, log):
    aws.statuses("InService")
    message = "Status (Stopping) not in ([InService]). Unable to transition"
    aws.refuse("stop_notebook_instance", "ValidationException", message)
    aws.statuses("Stopping", "Stopped")
    aws.answer("delete_notebook_instance")
    aws.statuses(None)
    nothing_else(aws)
    assert launch_stubbed("delete", "--yes", "--force")[0] == 0


def test_delete_ends_with_the_notebook_even_without_rights_to_the_rest(launch_stubbed, aws):
    """The remaining resources cost nothing, and the output names them."""
    aws.statuses(None, None)
    aws.answer("describe_notebook_instance_lifecycle_config", {})
    denied = "User: x is not authorized to perform: iam:GetRole on resource: role y"
    aws.refuse("get_role", "AccessDenied", denied, "iam")
    denied = "is not authorized to perform: sagemaker:ListTrainingJobs"
    aws.refuse("list_training_jobs", "AccessDeniedException", denied)
    status, _, err = launch_stubbed("delete", "--yes")
    assert status == 0
    assert "warning: role: these credentials do not allow iam:GetRole on role" in err
    assert "warning: could not check for running training jobs" in err


def test_delete_warns_of_jobs_that_still_run(launch_stubbed, aws):
    aws.statuses(None, None)
    nothing_else(aws, {
        "TrainingJobName": "gluonlab-x", "TrainingJobArn": "arn", "CreationTime": 0,
        "TrainingJobStatus": "InProgress",
    })  # fmt: skip
    _, _, err = launch_stubbed("delete", "--yes", "--region", "us-east-1")
    assert (
        "warning: these training jobs still run and cost money: gluonlab-x: stop them with python "
        "sagemaker/launch.py jobs stop --name NAME"
    ) in err


def test_a_delete_that_fails_says_so_instead_of_trying_for_ever(launch_stubbed, aws):
    aws.statuses("Stopped")
    aws.answer("delete_notebook_instance")
    aws.statuses("Deleting")
    aws.statuses("Failed", "Failed", FailureReason="the network interface is in use")
    status, _, err = launch_stubbed("delete", "--yes", "--force")
    assert status == 1
    assert "notebook gluonlab failed: the network interface is in use" in err


def test_waiting_ends(capsys, aws, monkeypatch):
    """After an hour, with what can be done then."""
    clock = iter(range(0, 100_000, 600))
    waiter = Waiter(sleep=lambda seconds: None, clock=lambda: next(clock))
    message = "gluonlab is still Pending after 60 minutes: wait longer with `wait`"
    with pytest.raises(FailedError, match=message):
        waiter.wait_until("gluonlab", ["InService"], lambda: "Pending")


def test_on_a_terminal_one_line_is_renewed_and_ended(capsys, monkeypatch):
    statuses, clock = iter(["Pending", "Pending", "Stopping", "Stopped"]), iter(range(0, 1000, 65))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    waiter = Waiter(sleep=lambda seconds: None, clock=lambda: next(clock))
    assert waiter.wait_until("gluonlab", ["Stopped"], lambda: next(statuses)) == "Stopped"
    lines = [line.rstrip(" ") for line in capsys.readouterr().err.split("\r")]
    assert lines == ["", "gluonlab: Pending, 1:05", "gluonlab: Pending, 2:10", f"{'gluonlab: Stopping, 3:15':<70}\n"]


def test_ctrl_c_while_waiting_leaves_the_notebook_to_be_made(capsys, aws, log, credentials):
    class StubbedCaller(Caller):
        def service_client(self, service):
            return aws.client(service)

    def interrupt(seconds):
        raise KeyboardInterrupt

    aws.statuses("Pending")
    status, _, err = run_command(
        capsys, Dependencies(log.recording(StubbedCaller), interrupt), ["wait", "--name", "lab"]
    )
    assert (status, log.changes()) == (130, [])
    assert err.splitlines()[-1] == (
        "interrupted: nothing was undone: continue with `python sagemaker/launch.py wait --name lab`"
    )


def test_a_status_that_lags_behind_ends_no_wait(launch_stubbed, aws):
    """AWS may show what was before for a moment."""
    aws.statuses("InService")
    aws.answer("stop_notebook_instance")
    aws.statuses("InService", "Stopping", "Stopped")
    assert launch_stubbed("stop")[1].endswith("gluonlab is Stopped\n")
    aws.statuses("Stopped")
    aws.answer("start_notebook_instance")
    aws.statuses("Stopped", "Pending", "InService")
    assert launch_stubbed("start")[1].endswith("gluonlab is InService\n")


@pytest.mark.parametrize("then", ["InService", None])
def test_a_start_during_amazons_maintenance_does_not_start_what_runs_then(then, launch_stubbed, aws, log):
    aws.statuses("Updating", "Updating", then)
    status, out, _ = launch_stubbed("start")
    assert (status, log.changes()) == (0, [])
    assert out == f"gluonlab is {then or 'gone'}\n"
