"""Which tests use devices, and how many of them ran on GPUs: counted by what they took, and printed
at the end.

A test uses devices when it asks `devices.py` for them, when gluonlab resolves some for it, when a
file of the tests writes mx.cpu, or when it starts a process that names some. With
GLUONLAB_TEST_DEVICES=gpu the run fails where fewer than LEAST_PERCENT of them had GPUs, and where
one that had none does not say why: ``@pytest.mark.cpu_only("reason")``. Modules whose tests take no
devices do not run a second time then; make test fails where one of them takes some.
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
    collectives/topology_file collectives/verify_schedule data/fetching/addresses
    data/fetching/archives data/fetching/download data/fetching/extract_archive
    data/images/decode_image data/images/decoder_pool data/images/turbojpeg data/sets/layout
    data/sets/packed_folder data/sets/standard_datasets doctor/check_host doctor/command
    drawing/translations engine/linker_errors engine/mxnet_fixes engine/mxnet_installation
    engine/mxnet_setup errors exercises/checkers exercises/grading exercises/notebook_runners
    exercises/schedule_answers figures files/atomic_files fuzz/words host/launcher_environment
    launch/agent_messages launch/group_processes launch/horovod_settings launch/job_files
    launch/rank_environment launch/signals layers make_venv parallel/pipeline/page
    parallel/pipeline/page_file parallel/pipeline/pipeline_cost
    parallel/pipeline/pipeline_schedule parallel/pipeline/render
    parallel/pipeline/verify_pipeline performance_model/allreduce_time printed public_api readme
    study/compare_rows study/sweep timeline/exposed_time timeline/timeline_svg
"""
DEVICE_ARGUMENT = re.compile(r"cpu\*\d|cpu:\d|mx\.cpu\(|--gpus|--devices|gpu:\d|\bdevices\(")


@lru_cache(maxsize=None)
def uses_no_devices(module: Path) -> bool:
    """Whether ``module``, a file of tests or of a test's name, is one of those without devices."""
    parts = module.resolve().parts
    room = parts[max(place for place, part in enumerate(parts) if part == "tests") + 1 : -1]
    return "/".join([*room, module.stem[len("test_") :]]) in WITHOUT_DEVICES.split()


class DeviceUseLog:
    """What the tests of this session took: {test: kinds}, and why some keep to CPUs."""

    def __init__(self) -> None:
        self.of_tests: Dict[str, Set[str]] = {}
        self.reasons: Dict[str, str] = {}
        self.of_fixtures: Dict[Any, Set[str]] = {}

    def note(self, item: Any) -> None:
        """The test has ended: what it took is its own and that of fixtures made for it or before
        it.
        """
        definitions = getattr(item, "_fixtureinfo", None)
        made = definitions.name2fixturedefs.values() if definitions else ()
        for definition in (each for several in made for each in several):
            CHOICE.taken |= self.of_fixtures.get(definition, set())
        if CHOICE.taken:
            self.of_tests[item.nodeid] = set(CHOICE.taken)

    def on_gpus(self) -> List[str]:
        return [
            test
            for test, kinds in self.of_tests.items()
            if "gpu" in kinds and test not in self.reasons
        ]

    def on_cpus(self) -> List[str]:
        return sorted(set(self.of_tests) - set(self.on_gpus()))

    def without_a_reason(self) -> List[str]:
        return [test for test in self.on_cpus() if test not in self.reasons]

    def left_out(self) -> List[str]:
        """What would not be counted on GPUs."""
        return sorted(test for test in self.of_tests if uses_no_devices(Path(test.split("::")[0])))

    def enough(self) -> bool:
        return 100 * len(self.on_gpus()) >= MIN_PERCENT * len(self.of_tests)


USE_LOG = DeviceUseLog()


def pytest_configure(config: Any) -> None:
    if CHOICE.asked not in DEVICE_KINDS:
        raise pytest.UsageError(
            f"{VARIABLE}={CHOICE.asked!r}: give cpu or gpu, or leave it out for cpu"
        )
    if CHOICE.asked == "gpu":
        # many tests compare bits; tests/gpus and processes of their own go without
        os.environ.update(mxnet_setup.DETERMINISTIC_ENVIRONMENT)
        _watch_device_use()


def pytest_collection_modifyitems(items: Any) -> None:
    """A property is tried on fewer examples on GPUs, whatever its own settings ask for."""
    functions = [getattr(item, "function", None) for item in items]
    tests = {function for function in functions if getattr(function, "is_hypothesis_test", False)}
    for test in tests if CHOICE.asked == "gpu" else ():
        # @settings twice is an error
        asked = test._hypothesis_internal_use_settings or settings.default
        test._hypothesis_internal_use_settings = settings(
            asked, max_examples=min(asked.max_examples, MAX_EXAMPLES)
        )


def pytest_ignore_collect(collection_path: Path) -> "Optional[bool]":
    is_module = collection_path.name.startswith("test_")  # not a folder, such as the root
    return (
        True if CHOICE.asked == "gpu" and is_module and uses_no_devices(collection_path) else None
    )


def pytest_collection_finish() -> None:
    if CHOICE.asked == "cpu" and "mxnet" in sys.modules:
        _watch_device_use()


def cpu_only_reason(item: Any) -> "Optional[str]":
    """Why this test keeps to CPUs, or None. Raises UsageError where the marker does not say."""
    marker = item.get_closest_marker("cpu_only")
    if marker and not (
        len(marker.args) == 1 and isinstance(marker.args[0], str) and marker.args[0].strip()
    ):
        raise pytest.UsageError(f'{item.nodeid}: give cpu_only its reason: cpu_only("...")')
    return marker.args[0] if marker else None


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: Any) -> Any:
    reason = cpu_only_reason(item)
    CHOICE.kind, CHOICE.taken = "cpu" if reason else CHOICE.asked, set()
    if reason:
        USE_LOG.reasons[item.nodeid] = reason
    yield
    USE_LOG.note(item)
    CHOICE.kind, CHOICE.taken = CHOICE.asked, set()


@pytest.fixture(autouse=True)
def hide_gpus_from_cpu_only_tests(request: Any, monkeypatch: Any) -> None:
    """A test that keeps to CPUs finds a machine without GPUs, and so do the processes that it
    starts.
    """
    if CHOICE.asked == "gpu" and cpu_only_reason(request.node):
        import mxnet as mx

        monkeypatch.setattr(mx.context, "num_gpus", lambda: 0)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture(scope="session", autouse=True)
def allocate_mxnet_scratch_memory() -> None:
    """Scratch memory, as large as any operator wanted, states of random numbers and of dropout:
    made now, no test leaves them.
    """
    if CHOICE.asked == "gpu":
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
    before, CHOICE.taken = CHOICE.taken, set()
    yield
    USE_LOG.of_fixtures[fixturedef] = CHOICE.taken
    CHOICE.taken = before | CHOICE.taken


def _watch_device_use() -> None:
    """Note what is taken without `devices.py`: by gluonlab, by mx.cpu in a file of the tests, by
    another process.
    """
    import mxnet as mx

    from gluonlab import devices as named_devices

    ready, cpu = named_devices._prepare_devices, mx.cpu

    def noting_ready(ctxs: Any, threads: Any) -> Any:
        CHOICE.taken.update(ctx.device_type for ctx in ctxs)
        return ready(ctxs, threads)

    def noting_cpu(device_id: int = 0) -> Any:
        caller = sys._getframe(1).f_code.co_filename
        if caller.startswith(TESTS) and not caller.endswith("reference.py"):
            CHOICE.taken.add("cpu")
        return cpu(device_id)

    def noting_process(event: str, args: Any) -> None:
        if event == "subprocess.Popen":
            text = " ".join(os.fsdecode(part) for part in args[1])
            if DEVICE_ARGUMENT.search(text):
                CHOICE.taken.add(
                    "gpu" if CHOICE.kind == "gpu" and re.search(r"gpu:\d|--gpus", text) else "cpu"
                )

    named_devices._prepare_devices, mx.cpu = noting_ready, noting_cpu
    sys.addaudithook(noting_process)


def used_devices_as_declared() -> bool:
    if CHOICE.asked == "cpu" or not USE_LOG.of_tests:
        return not USE_LOG.left_out()
    return USE_LOG.enough() and not USE_LOG.without_a_reason()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """With pytest -n the tests ran in other processes, and what they took counts as if here."""
    taken, reasons = getattr(node, "workeroutput", {}).get(VARIABLE, ({}, {}))
    USE_LOG.of_tests.update((test, set(kinds)) for test, kinds in taken.items())
    USE_LOG.reasons.update(reasons)


def pytest_sessionfinish(session: Any) -> None:
    if hasattr(session.config, "workeroutput"):
        taken = {test: sorted(kinds) for test, kinds in USE_LOG.of_tests.items()}
        session.config.workeroutput[VARIABLE] = (taken, USE_LOG.reasons)
    if session.exitstatus == 0 and not used_devices_as_declared():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    say = terminalreporter.write_line
    for test in USE_LOG.left_out():
        say(
            f"error: {test} takes devices: WITHOUT_DEVICES in tests/support/device_use.py says "
            "that it does not",
            red=True,
        )
    if CHOICE.asked != "gpu" or not USE_LOG.of_tests:
        return
    say(f"ran on GPUs: {len(USE_LOG.on_gpus())} of {len(USE_LOG.of_tests)} tests that use devices")
    if not USE_LOG.enough():
        say(
            f"error: fewer than {MIN_PERCENT} % of them: "
            "take devices from tests/support/devices.py",
            red=True,
        )
    why = Counter(
        (test.split("::")[0], USE_LOG.reasons[test])
        for test in USE_LOG.on_cpus()
        if test in USE_LOG.reasons
    )
    for (file, reason), count in sorted(why.items()):
        say(f"  {file}, {count} on CPUs: {reason}")
    for test in USE_LOG.without_a_reason():
        say(
            f"error: {test} used CPUs: take devices from tests/support/devices.py, "
            'or mark it cpu_only("reason")',
            red=True,
        )
