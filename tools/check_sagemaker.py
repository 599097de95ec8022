"""Program that checks the files in sagemaker/ without AWS.

python tools/check_sagemaker.py [FOLDER]

Each check is a function that takes the folder and returns a line for each fault. The program exits
with status 1 if there are faults. It needs the extra sagemaker-check, sends nothing, and reads no
credentials.
"""

import base64
import binascii
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import aws_shapes
import cloudformation
from gluonlab.host.launcher_environment import instance_has_local_disk

SAGEMAKER = Path(__file__).resolve().parent.parent / "sagemaker"
# The operation of the requests in each folder.
OPERATIONS = {"instances": "CreateNotebookInstance", "training": "CreateTrainingJob"}
RESOURCES = {
    "AWS::SageMaker::NotebookInstance": ("sagemaker", "CreateNotebookInstance"),
    "AWS::SageMaker::NotebookInstanceLifecycleConfig": ("sagemaker", "CreateNotebookInstanceLifecycleConfig"),
}
BUCKET = {"Bucket": "my-bucket"}
# Valid parameters of the template. The tests cover invalid parameters.
STACKS = {
    "repository": {"Repository": "https://example.com/gluonlab.git"},
    "bucket": {**BUCKET, "TrainingJobs": "yes", "InstanceType": "ml.p4d.24xlarge", "VolumeSizeInGB": 16384},
    "subnet": {**BUCKET, "SubnetId": "subnet-0123456789abcdef0", "SecurityGroupIds": "sg-01234567,sg-89abcdef"},
    "key": {**BUCKET, "KmsKeyId": "arn:aws:kms:eu-west-1:111122223333:key/0123", "IdleMinutes": 0},
    "forced": {**BUCKET, "InstanceType": "ml.p3.16xlarge", "Platform": "notebook-al2-v3", "ForceDeadPair": "yes"},
    "budget": {**BUCKET, "BudgetEmail": "ada@example.com", "BudgetAmount": 30},
    "longest": {
        "Repository": "https://" + "a" * 504, "Environment": "A=" + "a" * 510, "Bucket": "b" * 63,
        "NotebookName": "n" * 63, "IdleMinutes": 10080,
    },
}  # fmt: skip


def load_module(folder, name):
    """Import lifecycle.py or instance_pairs.py from this folder."""
    spec = importlib.util.spec_from_file_location(f"{name}_of_{abs(hash(str(folder)))}", str(folder / f"{name}.py"))
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def _reject_duplicate_keys(pairs):
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        raise ValueError(f"duplicate key: {max(keys, key=keys.count)}")
    return dict(pairs)


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_reject_duplicate_keys)


def list_requests(folder):
    """Return (path, operation) of every request."""
    return [
        (path, operation) for part, operation in OPERATIONS.items() for path in sorted((folder / part).glob("*.json"))
    ]


def check_requests(folder):
    """Check each request against the service model, and against the rules that the model lacks."""
    pairs = load_module(folder, "instance_pairs")
    for path, operation in list_requests(folder):
        try:
            request = read_json(path)
        except ValueError as error:
            faults = [f"not valid JSON: {error}"]
        else:
            faults = aws_shapes.find_request_faults(operation, request)
            if not faults:  # the other checks rely on correct types
                faults = (
                    check_notebook(request, pairs.dead_reason, pairs.load_instances())
                    if operation == "CreateNotebookInstance"
                    else check_training(request)
                )
        yield from (f"{path.relative_to(folder)}: {fault}" for fault in faults)


def check_notebook(request, dead, table):
    """Check the rules of AWS and of this project that the model of a notebook lacks."""
    instance, platform = request.get("InstanceType", ""), request.get("PlatformIdentifier", "")
    if request.get("SubnetId") and not request.get("SecurityGroupIds"):
        yield "SubnetId: a subnet needs SecurityGroupIds"
    if request.get("DirectInternetAccess") == "Disabled" and not request.get("SubnetId"):
        yield "DirectInternetAccess: if it is disabled, a SubnetId is required"
    if request.get("RootAccess") != "Disabled":
        yield "RootAccess: must be Disabled"
    metadata = request.get("InstanceMetadataServiceConfiguration") or {}
    if metadata.get("MinimumInstanceMetadataServiceVersion") != "2":
        yield "InstanceMetadataServiceConfiguration: must require version 2"
    if dead(instance, platform) and table.get(instance, {}).get("status") != "dead":
        yield f"instances.json does not mark this pair as retired: {dead(instance, platform)}"


def check_training(request):
    """Check the JSON in hyperparameters, and that several hosts use one way to communicate."""
    texts, values = request.get("HyperParameters") or {}, {}
    for name, text in texts.items():
        try:
            values[name] = json.loads(text)
        except (TypeError, ValueError):
            yield f"HyperParameters.{name}: {text!r} is not valid JSON: write a text with quotes inside the quotes"
    for name in ("sagemaker_program", "sagemaker_submit_directory"):
        if name not in values:
            yield f"HyperParameters.{name}: required, but missing"
    ways = [way for way in ("sagemaker_parameter_server_enabled", "sagemaker_mpi_enabled") if values.get(way)]
    if (request.get("ResourceConfig") or {}).get("InstanceCount", 1) > 1 and len(ways) != 1:
        yield "HyperParameters: several hosts need either the parameter server or MPI"
    yield from check_disk(request.get("ResourceConfig") or {})
    yield from check_spot_settings(request, values)
    if "sagemaker_mpi_enabled" in ways and not values.get("sagemaker_mpi_num_of_processes_per_host"):
        yield "HyperParameters.sagemaker_mpi_num_of_processes_per_host: required for MPI, but missing"


def check_disk(resources):
    """Check that a job has either a local disk or a volume with a size, and perhaps a key."""
    own = instance_has_local_disk(resources.get("InstanceType", ""))
    given = [name for name in ("VolumeSizeInGB", "VolumeKmsKeyId") if resources.get(name)]
    if own and given:
        yield f"ResourceConfig.{given[-1]}: the machine has its own disk and no volume: remove it"
    if not own and "VolumeSizeInGB" not in given:
        yield "ResourceConfig.VolumeSizeInGB: required for a machine without its own disk"


def check_spot_settings(request, values):
    """Check that a spot job can resume from a folder that AWS keeps, and may wait long enough."""
    limits = request.get("StoppingCondition") or {}
    runs, waits = limits.get("MaxRuntimeInSeconds", 86400), limits.get("MaxWaitTimeInSeconds")
    if not request.get("EnableManagedSpotTraining"):
        if waits is not None:
            yield "StoppingCondition.MaxWaitTimeInSeconds: only for spot machines"
        return
    if waits is None or waits < runs:
        yield f"StoppingCondition.MaxWaitTimeInSeconds: {waits} is below {runs}, its running time"
    kept = (request.get("CheckpointConfig") or {}).get("LocalPath", "/opt/ml/checkpoints")
    if "CheckpointConfig" not in request:
        yield "CheckpointConfig: required for a spot job, which otherwise starts from the beginning each time"
    elif not str(values.get("out")).startswith(f"{kept}/"):
        yield f"HyperParameters.out: must be below {kept}, which AWS keeps"
    if values.get("autoresume") is not True:
        yield "HyperParameters.autoresume: must be true for a job that AWS restarts"


def check_table(folder):
    """Check that instances.json agrees with the requests."""
    pairs = load_module(folder, "instance_pairs")
    table = read_json(folder / "instances.json")["instances"]
    for name, about in table.items():
        path = folder / about["request"]
        if not path.is_file():
            yield f"instances.json: {name}: the request {about['request']} does not exist"
            continue
        request = read_json(path)
        if (request.get("InstanceType"), request.get("PlatformIdentifier")) != (name, about["platform"]):
            yield f"instances.json: {name}: {about['request']} is for another pair"
        if (about["status"] == "dead") != bool(pairs.dead_reason(name, about["platform"])):
            yield f"instances.json: {name}: its status {about['status']} does not match its platform"
        if (about["gpus"] == 1) != (about["links"] == "one GPU"):
            yield f"instances.json: {name}: links {about['links']!r} of {about['gpus']} GPUs"
        if not 1 <= about["use_gpus"] <= about["gpus"]:
            yield f"instances.json: {name}: use_gpus {about['use_gpus']} of {about['gpus']}"
        if about["instead"] is not None and table.get(about["instead"], {}).get("status") != "alive":
            yield f"instances.json: {name}: instead {about['instead']} is not available"
    listed = {folder / about["request"] for about in table.values()}
    yield from (
        f"instances.json: {path.name} is missing"
        for path in (folder / "instances").glob("*.json")
        if path not in listed
    )


def check_template(folder):
    """Check the resources of notebook.yaml against the service model."""
    template = cloudformation.load_template(folder / "notebook.yaml")
    lifecycle = load_module(folder, "lifecycle")
    pairs = load_module(folder, "instance_pairs")
    for stack, given in STACKS.items():
        filled = cloudformation.Stack(template, given)
        try:
            faults, resources = filled.validation_errors(), filled.resources()
        except ValueError as error:
            faults, resources = [str(error)], {}
        for name, (kind, properties) in resources.items():
            if kind in RESOURCES:
                api, operation = RESOURCES[kind]
                shape_faults = aws_shapes.find_request_faults(operation, properties, api)
                faults += [f"{name}.{fault}" for fault in shape_faults]
                if shape_faults:
                    continue
            if kind == "AWS::SageMaker::NotebookInstance":
                forced = {properties["InstanceType"]: {"status": "dead"}} if given.get("ForceDeadPair") else {}
                faults += [f"{name}.{fault}" for fault in check_notebook(properties, pairs.dead_reason, forced)]
            if kind == "AWS::SageMaker::NotebookInstanceLifecycleConfig":
                for hook in ("OnCreate", "OnStart"):
                    faults += [
                        f"{name}.{hook}: {fault}" for fault in check_content(lifecycle, properties[hook][0]["Content"])
                    ]
        yield from (f"notebook.yaml with {stack}: {fault}" for fault in faults)


def check_content(lifecycle, text):
    """Check the base64 of a lifecycle script, and the script."""
    if text.split() != [text]:
        return ["wrapped base64: write it on one line (base64 --wrap=0)"]
    try:
        script = base64.b64decode(text, validate=True).decode("utf-8")
    except (binascii.Error, ValueError) as error:
        return [f"not the base64 of a text: {error}"]
    return lifecycle.find_faults(script)


def check_scripts(folder):
    """Check line ends, sizes, and that copies are up to date."""
    lifecycle = load_module(folder, "lifecycle")
    for path in sorted([*folder.glob("*.sh"), *folder.glob("*.py"), *folder.glob("*.yaml")]):
        if b"\r" in path.read_bytes():
            yield f"{path.name}: its lines end in CRLF: save it with LF"
    for name in ("on-create", "on-start"):
        text = (folder / f"{name}.sh").read_bytes().decode("utf-8")
        longest = "".join(f"export {setting}='{'x' * length}'\n" for setting, length in lifecycle.SETTINGS.items())
        yield from (f"{name}.sh: {one}" for one in lifecycle.find_faults(text + longest))
    for name in lifecycle.EMBEDDED_COPIES:
        try:
            if lifecycle.render_file(name, folder) != (folder / name).read_text(encoding="utf-8"):
                yield f"{name}: its copies are outdated: run python sagemaker/lifecycle.py write"
        except ValueError as error:
            yield str(error)


def check_base64(folder):
    """Check base64 that a user has put into a JSON file."""
    lifecycle = load_module(folder, "lifecycle")
    for path in sorted(folder.rglob("*.json")):
        try:
            for where, text in find_contents(read_json(path)):
                yield from (f"{path.relative_to(folder)}: {where}: {one}" for one in check_content(lifecycle, text))
        except ValueError:
            pass  # check_requests reports it


def find_contents(value, path=""):
    """Yield (path, text) of everything called Content."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if key == "Content" and isinstance(item, str):
            yield f"{path}.{key}".lstrip("."), item
        yield from find_contents(item, f"{path}.{key}")


def _run_checker(command, folder, **environment):
    """Run a checker; return the lines that it prints if it finds faults."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    locale = {name: os.environ[name] for name in ("LANG", "LC_ALL") if name in os.environ}
    program = shutil.which(command[0], path=path)
    if program is None:
        return [f"{command[0]} is not installed: run make check-sagemaker, which installs it"]
    environment = {**locale, "PATH": path, "HOME": str(folder), **environment}
    process = subprocess.run(
        [program, *command[1:]], cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
        encoding="utf-8", timeout=600,
    )  # fmt: skip
    lines = [line for line in (process.stdout + process.stderr).splitlines() if line.strip()]
    return (lines or [f"status {process.returncode}"]) if process.returncode else []


def check_with_cfn_lint(folder):
    return (f"cfn-lint: {line}" for line in _run_checker(["cfn-lint", "notebook.yaml"], folder))


def check_with_shellcheck(folder):
    scripts = sorted(path.name for path in folder.glob("*.sh"))
    return (
        f"shellcheck: {line}"
        for line in _run_checker(["shellcheck", "--format=gcc", "--enable=quote-safe-variables", *scripts], folder)
    )


def check_with_aws(folder):
    """Check each request with the command line of AWS, which connects to nothing here."""
    fake_credentials = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "eu-west-1"}
    fake_credentials.update(
        AWS_CONFIG_FILE=os.devnull, AWS_SHARED_CREDENTIALS_FILE=os.devnull, AWS_EC2_METADATA_DISABLED="true"
    )
    commands = {"CreateNotebookInstance": "create-notebook-instance", "CreateTrainingJob": "create-training-job"}
    for path, operation in list_requests(folder):
        command = [
            "aws", "sagemaker", commands[operation], "--cli-input-json", f"file://{path}",
            "--generate-cli-skeleton", "output",
        ]  # fmt: skip
        yield from (
            f"aws: {path.relative_to(folder)}: {line}" for line in _run_checker(command, folder, **fake_credentials)
        )


CHECKS = [
    check_requests, check_table, check_template, check_scripts, check_base64, check_with_cfn_lint,
    check_with_shellcheck, check_with_aws,
]  # fmt: skip


def find_faults(folder=SAGEMAKER, checks=CHECKS):
    return [line for check in checks for line in check(folder)]


def main():
    folder = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else SAGEMAKER
    faults = find_faults(folder)
    sound = f"{folder.name}: {len(list_requests(folder))} requests, the template and the scripts are valid"
    print("\n".join(faults) or sound)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
