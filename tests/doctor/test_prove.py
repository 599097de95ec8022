"""doctor --gpu-self-test without GPUs: its trials on CPU devices, how they judge, and the page.

On simulated GPUs: gpus/test_prove.py.
"""

import json
from pathlib import Path

import pytest
from support.fake_nvml import CUBE, V100, fake_driver

from gluonlab.collectives.algorithms import make_schedule
from gluonlab.collectives.cost_model import traffic
from gluonlab.doctor import prove
from gluonlab.doctor.__main__ import main
from gluonlab.doctor.findings import fault, ok
from gluonlab.doctor.prove import describe_machine, trial_verdicts
from gluonlab.doctor.trials import bus_bytes, first_error_line
from gluonlab.gpu.isolated_process import ProcessOutcome, run_isolated


def judge(trial, *answers, failure=""):
    """Return (status, what) of each verdict on a trial whose process sent ``answers``."""
    verdicts = trial_verdicts(trial, ProcessOutcome(list(answers), failure, ""))
    return [(verdict.status, verdict.what) for verdict in verdicts]


def copy_result(source, target, wrong=0):
    return {"source": source, "target": target, "wrong": wrong, "gb_per_s": 12.5}


GOOD_ANSWERS = {
    "copies": [copy_result("gpu(0)", "gpu(1)"), copy_result("gpu(1)", "gpu(0)")],
    "arithmetic": [{"device": "gpu(0)", "operation": "softmax", "difference": 1e-7, "alike": True}],
    "stores": [
        {"store": "ring", "wrong": 0, "unlike": 0, "differs": 1e-7}, {"store": "sharded-optimizer", "differs": 0.0}
    ],
    "bits": [{"how": "--deterministic", "alike": True}, {"how": "without --deterministic", "alike": False}],
    "counts": [{"store": "ring", "queued": 143.0, "copies": 44.0}],
    "speeds": [{"network": "lenet", "devices": 1, "images_per_device": 8, "images_per_s": 1000.0}],
}  # fmt: skip


@pytest.mark.parametrize("trial", prove.TRIALS)
def test_a_trial_has_one_verdict_or_a_fault_that_names_what_it_tried(trial):
    assert [status for status, _ in judge(trial, *GOOD_ANSWERS[trial])] == ["ok"]
    tried = [{"trying": "the first"}, {"trying": "the second"}]
    failure = "was still running after 9 s"
    assert judge(trial, *tried, failure=failure) == [("fault", f"the second: {failure}")]
    assert judge(trial, tried[0], {"error": "out of memory"}) == [("fault", "the first: out of memory")]


@pytest.mark.parametrize(
    ("trial", "answer", "message"),
    [
        ("copies", {"device": "gpu(3)", "lost": 5}, "gpu(3) does not keep what is written to it"),
        ("copies", copy_result("gpu(0)", "gpu(1)", wrong=7),
         "copies from gpu(0) to gpu(1) are wrong: 7 of 1,048,576 numbers differ"),
        ("arithmetic", {"device": "gpu(1)", "operation": "softmax", "difference": float("nan"), "alike": False},
         "gpu(1) computes softmax wrongly"),
        ("stores", {"store": "ring", "wrong": 3, "unlike": 0, "differs": 0.0}, "kvstore ring sums wrongly: 3 elements"),
        ("stores", {"store": "ring", "wrong": 0, "unlike": 1, "differs": 0.0}, "kvstore ring gives different bits"),
        ("stores", {"store": "tree", "wrong": 0, "unlike": 0, "differs": float("nan")},
         "kvstore tree trains differently"),
        ("stores", {"store": "nccl", "refused": "no NCCL"}, "kvstore nccl fails: no NCCL"),
        ("bits", {"how": "--deterministic", "alike": False}, "end with different bits"),
    ],
)  # fmt: skip
def test_a_wrong_result_is_a_fault_that_names_it(trial, answer, message):
    [(status, what)] = judge(trial, answer)
    assert status == "fault" and message in what


LONG = [pytest.param(name, marks=pytest.mark.long) for name in ("copies", "counts", "speeds")]


@pytest.mark.cpu_only("GPUs' are in tests/gpus/test_prove.py")
@pytest.mark.parametrize("name", ["arithmetic", *LONG])
def test_trials_find_cpu_devices_as_they_should_be(name):
    outcome = run_isolated("gluonlab.doctor.trials", name, "cpu*2", timeout_s=300)
    assert {verdict.status for verdict in trial_verdicts(name, outcome)} == {"ok"}
    assert prove.trial_numbers(name, outcome)


@pytest.mark.parametrize(
    ("unlike", "bits"),
    [
        ([], "the same bits on all GPUs"),
        (["softmax"], "bits that differ between GPUs or from run to run: softmax"),
        (["softmax", "pooling"], "bits that differ between GPUs or from run to run: pooling, softmax"),
    ],
)
def test_operations_whose_bits_differ_are_named_and_the_largest_difference(unlike, bits):
    answers = [
        {"device": gpu, "operation": each, "difference": difference, "alike": each not in unlike}
        for gpu, difference in (("gpu(0)", 1e-7), ("gpu(1)", 3e-7))
        for each in ("pooling", "softmax")
    ]
    [(status, what)] = judge("arithmetic", *answers)
    assert status == "ok" and what.endswith(f"differ from the CPU's by 3.0e-07 at most; {bits}")


@pytest.mark.parametrize("name", ["ring", "sharded"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_the_bandwidth_of_a_sum_is_that_of_the_bytes_that_each_device_sends(name, world_size):
    size = 5040  # which can be cut into as many equal chunks
    sent = {each.sent for each in traffic(make_schedule(name, world_size), size)}
    assert sent == {bus_bytes(size, world_size)}


def test_all_trials_end_within_their_time_and_those_that_had_none_say_so(monkeypatch):
    now = [0.0]

    def run_until_timeout(module, name, devices, timeout_s):
        now[0] += timeout_s
        return ProcessOutcome([{"trying": "something"}], "was still running", "")

    monkeypatch.setattr(prove, "run_isolated", run_until_timeout)
    monkeypatch.setattr(prove.time, "monotonic", lambda: now[0])
    results = prove.run_trials("gpu:*", lambda result: None)
    assert now[0] <= prove.TIME_LIMIT_S
    assert [result.name for result in results] == list(prove.TRIALS)
    assert "there was no time left" in results[-1].verdicts[0].what


def test_a_reason_names_no_folder_of_the_machine():
    error = RuntimeError("Check failed: /home/ann/private/thing.so is bad\nand a trace")
    assert first_error_line(error) == "RuntimeError: Check failed: thing.so is bad"


def machine():
    return describe_machine(fake_driver(*[V100] * 8, nvlinks=CUBE, processes={0: [(77, "/home/ann/python", 5)]}))


def test_a_machine_is_described_by_its_kind_and_not_its_owner():
    description = json.dumps(machine())
    assert "Tesla V100-SXM2-16GB" in description and "[0, 3, 2]" in description
    assert not any(private in description for private in ("GPU-", "00000000:", "ann", str(Path.home()), "77"))


def test_the_page_shows_every_verdict_and_number_and_asks_for_no_other_file():
    copies = [copy_result("gpu(0)", "gpu(1)"), copy_result("gpu(1)", "gpu(0)", wrong=9)]
    numbers = [*copies, {"store": "<ring>", "gb_per_s": 1234.5}]
    results = [
        prove.TrialResult("copies", 1.25, [fault("copies", "they <change>", "", "")], numbers),
        prove.TrialResult("bits", 2.0, [ok("bits", "fine")], []),
    ]
    html = prove.render_page(prove.proof_to_dict(machine(), results))
    shown = ["1 fault found", "they &lt;change&gt;", "fine", "12.5", "9 wrong", "&lt;ring&gt;", "1,234", "Tesla V100"]
    assert [text for text in [*shown, "0-3: 2"] if text not in html] == []
    assert "http" not in html.replace('http-equiv="Content-Security-Policy"', "") and "<script" not in html


@pytest.mark.cpu_only("a machine without GPUs")
def test_without_gpus_prove_says_so_before_it_begins(ended, empty_cwd):
    code, out, err = ended(main, "--gpu-self-test")
    assert (code, out, list(empty_cwd.iterdir())) == (2, "", [])
    assert err.startswith("error: --gpu-self-test tests GPUs, and this machine shows none (")


def test_prove_writes_over_nothing_and_out_alone_says_nothing(ended, empty_cwd):
    (empty_cwd / "gpu-report.html").write_text("mine")
    code, _, err = ended(main, "--gpu-self-test")
    assert code == 2 and "gpu-report.html" in err
    code, _, err = ended(main, "--out-file", "x")
    assert (code, err) == (
        2,
        "error: --out-file names the report of --gpu-self-test: add --gpu-self-test, or leave --out-file out\n",
    )
