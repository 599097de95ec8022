"""Compares training speed and efficiency with different numbers of devices (gluonlab compare)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, List, Optional, Sequence

from mxnet import gluon

from gluonlab.config import TrainConfig
from gluonlab.data.sets.dataset import Dataset
from gluonlab.data.sets.from_gluon_datasets import resolve_dataset, warn_of_ignored_loader_settings
from gluonlab.devices import gpu_count
from gluonlab.errors import ConfigError, ModelError, OutputError, UsageError
from gluonlab.renamed import RenamedMember
from gluonlab.runs.run_result import Result
from gluonlab.runs.run_writer import RunDirectory
from gluonlab.training.callbacks import make_callbacks
from gluonlab.training.loop import train
from gluonlab.training.plan import Plan, make_plan, resolve_config, set_up_devices
from gluonlab.training.reporter import ConsoleReporter, Reporter
from gluonlab.training.training_setup import placeholder_dataset, prepare
from gluonlab.training.user_components import UserComponents, make_user_components


@dataclass(frozen=True)
class ComparisonRow:
    """A run of a comparison.

    ``speedup``: images/s divided by the images/s of the first run. ``efficiency``: the speedup
    divided by the ratio of the numbers of devices.
    """

    devices: int
    global_batch_size: int
    images_per_second: float
    speedup: float
    efficiency: float
    val_accuracy: float
    run_dir: str

    accuracy = RenamedMember("val_accuracy")


def compare(
    config: TrainConfig,
    counts: Sequence[int],
    reporter: Optional[Reporter] = None,
    dataset: Any = None,
    callbacks: Sequence[Any] = (),
    net: Any = None,
    loss: Any = None,
    metrics: Any = None,
) -> List[ComparisonRow]:
    """Train with each number of GPUs in ``counts``, and compare the runs with the first run.

    If there is no GPU, CPU devices are used instead. Each CPU device computes with one thread,
    because otherwise a run on one device would already use all cores.

    Args:
        config: The settings, without devices.
        counts: Numbers of devices, one for each run.
        reporter: As for `train`.
        dataset: As for `train`.
        callbacks: See `train`. If a callback is a class, each run creates its own instance. If it
            is an object, all runs share the object.
        net: A function that returns a network, since each run needs a new network.
        loss: As for `train`.
        metrics: As for `train`.

    Raises:
        ConfigError: ``config`` names devices.
        UsageError: A run is impossible (see `train`). Nothing has been trained.
    """
    config = TrainConfig.require("compare", config)
    if config.gpus is not None or config.devices is not None:
        raise ConfigError(
            f"a comparison of {','.join(map(str, counts))} devices sets the devices of each run: "
            "omit --gpus and --devices"
        )
    if config.device_weights is not None:
        raise ConfigError(
            f"--device-weights {config.device_weights} applies to a single number of devices, but this comparison "
            f"trains on {','.join(map(str, counts))} devices: omit --device-weights"
        )
    reporter = reporter or ConsoleReporter()
    if not gpu_count() and config.threads is None and max(counts) > 1:
        config = config.replace(threads=1)
    configs = [config.replace(gpus=count) for count in counts]
    if isinstance(net, gluon.Block):
        raise ModelError(
            f"net {type(net).__name__} is a single model, but each run of a comparison needs its "
            "own model: pass a function that creates the model"
        )
    make_callbacks(callbacks)
    read = _check_configs(configs, dataset, make_user_components(net, loss, metrics))
    folder = RunDirectory.create(config.out, f"compare-{'-'.join(map(str, counts))}")
    results: List[Result] = []
    try:
        folder.write_config(config.to_dict(), compare=list(counts))
        for count in counts:
            name = f"{count}-device{'s' * (count > 1)}"
            reporter.say(f"\n--- {name.replace('-', ' ')}")
            run_config = config.replace(gpus=count, out=str(folder.path / name))
            results.append(
                train(run_config, None, reporter, read, callbacks=callbacks, net=net, loss=loss, metrics=metrics)
            )
        rows = make_comparison_rows(results)
        folder.write_comparison([asdict(row) for row in rows])
        folder.close()
        return rows
    except UsageError:
        folder.discard()
        raise
    except KeyboardInterrupt as error:
        if not error.args:  # between two runs; within a run, the run has set the message
            error.args = (f"{folder.path} contains {len(results)} of {len(counts)} runs",)
        raise
    finally:
        with suppress(OutputError):
            folder.close()


def _check_configs(configs: Sequence[TrainConfig], dataset: Any, components: UserComponents) -> Dataset:
    """Check the configs of all runs, and return their data set.

    Raises a UsageError if a setting is wrong for any run. Settings that do not depend on the data
    are checked before the data set is read.
    """
    RunDirectory.check(configs[0].out)
    for config in configs:
        set_up_devices(resolve_config(config, placeholder_dataset(dataset), components=components))
    resolved = resolve_dataset(dataset)
    plans: List[Plan] = []
    for config in configs:
        plans.append(make_plan(config, plans[0].dataset if plans else resolved, components=components))
        plan = plans[-1]
        warn_of_ignored_loader_settings(dataset, plan.dataset, plan.global_batch_size, plan.drop_last)
        prepare(plan)
    return plans[0].dataset


def make_comparison_rows(results: Sequence[Result]) -> List[ComparisonRow]:
    """Return the table's numbers; speedup and efficiency are relative to the first result."""
    first, rows = results[0], []
    for result in results:
        devices, images_per_second = len(result.plan.ctxs), result.images_per_second
        speedup = images_per_second / first.images_per_second
        efficiency = speedup * len(first.plan.ctxs) / devices
        rows.append(ComparisonRow(
            devices, result.plan.global_batch_size, images_per_second, speedup, efficiency,
            result.val_accuracy, str(result.run_dir),
        ))  # fmt: skip
    return rows


def comparison_table(rows: Sequence[ComparisonRow]) -> str:
    """Return the comparison as text for a terminal of 80 columns."""
    heads = f"{'devices':>7}  {'batch':>6}  {'images/s':>9}  {'speed-up':>8}  {'efficiency':>10}"
    lines = [f"{heads}  {'val accuracy':>12}"]
    for row in rows:
        speed = f"{row.images_per_second:>9,.0f}  {row.speedup:>7.2f}x  {row.efficiency:>10.0%}"
        lines.append(f"{row.devices:>7}  {row.global_batch_size:>6,}  {speed}  {row.val_accuracy:>12.4f}")
    return "\n".join(lines)
