"""Threads: several CPU devices never hang, whatever the environment says, and a team is never too
large for its worker.
"""

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


@pytest.fixture
def exported(monkeypatch):
    """Sets OMP_NUM_THREADS as gluonlab reads it; MXNet has been loaded without it."""
    return lambda value: monkeypatch.setenv("OMP_NUM_THREADS", value)


@pytest.mark.parametrize(
    ("variables", "devices", "asked", "threads"),
    [
        ({}, 1, None, resources.available_cores()),
        ({"OMP_NUM_THREADS": "3"}, 1, None, 3),
        ({"OMP_NUM_THREADS": "3"}, 1, 5, 5),
        ({"MXNET_OMP_MAX_THREADS": "3"}, 1, None, 3),
        ({"OMP_NUM_THREADS": "8"}, 2, None, 1),
        ({}, 7, None, 1),
        ({}, 2, 1, 1),
    ],
)
def test_one_device_takes_all_cores_or_what_is_asked_for_and_several_one_thread_each(
    monkeypatch, variables, devices, asked, threads
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert threads_per_device(devices, asked) == threads


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MXNET_OMP_MAX_THREADS"])
def test_several_devices_put_a_larger_number_aside_with_one_warning(monkeypatch, name):
    monkeypatch.setenv(name, "8")
    set_threads(ONE, 2)
    said = f"{name}=8 would hang 2 CPU devices: each computes with 1 thread"
    with pytest.warns(GluonlabWarning, match=said):
        assert set_threads(TWO) == 1
    assert set_threads(TWO) == 1  # a warning would be an error here


def test_one_exported_thread_is_no_reason_to_warn(exported):
    exported("1")
    set_threads(ONE, 2)
    assert set_threads(TWO) == threads_per_device(2) == 1


def test_more_threads_for_several_devices_are_refused():
    with pytest.raises(ConfigError, match="--threads 2 with 3 CPU devices would hang"):
        threads_per_device(3, requested=2)


def test_gpus_need_no_threads():
    assert set_threads([mx.gpu(0), mx.gpu(1)]) == 1


def test_workers_have_the_threads_that_were_set(exported):
    """From one device to several and back, larger and smaller; asked of the workers themselves."""
    exported("2")
    for ctxs, threads, expected in [
        (ONE, None, 2),
        (TWO, 1, 1),
        (ONE, 3, 3),
        (THREE, 1, 1),
        (THREE[2:], None, 2),
        (ONE, 1, 1),
    ]:
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


@pytest.mark.parametrize(
    "order",
    [[(1, 2), (1, 1), (1, 2)], pytest.param([each for pair in permutations(EVERY, 2) for each in pair], marks=LONG)],
    ids=["three", "all"],
)
def test_bits_do_not_depend_on_the_teams_that_were_before(order):
    """They are those of workers that MXNet has just started, which have computed nothing yet."""
    for n, threads in order:
        set_threads([mx.cpu(i) for i in range(n)], threads)
        after_others = [digest_gradients(mx.cpu(i)) for i in range(n)]
        if os.fork() == 0:
            os._exit(0)
        os.wait()
        assert [digest_gradients(mx.cpu(i)) for i in range(n)] == after_others
    set_threads(ONE, 1)


def test_workers_stay_while_their_teams_do(monkeypatch):
    """A program of a few lines asks for its devices often; new workers would compile anew."""
    set_threads(TWO, 1)
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("the workers were replaced"))
    assert set_threads(TWO) == set_threads(ONE, 1) == set_threads(THREE[1:]) == 1


# --- what would hang, or crash, in processes of their own


def finished(result):
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


EXPORTED = pytest.mark.parametrize(
    "environment",
    [pytest.param({}, marks=pytest.mark.long), {"OMP_NUM_THREADS": "4"}],
    ids=["nothing exported", "4 exported"],
)


@pytest.mark.parametrize("exported_threads", ["2", pytest.param("8", marks=pytest.mark.long)])
def test_two_devices_train_whatever_is_exported(python, tmp_path, exported_threads):
    words = ("-m", "gluonlab.run", "--gpus", "2", "--epochs", "1", "--quiet")
    result = python(*words, OMP_NUM_THREADS=exported_threads)
    assert result.returncode == 0, result.stderr
    said = [line for line in result.stderr.splitlines() if "OMP_NUM_THREADS" in line]
    named = f"warning: OMP_NUM_THREADS={exported_threads} would hang 2 CPU devices"
    assert said == [f"{named}: each computes with 1 thread"]


def test_two_devices_compute_when_mxnet_was_imported_first(python):
    code = (
        "import json, sys, warnings\n"
        "import gluonlab.engine.mxnet_installation, gluonlab.engine.mxnet_setup\n"
        # or MXNet cannot be imported first at all, with a newer numpy, or its CUDA build
        "gluonlab.engine.mxnet_setup.remove_setup_hook()\n"
        "gluonlab.engine.mxnet_installation.load_cuda_libraries()\n"
        "for name in [name for name in sys.modules if name.startswith('gluonlab')]:\n"
        "    del sys.modules[name]\n"
        "import mxnet, gluonlab.devices; from support import workers\n"
        "with warnings.catch_warnings(record=True) as said:\n"
        "    warnings.simplefilter('always')\n"
        "    ctxs = gluonlab.devices.devices('cpu*2')\n"
        "print(json.dumps([workers.compute(ctxs), [str(warning.message) for warning in said]]))"
    )
    values, said = finished(python("-c", code, OMP_NUM_THREADS="4"))
    assert values == [256.0, 256.0]
    assert any("import gluonlab first" in warning for warning in said)
    assert any("OMP_NUM_THREADS=4" in warning for warning in said)


AFTER_A_FORK = """
import json, os, subprocess, sys, warnings, gluonlab.devices
from support import workers
warnings.simplefilter("ignore")
ctxs = gluonlab.devices.devices("cpu*2")
os.fork() or os._exit(0)
os.wait()
sizes = [workers.openmp_team_size(ctx) for ctx in ctxs]
subprocess.run([sys.executable, "-c", ""])
print(json.dumps([sizes, [workers.openmp_team_size(ctx) for ctx in ctxs], workers.compute(ctxs)]))
"""


@pytest.mark.long
def test_a_team_that_grows_does_not_run_what_was_compiled_for_a_smaller_one(python):
    """oneDNN's operators would write beyond their scratch memory: the process would end in a
    segmentation fault.
    """
    code = (
        "import json, gluonlab.engine.cpu_threads, mxnet as mx; from support import workers\n"
        "one, two = [mx.cpu(0)], [mx.cpu(0), mx.cpu(1)]\nresults = []\n"
        "for ctxs, threads in [(two, 1), (one, 2), (two, 1), (one, 4), (one, 8), (two, 1)]:\n"
        "    gluonlab.engine.cpu_threads.set_threads(ctxs, threads)\n"
        "    results += [[workers.run_convolutions(ctx, images) for images in (1, 8, "
        "64)] for ctx in ctxs]\nprint(json.dumps(results))"
    )
    first, *others = finished(python("-c", code))
    assert len(others) == 8
    assert others == [first] * 8


@pytest.mark.parametrize(
    "exported",
    [
        {"OMP_DYNAMIC": "true", "OMP_THREAD_LIMIT": "1"},
        pytest.param({"OMP_MAX_ACTIVE_LEVELS": "0"}, marks=pytest.mark.long),
        pytest.param({"OMP_PROC_BIND": "true"}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_a_team_is_never_smaller_than_onednn_was_told(python, exported):
    """It shares its sums out over as many threads as the team is said to have; those of the others
    would be missing, or noise.
    """
    code = (
        "import json, os, warnings; warnings.simplefilter('ignore')\n"
        "import gluonlab.engine.cpu_threads, mxnet as mx; from support import workers\n"
        "gluonlab.engine.cpu_threads.set_threads([mx.cpu(0)], 4)\n"
        "print(json.dumps([workers.run_convolutions(mx.cpu(0), images) for images in (8, "
        "64)] + [len(os.sched_getaffinity(0))]))"
    )
    set_threads(ONE, 1)
    alone = [list(run_convolutions(ONE[0], images)) for images in (8, 64)]
    assert finished(python("-c", code, **exported)) == [*alone, len(os.sched_getaffinity(0))]


TORCH_FIRST = (
    "import json, torch, warnings; before = torch.get_num_threads()\n"
    "import gluonlab, mxnet as mx\nfrom support import workers\n"
    "from gluonlab.devices import devices\n"
    "plain = [workers.openmp_team_size(mx.cpu(i)) for i in range(2)]\n"
    "values = workers.compute([mx.cpu(0), mx.cpu(1)])\n"
    "with warnings.catch_warnings(record=True) as said:\n"
    "    warnings.simplefilter('always'); devices('cpu', threads=2); devices('cpu', threads=2)\n"
    "print(json.dumps([plain, values, before == torch.get_num_threads(), [str(warning.message) "
    "for warning in said]]))"
)


@pytest.mark.torch
@pytest.mark.parametrize("exported", [{}, {"OMP_NUM_THREADS": "4"}, {"GOMP_SPINCOUNT": "0"}], ids=str)
def test_plain_contexts_compute_when_torch_has_brought_openmp_first(python, exported):
    """torch's libgomp is then MXNet's, too, and has read its variables before gluonlab could set
    them.
    """
    plain, values, torchs_own, said = finished(python("-c", TORCH_FIRST, **exported))
    assert (plain, values, torchs_own) == ([1, 1], [256.0, 256.0], True)
    assert [message.startswith("mxnet or torch loaded OpenMP") for message in said] == [True] * (
        "GOMP_SPINCOUNT" not in exported
    )


PREPARE = ("", "devices('cpu:0'); devices('cpu:1')", "devices('cpu'); os.fork() or os._exit(0)")


@EXPORTED
def test_plain_contexts_compute_whatever_was_asked_for_before(python, environment):
    """Large products run in OpenBLAS, where two teams wait for each other for ever: of teams of 4
    the first few products did.
    """
    code = (
        "import json, os, gluonlab, mxnet as mx\n"
        "from gluonlab.devices import devices\n"
        "arrays = [mx.nd.ones((512, 512), ctx=mx.cpu(i)) for i in range(2)]\n"
        "def computed():\n"
        "    for _ in range(30): products = [mx.nd.dot(array, array) for array in arrays]\n"
        "    return [float(product[0, 0].asscalar()) for product in products]\n"
        "found = []\n"
    )
    code += "".join(f"{each}\nfound.append(computed())\n" for each in PREPARE)
    code += f"print(json.dumps(found))\n{AFTER_A_FORK}"
    answers = python("-c", code, OMP_DISPLAY_ENV="verbose", **environment)
    assert answers.returncode == 0, answers.stderr
    assert set(read_spin_counts(answers.stderr)) == {openmp_settings.SPIN_COUNT}
    found, after_a_fork = map(json.loads, answers.stdout.splitlines())
    assert found == [[512.0, 512.0]] * len(PREPARE)
    assert after_a_fork == [[1, 1], [1, 1], [256.0, 256.0]]
