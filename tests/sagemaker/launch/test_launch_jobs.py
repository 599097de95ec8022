"""Training jobs: the request that a template becomes, held against the API, and what becomes of the
job.
"""

import json
from datetime import datetime, timezone

import botocore.session
import pytest
import yaml
from botocore.validate import ParamValidator
from launch_world import run_command

from gluonlab.errors import ConfigError
from gluonlab.host.launcher_environment import instance_has_local_disk
from gluonlab.launch.cluster_job_scripts import JOB_NAME_PREFIX, JobRequest, job_file
from gluonlab_sagemaker import jobs
from gluonlab_sagemaker.calls import Caller
from gluonlab_sagemaker.checks import resource_tags
from gluonlab_sagemaker.errors import RefusedError
from gluonlab_sagemaker.images import ACCOUNTS, IMAGE_TAG, image_uri
from gluonlab_sagemaker.options import Dependencies
from gluonlab_sagemaker.waiting import Waiter

NOON = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
TEMPLATES = jobs.template_names()
assert "one-host" in TEMPLATES
ARN = "arn:aws:iam::111122223333:role/mine"
TO = ("--bucket", "their-bucket", "--role", ARN, "--no-upload")
SHAPE = botocore.session.get_session().get_service_model("sagemaker").operation_model("CreateTrainingJob").input_shape
MACHINES = SHAPE.members["ResourceConfig"].members["InstanceType"].enum


def request(template="one-host", region="us-east-1", **expected):
    job = jobs.JobOptions(template, "gluonlab-x", "their-bucket", **expected)
    return job.build_request(region, ARN, resource_tags("ada"))


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_becomes_a_request_that_the_api_takes(template):
    result = request(template)
    assert not ParamValidator().validate(result, SHAPE).has_errors()
    assert result["ResourceConfig"]["InstanceType"] in MACHINES
    assert (result["TrainingJobName"], result["RoleArn"]) == ("gluonlab-x", ARN)
    assert {tag["Key"]: tag["Value"] for tag in result["Tags"]}["owner"] == "ada"


@pytest.mark.parametrize("template", TEMPLATES)
def test_everything_lies_in_the_bucket_that_is_given(template):
    text = json.dumps(request(template))
    assert text.count("s3://") == text.count("s3://their-bucket/gluonlab/") >= 2


@pytest.mark.parametrize("template", TEMPLATES)
def test_hyperparameters_are_json(template):
    settings = {
        "epochs=3": 3, "lr=0.5": 0.5, "model=lenet": "lenet", "flip=true": True, 'quoted="x"': "x",
        "empty=": "", "eq=a=b": "a=b",
    }  # fmt: skip
    result = request(template, settings=tuple(settings))
    values = {name: json.loads(value) for name, value in result["HyperParameters"].items()}
    assert [values[setting.partition("=")[0]] for setting in settings] == list(settings.values())
    assert values["sagemaker_region"] == "us-east-1"
    assert values["sagemaker_submit_directory"] == "s3://their-bucket/gluonlab/source.tar.gz"


@pytest.fixture
def made_up_templates(tmp_path, monkeypatch):
    """Two templates for two hosts, with the hyperparameters that AWS's image asks for."""
    per_host = {"sagemaker_mpi_num_of_processes_per_host": "4", "gpus": "1"}
    for name, more in (
        ("servers", {"sagemaker_parameter_server_enabled": "true"}),
        ("mpi", {"sagemaker_mpi_enabled": "true", **per_host}),
    ):
        template = jobs.load_template("one-host")
        template["HyperParameters"].update(more)
        template["ResourceConfig"]["InstanceCount"] = 2
        (tmp_path / f"{name}.json").write_text(json.dumps(template))
    (tmp_path / "one-host.json").write_text(json.dumps(jobs.load_template("one-host")))
    monkeypatch.setattr(jobs, "TEMPLATE_FOLDER", tmp_path)


@pytest.mark.parametrize(("instance", "gpus"), [("ml.g5.48xlarge", 8), ("ml.p3.2xlarge", 1), (None, 4)])
def test_the_number_of_gpus_is_the_machines(instance, gpus, made_up_templates):
    assert request(instance=instance)["HyperParameters"]["gpus"] == str(gpus)
    assert request(instance=instance, settings=("gpus=2",))["HyperParameters"]["gpus"] == "2"
    result = request("mpi", instance=instance)["HyperParameters"]
    # a GPU for each process
    assert (result["sagemaker_mpi_num_of_processes_per_host"], result["gpus"]) == (str(gpus), "1")


@pytest.mark.parametrize("template", ["servers", "mpi"])
def test_a_machine_whose_gpus_are_not_known_is_not_guessed_at(template, made_up_templates):
    """Four processes on a machine with one GPU would fail, and cost."""
    message = "ml.g4dn.2xlarge: instances.json does not contain its number of GPUs: add --gpus N"
    with pytest.raises(RefusedError, match=message):
        request(template, instance="ml.g4dn.2xlarge")
    result = request(template, instance="ml.g4dn.2xlarge", gpus=1)["HyperParameters"]
    assert result["sagemaker_mpi_num_of_processes_per_host" if template == "mpi" else "gpus"] == "1"
    assert request("servers", gpus=2)["HyperParameters"]["gpus"] == "2"


def test_a_machine_that_mxnet_has_no_code_for_is_refused(made_up_templates):
    message = r"H100 or H200 \(sm_90\), which mxnet-cu112 1.9.1 has no code for: choose ml.g4dn"
    with pytest.raises(RefusedError, match=message):
        request(instance="ml.p5.48xlarge", gpus=8)
    result = request(instance="ml.p5.48xlarge", gpus=8, image="mine:1")
    assert result["ResourceConfig"]["InstanceType"] == "ml.p5.48xlarge"


def test_a_job_on_a_machine_at_its_end_is_warned_of(capsys, made_up_templates):
    """P3, which a training job may still ask for; and none that live."""
    for instance, warned in (("p3.2xlarge", True), ("p3dn.24xlarge", True), ("g5.xlarge", False)):
        arguments = ("jobs", "submit", *TO, "--instance", instance, "--dry-run")
        status, _, err = run_command(capsys, Dependencies(), arguments)
        assert status == 0
        assert ("warning: " in err) == warned
        if warned:
            assert f"AWS has been phasing out ml.{instance} since 2025-12-20 (as of 2026-11-21)" in err
            assert f"{jobs.pairs.load_instances()['ml.' + instance]['instead']} is the closest" in err


def test_a_job_says_what_it_costs_or_how_to_find_out(capsys, made_up_templates):
    for instance, message in (
        ("g5.xlarge", "cost: about 1.41 USD per hour on 1 x ml.g5.xlarge, at most"),
        (
            "g4dn.12xlarge",
            "prices.json does not contain a price for training on ml.g4dn.12xlarge in us-east-1 (null: the sources "
            "disagree): run python sagemaker/launch.py prices --update --region us-east-1 to ask AWS",
        ),
    ):
        arguments = ("jobs", "submit", *TO, "--instance", instance, "--dry-run")
        assert message in run_command(capsys, Dependencies(), arguments)[2]


def test_hosts_and_hours(made_up_templates):
    assert request("servers")["ResourceConfig"]["InstanceCount"] == 2
    result = request("servers", hosts=4, hours=0.5)
    assert result["ResourceConfig"]["InstanceCount"] == 4
    assert jobs.max_runtime_s(result) == 1800
    message = "--hosts 2: the template one-host uses one machine: choose --template mpi or servers"
    with pytest.raises(RefusedError, match=message):
        request(hosts=2)


def test_a_spot_job_has_checkpoints_of_its_own_or_an_earlier_ones():
    result = request("spot")
    assert result["EnableManagedSpotTraining"] is True
    assert result["CheckpointConfig"] == {
        "S3Uri": "s3://their-bucket/gluonlab/checkpoints/gluonlab-x/",
        "LocalPath": "/opt/ml/checkpoints",
    }
    earlier = request("spot", checkpoints="gluonlab-y")["CheckpointConfig"]["S3Uri"]
    assert earlier == "s3://their-bucket/gluonlab/checkpoints/gluonlab-y/"
    with pytest.raises(RefusedError, match="the template one-host does not write checkpoints: choose --template spot"):
        request(checkpoints="gluonlab-y")


@pytest.mark.parametrize("hours", [0.02, 1, 300])
def test_a_spot_job_may_wait_as_long_however_long_it_runs(hours):
    before = jobs.load_template("spot")["StoppingCondition"]
    after = request("spot", hours=hours)["StoppingCondition"]
    assert after["MaxRuntimeInSeconds"] == round(hours * 3600)
    waits = [each["MaxWaitTimeInSeconds"] - each["MaxRuntimeInSeconds"] for each in (before, after)]
    assert waits[0] == waits[1] >= 0


FAMILIES = sorted({name.rpartition(".")[0]: name for name in MACHINES}.values())


@pytest.mark.parametrize("instance", FAMILIES)
def test_a_machine_has_either_a_disk_of_its_own_or_a_volume(instance):
    """The test covers every instance family that AWS trains on."""
    options = {"instance": instance, "gpus": 1, "image": "mine:1"}
    result = request(**options)
    assert not ParamValidator().validate(result, SHAPE).has_errors()
    assert ("VolumeSizeInGB" in result["ResourceConfig"]) is not instance_has_local_disk(instance)
    options["volume_gb"] = 70
    if instance_has_local_disk(instance):
        with pytest.raises(ConfigError, match=f"70 GB is not possible, because {instance} has a local disk"):
            request(**options)
    else:
        assert request(**options)["ResourceConfig"]["VolumeSizeInGB"] == 70


@pytest.mark.parametrize(("instance", "taken"), [("ml.g5.xlarge", False), ("ml.p3.8xlarge", True)])
def test_a_key_is_for_volumes(instance, taken, made_up_templates):
    changed = jobs.load_template("one-host")
    changed["ResourceConfig"]["VolumeKmsKeyId"] = "0123"
    (jobs.TEMPLATE_FOLDER / "one-host.json").write_text(json.dumps(changed))
    if taken:
        result = request(instance=instance, gpus=1)["ResourceConfig"]
        assert (result["VolumeKmsKeyId"], result["VolumeSizeInGB"]) == ("0123", 50)
    else:
        with pytest.raises(ConfigError, match=r"ml.g5.xlarge, whose local disk .* remove the key and"):
            request(instance=instance, gpus=1)


def test_a_spot_job_says_what_it_may_come_to(launch):
    words = ("--template", "spot", "--name", "gluonlab-x", "--dry-run")
    status, _, err = launch("jobs", "submit", *TO, *words)
    assert status == 0
    assert (
        "writes below s3://their-bucket/gluonlab/jobs/ and s3://their-bucket/gluonlab/checkpoints/gluonlab-x/"
    ) in err
    assert "restart the job later, up to 4 h from now" in err


def test_what_is_billed_of_a_spot_job_is_told(launch_stubbed, aws):
    spot = {"EnableManagedSpotTraining": True, "TrainingTimeInSeconds": 500}
    aws.answer("describe_training_job", job("Completed", BillableTimeInSeconds=100, **spot))
    assert "100 of 500 s are billed" in launch_stubbed("jobs", "status", "--name", "gluonlab-x")[1]


def test_the_image_is_that_of_the_region():
    for region in ACCOUNTS:
        result = request(region=region)["AlgorithmSpecification"]["TrainingImage"]
        assert result == image_uri(region)
        assert result.startswith(f"{ACCOUNTS[region]}.dkr.ecr.{region}.amazonaws.com")
        assert result.endswith(IMAGE_TAG)
    assert ".amazonaws.com.cn/" in image_uri("cn-north-1")
    for nowhere in (None, "<region>"):
        with pytest.raises(RefusedError, match="a job needs a region: add --region REGION"):
            image_uri(nowhere)
    message = "no MXNet image of AWS is known in mx-central-1: .* or pass another image with --image"
    with pytest.raises(RefusedError, match=message):
        request(region="mx-central-1")
    mine = request(region="mx-central-1", image="mine:1")["AlgorithmSpecification"]
    assert mine["TrainingImage"] == "mine:1"


def test_submit_uploads_and_submits_in_this_order(launch, log, moto_client, monkeypatch):
    monkeypatch.setattr("gluonlab_sagemaker.job_commands.create_archive", lambda report: b"source")
    moto_client("s3").create_bucket(Bucket="their-bucket")
    status, out, err = launch("jobs", "submit", *TO[:-1], "--name", "gluonlab-x", "--hours", "2", "--set", "epochs=3")
    assert (status, log.operations) == (0, ["PutObject", "CreateTrainingJob"])
    assert "jobs wait --name gluonlab-x" in out
    assert ("reads s3://their-bucket/gluonlab/data/cifar10/ and writes below s3://their-bucket/gluonlab/jobs/") in err
    assert "about 7.09 USD per hour on 1 x ml.g5.12xlarge, at most 14.18 USD in 2 h" in err
    there = moto_client("s3").get_object(Bucket="their-bucket", Key="gluonlab/source.tar.gz")
    assert there["Body"].read() == b"source"
    made = moto_client("sagemaker").describe_training_job(TrainingJobName="gluonlab-x")
    assert made["HyperParameters"]["epochs"] == "3"
    assert made["StoppingCondition"]["MaxRuntimeInSeconds"] == 7200

    moto_client("sagemaker").create_training_job(**{**request(), "TrainingJobName": "others"})
    result = json.loads(launch("jobs", "list", "--json")[1])
    assert [job["name"] for job in result] == ["gluonlab-x"]
    assert launch("jobs", "list")[1].startswith("gluonlab-x ")
    assert launch("jobs", "status", "--name", "gluonlab-x")[1].startswith("gluonlab-x: Completed")
    assert launch("jobs", "wait", "--name", "gluonlab-x")[:2] == (0, "gluonlab-x is Completed\n")
    assert 'upload the data there first: see "Training jobs" in sagemaker/README.md' in err


def test_a_job_that_has_ended_says_how_its_results_are_fetched(launch_stubbed, aws):
    """A spot job's run lies with its checkpoints, and not in the model."""
    kept = {"CheckpointConfig": {"S3Uri": "s3://b/gluonlab/checkpoints/gluonlab-x/"}}
    spot = "aws s3 cp --recursive s3://b/gluonlab/checkpoints/gluonlab-x/run run"
    for more, fetch in (({}, "aws s3 cp s3://x ."), (kept, f"aws s3 cp s3://x .; {spot}")):
        for command in ("wait", "status"):
            aws.answer("describe_training_job", job("Completed", **more))
            _, out, err = launch_stubbed("jobs", command, "--name", "gluonlab-x")
            assert out.startswith("gluonlab-x") and err == f"download its results: {fetch}\n"
    aws.answer("describe_training_job", job("InProgress"))
    assert launch_stubbed("jobs", "status", "--name", "gluonlab-x")[2] == ""


def test_a_rehearsed_job_is_the_one_that_is_submitted(launch, log, capsys):
    arguments = ("jobs", "submit", *TO, "--name", "gluonlab-x", "--wait")
    rehearsed = json.loads(run_command(capsys, Dependencies(Caller), [*arguments, "--dry-run"])[1])
    assert launch(*arguments)[0] == 0
    assert len(rehearsed) == len(log.calls)
    for call, (service, operation, parameters) in zip(rehearsed, log.calls):
        parameters.get("Tags", []).clear(), call["parameters"].get("Tags", []).clear()
        assert call == {"service": service, "operation": operation, "parameters": parameters}
    assert log.operations == ["CreateTrainingJob", "DescribeTrainingJob"]


def job(status, **more):
    return {
        "TrainingJobName": "gluonlab-x",
        "TrainingJobArn": "arn:aws:sagemaker:us-east-1:111122223333:training-job/gluonlab-x",
        "ModelArtifacts": {"S3ModelArtifacts": "s3://x"},
        "TrainingJobStatus": status,
        "SecondaryStatus": more.pop("secondary", status),
        "AlgorithmSpecification": {"TrainingInputMode": "File"},
        "ResourceConfig": {"VolumeSizeInGB": 1},
        "StoppingCondition": {},
        "CreationTime": 0,
        **more,
    }


def test_stop_stops_what_runs(launch_stubbed, aws, log):
    aws.answer("describe_training_job", job("InProgress", secondary="Training"))
    aws.answer("stop_training_job")
    assert "gluonlab-x is stopping" in launch_stubbed("jobs", "stop", "--name", "gluonlab-x")[1]
    assert log.changes() == ["StopTrainingJob"]


@pytest.mark.parametrize("status", ["Stopping", "Stopped", "Completed", "Failed"])
def test_stop_leaves_alone_what_has_ended(status, launch_stubbed, aws, log):
    aws.answer("describe_training_job", job(status))
    ends = launch_stubbed("jobs", "stop", "--name", "gluonlab-x")
    assert ends[:2] == (0, f"gluonlab-x is already {status}\n")
    assert log.changes() == []


def test_wait_shows_what_the_job_does_and_why_it_failed(launch_stubbed, aws, log):
    for secondary in ("Starting", "Downloading", "Training", "Training"):
        aws.answer("describe_training_job", job("InProgress", secondary=secondary))
    reason = "AlgorithmError: ExecuteUserScriptError\nexit code 1"
    aws.answer("describe_training_job", job("Failed", FailureReason=reason))
    aws.refuse("describe_log_streams", "ResourceNotFoundException", "no group", "logs")
    status, out, err = launch_stubbed("jobs", "wait", "--name", "gluonlab-x")
    *progress, error = err.splitlines()
    assert (status, out) == (1, "")
    assert progress == ["gluonlab-x: Starting", "gluonlab-x: Downloading", "gluonlab-x: Training"]
    assert error == (
        "error: training job gluonlab-x failed: AlgorithmError: "
        "ExecuteUserScriptError exit code 1; see its log in CloudWatch, "
        "/aws/sagemaker/TrainingJobs; see the whole log with python sagemaker/launch.py jobs logs "
        "--name gluonlab-x"
    )


def test_wait_waits_for_a_job_of_many_hours(launch_stubbed, aws, log, monkeypatch):
    """A notebook is waited for at most an hour; a job has as long as it may run."""
    defaults = (*Waiter.__init__.__defaults__[:-1], lambda: sum(log.slept))
    monkeypatch.setattr(Waiter.__init__, "__defaults__", defaults)
    for _ in range(500):
        aws.answer("describe_training_job", job("InProgress", secondary="Training"))
    aws.answer("describe_training_job", job("Completed"))
    assert launch_stubbed("jobs", "wait", "--name", "gluonlab-x")[:2] == (0, "gluonlab-x is Completed\n")
    assert sum(log.slept) > 4 * 3600


@pytest.mark.parametrize(("code", "message"), [("ResourceInUse", "Training job names must be unique"), (None, None)])
def test_a_job_that_may_run_is_not_said_not_to(code, message, launch_stubbed, aws):
    aws.time_out("CreateTrainingJob") if code is None else aws.refuse("create_training_job", code, message)
    status, _, err = launch_stubbed("jobs", "submit", *TO, "--name", "gluonlab-x", "--region", "us-east-1")
    assert status == 1
    tells = "python sagemaker/launch.py jobs status --name gluonlab-x --region us-east-1"
    assert f"the job may run anyway and cost money: check with {tells}" in err


def test_the_quota_of_jobs_is_another_one(launch_stubbed, aws):
    message = "The account-level service limit 'ml.g5.12xlarge for training job usage' is 0 Instances"
    aws.refuse("create_training_job", "ResourceLimitExceeded", message)
    status, _, err = launch_stubbed("jobs", "submit", *TO)
    assert status == 1
    assert 'request "ml.g5.12xlarge for training job usage"' in err


def test_a_job_that_is_not_there(launch):
    status, _, err = launch("jobs", "wait", "--name", "gluonlab-x")
    assert status == 2
    assert "there is no training job gluonlab-x in us-east-1: choose one from `jobs list`" in err


def test_an_interrupted_wait_leaves_the_job_alone(launch, log):
    launch("jobs", "submit", *TO, "--name", "gluonlab-x")

    log.interrupt_at(len(log.calls))
    status, _, err = launch("jobs", "wait", "--name", "gluonlab-x", "--region", "us-east-1")
    assert status == 130
    assert (
        "the job is still running: wait for it with "
        "`python sagemaker/launch.py jobs wait --name gluonlab-x --region us-east-1`"
    ) in err


def test_the_list_goes_over_all_pages(launch_stubbed, aws, log):
    def summary(name):
        about = {"TrainingJobArn": "arn", "CreationTime": NOON, "TrainingJobStatus": "Completed"}
        return {**about, "TrainingJobName": name}

    def page(*names, **more):
        aws.answer("list_training_jobs", {"TrainingJobSummaries": [*map(summary, names)], **more})

    page("gluonlab-b", NextToken="more")
    page("gluonlab-a", "not-gluonlab-c")
    names = [job["name"] for job in json.loads(launch_stubbed("jobs", "list", "--json")[1])]
    assert names == ["gluonlab-b", "gluonlab-a"]
    assert log.calls[1][2]["NextToken"] == "more"

    aws.answer("list_notebook_instances", {"NotebookInstances": []})
    page("gluonlab-a", "not-gluonlab-c")
    rows = json.loads(launch_stubbed("status", "--all", "--json")[1])
    assert [row["name"] for row in rows] == ["gluonlab-a"]


@pytest.mark.parametrize("backend", ["dist_sync", "horovod"])
def test_a_job_that_the_launcher_prints_is_a_request_that_aws_takes(backend):
    """python -m gluonlab.launch --print sagemaker: against botocore's description of the API."""
    words = ("--epochs", "3", "--flip", "--out", "it's \n$HOME")
    result = yaml.safe_load(job_file("sagemaker", JobRequest(words, backend=backend)))
    assert ParamValidator().validate(result, SHAPE).generate_report() == ""
    assert result["TrainingJobName"].startswith(JOB_NAME_PREFIX)


@pytest.mark.parametrize(
    ("instance", "volume"), [("ml.g4dn.12xlarge", None), ("ml.p3.8xlarge", 50), ("ml.p3dn.24xlarge", None)]
)
def test_a_printed_job_has_a_volume_where_its_machine_needs_one(instance, volume):
    job_request = JobRequest(("--epochs", "3"), backend="horovod", instance=instance)
    result = yaml.safe_load(job_file("sagemaker", job_request))
    assert result["ResourceConfig"].get("VolumeSizeInGB") == volume
