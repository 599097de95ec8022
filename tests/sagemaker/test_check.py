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
    """sagemaker/, to be spoiled."""
    ignore = shutil.ignore_patterns("__pycache__")
    return shutil.copytree(SAGEMAKER, tmp_path / "sagemaker", ignore=ignore)


def edit(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, (path, old)
    path.write_text(text.replace(old, new), encoding="utf-8")


def change(path, **changes):
    """A JSON file with other values; None removes a key."""
    request = {**json.loads(path.read_text(encoding="utf-8")), **changes}
    kept = {key: value for key, value in request.items() if value is not None}
    path.write_text(json.dumps(kept), encoding="utf-8")


def request(**changes):
    return lambda folder: change(folder / "instances" / "g5.12xlarge.json", **changes)


def metadata(version):
    least = {"MinimumInstanceMetadataServiceVersion": version}
    return request(InstanceMetadataServiceConfiguration=least)


def job(old, new):
    return lambda folder: edit(folder / "training" / "one-host.json", old, new)


def spot(**changes):
    return lambda folder: change(folder / "training" / "spot.json", **changes)


def on(instance, **more):
    return spot(ResourceConfig={"InstanceType": instance, "InstanceCount": 1, **more})


def stopping(**seconds):
    return spot(StoppingCondition={f"Max{name}InSeconds": n for name, n in seconds.items()})


def file(name, old, new):
    return lambda folder: edit(folder / name, old, new)


def crlf(folder):
    path = folder / "on-start.sh"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))


def wrapped(folder):
    lines = base64.encodebytes(b"#!/bin/bash\n" + b"true\n" * 60).decode("ascii")
    text = json.dumps({"OnStart": [{"Content": lines}]})
    (folder / "lifecycle.json").write_text(text, encoding="utf-8")


def oversized(folder):
    path = folder / "on-create.sh"
    path.write_text(path.read_text(encoding="utf-8") + "# much\n" * 1500, encoding="utf-8")


def alive(folder):
    path = folder / "instances.json"
    text = path.read_text(encoding="utf-8").replace('"dead"', '"alive"')
    path.write_text(text, encoding="utf-8")


def unknown(folder):
    shutil.copy(folder / "instances/g5.12xlarge.json", folder / "instances/g5.2xlarge.json")


def dead_pair(folder):
    dead = {"PlatformIdentifier": "notebook-al2023-v1"}
    change(folder / "instances" / "p3.8xlarge.json", **dead)


G5, SPOT, TEMPLATE = "instances/g5.12xlarge.json", "training/spot.json", "notebook.yaml"
ON_START = "OnStart:\n        - Content"
VERSION = 'MinimumInstanceMetadataServiceVersion: "{}"'
FAULTS = {
    check.check_requests: [
        (request(InstanceTyp="ml.g5.12xlarge"), "InstanceTyp: unknown key"),
        (request(RoleArn=None), "RoleArn: required, but missing"),
        (request(VolumeSizeInGB="50"), "VolumeSizeInGB: '50' is not a valid integer"),
        (request(VolumeSizeInGB=True), "VolumeSizeInGB: True is not a valid integer"),
        (request(DirectInternetAccess="On"), "unknown value 'On': choose Enabled, Disabled"),
        (request(InstanceType="ml.g5.13xlarge"), "unknown value 'ml.g5.13xlarge': choose ml.t2.medium"),
        (request(NotebookInstanceName="n" * 64), "NotebookInstanceName: length 64 is above 63"),
        (request(NotebookInstanceName="my_notebook"), "'my_notebook' does not match"),
        (request(RoleArn="arn:aws:iam::1:role/gluonlab"), "RoleArn: "),
        (metadata("3"), "'3' does not match (1|2)"),
        (metadata("1"), "must require version 2"),
        (request(VolumeSizeInGB=4), "VolumeSizeInGB: value 4 is below 5"),
        (request(SubnetId="subnet-0", SecurityGroupIds=["sg-0"] * 6), "length 6 is above 5"),
        (request(SubnetId="subnet-0"), "a subnet needs SecurityGroupIds"),
        (request(DirectInternetAccess="Disabled"), "a SubnetId is required"),
        (request(RootAccess="Enabled"), "RootAccess: must be Disabled"),
        (request(PlatformIdentifier="notebook-al2-v2"), "does not mark this pair as retired"),
        (request(InstanceType=5), "InstanceType: 5 is not a valid string"),
        (
            file(G5, '"VolumeSizeInGB": 50', '"VolumeSizeInGB": 50, "VolumeSizeInGB": 60'),
            "duplicate key: VolumeSizeInGB",
        ),
        (job(r'"\"gluonlab.run\""', '"gluonlab.run"'), "is not valid JSON"),
        (job('"gpus": "4"', '"gpus": 4'), "HyperParameters.gpus: 4 is not a valid string"),
        (job('"InstanceCount": 1', '"InstanceCount": 2'), "need either the parameter server or MPI"),
        (job('"InstanceCount": 1', '"InstanceCount": "1"'), "ResourceConfig.InstanceCount: '1' is not a valid integer"),
        (job("sagemaker_program", "program"), "sagemaker_program: required, but missing"),
        (on("ml.g5.xlarge", VolumeSizeInGB=9), "VolumeSizeInGB: the machine has its own disk"),
        (on("ml.p4d.24xlarge", VolumeKmsKeyId="alias/mine"), "VolumeKmsKeyId: the machine has its own disk"),
        (on("ml.p3.8xlarge"), "VolumeSizeInGB: required for a machine without its own disk"),
        (spot(CheckpointConfig=None), "CheckpointConfig: required for a spot job"),
        (spot(CheckpointConfig={"S3Uri": "gluonlab/checkpoints/"}), "CheckpointConfig.S3Uri: "),
        (stopping(Runtime=3600, WaitTime=1800), "MaxWaitTimeInSeconds: 1800 is below 3600"),
        (stopping(Runtime=3600), "MaxWaitTimeInSeconds: None is below 3600"),
        (spot(EnableManagedSpotTraining=False), "MaxWaitTimeInSeconds: only for spot machines"),
        (file(SPOT, "ml/checkpoints/run", "ml/model/run"), "HyperParameters.out: must be below /opt/ml/checkpoints"),
        (file(SPOT, '"autoresume": "true"', '"autoresume": "false"'), "HyperParameters.autoresume: must be true"),
    ],
    check.check_table: [
        (dead_pair, "is for another pair"),
        (alive, "its status alive does not match its platform"),
        (unknown, "g5.2xlarge.json is missing"),
        (file("instances.json", '"NVSwitch"', '"one GPU"'), "links 'one GPU' of 8 GPUs"),
    ],
    check.check_scripts: [
        (crlf, "on-start.sh: its lines end in CRLF"),
        (oversized, "characters, but the API allows 16384"),
        (file("on-start.sh", "Twice is", "Zweimal \u2026 is"), "not ASCII"),
        (file("build-env.sh", "python=3.11", "python=3.12"), "on-create.sh: its copies are outdated"),
        (file("on-create.sh", "END_OF_BUILD_ENV'", "END'"), "are missing"),
    ],
    check.check_base64: [(wrapped, "lifecycle.json: OnStart.0.Content: wrapped base64")],
    check.check_template: [
        (file(TEMPLATE, f"{ON_START}:", f"{ON_START}s:"), "OnStart[0].Contents: unknown key"),
        (file(TEMPLATE, VERSION.format(2), VERSION.format(3)), "'3' does not match (1|2)"),
        (file(TEMPLATE, "VolumeSizeInGB: !Ref VolumeSizeInGB", "VolumeSize: !Ref VolumeSizeInGB"), "unknown key"),
        (
            file(TEMPLATE, "Arn: !GetAtt Role", "Arn: !GetAtt Rolle"),
            "Rolle.Arn is not a parameter, resource or attribute",
        ),
    ],
    check.check_with_cfn_lint: [
        (file(TEMPLATE, "!GetAtt Notebook.NotebookInstanceName", "!GetAtt Notebook.Name"), "E6101")
    ],
    check.check_with_shellcheck: [(file("on-create.sh", 'mkdir -p "$home', "mkdir -p $home"), "SC2086")],
}


@pytest.mark.parametrize(
    ("find", "plant", "message"), [(find, *fault) for find, faults in FAULTS.items() for fault in faults]
)
def test_a_planted_fault_is_found(copy, find, plant, message):
    assert list(find(copy)) == []
    plant(copy)
    lines = list(find(copy))
    assert any(message in line for line in lines), lines


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
    checks = [check.check_requests, check.check_scripts]
    monkeypatch.setattr(check.find_faults, "__defaults__", (copy, checks))
    with pytest.raises(SystemExit) as process:
        check.main()
    assert not process.value.code
    request(VolumeSizeInGB=4)(copy)
    crlf(copy)
    with pytest.raises(SystemExit) as process:
        check.main()
    assert process.value.code
    output = capsys.readouterr().out
    assert "VolumeSizeInGB: value 4 is below 5" in output
    assert "on-start.sh: its lines end in CRLF" in output


def test_p3_is_known_to_be_dead_everywhere_and_what_lives_is_not():
    import instance_pairs as pairs

    for name, about in pairs.load_instances().items():
        everywhere = all(pairs.dead_reason(name, platform) for platform in pairs.load_platforms())
        assert everywhere is name.startswith("ml.p3")
        assert (about["instead"] is not None) is everywhere
    assert pairs.dead_reason("ml.p3.8xlarge", "notebook-al2023-v1") == (
        "notebook-al2023-v1 cannot run on ml.p3.8xlarge (as of 2026-11-27): Amazon Linux 2023 is made without P2 "
        "and P3; ml.g5.12xlarge is the closest available type"
    )
    assert "AWS ended support for notebook-al2-v1 on 2026-07-01" in pairs.dead_reason(
        "ml.g5.12xlarge", "notebook-al2-v1"
    )
    assert pairs.dead_reason("ml.g5.12xlarge", "a platform of the future") == ""


def test_settings_are_quoted_for_the_shell_and_checked(tmp_path):
    import subprocess

    import lifecycle

    text = lifecycle.build_script("on-start", {"GLUONLAB_REPOSITORY": "https://x/a b'; touch y"})
    lines = [line for line in text.splitlines() if line.startswith("export")]
    show = ["bash", "-c", f'{lines[0]}; printf %s "$GLUONLAB_REPOSITORY"']
    shown = subprocess.run(show, capture_output=True, cwd=tmp_path, timeout=300)
    assert shown.stdout == b"https://x/a b'; touch y"
    with pytest.raises(ValueError, match="unknown setting GLUONLAB_BUKET"):
        lifecycle.build_script("on-start", {"GLUONLAB_BUKET": "x"})
    with pytest.raises(ValueError, match="GLUONLAB_BUCKET has 64 characters: use at most 63"):
        lifecycle.build_script("on-start", {"GLUONLAB_BUCKET": "x" * 64})
    assert base64.b64decode(lifecycle.encode_script(text)).decode("utf-8") == text
    with pytest.raises(ValueError, match="CRLF"):
        lifecycle.encode_script(text.replace("\n", "\r\n"))


def test_the_readme_says_what_the_table_says():
    import instance_pairs as pairs

    lines = (SAGEMAKER / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| [`ml.")]
    assert len(rows) == len(pairs.load_instances())
    for row, (name, about) in zip(rows, pairs.load_instances().items()):
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        links = "" if about["gpus"] == 1 else about["links"]
        last = "alive" if about["status"] == "alive" else f"dead, take `{about['instead']}`"
        assert cells == [
            f"[`{name}`]({about['request']})", f"{about['gpus']} x {about['gpu']}",
            f"{about['gpu_memory_gb']} GB", links, str(about["vcpus"]), f"{about['memory_gib']:,}",
            *(str(about[key]) for key in ("network_gbit_s", "use_gpus", "batch_size")),
            f"`{about['platform']}`", last,
        ]  # fmt: skip


def test_what_the_readme_refers_to_is_there():
    import re

    text = (SAGEMAKER / "README.md").read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)", text, re.M)
    plain = [re.sub(r"[^\w -]", "", heading).lower() for heading in headings]
    anchors = {"#" + heading.replace(" ", "-") for heading in plain}
    files = re.findall(r"`(training/[a-z-]+\.json|[a-z-]+\.json|[a-z-]+\.(?:sh|py))`", text)
    links = re.findall(r"\]\((?!https://)([^)]+)\)", text)
    # tests/site checks the headings of other pages
    for target in [link if link.startswith("#") else link.partition("#")[0] for link in links] + files:
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
