"""python tools/check_sagemaker.py [FOLDER]: everything in sagemaker/ that can be checked without
AWS.

Each check is a function from the folder to lines, one for each fault. Ends with status 1 when there
are any. Needs the extra sagemaker-check; nothing is sent anywhere, and no credentials are read.
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
# of the requests in a folder
OPERATIONS = {"instances": "CreateNotebookInstance", "training": "CreateTrainingJob"}
RESOURCES = {
    "AWS::SageMaker::NotebookInstance": ("sagemaker", "CreateNotebookInstance"),
    "AWS::SageMaker::NotebookInstanceLifecycleConfig": (
        "sagemaker",
        "CreateNotebookInstanceLifecycleConfig",
    ),
}
# What the template is filled in with; refused ones are part of the tests.
STACKS = {
    "repository": {"Repository": "https://example.com/gluonlab.git"},
    "bucket": {
        "Bucket": "my-bucket",
        "TrainingJobs": "yes",
        "InstanceType": "ml.p4d.24xlarge",
        "VolumeSizeInGB": 16384,
    },
    "subnet": {
        "Bucket": "my-bucket",
        "SubnetId": "subnet-0123456789abcdef0",
        "SecurityGroupIds": "sg-01234567,sg-89abcdef",
    },
    "key": {
        "Bucket": "my-bucket",
        "KmsKeyId": "arn:aws:kms:eu-west-1:111122223333:key/0123",
        "IdleMinutes": 0,
    },
    "forced": {
        "Bucket": "my-bucket",
        "InstanceType": "ml.p3.16xlarge",
        "Platform": "notebook-al2-v3",
        "ForceDeadPair": "yes",
    },
    "budget": {"Bucket": "my-bucket", "BudgetEmail": "ada@example.com", "BudgetAmount": 30},
    "longest": {
        "Repository": "https://" + "a" * 504,
        "Environment": "A=" + "a" * 510,
        "Bucket": "b" * 63,
        "NotebookName": "n" * 63,
        "IdleMinutes": 10080,
    },
}


def module(folder, name):
    """lifecycle.py or instance_pairs.py of this folder."""
    spec = importlib.util.spec_from_file_location(
        f"{name}_of_{abs(hash(str(folder)))}", str(folder / f"{name}.py")
    )
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def _unique(pairs):
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        raise ValueError(f"a key twice: {max(keys, key=keys.count)}")
    return dict(pairs)


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_unique)


def requests(folder):
    """(path, operation) of every request."""
    return [
        (path, operation)
        for part, operation in OPERATIONS.items()
        for path in sorted((folder / part).glob("*.json"))
    ]


def check_requests(folder):
    """Each request against the service model, and against what the model does not say."""
    table, dead = (
        module(folder, "instance_pairs").load_instances(),
        module(folder, "instance_pairs").dead_reason,
    )
    for path, operation in requests(folder):
        try:
            request = read_json(path)
        except ValueError as error:
            found = [f"no JSON: {error}"]
        else:
            found = aws_shapes.faults(operation, request)
            if not found:  # the rest takes the types for right
                found = (
                    notebook(request, dead, table)
                    if operation == "CreateNotebookInstance"
                    else training(request)
                )
        yield from (f"{path.relative_to(folder)}: {one}" for one in found)


def notebook(request, dead, table):
    """What AWS asks of a notebook beyond its model, and what we do."""
    instance, platform = request.get("InstanceType", ""), request.get("PlatformIdentifier", "")
    if request.get("SubnetId") and not request.get("SecurityGroupIds"):
        yield "SubnetId: a subnet needs SecurityGroupIds"
    if request.get("DirectInternetAccess") == "Disabled" and not request.get("SubnetId"):
        yield "DirectInternetAccess: without it a SubnetId is needed"
    if request.get("RootAccess") != "Disabled":
        yield "RootAccess: must be Disabled"
    metadata = request.get("InstanceMetadataServiceConfiguration") or {}
    if metadata.get("MinimumInstanceMetadataServiceVersion") != "2":
        yield "InstanceMetadataServiceConfiguration: must ask for version 2"
    if dead(instance, platform) and table.get(instance, {}).get("status") != "dead":
        yield f"a dead pair, which instances.json does not mark as one: {dead(instance, platform)}"


def training(request):
    """Hyperparameters are JSON inside strings; several hosts must find each other in exactly one
    way.
    """
    texts, values = request.get("HyperParameters") or {}, {}
    for name, text in texts.items():
        try:
            values[name] = json.loads(text)
        except (TypeError, ValueError):
            yield (
                f"HyperParameters.{name}: {text!r} is not JSON: "
                "a text needs quotes inside its quotes"
            )
    for name in ("sagemaker_program", "sagemaker_submit_directory"):
        if name not in values:
            yield f"HyperParameters.{name}: required, and missing"
    ways = [
        way
        for way in ("sagemaker_parameter_server_enabled", "sagemaker_mpi_enabled")
        if values.get(way)
    ]
    if (request.get("ResourceConfig") or {}).get("InstanceCount", 1) > 1 and len(ways) != 1:
        yield "HyperParameters: several hosts need the parameter server or MPI, one of them"
    yield from disk(request.get("ResourceConfig") or {})
    yield from spot(request, values)
    if "sagemaker_mpi_enabled" in ways and not values.get(
        "sagemaker_mpi_num_of_processes_per_host"
    ):
        yield (
            "HyperParameters.sagemaker_mpi_num_of_processes_per_host: required for MPI, and missing"
        )


def disk(resources):
    """A machine has either a disk of its own, or a volume with a size and perhaps a key."""
    own = instance_has_local_disk(resources.get("InstanceType", ""))
    given = [name for name in ("VolumeSizeInGB", "VolumeKmsKeyId") if resources.get(name)]
    if own and given:
        yield f"ResourceConfig.{given[-1]}: the machine has a disk of its own, and no volume"
    if not own and "VolumeSizeInGB" not in given:
        yield "ResourceConfig.VolumeSizeInGB: required for a machine without a disk of its own"


def spot(request, values):
    """A spot job goes on where it was, in a folder that AWS keeps, and may wait long enough."""
    limits = request.get("StoppingCondition") or {}
    runs, waits = limits.get("MaxRuntimeInSeconds", 86400), limits.get("MaxWaitTimeInSeconds")
    if not request.get("EnableManagedSpotTraining"):
        if waits is not None:
            yield "StoppingCondition.MaxWaitTimeInSeconds: for spot machines only"
        return
    if waits is None or waits < runs:
        yield f"StoppingCondition.MaxWaitTimeInSeconds: {waits} is below {runs}, its running time"
    kept = (request.get("CheckpointConfig") or {}).get("LocalPath", "/opt/ml/checkpoints")
    if "CheckpointConfig" not in request:
        yield "CheckpointConfig: a spot job needs it, or begins again each time"
    elif not str(values.get("out")).startswith(f"{kept}/"):
        yield f"HyperParameters.out: must lie below {kept}, which AWS keeps"
    if values.get("autoresume") is not True:
        yield "HyperParameters.autoresume: must be true for a job that is started again"


def check_table(folder):
    """instances.json says of each request what is true."""
    pairs = module(folder, "instance_pairs")
    table = read_json(folder / "instances.json")["instances"]
    for name, about in table.items():
        path = folder / about["request"]
        if not path.is_file():
            yield f"instances.json: {name}: no {about['request']}"
            continue
        request = read_json(path)
        if (request.get("InstanceType"), request.get("PlatformIdentifier")) != (
            name,
            about["platform"],
        ):
            yield f"instances.json: {name}: {about['request']} asks for another pair"
        if (about["status"] == "dead") != bool(pairs.dead_reason(name, about["platform"])):
            yield (
                f"instances.json: {name}: its status {about['status']} is not what its "
                "platform says"
            )
        if (about["gpus"] == 1) != (about["links"] == "one GPU"):
            yield f"instances.json: {name}: links {about['links']!r} of {about['gpus']} GPUs"
        if not 1 <= about["use_gpus"] <= about["gpus"]:
            yield f"instances.json: {name}: use_gpus {about['use_gpus']} of {about['gpus']}"
        if (
            about["instead"] is not None
            and table.get(about["instead"], {}).get("status") != "alive"
        ):
            yield f"instances.json: {name}: instead {about['instead']} is not alive"
    listed = {folder / about["request"] for about in table.values()}
    yield from (
        f"instances.json: nothing about {path.name}"
        for path in (folder / "instances").glob("*.json")
        if path not in listed
    )


def check_template(folder):
    """notebook.yaml filled in, resource by resource against the service model."""
    template, lifecycle = cloudformation.load(folder / "notebook.yaml"), module(folder, "lifecycle")
    pairs = module(folder, "instance_pairs")
    for stack, given in STACKS.items():
        filled = cloudformation.Stack(template, given)
        try:
            found, resources = filled.refusals(), filled.resources()
        except ValueError as error:
            found, resources = [str(error)], {}
        for name, (kind, properties) in resources.items():
            if kind in RESOURCES:
                api, operation = RESOURCES[kind]
                wrong = aws_shapes.faults(operation, properties, api)
                found += [f"{name}.{one}" for one in wrong]
                if wrong:
                    continue
            if kind == "AWS::SageMaker::NotebookInstance":
                forced = (
                    {properties["InstanceType"]: {"status": "dead"}}
                    if given.get("ForceDeadPair")
                    else {}
                )
                found += [
                    f"{name}.{one}" for one in notebook(properties, pairs.dead_reason, forced)
                ]
            if kind == "AWS::SageMaker::NotebookInstanceLifecycleConfig":
                for hook in ("OnCreate", "OnStart"):
                    found += [
                        f"{name}.{hook}: {one}"
                        for one in content(lifecycle, properties[hook][0]["Content"])
                    ]
        yield from (f"notebook.yaml with {stack}: {one}" for one in found)


def content(lifecycle, text):
    """The base64 of a lifecycle script, as the API wants it."""
    if text.split() != [text]:
        return ["wrapped base64: the API wants it on one line (base64 --wrap=0)"]
    try:
        script = base64.b64decode(text, validate=True).decode("utf-8")
    except (binascii.Error, ValueError) as error:
        return [f"not base64 of a text: {error}"]
    return lifecycle.find_faults(script)


def check_scripts(folder):
    """Line ends, sizes, and copies that are up to date."""
    lifecycle = module(folder, "lifecycle")
    for path in sorted([*folder.glob("*.sh"), *folder.glob("*.py"), *folder.glob("*.yaml")]):
        if b"\r" in path.read_bytes():
            yield f"{path.name}: lines end in CRLF: save it with LF"
    for name in ("on-create", "on-start"):
        text = (folder / f"{name}.sh").read_bytes().decode("utf-8")
        longest = "".join(
            f"export {setting}='{'x' * length}'\n" for setting, length in lifecycle.SETTINGS.items()
        )
        yield from (f"{name}.sh: {one}" for one in lifecycle.find_faults(text + longest))
    for name in lifecycle.EMBEDDED_COPIES:
        try:
            if lifecycle.render_file(name, folder) != (folder / name).read_text(encoding="utf-8"):
                yield f"{name}: its copies are old: python sagemaker/lifecycle.py write"
        except ValueError as error:
            yield str(error)


def check_wrapped(folder):
    """Base64 that somebody has put into a JSON by hand."""
    lifecycle = module(folder, "lifecycle")
    for path in sorted(folder.rglob("*.json")):
        try:
            for where, text in contents(read_json(path)):
                yield from (
                    f"{path.relative_to(folder)}: {where}: {one}"
                    for one in content(lifecycle, text)
                )
        except ValueError:
            pass  # check_requests says it


def contents(value, path=""):
    """(where, text) of everything called Content."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in items:
        if key == "Content" and isinstance(item, str):
            yield f"{path}.{key}".lstrip("."), item
        yield from contents(item, f"{path}.{key}")


def _said(command, folder, **environment):
    """The lines that a tool prints when it is not content."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    kept = {name: os.environ[name] for name in ("LANG", "LC_ALL") if name in os.environ}
    found = shutil.which(command[0], path=path)
    if found is None:
        return [f"{command[0]} is not installed: make check-sagemaker installs it"]
    environment = {**kept, "PATH": path, "HOME": str(folder), **environment}
    done = subprocess.run(
        [found, *command[1:]],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=600,
    )
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return (lines or [f"status {done.returncode}"]) if done.returncode else []


def check_with_cfn_lint(folder):
    return (f"cfn-lint: {line}" for line in _said(["cfn-lint", "notebook.yaml"], folder))


def check_with_shellcheck(folder):
    scripts = sorted(path.name for path in folder.glob("*.sh"))
    return (
        f"shellcheck: {line}"
        for line in _said(
            ["shellcheck", "--format=gcc", "--enable=quote-safe-variables", *scripts], folder
        )
    )


def check_with_aws(folder):
    """What the command line itself makes of each request.

    It validates, prints a made-up answer, and connects to nothing.
    """
    nobody = {
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": "eu-west-1",
    }
    nobody.update(
        AWS_CONFIG_FILE=os.devnull,
        AWS_SHARED_CREDENTIALS_FILE=os.devnull,
        AWS_EC2_METADATA_DISABLED="true",
    )
    commands = {
        "CreateNotebookInstance": "create-notebook-instance",
        "CreateTrainingJob": "create-training-job",
    }
    for path, operation in requests(folder):
        command = [
            "aws",
            "sagemaker",
            commands[operation],
            "--cli-input-json",
            f"file://{path}",
            "--generate-cli-skeleton",
            "output",
        ]
        yield from (
            f"aws: {path.relative_to(folder)}: {line}" for line in _said(command, folder, **nobody)
        )


CHECKS = [
    check_requests,
    check_table,
    check_template,
    check_scripts,
    check_wrapped,
    check_with_cfn_lint,
    check_with_shellcheck,
    check_with_aws,
]


def faults(folder=SAGEMAKER, checks=CHECKS):
    return [line for check in checks for line in check(folder)]


def main():
    folder = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else SAGEMAKER
    found = faults(folder)
    print(
        "\n".join(found)
        if found
        else (
            f"{folder.name}: {len(requests(folder))} requests, "
            "the template and the scripts are sound"
        )
    )
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
