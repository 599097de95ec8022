"""doctor --gpu-self-test on machines that are well, and on broken ones: whatever is planted, it names."""

import getpass
import json
import socket
import subprocess
import sys

import pytest
from gpus.commands import run_python
from gpus.machines import P3_16XLARGE, environment, v100s
from support.processes import clean_environment
from support.waiting import LIMIT_S, wait_until

from gluonlab.doctor.prove import trial_verdicts
from gluonlab.gpu.isolated_process import run_isolated

# In a trial's process: a file appears when it tries what is named.
TELLS = """
import sys
from pathlib import Path

def write(text, plain=sys.stdout.write):
    if "{name}" in text:
        Path("{file}").touch()
    return plain(text)

sys.stdout.write = write
"""


def verdicts(trial, machine, folder, timeout_s=LIMIT_S, devices="gpu:*"):
    """What a trial comes to on such a machine."""
    environ = clean_environment(path=[str(folder)], **environment(machine, folder))
    module = "gluonlab.doctor.trials"
    outcome = run_isolated(module, trial, devices, timeout_s=timeout_s, environ=environ)
    return [(verdict.status, verdict.what) for verdict in trial_verdicts(trial, outcome)]


def test_copies_that_change_on_their_way_are_named_with_their_direction(tmp_path):
    machine = v100s(3, changes_copies=((1, 2), (0, 1)))
    assert verdicts("copies", machine, tmp_path) == [
        ("fault", "copies from gpu(0) to gpu(1) are wrong: 1 of 1,048,576 numbers differ"),
        ("fault", "copies from gpu(1) to gpu(2) are wrong: 1 of 1,048,576 numbers differ"),
    ]


def test_copies_that_arrive_are_all_right_on_a_machine_whose_gpus_are_not_all_peers(tmp_path):
    assert verdicts("copies", P3_16XLARGE, tmp_path) == [
        ("ok", "what is copied between 56 pairs of GPUs arrives unchanged")
    ]


def test_a_gpu_that_hangs_is_named_and_the_others_are_not(tmp_path, monkeypatch):
    """The patience with it begins once it is asked."""
    tried, plain = tmp_path / "tried", subprocess.Popen.communicate
    site = TELLS.format(name="memory of gpu(1)", file=tried)
    (tmp_path / "sitecustomize.py").write_text(site, encoding="utf-8")

    def communicate(process, timeout=None):
        wait_until(lambda: tried.exists())
        return plain(process, timeout=timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    [(status, what)] = verdicts("copies", v100s(3, hangs=1), tmp_path, timeout_s=2)
    assert (status, what) == ("fault", "memory of gpu(1): was still running after 2 s")


def test_a_gpu_that_now_and_then_computes_wrongly_is_named(tmp_path):
    result = verdicts("arithmetic", v100s(3, forgets_kernels=2), tmp_path)
    assert result
    assert {status for status, _ in result} == {"fault"}
    assert all("gpu(2)" in what and "gpu(0)" not in what and "gpu(1)" not in what for _, what in result)


def test_a_gpu_that_loses_work_is_found_by_the_stores_too(tmp_path):
    result = verdicts("stores", v100s(2, forgets_kernels=1), tmp_path)
    assert "fault" in {status for status, _ in result}


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.long)])
def test_a_machine_that_is_well_is_found_well_and_its_files_tell_nothing_of_its_owner(tmp_path, count):
    options = ["--gpu-self-test", "--out-file", "proof"]
    process = run_python(v100s(count), tmp_path, "-m", "gluonlab.doctor", *options, timeout=400)
    assert "no faults; written to proof.json and proof.html" in process.stdout, process.stdout + process.stderr
    text = (tmp_path / "proof.json").read_text(encoding="utf-8")  # of which the page is made
    for private in (socket.gethostname(), getpass.getuser(), str(tmp_path), sys.prefix, "GPU-0000", "00000000:"):
        assert private not in text
    assert "Everything is as it should be" in (tmp_path / "proof.html").read_text(encoding="utf-8")
    proof = json.loads(text)
    assert [gpu["name"] for gpu in proof["machine"]["gpus"]] == ["Tesla V100-SXM2-16GB"] * count
    assert [trial["trial"] for trial in proof["trials"]] == [
        "copies", "arithmetic", "stores", "bits", "counts", "speeds",
    ]  # fmt: skip
