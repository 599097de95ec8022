"""Plugin that records which tests use devices, and how many of them ran on GPUs.

A test uses devices if it calls `devices.py`, if gluonlab resolves devices for it, if a file of the
tests calls mx.cpu, or if it starts a process whose command names devices. With
GLUONLAB_TEST_DEVICES=gpu the run fails if fewer than MIN_PERCENT of these tests used GPUs, or if a
test that used none has no ``@pytest.mark.cpu_only("reason")``. Modules without devices
(WITHOUT_DEVICES) are not run on GPUs; make test fails if such a module uses devices.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, List, Optional, Set

import pytest
from hypothesis import settings

from gluonlab.engine import mxnet_setup
from support.devices import CHOICE, DEVICE_KINDS, VARIABLE

MIN_PERCENT = 80
MAX_EXAMPLES = 5  # of a property, where every kernel is computed by a simulated GPU
TESTS = str(Path(__file__).resolve().parents[1])
WITHOUT_DEVICES = """
    bench/allreduce/candidate_schedules bench/harness/out benchmarks/compare cli/completion
    cli/interruption cli/mistakes collectives/algorithms collectives/chunk_layout
    collectives/cost_model collectives/hosts collectives/lower_bounds
    collectives/named_topologies collectives/page collectives/page_file collectives/render
    collectives/synthesis/own_schedules collectives/synthesis/precomputed_schedules
    collectives/topology_file collectives/verify_schedule data/fetching/archives
    data/fetching/download data/fetching/extract_archive data/images/decode_image
    data/images/decoder_pool data/images/turbojpeg data/sets/packed_folder
    data/sets/standard_datasets doctor/check_host doctor/command drawing/translations
    engine/linker_errors engine/mxnet_and_cuda_libraries engine/mxnet_fixes engine/mxnet_setup
    errors exercises/exercise_registry exercises/grading exercises/notebook_runners
    exercises/schedule_answers figures files/atomic_files host/launcher_environment
    launch/agent_messages launch/cluster_job_scripts launch/group_processes
    launch/horovod_settings launch/process_membership launch/signals layers make_venv
    parallel/pipeline/page parallel/pipeline/page_file parallel/pipeline/pipeline_cost
    parallel/pipeline/pipeline_schedule parallel/pipeline/render
    parallel/pipeline/verify_pipeline_schedule performance_model/gradient_sum_time printed
    public_api readme study/compare_rows study/sweep timeline/exposed_time timeline/timeline_svg
"""
DEVICE_ARGUMENT = re.compile(r"cpu\*\d|cpu:\d|mx\.cpu\(|--gpus|--devices|gpu:\d|\bdevices\(")


@lru_cache(maxsize=None)
def uses_no_devices(module: Path) -> bool:
    """Return whether a test module is one of WITHOUT_DEVICES."""
    parts = module.resolve().parts
    start = max(i for i, part in enumerate(parts) if part == "tests") + 1
    return "/".join([*parts[start:-1], module.stem[len("test_") :]]) in WITHOUT_DEVICES.split()


class DeviceUseLog:
    """The kinds of devices that the tests of this session used, and the reasons for CPUs."""

    def __init__(self) -> None:
        self.test_kinds: Dict[str, Set[str]] = {}
        self.reasons: Dict[str, str] = {}
        self.fixture_kinds: Dict[Any, Set[str]] = {}

    def record_test(self, item: Any) -> None:
        """Record the devices of a test that has ended, and of its fixtures."""
        info = getattr(item, "_fixtureinfo", None)
        definitions = info.name2fixturedefs.values() if info else ()
        for definition in (fixture for fixtures in definitions for fixture in fixtures):
            CHOICE.used_kinds |= self.fixture_kinds.get(definition, set())
        if CHOICE.used_kinds:
            self.test_kinds[item.nodeid] = set(CHOICE.used_kinds)

    def tests_on_gpus(self) -> List[str]:
        return [test for test, kinds in self.test_kinds.items() if "gpu" in kinds and test not in self.reasons]

    def tests_on_cpus(self) -> List[str]:
        return sorted(set(self.test_kinds) - set(self.tests_on_gpus()))

    def tests_without_reason(self) -> List[str]:
        return [test for test in self.tests_on_cpus() if test not in self.reasons]

    def undeclared_tests(self) -> List[str]:
        """Return the tests that use devices in modules of WITHOUT_DEVICES."""
        return sorted(test for test in self.test_kinds if uses_no_devices(Path(test.split("::")[0])))

    def has_enough_gpu_tests(self) -> bool:
        return 100 * len(self.tests_on_gpus()) >= MIN_PERCENT * len(self.test_kinds)


USE_LOG = DeviceUseLog()


def pytest_configure(config: Any) -> None:
    if CHOICE.requested_kind not in DEVICE_KINDS:
        raise pytest.UsageError(f"{VARIABLE}={CHOICE.requested_kind!r}: give cpu or gpu, or leave it out for cpu")
    if CHOICE.requested_kind == "gpu":
        # Many tests compare bits. Child processes and tests/gpus run without these settings.
        os.environ.update(mxnet_setup.DETERMINISTIC_ENVIRONMENT)
        _watch_device_use()


def pytest_collection_modifyitems(items: Any) -> None:
    """Limit the examples of each property on GPUs."""
    functions = [getattr(item, "function", None) for item in items]
    tests = {function for function in functions if getattr(function, "is_hypothesis_test", False)}
    for test in tests if CHOICE.requested_kind == "gpu" else ():
        # @settings twice is an error
        asked = test._hypothesis_internal_use_settings or settings.default
        test._hypothesis_internal_use_settings = settings(asked, max_examples=min(asked.max_examples, MAX_EXAMPLES))


def pytest_ignore_collect(collection_path: Path) -> "Optional[bool]":
    is_module = collection_path.name.startswith("test_")  # not a folder, such as the root
    return True if CHOICE.requested_kind == "gpu" and is_module and uses_no_devices(collection_path) else None


def pytest_collection_finish() -> None:
    if CHOICE.requested_kind == "cpu" and "mxnet" in sys.modules:
        _watch_device_use()


def cpu_only_reason(item: Any) -> "Optional[str]":
    """Return the reason of a cpu_only marker, or None; raise UsageError if it has no reason."""
    marker = item.get_closest_marker("cpu_only")
    if marker and not (len(marker.args) == 1 and isinstance(marker.args[0], str) and marker.args[0].strip()):
        raise pytest.UsageError(f'{item.nodeid}: give cpu_only its reason: cpu_only("...")')
    return marker.args[0] if marker else None


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: Any) -> Any:
    reason = cpu_only_reason(item)
    CHOICE.kind, CHOICE.used_kinds = "cpu" if reason else CHOICE.requested_kind, set()
    if reason:
        USE_LOG.reasons[item.nodeid] = reason
    yield
    USE_LOG.record_test(item)
    CHOICE.kind, CHOICE.used_kinds = CHOICE.requested_kind, set()


@pytest.fixture(autouse=True)
def hide_gpus_from_cpu_only_tests(request: Any, monkeypatch: Any) -> None:
    """Hide the GPUs from a cpu_only test and from its child processes."""
    if CHOICE.requested_kind == "gpu" and cpu_only_reason(request.node):
        import mxnet as mx

        monkeypatch.setattr(mx.context, "num_gpus", lambda: 0)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture(scope="session", autouse=True)
def allocate_mxnet_scratch_memory() -> None:
    """Allocate the memory that MXNet keeps for each GPU, so that no test appears to leak it.

    This is scratch memory, and the states of random numbers and of dropout.
    """
    if CHOICE.requested_kind == "gpu":
        import mxnet as mx

        for number in range(mx.context.num_gpus()):
            with mx.Context("gpu", number):
                mx.nd.topk(mx.nd.zeros((4, 2**16)))
                mx.nd.random.uniform(shape=(1,))
                mx.nd.random.multinomial(mx.nd.ones((2,)) / 2)
                mx.nd.Dropout(mx.nd.zeros((2,)), mode="always")
        mx.nd.waitall()


@pytest.hookimpl(hookwrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Any:
    before, CHOICE.used_kinds = CHOICE.used_kinds, set()
    yield
    USE_LOG.fixture_kinds[fixturedef] = CHOICE.used_kinds
    CHOICE.used_kinds = before | CHOICE.used_kinds


def _watch_device_use() -> None:
    """Record devices that gluonlab, mx.cpu in a file of the tests, or a child process uses."""
    import mxnet as mx

    from gluonlab import devices as named_devices

    prepare, cpu = named_devices._prepare_devices, mx.cpu

    def recording_prepare(ctxs: Any, threads: Any) -> Any:
        CHOICE.used_kinds.update(ctx.device_type for ctx in ctxs)
        return prepare(ctxs, threads)

    def recording_cpu(device_id: int = 0) -> Any:
        caller = sys._getframe(1).f_code.co_filename
        if caller.startswith(TESTS) and not caller.endswith("reference.py"):
            CHOICE.used_kinds.add("cpu")
        return cpu(device_id)

    def record_process(event: str, args: Any) -> None:
        if event == "subprocess.Popen":
            text = " ".join(os.fsdecode(part) for part in args[1])
            if DEVICE_ARGUMENT.search(text):
                CHOICE.used_kinds.add("gpu" if CHOICE.kind == "gpu" and re.search(r"gpu:\d|--gpus", text) else "cpu")

    named_devices._prepare_devices, mx.cpu = recording_prepare, recording_cpu
    sys.addaudithook(record_process)


def used_devices_as_declared() -> bool:
    if CHOICE.requested_kind == "cpu" or not USE_LOG.test_kinds:
        return not USE_LOG.undeclared_tests()
    return USE_LOG.has_enough_gpu_tests() and not USE_LOG.tests_without_reason()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add the log of a worker process of pytest -n."""
    taken, reasons = getattr(node, "workeroutput", {}).get(VARIABLE, ({}, {}))
    USE_LOG.test_kinds.update((test, set(kinds)) for test, kinds in taken.items())
    USE_LOG.reasons.update(reasons)


def pytest_sessionfinish(session: Any) -> None:
    if hasattr(session.config, "workeroutput"):
        taken = {test: sorted(kinds) for test, kinds in USE_LOG.test_kinds.items()}
        session.config.workeroutput[VARIABLE] = (taken, USE_LOG.reasons)
    if session.exitstatus == 0 and not used_devices_as_declared():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    write_line = terminalreporter.write_line
    for test in USE_LOG.undeclared_tests():
        write_line(
            f"error: {test} takes devices: WITHOUT_DEVICES in tests/support/device_use.py says that it does not",
            red=True,
        )
    if CHOICE.requested_kind != "gpu" or not USE_LOG.test_kinds:
        return
    write_line(f"ran on GPUs: {len(USE_LOG.tests_on_gpus())} of {len(USE_LOG.test_kinds)} tests that use devices")
    if not USE_LOG.has_enough_gpu_tests():
        write_line(f"error: fewer than {MIN_PERCENT} % of them: take devices from tests/support/devices.py", red=True)
    reasons = Counter(
        (test.split("::")[0], USE_LOG.reasons[test]) for test in USE_LOG.tests_on_cpus() if test in USE_LOG.reasons
    )
    for (file, reason), count in sorted(reasons.items()):
        write_line(f"  {file}, {count} on CPUs: {reason}")
    for test in USE_LOG.tests_without_reason():
        write_line(
            f'error: {test} used CPUs: take devices from tests/support/devices.py, or mark it cpu_only("reason")',
            red=True,
        )
