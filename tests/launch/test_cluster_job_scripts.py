"""Job files, read as their schedulers read them, and the page that shows them."""

import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gluonlab.errors import ConfigError
from gluonlab.host.launcher_environment import LAUNCHERS, SAGEMAKER
from gluonlab.launch.__main__ import main
from gluonlab.launch.cluster_job_scripts import JOB_FILE_KINDS, TEMPLATE_FOLDER, JobRequest, job_file
from gluonlab.launch.process_membership import membership

WORDS = ("--epochs", "5", "--gpus", "2")
REQUEST = JobRequest(WORDS, processes=4)
BASH = ("slurm", "lsf", "lsf-interactive")
SCHEMA = json.loads((Path(__file__).parent / "kubernetes_schema.json").read_text(encoding="utf-8"))
ANY_WORD = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=8) | st.text(
    "ab \n\t'\"\\$(){}`!#*?~\r;&|<>\x85\u2028\ufeff\x1b:-", max_size=12
)
ANY_WORDS = st.lists(ANY_WORD, max_size=6).map(tuple)


@pytest.fixture(scope="module")
def recorder(tmp_path_factory):
    """Return a function that runs a bash file, and returns the arguments of srun, blaunch or bsub."""
    folder = tmp_path_factory.mktemp("fake")
    for name in ("srun", "blaunch", "bsub", "python"):
        program = folder / name
        program.write_text(f'#!/bin/bash\nprintf "%s\\0" {name} "$@" >> "$RECORD"\n')
        program.chmod(0o755)

    def run(text):
        record, file = folder / "record", folder / "job.sh"
        record.write_bytes(b"")
        file.write_bytes(text.encode())
        environ = {"PATH": f"{folder}{os.pathsep}/usr/bin:/bin", "RECORD": str(record)}
        done = subprocess.run(["bash", str(file)], env=environ, capture_output=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, b"")
        return record.read_bytes().decode().split("\0")[:-1]

    return run


def launch(*words):
    return ["python", "-m", "gluonlab.launch", "--backend", "dist_sync", "--", *words]


@settings(max_examples=30)
@given(ANY_WORDS)
def test_every_word_arrives_at_srun_and_blaunch_as_it_was(recorder, words):
    request = replace(REQUEST, words=words)
    arguments = recorder(job_file("slurm", request))
    start = arguments.index("python")
    assert arguments[0] == "srun" and arguments[start:] == launch(*words)
    assert all(word.startswith("--") for word in arguments[1:start])
    assert recorder(job_file("lsf", request)) == ["blaunch", "-no-shell", *launch(*words)]


@settings(max_examples=30)
@given(ANY_WORDS)
def test_the_interactive_form_asks_bsub_for_a_shell_and_says_what_to_type_there(recorder, words):
    text = job_file("lsf-interactive", replace(REQUEST, words=words))
    arguments = recorder(text)
    assert arguments[0] == "bsub" and arguments[-2:] == ["-Is", "/bin/bash"]
    [typed] = [line for line in text.split("\n") if line.startswith("# python")]
    expected = launch(*words)
    assert recorder(f"{typed[2:]}\n") == [*expected[:3], "-n", "4", *expected[3:]]


def test_the_interactive_form_is_the_one_of_the_course(recorder):
    """bsub -gpu num=2:j_exclusive=yes -q waic-medium -R rusage[mem=128000] -R affinity[thread*20]
    -Is /bin/bash.
    """
    request = JobRequest(WORDS, processes=1, gpus=2, queue="waic-medium")
    arguments = recorder(job_file("lsf-interactive", request))
    pairs = list(zip(arguments[1:-2:2], arguments[2:-2:2]))
    assert set(pairs) >= {
        ("-gpu", "num=2:j_exclusive=yes"), ("-q", "waic-medium"),
        ("-R", "rusage[mem=128000]"), ("-R", "affinity[thread*20]"),
    }  # fmt: skip
    batch = re.findall(r'^#BSUB (\S+) "(.*)"$', job_file("lsf", request), re.MULTILINE)
    assert set(pairs) < set(batch)


@pytest.mark.parametrize("gpus", [0, 2])
@pytest.mark.parametrize("queue", [None, "waic-medium"])
@pytest.mark.parametrize("kind", JOB_FILE_KINDS)
def test_each_line_has_a_comment(kind, queue, gpus):
    lines = job_file(kind, replace(REQUEST, queue=queue, gpus=gpus)).splitlines()
    for before, line in zip(["", *lines], lines):
        asks = line.strip() and not re.match(r"\s*#($|[ !])", line) and line not in (")", "---")
        if asks and line != "options=(":
            assert before.strip().startswith("# ") or re.search(r"  # \S", line), line


# --- resources


@pytest.mark.parametrize(
    ("processes", "per_host", "hosts", "on_a_host"), [(4, 1, 4, 1), (4, 2, 2, 2), (5, 2, 3, 2), (2, 8, 1, 2)]
)
def test_hosts_and_their_gpus_follow_from_the_processes(processes, per_host, hosts, on_a_host):
    request = replace(REQUEST, processes=processes, processes_per_host=per_host, gpus=3)
    slurm, lsf = job_file("slurm", request), job_file("lsf", request)
    for option in (
        f"nodes={hosts}", f"ntasks={processes}", f"ntasks-per-node={on_a_host}",
        f"gpus-per-node={3 * on_a_host}", "cpus-per-task=20", "mem=128000M", "time=60",
    ):  # fmt: skip
        assert f"#SBATCH --{option}\n" in slurm
    assert f'#BSUB -n "{processes}"\n' in lsf
    assert f'#BSUB -R "span[ptile={on_a_host}]"\n' in lsf
    assert f'#BSUB -gpu "num={3 * on_a_host}:j_exclusive=yes"\n' in lsf


@pytest.mark.parametrize(
    "changes",
    [
        {"processes": 0}, {"processes_per_host": 0}, {"gpus": -1}, {"threads": 0}, {"minutes": 0},
        {"memory_mb": 0}, {"name": "Train"}, {"name": "a\nb"}, {"name": "a" * 41}, {"name": "a-"},
        {"queue": "q\n#SBATCH --uid=0"}, {"queue": ""}, {"queue": "-x"}, {"image": "a b"},
        {"bucket": "s3://x"}, {"role": "a\nb"}, {"words": ("\0",)}, {"words": ("\udcff",)},
    ],
)  # fmt: skip
def test_what_no_scheduler_gives_is_one_line(changes):
    with pytest.raises(ConfigError) as caught:
        replace(REQUEST, **changes)
    assert len(str(caught.value).splitlines()) == 1


def test_what_one_scheduler_cannot_give_is_one_line():
    several = replace(REQUEST, processes_per_host=2)
    for kind in ("k8s", "sagemaker"):
        with pytest.raises(ConfigError, match="processes_per_host=2"):
            job_file(kind, several)
    with pytest.raises(ConfigError, match="'extra' is not the value of an option"):
        job_file("sagemaker", replace(REQUEST, words=("--flip", "yes", "extra")))
    for changes in ({"words": ("--update-on-servers",)}, {"backend": "dist_async"}):
        with pytest.raises(ConfigError, match="SageMaker's servers cannot"):
            job_file("sagemaker", replace(REQUEST, **changes))
    with pytest.raises(ConfigError, match="did you mean 'slurm'"):
        job_file("slrum", REQUEST)


# --- Kubernetes


def schema_faults(value, schema, place=""):
    """Return where a value breaks a schema of type, required, properties (and no others), items, enum,
    minimum, pattern and ref, as in JSON Schema.
    """
    schema = SCHEMA[schema["ref"]] if "ref" in schema else schema
    if "enum" in schema:
        return [] if value in schema["enum"] else [f"{place}: {value!r}"]
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
    if type(value) is not kinds[schema["type"]]:
        return [f"{place}: {value!r} is no {schema['type']}"]
    faults = []
    if schema["type"] == "object":
        faults += [f"{place}: no {name}" for name in set(schema["required"]) - set(value)]
        for name, inner in value.items():
            known = schema["properties"].get(name)
            faults += schema_faults(inner, known, f"{place}.{name}") if known else [f"{place}.{name}: unknown"]
    if schema["type"] == "array":
        for number, item in enumerate(value):
            faults += schema_faults(item, schema["items"], f"{place}[{number}]")
    if ("pattern" in schema and not re.fullmatch(schema["pattern"], value)) or (
        "minimum" in schema and value < schema["minimum"]
    ):
        faults.append(f"{place}: {value!r}")
    return faults


def expanded(word, environ):
    """Expand a word like Kubernetes: $$ is $, $(NAME) its variable.

    Source: k8s.io/kubernetes/third_party/forked/golang/expansion.
    """
    return re.sub(
        r"\$\$|\$\(([^)]*)\)", lambda found: "$" if found[1] is None else environ.get(found[1], found[0]), word
    )


@given(ANY_WORDS)
def test_the_pods_run_the_words_and_find_their_ranks(words):
    service, job = yaml.safe_load_all(job_file("k8s", replace(REQUEST, words=words)))
    assert schema_faults(service, SCHEMA["Service"]) == schema_faults(job, SCHEMA["Job"]) == []
    name = job["metadata"]["name"]
    pod = job["spec"]["template"]["spec"]
    assert service["metadata"]["name"] == pod["subdomain"]
    assert service["spec"]["selector"] == {"job-name": name}
    [container] = pod["containers"]
    environ = {each["name"]: each["value"] for each in container["env"]}
    assert [expanded(word, {**environ, "c": "!"}) for word in container["command"]] == launch(*words)
    pods = [membership({**environ, "JOB_COMPLETION_INDEX": str(index)}) for index in range(job["spec"]["completions"])]
    assert [(pod.rank, pod.size, pod.root) for pod in pods] == [(rank, 4, f"{name}-0.{name}") for rank in range(4)]


def test_the_schema_finds_what_is_wrong():
    _, job = yaml.safe_load_all(job_file("k8s", REQUEST))
    job["spec"]["completions"] = "4"
    job["spec"]["template"]["spec"]["container"] = []
    del job["metadata"]["name"]
    assert len(schema_faults(job, SCHEMA["Job"])) == 3


@pytest.mark.parametrize("gpus", [0, 2])
def test_a_pod_has_the_requested_resources(gpus):
    request = replace(REQUEST, gpus=gpus, threads=7, memory_mb=9000, minutes=3, image="x/y:1")
    _, job = yaml.safe_load_all(job_file("k8s", request))
    [container] = job["spec"]["template"]["spec"]["containers"]
    limits = {"cpu": "7", "memory": "9000M", **({"nvidia.com/gpu": "2"} if gpus else {})}
    assert (container["image"], container["resources"]["limits"]) == ("x/y:1", limits)
    assert job["spec"]["activeDeadlineSeconds"] == 180


# --- SageMaker

OPTIONS = st.dictionaries(
    st.sampled_from(["epochs", "lr", "out", "flip", "model"]),
    st.none() | ANY_WORD.filter(lambda word: not word.startswith("--")),
)


@given(OPTIONS)
def test_hyperparameters_are_the_options_of_the_run(given_options):
    """The image reads each as JSON, and makes --name value of it."""
    words = tuple(
        word
        for name, value in given_options.items()
        for word in ([f"--{name}"] if value is None else [f"--{name}", value])
    )
    job = yaml.safe_load(job_file("sagemaker", replace(REQUEST, words=words)))
    parameters = {name: json.loads(value) for name, value in job["HyperParameters"].items()}
    expected = {name: True if value is None else value for name, value in given_options.items()}
    assert {"sagemaker_program": "gluonlab.launch", "backend": "dist_sync", **expected}.items() <= parameters.items()


def test_the_templates_are_those_of_the_folder_sagemaker():
    folder = Path(__file__).parents[2] / "sagemaker/training"
    own = list(TEMPLATE_FOLDER.iterdir())
    assert {path.name for path in own} == {"horovod.json", "parameter-server.json"}
    assert all(path.read_bytes() == (folder / path.name).read_bytes() for path in own)


def test_a_job_of_sagemaker_is_the_template_with_what_was_asked_for():
    request = replace(REQUEST, backend="horovod", processes=8, processes_per_host=4, minutes=2)
    request = replace(request, bucket="mine", role="arn:aws:iam::1:role/r", instance="ml.p3.8xlarge")
    job = yaml.safe_load(job_file("sagemaker", request))
    template = json.loads((TEMPLATE_FOLDER / "horovod.json").read_text())
    assert job["ResourceConfig"] == {
        **template["ResourceConfig"], "InstanceType": "ml.p3.8xlarge", "InstanceCount": 2, "VolumeSizeInGB": 50,
    }  # fmt: skip
    assert job["HyperParameters"]["sagemaker_mpi_num_of_processes_per_host"] == "4"
    assert (job["StoppingCondition"], job["RoleArn"]) == ({"MaxRuntimeInSeconds": 120}, "arn:aws:iam::1:role/r")
    assert "my-bucket" not in json.dumps(job)
    assert json.dumps(job).count("s3://mine/gluonlab/") == 3
    for key in ("Tags", "AlgorithmSpecification"):
        assert job[key] == template[key]


# --- options of the launcher


LAUNCH = ["--max-restarts", "2", "--timeout", "60", "--min-np", "1", "--port", "9999"]


@pytest.fixture
def print_job_file(ended, empty_cwd):
    """Return ``print_job_file(kind, *options)``: what the launcher prints."""

    def print_file(kind, *options):
        status, out, err = ended(main, "--backend", "dist_sync", "--print", kind, *options, "--", "--out", "run")
        assert (status, err) == (0, "")
        return out

    return print_file


@pytest.mark.parametrize("kind", [*BASH, "k8s"])
def test_a_job_file_has_the_options_for_watching_and_restarting(kind, print_job_file):
    min_workers = [] if kind == "k8s" else LAUNCH[4:6]
    out = print_job_file(kind, "-n", "2", "--servers", "2", *LAUNCH[:4], *min_workers, *LAUNCH[6:])
    assert ("--no-kill" in out) is (kind == "slurm")  # else Slurm would end what could go on
    if kind == "k8s":
        lines = [line.split('"')[1] for line in out.splitlines() if line.strip()[:3] == '- "']
        words = lines[lines.index("--backend") + 2 :]
    else:
        [line] = [line for line in out.splitlines() if "gluonlab.launch" in line]
        words = line.split("dist_sync ")[1].split()
    assert words[: words.index("--")] == ["--servers", "2", *LAUNCH[:2], *min_workers, *LAUNCH[2:4], *LAUNCH[6:]]


@pytest.mark.parametrize(("port", "rank_0_port"), [("9091", "9092"), ("9092", "9091"), ("80", "9091")])
def test_rank_0_of_a_pod_listens_beside_the_scheduler(port, rank_0_port, print_job_file):
    _, job = yaml.safe_load_all(print_job_file("k8s", "-n", "2", "--port", port))
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert {"name": "GLUONLAB_PORT", "value": rank_0_port} in container["env"]
    assert container["command"][container["command"].index("--port") + 1] == port


@pytest.fixture
def gpus_of(ended, empty_cwd):
    """Return ``gpus_of(options, job, kind)``: GPUs per process in the printed file, or its error."""
    Path("run").mkdir()
    Path("three.toml").write_text("gpus = 3\n")
    patterns = {"slurm": r"gpus-per-node=(\d+)", "lsf": r"num=(\d+):", "k8s": r'nvidia.com/gpu: "(\d+)"'}
    patterns["sagemaker"] = r'gpus: "\D*(\d+)'

    def count(options, job=None, kind="slurm"):
        words = [] if job is None else ["--job", f"gpus={job}"]
        status, out, err = ended(main, "-n", "2", "--print", kind, *words, "--", *options.split())
        if status:
            return err
        return int((re.findall(patterns[kind], out) or [0])[0])

    return count


@pytest.mark.parametrize("kind", ["slurm", "lsf", "k8s", "sagemaker"])
def test_a_job_has_the_gpus_that_the_run_asks_for(kind, gpus_of):
    assert gpus_of("--epochs 5", kind=kind) == 1
    assert gpus_of("--gpus 2", kind=kind) == 2
    assert gpus_of("--config three.toml", kind=kind) == 3
    assert gpus_of("--devices cpu*2", kind=kind) == 0


@pytest.mark.parametrize(
    ("devices", "gpus"),
    [("gpu:0,1", 2), ("gpu:2,3", 4), ("gpu", 1), ("gpu(2)", 3), ("gpu:0|gpu:4", 5), ("gpu:[0-3]", 4), ("3", 3),
     ("cpu", 0), ("gpu:*", 1), ("gpu:.*", 1), ("gpu:0,gpu:1", 2)],
)  # fmt: skip
def test_a_job_has_the_gpus_of_the_devices(devices, gpus, gpus_of):
    assert gpus_of(f"--devices {devices}") == gpus


def test_a_job_has_the_gpus_of_the_run_to_resume(gpus_of):
    assert gpus_of("resume run") == 1  # config.json is on another machine
    Path("run/config.json").write_text('{"gpus": 4}')
    assert gpus_of("resume run") == 4
    assert gpus_of("resume run --gpus 2") == 2


@pytest.mark.parametrize("kind", ["slurm", "sagemaker"])
def test_sagemaker_gets_either_devices_or_gpus(kind, gpus_of):
    assert gpus_of("--devices gpu:0,1", kind=kind) == (2 if kind == "slurm" else 0)


def test_the_gpus_of_the_job_win_unless_they_are_too_few(gpus_of):
    assert gpus_of("--gpus 2", job=4) == 4
    assert gpus_of("--devices cpu*2", job=1) == 1
    assert gpus_of("--gpus 2", job=0) == 0  # the run then uses CPU devices
    message = (
        "--gpus 2 needs 2 GPUs per process, which --job gpus=1 does not provide: set --job gpus=2, or remove --job gpus"
    )
    assert gpus_of("--gpus 2", job=1) == f"error: {message}\n"
    assert "--gpus 3 needs 3 GPUs" in gpus_of("--config three.toml", job=2)
    for options in ("--devices gpu:0,1", "--gpus 2 --require-gpu", "--require-gpu"):
        error = gpus_of(options, job=0)
        assert "which --job gpus=0 does not provide" in error and error.count("\n") == 1


PAGE = Path(__file__).parents[2] / "docs" / "launch.md"


def test_the_page_shows_what_is_printed():
    words = ("--dataset", "cifar10", "--model", "resnet18", "--epochs", "10")
    [shown] = re.findall(r"^```bash\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert shown == job_file("slurm", JobRequest(words, processes=4, processes_per_host=2))


def test_the_page_names_the_variables_of_every_launcher():
    page = PAGE.read_text()
    for launcher in LAUNCHERS:
        named = launcher.mark if launcher is SAGEMAKER else launcher.rank
        assert f"`{named}`" in page and f"`{launcher.size[0]}`" in page, launcher.name
