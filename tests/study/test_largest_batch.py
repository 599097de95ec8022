"""gluonlab find-batch-size: a run with the batch stays below the budget and uses most of it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.devices import device_spec
from support.process_memory import measure_run_peak
from support.processes import clean_environment
from support.waiting import wait_until

from gluonlab.cli.run_commands import COMMANDS
from gluonlab.config import TrainConfig
from gluonlab.errors import ConfigError
from gluonlab.host.resources import AvailableMemory, child_pids
from gluonlab.parallel.memory_estimate import MIB
from gluonlab.parallel.strategy import SPLIT_MODES
from gluonlab.study import largest_batch
from gluonlab.study.largest_batch import MAX_TRIES, LargestSizeSearch, find_batch_size
from gluonlab.training.plan import make_plan
from gluonlab.training.run_memory import MemoryEstimator
from gluonlab.training.training_setup import prepare

GIB = 1024 * MIB


@example(ceiling=1_777_986_462, each=5_970_468, known=0.5, step=64, jump=0, smallest=1, most=373)
@given(
    ceiling=st.integers(300 * MIB, 4 * GIB),
    each=st.integers(5_000, 40 * MIB),
    known=st.floats(0.2, 1.0),
    step=st.sampled_from([1, 8, 64]),
    jump=st.integers(0, 100 * MIB),
    smallest=st.sampled_from([1, 4, 100]),
    most=st.integers(100, 10**6),
)
def test_the_search_finds_the_largest_of_any_cost_that_grows(ceiling, each, known, step, jump, smallest, most):
    """The cost is rounded up to ``step`` sizes, and ``jump`` more from 100 on."""

    def true_cost(size):
        return 260 * MIB + each * (-(-size // step) * step) + jump * (size >= 100)

    def measure_cost(size):
        assert smallest <= size <= most
        sizes.append(size)
        return true_cost(size) if true_cost(size) <= ceiling else None

    sizes = []
    result = LargestSizeSearch(measure_cost, smallest, most, ceiling, each * known).search()
    if result is None:
        assert true_cost(smallest) > ceiling
        return
    size, cost = result
    assert cost == true_cost(size) <= ceiling
    tolerance = 1.02 if len(sizes) < MAX_TRIES else 1.1  # the last try may be before the tolerance
    assert size == most or cost >= 0.93 * ceiling or true_cost(round(tolerance * size) + 1) > ceiling
    assert len(sizes) == len(set(sizes)) <= MAX_TRIES


def test_a_batch_limited_by_the_data_is_reported_with_what_would_fit(ended, empty_cwd):
    arguments = ("1G", "--devices", device_spec(2), "--model", "mlp")
    status, out, err = ended(COMMANDS["find-batch-size"].main, *arguments)
    assert (status, list(empty_cwd.iterdir())) == (0, [])
    first, second, *_ = out.splitlines()
    assert re.fullmatch(r"--batch-size 718 fits: training uses [0-9.]+ MiB of 1,024.0 MiB", first)
    would_fit = ".* the data set has only 718 images per device; about ([0-9,]+) images would fit into memory"
    assert int(re.fullmatch(would_fit, second)[1].replace(",", "")) > 718
    assert re.fullmatch(r"a batch of 718 per device uses [0-9.]+ MiB\n", err)
    status, out, err = ended(COMMANDS["find-batch-size"].main, *arguments, "--json")
    found = json.loads(out)
    assert (status, err, found["images"], found["limit"]) == (0, "", 718, "data")
    assert found["budget"] == GIB and found["would_fit"] > 718
    parts = ("parameters", "gradients", "optimizer_state", "activations", "data")
    assert sum(found[part] for part in parts) == found["total"] < found["taken"] < GIB


@pytest.mark.cpu_only("it is the process that is measured")
def test_under_a_split_sizes_are_those_of_a_copy_of_the_network_with_its_usual_microbatches():
    settings = {"devices": device_spec(2), "model": "mlp", "strategy": "pipeline", "cut": "1"}
    messages = []
    found = find_batch_size(TrainConfig(**settings), GIB, messages.append)
    assert (found.images, found.limit) == (1437, "data")
    assert re.fullmatch(r"a batch of 1,437 per replica of the model uses .* MiB", messages[-1])
    message = "the data set has only 1,437 images per replica of the model"
    assert any(message in line for line in found.summary_lines())
    plan = make_plan(TrainConfig(**settings, batch_size=1437))
    assert plan.microbatches.count == 8
    strategy = prepare(plan).strategy
    assert found.rows == MemoryEstimator(plan, strategy.net, strategy.estimate_memory).rows(1437)
    assert [name for name, _ in found.rows] == list(map(str, plan.ctxs))
    assert found.to_dict()["devices"][str(plan.ctxs[0])]["total"] == found.rows[0][1].total


@pytest.mark.cpu_only("a GPU's memory holds neither Python nor MXNet")
@pytest.mark.parametrize("budget", ["1k", "100M"])
def test_less_than_python_and_mxnet_take_fits_nothing(ended, empty_cwd, budget):
    status, out, err = ended(COMMANDS["find-batch-size"].main, budget, "--devices", device_spec(2))
    assert (status, out) == (2, "")
    message = "a batch of 1 per device needs more than the 128.0 MiB that Python and "
    assert re.fullmatch(rf"error: .* is too little memory, because {message}.*\n", err)


@pytest.mark.long
def test_a_budget_in_which_the_smallest_batch_does_not_fit_is_refused_with_what_it_needs():
    needs = r"a batch of 4 per device needs ([0-9.,]+) MiB: pass a larger memory size, or choose a smaller --model"
    config = TrainConfig(devices=device_spec(1), model="gluoncv:mobilenetv2_0.25", microbatches=4)
    with pytest.raises(ConfigError, match=needs):
        find_batch_size(config, 290 * MIB)


@pytest.mark.long
def test_the_machine_has_less_than_the_budget(monkeypatch):
    monkeypatch.setattr(largest_batch, "available_memory", lambda: AvailableMemory(8 * GIB, 600 * MIB, "the machine"))
    found = find_batch_size(TrainConfig(devices=device_spec(1), dataset="synthetic"), 100 * GIB)
    assert found.limit == "machine"
    assert 0.8 * 600 * MIB < found.taken < 600 * MIB
    assert found.summary_lines()[0].endswith("MiB, all that is free on this machine")


def find_measuring_child(pid):
    """Return the process that measures for ``pid``; others exit at once."""
    for child in child_pids(pid):
        with suppress(OSError):
            if b"trial_process" in Path(f"/proc/{child}/cmdline").read_bytes():
                return child
    return None


@pytest.mark.long
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_the_search_ends_no_child_is_left(tmp_path, sign):
    words = f"1G --devices {device_spec(1)} --dataset synthetic --model resnet50"
    process = subprocess.Popen(
        [sys.executable, "-m", "gluonlab.run", *words.split()], cwd=tmp_path,
        env=clean_environment(TMPDIR=str(tmp_path)), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
    )  # fmt: skip
    with process:
        try:
            while (child := find_measuring_child(process.pid)) is None:
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.05)
            time.sleep(1)
            process.send_signal(sign)
            _, err = process.communicate(timeout=240)
        finally:
            process.kill()
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}.get(sign, -sign)
    wait_until(lambda: not os.path.exists(f"/proc/{child}"))
    if sign != signal.SIGKILL:
        assert err.splitlines()[-1].endswith("nothing was written")
        assert list(tmp_path.iterdir()) == []


# MiB; the parameters of the larger ones, on two devices, leave no room for images in 600
BUDGETS = {
    "lenet": 600, "resnet8": 600, "cifar_resnet20": 600, "gluoncv:mobilenetv2_0.25": 600,
    "resnet18": 900, "resnet50": 1400,
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    ("network", "split"),
    [*((network, "data") for network in BUDGETS), *(("lenet", split) for split in SPLIT_MODES[1:])],
)
def test_a_run_with_the_batch_that_is_found_stays_below_the_budget_and_uses_most_of_it(python, network, split):
    """The table of docs/memory.md has 2G."""
    budget = BUDGETS[network]
    settings = ("--devices", device_spec(2), "--dataset", "synthetic", "--model", network)
    settings += ("--strategy", split)
    search = (f"{budget}M", "--json")
    done = python("-m", "gluonlab.run", *settings, *search, timeout=1800)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["limit"] == "budget"
    taken = measure_run_peak(python, *settings, "--batch-size", str(found["images"]), "--epochs", "1", "--lr", "1e-6")
    assert 0.7 * budget * MIB < taken < budget * MIB
    assert found["taken"] == pytest.approx(taken, rel=0.03)
