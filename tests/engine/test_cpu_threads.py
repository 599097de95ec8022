"""Threads of CPU devices: several devices never hang, and no team is too large for its worker."""

import json
import os
from itertools import permutations

import mxnet as mx
import pytest
from support.processes import read_spin_counts
from support.workers import digest_gradients, openmp_team_size, run_convolutions

from gluonlab.engine import openmp_settings
from gluonlab.engine.cpu_threads import set_threads, threads_per_device
from gluonlab.errors import ConfigError, GluonlabWarning
from gluonlab.host import resources

pytestmark = pytest.mark.cpu_only("teams of threads, which GPUs have none of")
LONG = pytest.mark.long
ONE, TWO, THREE = ([mx.cpu(i) for i in range(n)] for n in (1, 2, 3))


@pytest.mark.parametrize(
    ("variables", "devices", "asked", "threads"),
    [
        ({}, 1, None, resources.available_cores()),
        ({"OMP_NUM_THREADS": "3", "LOCAL_WORLD_SIZE": "64"}, 1, None, 3),
        ({"OMP_NUM_THREADS": "3", "LOCAL_WORLD_SIZE": "64"}, 1, 5, 5),
        ({"MXNET_OMP_MAX_THREADS": "3"}, 1, None, 3),
        ({"OMP_NUM_THREADS": "8"}, 2, None, 1),
        ({}, 7, None, 1),
        ({}, 2, 1, 1),
    ],
)
def test_one_device_takes_all_cores_or_the_requested_threads_and_several_devices_one_thread_each(
    monkeypatch, variables, devices, asked, threads
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert threads_per_device(devices, asked) == threads


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MXNET_OMP_MAX_THREADS"])
def test_several_devices_ignore_more_than_one_thread_with_one_warning(monkeypatch, name):
    monkeypatch.setenv(name, "8")
    set_threads(ONE, 2)
    with pytest.warns(GluonlabWarning, match=f"{name}=8 would hang 2 CPU devices, so each uses 1 thread"):
        assert set_threads(TWO) == 1
    assert set_threads(TWO) == 1  # a warning would be an error here
    monkeypatch.setenv(name, "1")
    set_threads(ONE, 2)
    assert set_threads(TWO) == 1


def test_more_threads_for_several_cpu_devices_are_refused_and_gpus_need_none():
    with pytest.raises(ConfigError, match="--threads 2 with 3 CPU devices would hang"):
        threads_per_device(3, requested=2)
    assert set_threads([mx.gpu(0), mx.gpu(1)]) == 1


def test_workers_have_the_threads_that_were_set(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    cases = [(ONE, None, 2), (TWO, 1, 1), (ONE, 3, 3), (THREE, 1, 1), (THREE[2:], None, 2), (ONE, 1, 1)]
    for ctxs, threads, expected in cases:
        assert set_threads(ctxs, threads) == expected
        assert [openmp_team_size(ctx) for ctx in ctxs] == [expected] * len(ctxs)
    set_threads(THREE, 1)


def test_work_that_was_queued_is_not_lost_when_teams_grow():
    set_threads(ONE, 1)
    total = mx.nd.zeros((1000,), ctx=ONE[0])
    for _ in range(200):
        total += 1
    set_threads(ONE, 2)
    assert total.asnumpy().tolist() == [200.0] * 1000


EVERY = [(1, 1), (1, 2), (2, 1), (4, 1), (1, 3)]  # devices, threads


ALL_PAIRS = [case for pair in permutations(EVERY, 2) for case in pair]


@pytest.mark.parametrize("order", [[(1, 2), (1, 1), (1, 2)], pytest.param(ALL_PAIRS, marks=LONG)], ids=["three", "all"])
def test_bits_do_not_depend_on_earlier_teams(order):
    for n, threads in order:
        set_threads([mx.cpu(i) for i in range(n)], threads)
        after_others = [digest_gradients(mx.cpu(i)) for i in range(n)]
        os.fork() or os._exit(0)  # MXNet starts new workers
        os.wait()
        assert [digest_gradients(mx.cpu(i)) for i in range(n)] == after_others
    set_threads(ONE, 1)


def test_workers_stay_while_their_teams_do(monkeypatch):
    set_threads(TWO, 1)
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("the workers were replaced"))
    assert set_threads(TWO) == set_threads(ONE, 1) == set_threads(THREE[1:]) == 1


# --- in child processes, which could hang or crash


def read_output(process):
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


@pytest.mark.parametrize("exported_threads", ["2", pytest.param("8", marks=LONG)])
def test_two_devices_train_with_any_exported_thread_count(python, tmp_path, exported_threads):
    command = ("-m", "gluonlab.run", "--gpus", "2", "--epochs", "1", "--quiet")
    result = python(*command, OMP_NUM_THREADS=exported_threads)
    assert result.returncode == 0, result.stderr
    [line] = [line for line in result.stderr.splitlines() if "OMP_NUM_THREADS" in line]
    assert line.endswith(f"={exported_threads} would hang 2 CPU devices, so each uses 1 thread")


def test_two_devices_compute_if_mxnet_was_imported_first(python):
    code = """
import json, sys, warnings
import gluonlab.engine.mxnet_and_cuda_libraries, gluonlab.engine.mxnet_setup
# otherwise MXNet cannot be imported first at all, with a newer numpy, or its CUDA build
gluonlab.engine.mxnet_setup.remove_setup_hook()
gluonlab.engine.mxnet_and_cuda_libraries.load_cuda_libraries()
for name in [name for name in sys.modules if name.startswith("gluonlab")]:
    del sys.modules[name]
import mxnet, gluonlab.devices
from support import workers
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    ctxs = gluonlab.devices.devices("cpu*2")
print(json.dumps([workers.compute(ctxs), [str(warning.message) for warning in caught]]))
"""
    values, messages = read_output(python("-c", code, OMP_NUM_THREADS="4"))
    assert values == [256.0, 256.0]
    for text in ("import gluonlab first", "OMP_NUM_THREADS=4"):
        assert any(text in message for message in messages)


@pytest.mark.long
def test_a_team_that_grows_does_not_run_operators_compiled_for_a_smaller_one(python):
    # oneDNN's operators would write beyond their scratch memory, a segmentation fault.
    code = """
import json, gluonlab.engine.cpu_threads, mxnet as mx
from support import workers
one, two, results = [mx.cpu(0)], [mx.cpu(0), mx.cpu(1)], []
for ctxs, threads in [(two, 1), (one, 2), (two, 1), (one, 4), (one, 8), (two, 1)]:
    gluonlab.engine.cpu_threads.set_threads(ctxs, threads)
    results += [[workers.run_convolutions(ctx, images) for images in (1, 8, 64)] for ctx in ctxs]
print(json.dumps(results))
"""
    first, *others = read_output(python("-c", code))
    assert others == [first] * 8


@pytest.mark.parametrize(
    "exported",
    [
        {"OMP_DYNAMIC": "true", "OMP_THREAD_LIMIT": "1"},
        pytest.param({"OMP_MAX_ACTIVE_LEVELS": "0"}, marks=LONG),
        pytest.param({"OMP_PROC_BIND": "true"}, marks=LONG),
    ],
    ids=str,
)
def test_a_team_is_never_smaller_than_onednn_assumes(python, exported):
    # oneDNN divides its sums over the threads that it assumes: some sums would be missing.
    code = """
import json, os, warnings
warnings.simplefilter("ignore")
import gluonlab.engine.cpu_threads, mxnet as mx
from support import workers
gluonlab.engine.cpu_threads.set_threads([mx.cpu(0)], 4)
sums = [workers.run_convolutions(mx.cpu(0), images) for images in (8, 64)]
print(json.dumps([*sums, len(os.sched_getaffinity(0))]))
"""
    set_threads(ONE, 1)
    expected = [list(run_convolutions(ONE[0], images)) for images in (8, 64)]
    assert read_output(python("-c", code, **exported)) == [*expected, len(os.sched_getaffinity(0))]


TORCH_FIRST = """
import json, torch, warnings
before = torch.get_num_threads()
import gluonlab, mxnet as mx
from support import workers
from gluonlab.devices import devices
plain = [workers.openmp_team_size(mx.cpu(i)) for i in range(2)]
values = workers.compute([mx.cpu(0), mx.cpu(1)])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    devices("cpu", threads=2)
    devices("cpu", threads=2)
messages = [str(warning.message) for warning in caught]
print(json.dumps([plain, values, before == torch.get_num_threads(), messages]))
"""


@pytest.mark.torch
@pytest.mark.parametrize("exported", [{}, {"OMP_NUM_THREADS": "4"}, {"GOMP_SPINCOUNT": "0"}], ids=str)
def test_plain_contexts_compute_if_torch_has_loaded_openmp_first(python, exported):
    # MXNet then shares torch's libgomp, which has read its variables before gluonlab could set them.
    sizes, values, torch_is_unchanged, messages = read_output(python("-c", TORCH_FIRST, **exported))
    assert (sizes, values, torch_is_unchanged) == ([1, 1], [256.0, 256.0], True)
    assert len(messages) == ("GOMP_SPINCOUNT" not in exported)
    assert all(message.startswith("mxnet or torch loaded OpenMP") for message in messages)


PLAIN_CONTEXTS = """
import json, os, subprocess, sys, warnings, gluonlab, mxnet as mx
from gluonlab.devices import devices
from support import workers

arrays = [mx.nd.ones((512, 512), ctx=mx.cpu(i)) for i in range(2)]
def compute():
    for _ in range(30):
        products = [mx.nd.dot(array, array) for array in arrays]
    return [float(product[0, 0].asscalar()) for product in products]

values = [compute()]
devices("cpu:0"), devices("cpu:1")
values.append(compute())
devices("cpu")
os.fork() or os._exit(0)
values.append(compute())

warnings.simplefilter("ignore")
ctxs = devices("cpu*2")
os.fork() or os._exit(0)
os.wait()
sizes = [workers.openmp_team_size(ctx) for ctx in ctxs]
subprocess.run([sys.executable, "-c", ""])
print(json.dumps([values, sizes, [workers.openmp_team_size(ctx) for ctx in ctxs], workers.compute(ctxs)]))
"""


@pytest.mark.parametrize("exported", [pytest.param({}, marks=LONG), {"OMP_NUM_THREADS": "4"}], ids=str)
def test_plain_contexts_compute_after_any_calls_of_devices_and_forks(python, exported):
    # Large products run in OpenBLAS, where two teams of several threads wait for each other forever.
    process = python("-c", PLAIN_CONTEXTS, OMP_DISPLAY_ENV="verbose", **exported)
    assert read_output(process) == [[[512.0, 512.0]] * 3, [1, 1], [1, 1], [256.0, 256.0]]
    assert set(read_spin_counts(process.stderr)) == {openmp_settings.SPIN_COUNT}
