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
from gluonlab.launch.job_files import JOB_FILE_KINDS, TEMPLATE_FOLDER, JobRequest, job_file
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
    """A function that runs a bash file and gives the words that srun, blaunch or bsub got."""
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
    got = recorder(job_file("slurm", request))
    assert got[0] == "srun"
    assert got[got.index("python") :] == launch(*words)
    assert all(word.startswith("--") for word in got[1 : got.index("python")])
    assert recorder(job_file("lsf", request)) == ["blaunch", "-no-shell", *launch(*words)]


@settings(max_examples=30)
@given(ANY_WORDS)
def test_the_interactive_form_asks_bsub_for_a_shell_and_says_what_to_type_there(recorder, words):
    text = job_file("lsf-interactive", replace(REQUEST, words=words))
    got = recorder(text)
    assert got[0] == "bsub" and got[-2:] == ["-Is", "/bin/bash"]
    [typed] = [line for line in text.split("\n") if line.startswith("# python")]
    expected = launch(*words)
    assert recorder(f"{typed[2:]}\n") == [*expected[:3], "-n", "4", *expected[3:]]


def test_the_interactive_form_is_the_one_of_the_course(recorder):
    """bsub -gpu num=2:j_exclusive=yes -q waic-medium -R rusage[mem=128000] -R affinity[thread*20]
    -Is /bin/bash.
    """
    request = JobRequest(WORDS, processes=1, gpus=2, queue="waic-medium")
    got = recorder(job_file("lsf-interactive", request))
    pairs = list(zip(got[1:-2:2], got[2:-2:2]))
    assert set(pairs) >= {
        ("-gpu", "num=2:j_exclusive=yes"), ("-q", "waic-medium"),
        ("-R", "rusage[mem=128000]"), ("-R", "affinity[thread*20]"),
    }  # fmt: skip
    batch = re.findall(r'^#BSUB (\S+) "(.*)"$', job_file("lsf", request), re.MULTILINE)
    assert set(pairs) < set(batch)


@pytest.mark.parametrize("kind", BASH)
def test_bash_reads_the_file(kind, tmp_path):
    file = tmp_path / "job.sh"
    file.write_text(job_file(kind, replace(REQUEST, words=("a'b", "$(c)", "\n\n#"))))
    done = subprocess.run(["bash", "-n", str(file)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


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
        with pytest.raises(ConfigError, match="processes_per_host = 2"):
            job_file(kind, several)
    with pytest.raises(ConfigError, match="'extra' is no option"):
        job_file("sagemaker", replace(REQUEST, words=("--flip", "yes", "extra")))
    for changes in ({"words": ("--update-on-servers",)}, {"backend": "dist_async"}):
        with pytest.raises(ConfigError, match="the servers that SageMaker's image starts cannot"):
            job_file("sagemaker", replace(REQUEST, **changes))
    with pytest.raises(ConfigError, match="did you mean 'slurm'"):
        job_file("slrum", REQUEST)


# --- Kubernetes


def faults(value, schema, place=""):
    """Where a value breaks the schema: what JSON Schema calls type, required, properties (and no
    others), items, enum, minimum, pattern, ref.
    """
    schema = SCHEMA[schema["ref"]] if "ref" in schema else schema
    if "enum" in schema:
        return [] if value in schema["enum"] else [f"{place}: {value!r}"]
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
    if type(value) is not kinds[schema["type"]]:
        return [f"{place}: {value!r} is no {schema['type']}"]
    found = []
    if schema["type"] == "object":
        found += [f"{place}: no {name}" for name in set(schema["required"]) - set(value)]
        for name, inner in value.items():
            known = schema["properties"].get(name)
            here = f"{place}.{name}"
            found += faults(inner, known, here) if known else [f"{here}: unknown"]
    if schema["type"] == "array":
        for number, item in enumerate(value):
            found += faults(item, schema["items"], f"{place}[{number}]")
    if "pattern" in schema and re.fullmatch(schema["pattern"], value) is None:
        found.append(f"{place}: {value!r}")
    if value < schema["minimum"] if "minimum" in schema else False:
        found.append(f"{place}: {value}")
    return found


def expanded(word, environ):
    """What Kubernetes makes of a word: $$ is $, $(NAME) its variable.

    Source: k8s.io/kubernetes/third_party/forked/golang/expansion.
    """
    return re.sub(
        r"\$\$|\$\(([^)]*)\)", lambda found: "$" if found[1] is None else environ.get(found[1], found[0]), word
    )


@given(ANY_WORDS)
def test_the_pods_run_the_words_and_find_their_ranks(words):
    service, job = yaml.safe_load_all(job_file("k8s", replace(REQUEST, words=words)))
    assert faults(service, SCHEMA["Service"]) == faults(job, SCHEMA["Job"]) == []
    name = job["metadata"]["name"]
    pod = job["spec"]["template"]["spec"]
    assert service["metadata"]["name"] == pod["subdomain"]
    assert service["spec"]["selector"] == {"job-name": name}
    [container] = pod["containers"]
    environ = {each["name"]: each["value"] for each in container["env"]}
    assert [expanded(word, {**environ, "c": "!"}) for word in container["command"]] == launch(*words)
    found = [membership({**environ, "JOB_COMPLETION_INDEX": str(index)}) for index in range(job["spec"]["completions"])]
    assert [each.rank for each in found] == [0, 1, 2, 3]
    assert {(each.size, each.root) for each in found} == {(4, f"{name}-0.{name}")}


def test_the_schema_finds_what_is_wrong():
    _, job = yaml.safe_load_all(job_file("k8s", REQUEST))
    job["spec"]["completions"] = "4"
    job["spec"]["template"]["spec"]["container"] = []
    del job["metadata"]["name"]
    assert len(faults(job, SCHEMA["Job"])) == 3


def test_a_pod_has_what_was_asked_for():
    request = replace(REQUEST, gpus=2, threads=7, memory_mb=9000, minutes=3, image="x/y:1")
    _, job = yaml.safe_load_all(job_file("k8s", request))
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "x/y:1"
    assert container["resources"]["limits"] == {
        "cpu": "7", "memory": "9000M", "nvidia.com/gpu": "2",
    }  # fmt: skip
    assert job["spec"]["activeDeadlineSeconds"] == 180
    [none] = [
        job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
        for job in [list(yaml.safe_load_all(job_file("k8s", replace(request, gpus=0))))[1]]
    ]
    assert "nvidia.com/gpu" not in none


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
    made = yaml.safe_load(job_file("sagemaker", replace(REQUEST, words=words)))
    read = {name: json.loads(value) for name, value in made["HyperParameters"].items()}
    for name, value in given_options.items():
        assert read[name] == (True if value is None else value)
    assert read["sagemaker_program"] == "gluonlab.launch"
    assert read["backend"] == "dist_sync"


def test_the_templates_are_those_of_the_folder_sagemaker():
    folder = Path(__file__).parents[2] / "sagemaker/training"
    own = list(TEMPLATE_FOLDER.iterdir())
    assert {path.name for path in own} == {"horovod.json", "parameter-server.json"}
    assert all(path.read_bytes() == (folder / path.name).read_bytes() for path in own)


def test_a_job_of_sagemaker_is_the_template_with_what_was_asked_for():
    request = replace(REQUEST, backend="horovod", processes=8, processes_per_host=4, minutes=2)
    request = replace(request, bucket="mine", role="arn:aws:iam::1:role/r", instance="ml.p3.8xlarge")
    made = yaml.safe_load(job_file("sagemaker", request))
    template = json.loads((TEMPLATE_FOLDER / "horovod.json").read_text())
    assert made["ResourceConfig"] == {
        **template["ResourceConfig"], "InstanceType": "ml.p3.8xlarge", "InstanceCount": 2,
        "VolumeSizeInGB": 50,
    }  # fmt: skip
    assert made["HyperParameters"]["sagemaker_mpi_num_of_processes_per_host"] == "4"
    assert made["StoppingCondition"] == {"MaxRuntimeInSeconds": 120}
    assert made["RoleArn"] == "arn:aws:iam::1:role/r"
    assert "my-bucket" not in json.dumps(made)
    assert json.dumps(made).count("s3://mine/gluonlab/") == 3
    for kept in ("Tags", "AlgorithmSpecification"):
        assert made[kept] == template[kept]


# --- options of the launcher


LAUNCH = ["--restart", "2", "--patience", "60", "--min-workers", "1", "--port", "9999"]


def printed(kind, *words, ended):
    return ended(main, "--backend", "dist_sync", "--print", kind, *words, "--", "--out", "run")


@pytest.mark.parametrize("kind", [*BASH, "k8s"])
def test_a_job_file_carries_how_to_watch_and_to_start_again(kind, ended, empty_cwd):
    asked, losses = [*LAUNCH], LAUNCH[4:6]
    if kind == "k8s":
        asked, losses = [*LAUNCH[:4], *LAUNCH[6:]], []
    status, out, err = printed(kind, "-n", "2", "--servers", "2", *asked, ended=ended)
    assert (status, err) == (0, "")
    assert ("--no-kill" in out) is (kind == "slurm")  # else Slurm would end what could go on
    if kind == "k8s":
        lines = [line.split('"')[1] for line in out.splitlines() if line.strip()[:3] == '- "']
        found = lines[lines.index("--backend") + 2 :]
    else:
        [line] = [line for line in out.splitlines() if "gluonlab.launch" in line]
        found = line.split("dist_sync ")[1].split()
    assert found[: found.index("--")] == ["--servers", "2", *LAUNCH[:2], *losses,
                                          *LAUNCH[2:4], *LAUNCH[6:]]  # fmt: skip


def test_rank_0_of_a_pod_listens_beside_the_scheduler(ended, empty_cwd):
    for port, beside in (("9091", "9092"), ("9092", "9091"), ("80", "9091")):
        _, out, _ = printed("k8s", "-n", "2", "--port", port, ended=ended)
        job = list(yaml.safe_load_all(out))[1]
        [container] = job["spec"]["template"]["spec"]["containers"]
        told = {each["name"]: each["value"] for each in container["env"]}
        assert told["GLUONLAB_PORT"] == beside
        assert container["command"][container["command"].index("--port") + 1] == port


REFUSED = {
    "slurm -n 2 --port 70000": "error: --port 70000: give a whole number, 1 to 65535",
    "k8s -n 2 --servers none": "error: --servers none: give a whole number, 1 to 4096",
    "slurm --hosts h1": "error: --print slurm with --hosts: the scheduler chooses the hosts: say ",
    "lsf --ssh ssh": "error: --print lsf with --ssh: the scheduler starts the processes: leave it",
    "k8s --env HOME": "error: --print k8s with --env: the scheduler passes variables on, as its ",
    "k8s --python x": "error: --print k8s with --python: a job file has it as --job python=PATH",
    "k8s -n 2 --restart 1 --min-workers 1": "error: --print k8s with --min-workers: Kubernetes end",
    "sagemaker --restart 1": "error: --print sagemaker with --restart: SageMaker's image starts",
    "sagemaker --patience 60": "error: --print sagemaker with --patience: SageMaker's image start",
    "slurm --restart x": "error: --restart x: give a whole number, 0 to 4096",
    "slurm --patience 1": "error: --patience 1: give seconds, 5 to 1000000",
    "slurm --restart 1 -n 2 --min-workers 3": "error: --min-workers 3: there are 2: give 2 or",
    "slurm --min-workers 1": "error: --min-workers says how to start again: add --restart N",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_a_job_file_cannot_carry_is_refused_with_the_reason(words, ended, empty_cwd):
    status, out, err = printed(*words.split(), ended=ended)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(REFUSED[words])


def test_a_job_that_starts_again_needs_a_folder(ended, empty_cwd):
    words = ["--backend", "dist_sync", "--print", "slurm", "--restart", "1"]
    status, out, err = ended(main, *words, "--", "--epochs", "3")
    assert (status, out) == (2, "")
    assert err.startswith("error: --restart 1 goes on with the run in --out, and there is none: ")


def test_an_option_of_who_launches_is_refused_where_another_does(ended, empty_cwd, monkeypatch):
    """MXNet's launch.py, SageMaker's image and horovodrun say nothing of how to start again."""
    for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"):
        monkeypatch.setenv(f"HOROVOD_{name}", "1" if "RANK" not in name else "0")
    status, out, err = ended(main, "--backend", "horovod", "--restart", "1", "--", "--out", "run")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: --restart says how to start and watch the processes of a group, ")
    assert "horovodrun has started this one" in err


PAGE = Path(__file__).parents[2] / "docs" / "launch.md"


def test_the_page_shows_what_is_printed():
    words = ("--dataset", "cifar10", "--model", "resnet18", "--epochs", "10")
    four = JobRequest(words, processes=4)
    shown = re.findall(r"^```(?:bash|yaml)\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert shown == [
        job_file("slurm", replace(four, processes_per_host=2)),
        job_file("lsf", replace(four, processes_per_host=2, queue="waic-medium")),
        job_file("lsf-interactive", JobRequest(words, processes=1, gpus=2, queue="waic-medium")),
        job_file("k8s", four),
        job_file("sagemaker", four),
    ]


def test_the_page_names_the_variables_of_every_launcher():
    page = PAGE.read_text()
    for launcher in LAUNCHERS:
        named = launcher.mark if launcher is SAGEMAKER else launcher.rank
        assert f"`{named}`" in page and f"`{launcher.size[0]}`" in page, launcher.name
