"""Device specifications: every valid form, and the messages about invalid ones."""

import re
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import gluonlab.devices
from gluonlab.devices import MAX_CPU_DEVICES, describe, devices, gpus
from gluonlab.engine.mxnet_and_cuda_libraries import cuda_build_advice
from gluonlab.errors import DeviceError, GluonlabWarning

BUILDS = [
    (True, "check the driver with nvidia-smi, and check the value of CUDA_VISIBLE_DEVICES"),
    (False, re.escape(f"this is MXNet's CPU build; {cuda_build_advice()}")),
]
pytestmark = pytest.mark.cpu_only("how many GPUs there are is made up here, and nothing is computed")
CPUS, GPUS = [mx.cpu(i) for i in range(8)], [mx.gpu(i) for i in range(16)]


@pytest.fixture
def gpus_here(monkeypatch):
    """Return ``gpus_here(n)``, which makes CUDA report n GPUs."""
    return lambda n: monkeypatch.setattr(gluonlab.devices, "gpu_count", lambda: n)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (2, GPUS[:2]), ("2", GPUS[:2]), (" 2 ", GPUS[:2]), ("gpu", GPUS[:1]), ("gpu:0", GPUS[:1]),
        ("gpu:3", GPUS[3:4]), ("gpu:0,2", [GPUS[0], GPUS[2]]), ("gpu:2,0", [GPUS[2], GPUS[0]]),
        ("gpu: 0 , 2", [GPUS[0], GPUS[2]]), ("gpu:0,gpu:2", [GPUS[0], GPUS[2]]),
        (["gpu:0", "gpu:2"], [GPUS[0], GPUS[2]]), (("gpu:0", mx.gpu(2)), [GPUS[0], GPUS[2]]),
        (mx.gpu(1), GPUS[1:2]), ("gpu:*", GPUS[:12]), ("gpu:[0-3]", GPUS[:4]), ("gpu:1[0-9]", GPUS[10:12]),
        (r"gpu:\d", GPUS[:10]), (r"gpu:\D*1", GPUS[1:2]), (None, GPUS[:1]), ("cpu", CPUS[:1]),
        ("cpu*4", CPUS[:4]), ("cpu * 4", CPUS[:4]), ("cpu:0,1", CPUS[:2]), ("cpu:1", CPUS[1:2]),
        ("cpu:[02468]", [CPUS[0]]), (mx.cpu(3), CPUS[3:4]), ("cpu(1)", CPUS[1:2]),
        (["GPU(2)", "gpu(0)"], [GPUS[2], GPUS[0]]), (np.int64(2), GPUS[:2]), ("cpu:0|cpu:1", CPUS[:2]),
        ("cpu:0|4", [CPUS[0], CPUS[4]]), ("gpu:2|gpu:0", [GPUS[2], GPUS[0]]),
        ("gpu:1|gpu:1[01]", [GPUS[1], GPUS[10], GPUS[11]]), ("gpu:.*", GPUS[:12]),
        (["gpu:[0-1]", "gpu:3"], [GPUS[0], GPUS[1], GPUS[3]]), (["cpu:3", "cpu*3"], [CPUS[3], *CPUS[:3]]),
        ("GPU:[0-1]|GPU:3", [GPUS[0], GPUS[1], GPUS[3]]), (["GPU:0", "GPU:1", "GPU:2"], GPUS[:3]),
        ("GPU:0", GPUS[:1]), ("Gpu:*", GPUS[:12]), ("CPU*2", CPUS[:2]), ("GPU:0,GPU:1", GPUS[:2]),
    ],
    ids=str,
)  # fmt: skip
def test_every_form_names_its_devices(gpus_here, monkeypatch, spec, expected):
    gpus_here(12)
    monkeypatch.setattr(gluonlab.devices, "cores", lambda: 2)
    assert devices(spec) == expected


@pytest.mark.parametrize(
    ("spec", "twice", "instead"),
    [
        (["cpu", "cpu"], "cpu(0) 2 times", "'cpu*2' or [mx.cpu(i) for i in range(2)]"),
        ([mx.cpu(), mx.cpu(0)], "cpu(0) 2 times", "'cpu*2' or [mx.cpu(i) for i in range(2)]"),
        ("cpu,cpu , CPU", "cpu(0) 3 times", "'cpu*3' or [mx.cpu(i) for i in range(3)]"),
        ("cpu:0,cpu:0", "cpu(0) 2 times", "'cpu*2'"),
        (["cpu:1", "cpu*2"], "cpu(1) 2 times", "'cpu*3'"),
        ("gpu:1,0,1", "gpu(1) 2 times", "'gpu:0,1,2' or [mx.gpu(i) for i in range(3)]"),
        (["gpu:1", "gpu:*"], "gpu(1) 2 times", "'gpu:0,1,2,"),
        ([mx.gpu(0), mx.gpu(0)], "gpu(0) 2 times", "'gpu:0,1' or [mx.gpu(i) for i in range(2)]"),
        ("gpu,gpu", "gpu(0) 2 times", "'gpu:0,1'"),
    ],
    ids=str,
)
def test_a_device_named_twice_is_refused_with_what_to_write(gpus_here, spec, twice, instead):
    gpus_here(12)
    with pytest.raises(DeviceError) as raised:
        devices(spec)
    assert f"contains {twice}: list each device only once, as in {instead}" in str(raised.value)


@pytest.mark.parametrize("spec", [2, "2"])
def test_without_gpus_cpu_devices_replace_them_with_a_warning_and_the_default_is_one_without(gpus_here, spec):
    gpus_here(0)
    assert devices(None) == devices() == CPUS[:1]
    with pytest.warns(GluonlabWarning, match="no GPU on this machine: 2 CPU devices are used instead"):
        assert devices(spec) == CPUS[:2]
    with pytest.raises(DeviceError, match=f"{MAX_CPU_DEVICES + 1} CPU devices: use 1 to {MAX_CPU_DEVICES}"):
        gpus(MAX_CPU_DEVICES + 1)


def test_more_gpus_than_there_are_is_an_error_and_they_are_never_emulated(gpus_here):
    gpus_here(2)
    assert gpus(1) == GPUS[:1] and gpus(2, emulate=False) == GPUS[:2]
    for ask in (lambda: gpus(3), lambda: gpus(3, emulate=False), lambda: devices(3), lambda: devices("3")):
        with pytest.raises(
            DeviceError, match="3 GPUs were requested, but this machine has only 2: use --gpus 2 or fewer"
        ):
            ask()


@pytest.fixture(params=BUILDS, ids=["CUDA build", "CPU build"])
def missing_gpu_pattern(request, monkeypatch):
    """Return the pattern of the message about missing GPUs for each build of MXNet."""
    with_cuda, words = request.param
    features = SimpleNamespace(is_enabled={"CUDA": with_cuda}.__getitem__)
    monkeypatch.setattr(mx.runtime, "Features", lambda: features)
    return words


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gpu:4", "'gpu:4': there is no gpu:4; this machine has gpu:0 to gpu:3"),
        ("gpu:0,9", "there is no gpu:9"),
        (mx.gpu(4), "there is no gpu:4"),
        ("gpu:[5-9]", "'gpu:[5-9]' matches no device; this machine has gpu:0 to gpu:3"),
        ("gpu:-1", "matches no device"),
        ("gpu:[", "'gpu:[' contains neither device numbers nor a valid regular expression"),
        ("cpu:x", "'cpu:x' matches no device; use cpu*N"),
        ("cpu:", "'cpu:' is not a device: use"),
        ("gpu:", "'gpu:' is not a device: use"),
        ("", "'' is not a device: use"),
        ("tpu:0", "'tpu:0' is not a device: use"),
        ("cpu0", "'cpu0' is not a device: use"),
        ("cpu*", "'cpu*' is not a device: use"),
        ("cpu*-1", "'cpu*-1' is not a device: use"),
        ("cpu*1.5", "'cpu*1.5' is not a device: use"),
        (["gpu:0", 1], "1 is not a device: use"),
        ([0, 1], "0 is not a device: use 'gpu:0' or 'cpu:0' in the list, or pass 0 without a list"),
        (["2"], "'2' is not a device: use 'gpu:2' or 'cpu:2' in the list, or pass 2 without a list"),
        (b"cpu", "b'cpu' is not a device: use"),
        ("cpu(0", "'cpu(0' is not a device: use"),
        ("gpu(9)", "'gpu(9)': there is no gpu:9"),
        ("cpu:0{99999999999}", "'cpu:0{99999999999}' contains neither device numbers nor a valid regular expression"),
        (2.5, "2.5 is not a device: use"),
        (mx.cpu_pinned(0), "is not a device: use"),
        ([], "[] contains no device: use"),
        ("cpu*0", "'cpu*0': use 1 to 256 CPU devices"),
        ("cpu*257", "'cpu*257': use 1 to 256 CPU devices"),
        ("cpu:99999999999", "'cpu:99999999999': use 1 to 256 CPU devices"),
        (0, "0 is not a valid number of GPUs: use a whole number of at least 1"),
        ("-1", "-1 is not a valid number of GPUs"),
        ("-0", "'-0': 0 is not a valid number of GPUs: use a whole number of at least 1"),
        ("007", "'007': 7 GPUs were requested, but this machine has only 4"),
        ("9" * 5000, "is not a device: use"),
        ("cpu*" + "9" * 5000, "is not a device: use"),
        ("gpu:" + "9" * 5000, "matches no device"),
        ("gpu:0|gpu:7", "'gpu:0|gpu:7': there is no gpu:7"),
        (True, "True is not a valid number of GPUs"),
        (["cpu", "gpu"], "mixes CPUs and GPUs: choose one kind"),
        ("cpu:0,gpu:0", "'cpu:0,gpu:0' mixes CPUs and GPUs"),
        ([mx.cpu(0), "gpu:*"], "mixes CPUs and GPUs"),
    ],
    ids=str,
)
def test_an_invalid_device_is_an_error_with_the_existing_devices(gpus_here, spec, message):
    gpus_here(4)
    with pytest.raises(DeviceError) as error:
        devices(spec)
    assert message in str(error.value)


def test_one_gpu_is_called_the_only_one(gpus_here):
    gpus_here(1)
    with pytest.raises(DeviceError, match="this machine has only gpu:0"):
        devices("gpu:1")


@pytest.mark.parametrize("spec", ["gpu", "gpu:0", "gpu:*", "gpu:[0-3]"])
def test_without_gpus_their_names_are_an_error_with_the_solution(gpus_here, missing_gpu_pattern, spec):
    gpus_here(0)
    message = rf"2 GPUs are required, but MXNet finds none: {missing_gpu_pattern}, or omit --require-gpu"
    with pytest.raises(DeviceError, match=message):
        gpus(2, emulate=False)
    with pytest.raises(
        DeviceError, match=rf"this machine has no GPUs \({missing_gpu_pattern}\): use --gpus N or cpu\*N"
    ):
        devices(spec)


@given(
    st.text(max_size=12)
    | st.text("gpuc:*,0123 []-|", max_size=12)
    | st.from_regex(r"\s?-?[0-9]{1,3}\s?", fullmatch=True)
)
@example("-0")
@example(" 00")
@example("cpu:0|gpu:1")
def test_any_text_gives_devices_or_a_device_error_that_quotes_it(spec):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gluonlab.devices, "gpu_count", lambda: 3)
        patch.setattr(gluonlab.devices, "_prepare_devices", lambda ctxs, threads: ctxs)  # without worker threads
        try:
            ctxs = devices(spec)
        except DeviceError as error:
            assert "\n" not in str(error)
            assert repr(spec) in str(error) or str(error).startswith((f"{spec} GPUs ", f"{spec} is not "))
        else:
            assert 1 <= len(ctxs) == len(set(ctxs)) <= MAX_CPU_DEVICES
            assert len({ctx.device_type for ctx in ctxs}) == 1


def test_devices_are_ready_to_compute():
    one, several = devices("cpu", threads=1), devices("cpu*2")
    assert (describe(one), describe(several)) == ("cpu(0)", "cpu(0) cpu(1)")
    assert [mx.nd.ones((2,), ctx=ctx).sum().asscalar() for ctx in several] == [2, 2]
