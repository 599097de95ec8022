"""Keeps old names of modules, functions and classes working for one release, with a warning.

`OLD_NAMES` lists every name that was documented in version 0.2.0 and has changed since then.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import sys
import types
import warnings
from typing import Any, Callable, Dict, Optional, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

# Old dotted name -> new dotted name. If a module is listed, its submodules and functions also work.
OLD_NAMES: Dict[str, str] = {
    "gluonlab.bench.allreduce.measure": "gluonlab.bench.allreduce.measure_allreduce",
    "gluonlab.bench.allreduce.plans": "gluonlab.bench.allreduce.candidate_schedules",
    "gluonlab.bench.allreduce.table": "gluonlab.bench.allreduce.result_table",
    "gluonlab.bench.allreduce.variants": "gluonlab.bench.allreduce.measure_allreduce",
    "gluonlab.collectives.algorithms.ACROSS": "gluonlab.collectives.algorithms.ACROSS_HOSTS",
    "gluonlab.collectives.algorithms.balanced_tree": ("gluonlab.collectives.algorithms.make_balanced_tree"),
    "gluonlab.collectives.algorithms.mirrored_trees": ("gluonlab.collectives.algorithms.make_mirrored_trees"),
    "gluonlab.collectives.algorithms.nested": "gluonlab.collectives.algorithms.nest_over_hosts",
    "gluonlab.collectives.algorithms.over_hosts": ("gluonlab.collectives.algorithms.make_schedule_over_hosts"),
    "gluonlab.collectives.algorithms.takes": "gluonlab.collectives.algorithms.accepts_options",
    "gluonlab.collectives.bounds": "gluonlab.collectives.lower_bounds",
    "gluonlab.collectives.bounds.floor_of": "gluonlab.collectives.lower_bounds.find_lower_bound",
    "gluonlab.collectives.check.check": "gluonlab.collectives.verify_schedule.verify",
    "gluonlab.collectives.cost.Price": "gluonlab.collectives.cost_model.ScheduleCost",
    "gluonlab.collectives.cost.price": "gluonlab.collectives.cost_model.estimate_cost",
    "gluonlab.collectives.cost.prices": "gluonlab.collectives.cost_model.estimate_costs",
    "gluonlab.parallel.pipeline.check.check": "gluonlab.parallel.pipeline.verify_pipeline_schedule.verify",
    "gluonlab.parallel.pipeline.price.price": "gluonlab.parallel.pipeline.pipeline_cost.predict_timeline",
    "gluonlab.collectives.check": "gluonlab.collectives.verify_schedule",
    "gluonlab.collectives.cost": "gluonlab.collectives.cost_model",
    "gluonlab.collectives.executor": "gluonlab.collectives.schedule_executor",
    "gluonlab.collectives.for_links": "gluonlab.collectives.topology_aware",
    "gluonlab.collectives.partition": "gluonlab.collectives.chunk_layout",
    "gluonlab.collectives.topology.make_topology": ("gluonlab.collectives.named_topologies.make_topology"),
    "gluonlab.data.loading.loader": "gluonlab.data.loading.batch_loader",
    "gluonlab.data.loading.shards": "gluonlab.data.loading.split_batch",
    "gluonlab.devices.Spec": "gluonlab.devices.DeviceSpec",
    "gluonlab.devices.listed": "gluonlab.devices.check_device_list",
    "gluonlab.devices.on_paid_gpus": "gluonlab.devices.is_on_paid_gpus",
    "gluonlab.drawing.live": "gluonlab.drawing.matplotlib_figures",
    "gluonlab.errors.kind_and_words": "gluonlab.errors.error_type_and_text",
    "gluonlab.errors.said_by": "gluonlab.errors.error_text",
    "gluonlab.exercises.lab04": "gluonlab.exercises.lab04_allreduce",
    "gluonlab.exercises.lab08": "gluonlab.exercises.lab08_processes",
    "gluonlab.exercises.lab10": "gluonlab.exercises.lab10_schedule_puzzles",
    "gluonlab.exercises.shared": "gluonlab.exercises",
    "gluonlab.exercises.shared.watch": "gluonlab.exercises.array_tracking",
    "gluonlab.inference.loaded": "gluonlab.inference.loaded_network",
    "gluonlab.kvstores.group_store": "gluonlab.kvstores.process_group_store",
    "gluonlab.launch.environments": "gluonlab.launch.process_membership",
    "gluonlab.launch.horovod": "gluonlab.launch.horovod_group",
    "gluonlab.launch.jobs": "gluonlab.launch.cluster_job_scripts",
    "gluonlab.launch.parameter_server": "gluonlab.launch.parameter_server_group",
    "gluonlab.launch.parts": "gluonlab.launch.group_processes",
    "gluonlab.models.channel_padding": "gluonlab.models.cpu_channel_padding",
    "gluonlab.parallel.data.microbatches": "gluonlab.data.loading.split_batch",
    "gluonlab.parallel.pipeline.check": "gluonlab.parallel.pipeline.verify_pipeline_schedule",
    "gluonlab.parallel.pipeline.price": "gluonlab.parallel.pipeline.pipeline_cost",
    "gluonlab.parallel.pipeline.schedule": "gluonlab.parallel.pipeline.pipeline_schedule",
    "gluonlab.runs.frame": "gluonlab.runs.data_frame",
    "gluonlab.runs.result": "gluonlab.runs.run_result",
    "gluonlab.study.trial": "gluonlab.study.short_training",
    "gluonlab.study.trial.growing": "gluonlab.study.short_training.log_spaced_steps",
    "gluonlab.timeline.picture": "gluonlab.timeline.timeline_svg",
    "gluonlab.training.finished": "gluonlab.training.evaluate_run",
    "gluonlab.training.memory": "gluonlab.training.run_memory",
    "gluonlab.training.memory.Needs": "gluonlab.training.run_memory.MemoryEstimator",
    "gluonlab.training.network": "gluonlab.training.build_network",
    "gluonlab.training.prepare": "gluonlab.training.training_setup",
    "gluonlab.update": "gluonlab.bucketed_trainer",
}


def find_new_name(old: str) -> Optional[str]:
    """Return the new dotted name of ``old``, or None if ``old`` was not renamed."""
    head, tail = old, ""
    while head:
        if head in OLD_NAMES:
            return OLD_NAMES[head] + tail
        head, dot, last = head.rpartition(".")
        tail = f"{dot}{last}{tail}"
    return None


def get_renamed(module: str, name: str) -> Any:
    """Return the object that was formerly called ``name`` in ``module``, and show a warning.

    Call this from a module's ``__getattr__``. Raises AttributeError if ``name`` was not renamed.
    """
    new = find_new_name(f"{module}.{name}")
    if new is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    _warn(f"{module}.{name}", new)
    home, _, last = new.rpartition(".")
    return getattr(importlib.import_module(home), last)


class RenamedMember:
    """An old name of a method or property of a class.

    For example, write ``resident = RenamedMember("is_resident")`` in the body of the class. In a
    NamedTuple, also pass the old name.
    """

    def __init__(self, new: str, old: str = "") -> None:
        self.new, self.old = new, old

    def __set_name__(self, owner: type, old: str) -> None:
        self.old = old

    def __get__(self, instance: Any, owner: type) -> Any:
        _warn(f"{owner.__name__}.{self.old}", f"{owner.__name__}.{self.new}", stacklevel=3)
        return getattr(owner if instance is None else instance, self.new)


def rename_argument(old: str, new: str) -> Callable[[F], F]:
    """Decorate a function so that its argument ``new`` may also be passed by its ``old`` name."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if old in kwargs:
                _warn(f"the argument {old}", new, stacklevel=3)
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return cast(F, call)

    return decorate


def install() -> None:
    """Make imports of modules by their old names work."""
    # Python asks the last finder only for modules that no other finder has found.
    sys.meta_path.append(_OldModuleFinder())


class _OldModuleFinder(importlib.abc.MetaPathFinder):
    """Finds modules by their old names, as listed in OLD_NAMES."""

    def find_spec(
        self, fullname: str, path: Any, target: Optional[types.ModuleType] = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        if find_new_name(fullname) is None:
            return None
        return importlib.machinery.ModuleSpec(fullname, _OldModuleLoader(), is_package=True)


class _OldModuleLoader(importlib.abc.Loader):
    """Creates a module whose attributes are looked up in the renamed module."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _OldModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        new = find_new_name(module.__name__)
        assert new is not None  # find_spec has checked it
        importlib.import_module(new)


class _OldModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        # Names such as __path__ are looked up by the import system, not by users.
        if name.startswith("__"):
            raise AttributeError(name)
        return get_renamed(self.__name__, name)


def _warn(old: str, new: str, stacklevel: int = 4) -> None:
    warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=stacklevel)
