"""tools/check_sagemaker.py: the repository is sound, and each planted fault is found by the check
that is there for it.
"""

import base64
import json
import shutil
import sys

import pytest
from made_up_notebook import SAGEMAKER

sys.path.insert(0, str(SAGEMAKER.parent / "tools"))

import check_sagemaker as check


@pytest.fixture
def copy(tmp_path):
    """sagemaker/, to be spoilt."""
    shutil.copytree(
        str(SAGEMAKER), str(tmp_path / "sagemaker"), ignore=shutil.ignore_patterns("__pycache__")
    )
    return tmp_path / "sagemaker"


def edit(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, (path, old)
    path.write_text(text.replace(old, new), encoding="utf-8")


def change(path, **changes):
    """A JSON file with other values; None removes a key."""
    request = {**json.loads(path.read_text(encoding="utf-8")), **changes}
    path.write_text(
        json.dumps({key: value for key, value in request.items() if value is not None}),
        encoding="utf-8",
    )


def request(**changes):
    return lambda folder: change(folder / "instances" / "g5.12xlarge.json", **changes)


def job(old, new):
    return lambda folder: edit(folder / "training" / "one-host.json", old, new)


def spot(**changes):
    return lambda folder: change(folder / "training" / "spot.json", **changes)


def template(old, new):
    return lambda folder: edit(folder / "notebook.yaml", old, new)


def script(name, old, new):
    return lambda folder: edit(folder / name, old, new)


def crlf(folder):
    path = folder / "on-start.sh"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))


def twice(folder):
    edit(
        folder / "instances" / "g5.12xlarge.json",
        '"VolumeSizeInGB": 50',
        '"VolumeSizeInGB": 50, "VolumeSizeInGB": 60',
    )


def wrapped(folder):
    lines = base64.encodebytes(b"#!/bin/bash\n" + b"true\n" * 60).decode("ascii")
    (folder / "lifecycle.json").write_text(
        json.dumps({"OnStart": [{"Content": lines}]}), encoding="utf-8"
    )


def oversized(folder):
    path = folder / "on-create.sh"
    path.write_text(path.read_text(encoding="utf-8") + "# much\n" * 1500, encoding="utf-8")


FAULTS = {
    "misspelt key": (
        check.check_requests,
        request(InstanceTyp="ml.g5.12xlarge"),
        "InstanceTyp: unknown key",
    ),
    "missing required": (
        check.check_requests,
        request(RoleArn=None),
        "RoleArn: required, and missing",
    ),
    "wrong type": (
        check.check_requests,
        request(VolumeSizeInGB="50"),
        "VolumeSizeInGB: '50' is no integer",
    ),
    "a bool for a number": (
        check.check_requests,
        request(VolumeSizeInGB=True),
        "VolumeSizeInGB: True is no integer",
    ),
    "wrong enum": (
        check.check_requests,
        request(DirectInternetAccess="On"),
        "'On' is none of Enabled, Disabled",
    ),
    "unknown instance": (
        check.check_requests,
        request(InstanceType="ml.g5.13xlarge"),
        "'ml.g5.13xlarge' is none of ml.t2.medium",
    ),
    "name too long": (
        check.check_requests,
        request(NotebookInstanceName="n" * 64),
        "NotebookInstanceName: length 64 is above 63",
    ),
    "bad pattern": (
        check.check_requests,
        request(NotebookInstanceName="my_notebook"),
        "'my_notebook' does not match",
    ),
    "role of nobody": (
        check.check_requests,
        request(RoleArn="arn:aws:iam::1:role/gluonlab"),
        "RoleArn: ",
    ),
    "metadata version 3": (
        check.check_requests,
        request(
            InstanceMetadataServiceConfiguration={"MinimumInstanceMetadataServiceVersion": "3"}
        ),
        "'3' does not match (1|2)",
    ),
    "metadata version 1": (
        check.check_requests,
        request(
            InstanceMetadataServiceConfiguration={"MinimumInstanceMetadataServiceVersion": "1"}
        ),
        "must ask for version 2",
    ),
    "volume of 4 GB": (
        check.check_requests,
        request(VolumeSizeInGB=4),
        "VolumeSizeInGB: value 4 is below 5",
    ),
    "six security groups": (
        check.check_requests,
        request(SubnetId="subnet-0", SecurityGroupIds=["sg-0"] * 6),
        "length 6 is above 5",
    ),
    "subnet without security groups": (
        check.check_requests,
        request(SubnetId="subnet-0"),
        "a subnet needs SecurityGroupIds",
    ),
    "no internet": (
        check.check_requests,
        request(DirectInternetAccess="Disabled"),
        "without it a SubnetId is needed",
    ),
    "root": (check.check_requests, request(RootAccess="Enabled"), "RootAccess: must be Disabled"),
    "dead platform": (
        check.check_requests,
        request(PlatformIdentifier="notebook-al2-v2"),
        "a dead pair",
    ),
    "dead pair": (
        check.check_table,
        lambda folder: change(
            folder / "instances" / "p3.8xlarge.json", PlatformIdentifier="notebook-al2023-v1"
        ),
        "asks for another pair",
    ),
    "a dead one marked alive": (
        check.check_table,
        lambda folder: (folder / "instances.json").write_text(
            (folder / "instances.json").read_text(encoding="utf-8").replace('"dead"', '"alive"'),
            encoding="utf-8",
        ),
        "its status alive is not what its platform says",
    ),
    "a request that nothing is known of": (
        check.check_table,
        lambda folder: shutil.copy(
            str(folder / "instances/g5.12xlarge.json"), str(folder / "instances/g5.2xlarge.json")
        ),
        "nothing about g5.2xlarge.json",
    ),
    "links of one GPU": (
        check.check_table,
        lambda folder: edit(folder / "instances.json", '"NVSwitch"', '"one GPU"'),
        "links 'one GPU' of 8 GPUs",
    ),
    "key twice": (check.check_requests, twice, "a key twice: VolumeSizeInGB"),
    "text without its second quotes": (
        check.check_requests,
        job(r'"\"gluonlab.run\""', '"gluonlab.run"'),
        "is not JSON",
    ),
    "hyperparameter that is a number": (
        check.check_requests,
        job('"gpus": "4"', '"gpus": 4'),
        "HyperParameters.gpus: 4 is no string",
    ),
    "many hosts, alone": (
        check.check_requests,
        job('"InstanceCount": 1', '"InstanceCount": 2'),
        "need the parameter server or MPI",
    ),
    "a number of hosts in quotes": (
        check.check_requests,
        job('"InstanceCount": 1', '"InstanceCount": "1"'),
        "ResourceConfig.InstanceCount: '1' is no integer",
    ),
    "a number for a name": (
        check.check_requests,
        request(InstanceType=5),
        "InstanceType: 5 is no string",
    ),
    "no scripts in the template": (
        check.check_template,
        template("      OnStart:\n        - Content:", "      OnStart:\n        - Contents:"),
        "OnStart[0].Contents: unknown key",
    ),
    "no program": (
        check.check_requests,
        job("sagemaker_program", "program"),
        "sagemaker_program: required, and missing",
    ),
    "the size of a disk": (
        check.check_requests,
        spot(
            ResourceConfig={"InstanceType": "ml.g5.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 9}
        ),
        "VolumeSizeInGB: the machine has a disk of its own",
    ),
    "a key for a disk": (
        check.check_requests,
        spot(
            ResourceConfig={
                "InstanceType": "ml.p4d.24xlarge",
                "InstanceCount": 1,
                "VolumeKmsKeyId": "alias/mine",
            }
        ),
        "VolumeKmsKeyId: the machine has a disk of its own",
    ),
    "no volume and no disk": (
        check.check_requests,
        spot(ResourceConfig={"InstanceType": "ml.p3.8xlarge", "InstanceCount": 1}),
        "VolumeSizeInGB: required for a machine without a disk",
    ),
    "spot without checkpoints": (
        check.check_requests,
        spot(CheckpointConfig=None),
        "CheckpointConfig: a spot job needs it",
    ),
    "spot that waits too little": (
        check.check_requests,
        spot(StoppingCondition={"MaxRuntimeInSeconds": 3600, "MaxWaitTimeInSeconds": 1800}),
        "MaxWaitTimeInSeconds: 1800 is below 3600",
    ),
    "spot without a limit": (
        check.check_requests,
        spot(StoppingCondition={"MaxRuntimeInSeconds": 3600}),
        "MaxWaitTimeInSeconds: None is below 3600",
    ),
    "no spot, but waiting": (
        check.check_requests,
        spot(EnableManagedSpotTraining=False),
        "MaxWaitTimeInSeconds: for spot machines only",
    ),
    "spot whose run is not kept": (
        check.check_requests,
        script("training/spot.json", "/opt/ml/checkpoints/run", "/opt/ml/model/run"),
        "HyperParameters.out: must lie below /opt/ml/checkpoints",
    ),
    "spot that does not go on": (
        check.check_requests,
        script("training/spot.json", '"autoresume": "true"', '"autoresume": "false"'),
        "HyperParameters.autoresume: must be true",
    ),
    "checkpoints elsewhere than in S3": (
        check.check_requests,
        spot(CheckpointConfig={"S3Uri": "gluonlab/checkpoints/"}),
        "CheckpointConfig.S3Uri: ",
    ),
    "CRLF": (check.check_scripts, crlf, "on-start.sh: lines end in CRLF"),
    "oversized script": (check.check_scripts, oversized, "characters and the API takes 16384"),
    "not ASCII": (
        check.check_scripts,
        script("on-start.sh", "Twice is", "Zweimal \u2026 is"),
        "not ASCII",
    ),
    "old copy": (
        check.check_scripts,
        script("build-env.sh", "python=3.11", "python=3.12"),
        "on-create.sh: its copies are old",
    ),
    "copy that has lost its end": (
        check.check_scripts,
        script("on-create.sh", "END_OF_BUILD_ENV'", "END'"),
        "are gone",
    ),
    "wrapped base64": (
        check.check_wrapped,
        wrapped,
        "lifecycle.json: OnStart.0.Content: wrapped base64",
    ),
    "metadata version in the template": (
        check.check_template,
        template(
            'MinimumInstanceMetadataServiceVersion: "2"',
            'MinimumInstanceMetadataServiceVersion: "3"',
        ),
        "'3' does not match (1|2)",
    ),
    "name of nothing": (
        check.check_template,
        template("VolumeSizeInGB: !Ref VolumeSizeInGB", "VolumeSize: !Ref VolumeSizeInGB"),
        "unknown key",
    ),
    "attribute of nothing": (
        check.check_template,
        template("RoleArn: !GetAtt Role.Arn", "RoleArn: !GetAtt Rolle.Arn"),
        "Rolle.Arn names no parameter, resource or attribute",
    ),
    "GetAtt of nothing": (
        check.check_with_cfn_lint,
        template("!GetAtt Notebook.NotebookInstanceName", "!GetAtt Notebook.Name"),
        "E6101",
    ),
    "shell fault": (
        check.check_with_shellcheck,
        script("on-create.sh", 'mkdir -p "$home', "mkdir -p $home"),
        "SC2086",
    ),
}
assert len(FAULTS) >= 12


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(copy, name):
    find, plant, said = FAULTS[name]
    assert list(find(copy)) == []
    plant(copy)
    found = list(find(copy))
    assert any(said in line for line in found), found


def test_the_command_line_of_aws_refuses_what_the_model_does(copy, monkeypatch):
    """One request is enough: it takes seconds for each."""
    monkeypatch.setattr(check, "OPERATIONS", {"instances": "CreateNotebookInstance"})
    for path in (copy / "instances").glob("*.json"):
        if path.name != "g5.12xlarge.json":
            path.unlink()
    assert list(check.check_with_aws(copy)) == []
    request(InstanceTyp="ml.g5.12xlarge")(copy)
    assert any("InstanceTyp" in line for line in check.check_with_aws(copy))


def test_the_program_ends_with_the_faults_and_a_status(copy, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["check_sagemaker.py", str(copy)])
    monkeypatch.setattr(
        check.faults, "__defaults__", (copy, [check.check_requests, check.check_scripts])
    )
    with pytest.raises(SystemExit) as ended:
        check.main()
    assert not ended.value.code
    request(VolumeSizeInGB=4)(copy)
    crlf(copy)
    with pytest.raises(SystemExit) as ended:
        check.main()
    assert ended.value.code
    said = capsys.readouterr().out
    assert "VolumeSizeInGB: value 4 is below 5" in said
    assert "on-start.sh: lines end in CRLF" in said


def test_p3_is_known_to_be_dead_everywhere_and_what_lives_is_not():
    import instance_pairs as pairs

    for name, about in pairs.instances().items():
        everywhere = all(pairs.dead(name, platform) for platform in pairs.platforms())
        assert everywhere is name.startswith("ml.p3")
        assert (about["instead"] is not None) is everywhere
    assert pairs.dead("ml.p3.8xlarge", "notebook-al2023-v1") == (
        "notebook-al2023-v1 does not start ml.p3.8xlarge (as of 2026-11-27): "
        "Amazon Linux 2023 is made without P2 and P3; ml.g5.12xlarge is the nearest that lives"
    )
    assert "dead since 2026-07-01" in pairs.dead("ml.g5.12xlarge", "notebook-al2-v1")
    assert pairs.dead("ml.g5.12xlarge", "a platform of the future") == ""


def test_settings_are_quoted_for_the_shell_and_checked(tmp_path):
    import subprocess

    import lifecycle

    text = lifecycle.script("on-start", {"GLUONLAB_REPOSITORY": "https://x/a b'; touch y"})
    lines = [line for line in text.splitlines() if line.startswith("export")]
    shown = subprocess.run(
        ["bash", "-c", f'{lines[0]}; printf %s "$GLUONLAB_REPOSITORY"'],
        capture_output=True,
        cwd=tmp_path,
        timeout=300,
    )
    assert shown.stdout == b"https://x/a b'; touch y"
    with pytest.raises(ValueError, match="unknown setting GLUONLAB_BUKET"):
        lifecycle.script("on-start", {"GLUONLAB_BUKET": "x"})
    with pytest.raises(ValueError, match="GLUONLAB_BUCKET has 64 characters: give at most 63"):
        lifecycle.script("on-start", {"GLUONLAB_BUCKET": "x" * 64})
    assert base64.b64decode(lifecycle.content(text)).decode("utf-8") == text
    with pytest.raises(ValueError, match="CRLF"):
        lifecycle.content(text.replace("\n", "\r\n"))


def test_the_readme_says_what_the_table_says():
    import instance_pairs as pairs

    rows = [
        line
        for line in (SAGEMAKER / "README.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| [`ml.")
    ]
    assert len(rows) == len(pairs.instances())
    for row, (name, about) in zip(rows, pairs.instances().items()):
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        network, uses = (
            str(about["network_gbit_s"]),
            [str(about["use_gpus"]), str(about["batch_size"])],
        )
        machine = [
            f"{about['gpus']} x {about['gpu']}",
            f"{about['gpu_memory_gb']} GB",
            "" if about["gpus"] == 1 else about["links"],
            str(about["vcpus"]),
            f"{about['memory_gib']:,}",
        ]
        last = "alive" if about["status"] == "alive" else f"dead, take `{about['instead']}`"
        assert cells == [
            f"[`{name}`]({about['request']})",
            *machine,
            network,
            *uses,
            f"`{about['platform']}`",
            last,
        ]


def test_what_the_readme_refers_to_is_there():
    import re

    text = (SAGEMAKER / "README.md").read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)", text, re.M)
    anchors = {
        "#" + re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings
    }
    for target in re.findall(r"\]\((?!https://)([^)]+)\)", text) + re.findall(
        r"`(training/[a-z-]+\.json|[a-z-]+\.json|[a-z-]+\.(?:sh|py))`", text
    ):
        folders = SAGEMAKER, SAGEMAKER / "training", SAGEMAKER.parent
        assert target in anchors or any((folder / target).is_file() for folder in folders), target


def test_lifecycle_prints_what_the_api_wants(capsys):
    import lifecycle

    lifecycle.main(["on-start", "GLUONLAB_IDLE_MINUTES=30"])
    text = base64.b64decode(capsys.readouterr().out).decode("utf-8")
    assert text.startswith("#!/bin/bash\nexport GLUONLAB_IDLE_MINUTES=30\n")
    for wrong in ([], ["on-stop"], ["on-start", "GLUONLAB_IDLE_MINUTES"], ["on-start", "NO=1"]):
        with pytest.raises(SystemExit, match=r"^error: "):
            lifecycle.main(wrong)
