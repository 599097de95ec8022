"""Names of version 0.2.0 lead to their successors, with a warning."""

import importlib
import sys

import pytest

import gluonlab
from gluonlab.renamed import OLD_NAMES, RenamedMember, find_new_name, rename_argument

# What the documentation and the labs of version 0.2.0 import.
DOCUMENTED = """
    bench.allreduce.measure.measure bench.allreduce.plans.make_plans
    bench.allreduce.table.rows_table bench.allreduce.variants.make_variants
    collectives.algorithms.ALGORITHMS collectives.algorithms.ring collectives.algorithms.star
    collectives.bounds.floor_of collectives.check.check collectives.cost.bus_factor
    collectives.cost.price collectives.cost.traffic collectives.executor.Executor
    collectives.for_links.make_for_links collectives.partition.partition
    collectives.render.as_text collectives.render.draw collectives.schedule.Schedule
    collectives.schedule.Transfer collectives.topology.make_topology
    collectives.topology.switch config.TrainConfig data.Loader data.from_arrays
    data.from_datasets data.load_dataset data.loading.shards.shard
    data.loading.shards.shard_bounds devices.devices drawing.live.LiveChart
    errors.DeviceError errors.KVStoreError errors.ScheduleError exercises.because
    exercises.check exercises.observe exercises.predict exercises.setup exercises.shared.watch.watch
    exercises.surprises inference.loaded.LoadedRun inference.loaded.load_run
    inference.predictions.Predictions kvstores.group_store.GroupKVStore kvstores.make_kvstore
    launch.horovod.Horovod launch.parameter_server.ParameterServer launch.parts.Site
    launch.parts.parts models.get_model optimizers.SGD
    parallel.pipeline.check.check parallel.pipeline.check.peaks parallel.pipeline.price.Costs
    parallel.pipeline.price.equal_shares parallel.pipeline.price.price
    parallel.pipeline.render.draw parallel.pipeline.schedule.make_pipeline runs.frame.frame
    runs.result.Result scratch.data_parallel.allreduce scratch.lenet.SHAPES
    scratch.lenet.cross_entropy scratch.lenet.init_params scratch.lenet.lenet
    study.largest_batch.find_batch_size study.trial.growing
    timeline.picture.as_svg timeline.recorder.Recorder training.callbacks.Callback
    training.finished.evaluate_run training.live_plot.LivePlot training.loop.train
    training.memory.Needs training.network.make_net training.plan.make_plan
    training.prepare.prepare training.reporter.Reporter update.trainer.BucketedTrainer
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", DOCUMENTED.split())
def test_every_documented_name_of_the_last_version_can_be_imported(name):
    module, _, last = f"gluonlab.{name}".rpartition(".")
    assert hasattr(importlib.import_module(module), last)


@pytest.mark.parametrize("old", sorted(OLD_NAMES))
def test_an_old_name_leads_to_an_existing_new_name(old):
    new = OLD_NAMES[old]
    try:
        importlib.import_module(new)
    except ModuleNotFoundError:
        home, _, name = new.rpartition(".")
        assert hasattr(importlib.import_module(home), name)


def test_importing_an_old_module_hides_no_name_of_its_package():
    """Importing a.b sets the attribute b of a."""
    for old in OLD_NAMES:
        parent, _, last = old.rpartition(".")
        if find_new_name(parent) is None:
            known = vars(importlib.import_module(parent)).get(last)
            assert known is None or type(known).__name__ == "_OldModule", old


@pytest.mark.parametrize(
    "old, name",
    [
        ("gluonlab.training.finished", "evaluate_run"),
        ("gluonlab.update.trainer", "BucketedTrainer"),
        ("gluonlab.collectives.topology", "make_topology"),
    ],
)
def test_an_old_import_gives_the_same_object_and_one_warning_that_names_the_new_name(old, name):
    with pytest.warns(DeprecationWarning) as warned:
        value = getattr(importlib.import_module(old), name)
    new = find_new_name(f"{old}.{name}")
    home, _, last = new.rpartition(".")
    assert value is getattr(sys.modules[home], last)
    assert [str(each.message) for each in warned] == [f"{old}.{name} is now {new}"]


@pytest.mark.parametrize("module", ["gluonlab.no_such", "gluonlab.training.no_such"])
def test_other_missing_modules_and_names_are_errors_as_usual(module):
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(module)
    with pytest.warns(DeprecationWarning), pytest.raises(AttributeError, match="no_such"):
        importlib.import_module("gluonlab.update.trainer").no_such  # noqa: B018
    assert not hasattr(gluonlab, "no_such")


def test_an_old_member_or_argument_leads_to_the_new_one_with_a_warning():
    class Store:
        @property
        def is_open(self):
            return True

        open = RenamedMember("is_open")

        @rename_argument("say", "log")
        def close(self, log):
            return log

    with pytest.warns(DeprecationWarning, match="Store.open is now Store.is_open"):
        assert Store().open
    with pytest.warns(DeprecationWarning, match="the argument say is now log"):
        assert Store().close(say=3) == 3
    assert Store().close(log=4) == 4
