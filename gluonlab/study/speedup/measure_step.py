"""Measures a step on several devices, part by part, and a step on one device.

Training is measured in windows: a few steps, either complete or with parts left out. All windows
are interleaved in one process, so that a temporary slowdown affects all of them. The trained
parameters are discarded. The learning rate is very small, because repeated batches and omitted sums
could otherwise lead to NaN or denormal numbers. Devices compute with such numbers at a different
speed.
"""

from __future__ import annotations

import math
import time
from contextlib import ExitStack, closing
from functools import partial
from statistics import median
from typing import Any, Callable, Collection, Dict, List, NamedTuple, Optional, Sequence

from mxnet import nd

from gluonlab.bench.harness.interleaved_rounds import TimedCall, time_interleaved
from gluonlab.config import TrainConfig
from gluonlab.data.loading.split_batch import Batch
from gluonlab.data.sets.dataset import ArraySplit, Dataset, ReadAheadSplit
from gluonlab.data.sets.dataset_registry import accepts_option
from gluonlab.engine.engine_hold import EngineHold
from gluonlab.engine.fast_invoke import AddInto, CopyInto
from gluonlab.engine.local_processes import cores_per_process
from gluonlab.errors import ConfigError
from gluonlab.host.resources import available_memory
from gluonlab.parallel.data.strategy import DataParallel
from gluonlab.parallel.strategy import DATA, MakeStrategy, PhaseHook
from gluonlab.study.speedup import step_breakdown as windows
from gluonlab.study.speedup.step_breakdown import StepParts, compute_parts
from gluonlab.timeline.recorder import Recorder
from gluonlab.timeline.timeline import BACKWARD, STAGES, Timeline
from gluonlab.training.loss_meter import AsyncLossMeter
from gluonlab.training.plan import make_plan
from gluonlab.training.training_setup import prepare, train_loader

ROUNDS = 11  # repetitions of all windows
BLOCK_S = 0.1  # seconds of a window
MAX_COPIED_BYTES = 32 * 2**20  # of the plain sum; the time for more bytes is extrapolated
# The cost of an image is measured with another number of images. From FEW_IMAGES per device on, the
# images are halved; fewer images are doubled.
FEW_IMAGES = 16
RECORDED_S, MIN_RECORDED_STEPS, MAX_RECORDED_STEPS = 0.4, 4, 60  # steps of the trace
LEARNING_RATE = 1e-5
SUM, UPDATE, FORWARD = "allreduce", "update", "forward"  # names of the phases of strategies
MAX_GATED_STEPS = 32  # steps queued behind a gate; a longer queue would itself cost time
MIN_GATED_STEPS = 4
PATIENCE_S = 0.5  # a host that needs longer to queue a step is waiting for its devices


class TrainingFacts(NamedTuple):
    """The present training settings, from which candidates are chosen.

    - ``devices``: names for --devices.
    - ``copies``: number of copies of the network. Each copy is on one device, or split among
      several devices.
    - ``images_per_copy``: images per batch for each copy. The data set limits this number to
      ``max_images_per_copy``.
    - ``batch_option``: the setting of the batch size.
    - ``data_bytes``: size of all training images; None for files that are decoded in each epoch.
    - ``decoders``: number of decoder processes; None if nothing is decoded.
    - ``free_bytes``: free memory of the host.
    - ``cores``: cores that this process may use.
    - ``shares``: images per batch on each device.
    """

    devices: Sequence[str]
    images_per_copy: int
    copies: int
    max_images_per_copy: int
    batch_option: str
    kvstore: str
    microbatches: Optional[int]
    prefetch: int
    resident_bytes: int
    data_bytes: Optional[int]
    decoders: Optional[int]
    free_bytes: int
    cores: int
    is_cpu: bool
    shares: Sequence[int] = ()


class StepMeasurement(NamedTuple):
    """The measurement of a training step.

    - ``rounds``: for each window, the seconds per step in each round.
    - ``images``, ``images_of_one``: images per step on all devices, and on one device.
    - ``ratio``: images of the window OTHER_SIZE divided by the images of a step.
    - ``host_waits``: whether the host waits for the devices within each step.
    - ``store_updates``: whether the kvstore updates the parameters.
    - ``passes_apart``: whether forward and backward are separate phases.
    - ``gradient_bytes``: size of the gradients on one device.
    - ``threads``: number of threads per CPU device.
    - ``timeline``: the trace of some steps.
    """

    rounds: Dict[str, List[float]]
    devices: List[str]
    images: int
    images_of_one: int
    ratio: float
    host_waits: bool
    store_updates: bool
    passes_apart: bool
    gradient_bytes: int
    threads: int
    timeline: Timeline
    dataset: Dataset
    facts: TrainingFacts

    def differences_by_round(self) -> Dict[str, List[float]]:
        """Return the fraction of a step that leaving out each part saves, in each round.

        See `part_differences`.
        """
        count = len(self.rounds[windows.STEP])
        differences = [
            windows.part_differences({name: values[number] for name, values in self.rounds.items()})
            for number in range(count)
        ]
        return {name: [round_differences[name] for round_differences in differences] for name in differences[0]}

    def median_parts(self) -> StepParts:
        """Return the parts of a step, from the medians over all rounds."""
        columns = self.differences_by_round()
        return compute_parts({name: median(values) for name, values in columns.items()}, self.ratio)


def single_device_config(config: TrainConfig, training: MeasuredTraining) -> TrainConfig:
    """Return the config of the same training on the first device only."""
    first = training.plan.ctxs[0]
    return config.replace(
        gpus=None, devices=f"{first.device_type}:{first.device_id}", require_gpu=False,
        threads=training.plan.threads if first.device_type == "cpu" else None,
        strategy=DATA, pipeline_parallel=None, cut=None, balance=None, pipeline_schedule=None,
        stages_per_device=None, tensor_parallel=None, tensor_parallel_mode=None, topology=None, compress=None,
        kvstore="device", device_weights=None,
    )  # fmt: skip


def set_one_thread_per_device(config: TrainConfig) -> TrainConfig:
    """Return ``config`` with one thread for each CPU device, unless ``config`` sets threads.

    One CPU device would otherwise use all cores.
    """
    return config if config.threads is not None else config.replace(threads=1)


def measure_training_step(
    config: TrainConfig,
    dataset: Optional[Dataset] = None,
    strategy: Optional[MakeStrategy] = None,
    rounds: int = ROUNDS,
    on_round: Callable[[], object] = lambda: None,
    on_start: Callable[[], object] = lambda: None,
) -> StepMeasurement:
    """Measure the parts of a training step on all devices, and a whole step on one device.

    The CPU devices of ``config`` must have a fixed number of threads.

    Args:
        config: The training settings.
        dataset: The data set; by default the data set that ``config`` names.
        strategy: See `gluonlab.training.loop.train`. The strategy is also used for the single
            device.
        rounds: Number of repetitions of all windows.
        on_round: A function that is called after each round.
        on_start: A function that is called once the config is known to be valid.

    Raises:
        UsageError: The config cannot be trained, or has a single device.
    """
    with ExitStack() as stack:
        training = MeasuredTraining(config, dataset, strategy)
        stack.callback(training.close)
        if training.device_count < 2:
            raise ConfigError(
                f"this training uses a single device, {training.plan.ctxs[0]}, but a speedup compares several "
                "devices with a single device: use --gpus 2 or more, or at least two --devices"
            )
        on_start()
        single = MeasuredTraining(single_device_config(config, training), training.plan.dataset, strategy)
        stack.callback(single.close)
        gated = _gated_windows(training)
        calls: Dict[str, TimedCall] = {
            windows.ONE_DEVICE: single.step_window(),
            windows.STEP: training.step_window(),
            windows.SAME_BATCH: training.repeat_step,
            **gated,
        }
        plain_sum = _PlainCopySum(training)
        calls.update(_isolated_windows(training))
        calls[windows.PLAIN_SUM] = plain_sum
        queue_seconds: List[float] = []
        blocked_seconds: List[float] = []

        def record_host_times() -> None:
            """Record how long the host queued operations, and how long it was blocked."""
            phase_costs = gated[windows.WITHOUT_HOST].last
            queue_seconds.append(sum(phase.seconds for phase in phase_costs.values()))
            blocked_seconds.append(_blocked_seconds(phase_costs))
            on_round()

        seconds = time_interleaved(calls, rounds, on_round=record_host_times, block_s=BLOCK_S)
        waits = gated[windows.WITHOUT_HOST].waits
        seconds[windows.QUEUED] = queue_seconds
        seconds[windows.BLOCKED] = [0.0] * len(blocked_seconds) if waits else blocked_seconds
        seconds[windows.PLAIN_SUM] = [copied_s * plain_sum.factor for copied_s in seconds[windows.PLAIN_SUM]]
        steps = int(RECORDED_S / median(seconds[windows.STEP]))
        timeline = training.record(max(MIN_RECORDED_STEPS, min(MAX_RECORDED_STEPS, steps)))
        return StepMeasurement(
            rounds=seconds, devices=[str(ctx) for ctx in training.plan.ctxs],
            images=training.images, images_of_one=single.images,
            ratio=_resized_batch(training)[0], host_waits=waits,
            store_updates=_updates_in_store(training), passes_apart=windows.FORWARD in gated,
            gradient_bytes=plain_sum.gradient_bytes, threads=training.plan.threads,
            timeline=timeline, dataset=training.plan.dataset, facts=_collect_facts(training),
        )  # fmt: skip


def _collect_facts(training: MeasuredTraining) -> TrainingFacts:
    """Return the present training settings."""
    plan = training.plan
    config, copies, train = plan.resolved.config, len(plan.parallelism.copies), plan.dataset.train
    grows = accepts_option(plan.config.dataset, "samples")
    memory = available_memory()
    return TrainingFacts(
        devices=[f"{ctx.device_type}:{ctx.device_id}" for ctx in plan.ctxs],
        images_per_copy=plan.global_batch_size // copies,
        copies=copies,
        max_images_per_copy=2**31 if grows else len(train) // copies,
        batch_option="batch_size" if config.global_batch_size is None else "global_batch_size",
        kvstore=config.kvstore,
        microbatches=plan.microbatches.count,
        prefetch=plan.prefetch,
        resident_bytes=plan.device_cache_bytes,
        data_bytes=(train.images.nbytes + train.labels.nbytes if isinstance(train, ArraySplit) else None),
        decoders=(config.workers or cores_per_process()) if isinstance(train, ReadAheadSplit) else None,
        free_bytes=memory.free if memory is not None else 0,
        cores=cores_per_process(),
        is_cpu=plan.ctxs[0].device_type == "cpu",
        shares=[len(x) for x in training.batch.xs],
    )


def _gated_windows(training: MeasuredTraining) -> Dict[str, GatedWindow]:
    """Return windows (timed runs of steps) in which the devices wait until all steps are queued."""
    batch = training.batch
    _, resized = _resized_batch(training)

    def window(batch: Batch, *without: str) -> GatedWindow:
        return GatedWindow(list(batch.xs), partial(training.queue_phases, batch, without))

    windows_by_name = {
        windows.WITHOUT_HOST: window(batch),
        windows.NO_SUM: window(batch, SUM),
        windows.NO_UPDATE: window(batch, UPDATE),
        windows.PASSES: window(batch, SUM, UPDATE),
        windows.OTHER_SIZE: window(resized, SUM, UPDATE),
    }
    if BACKWARD in training.queue_phases(batch):  # a strategy of stages has both passes in one phase
        windows_by_name[windows.FORWARD] = window(batch, BACKWARD, SUM, UPDATE)
    if isinstance(training.strategy, DataParallel) and not training.plan.sync_bn:
        for device, array in enumerate(batch.xs):
            windows_by_name[windows.single_device_window(device)] = GatedWindow(
                [array], partial(training.train_device_alone, device)
            )
    return windows_by_name


def _isolated_windows(training: MeasuredTraining) -> Dict[str, TimedCall]:
    """Return windows (timed runs) that repeat only one part of a step: input, sum or update."""
    batch, passes = training.batch, (FORWARD, BACKWARD, STAGES)
    return {
        windows.JUST_INPUT: training.fetch_window(),
        windows.JUST_SUM: ZeroGradientWindow(training, partial(training.queue_phases, batch, (*passes, UPDATE))),
        windows.JUST_UPDATE: ZeroGradientWindow(training, partial(training.queue_phases, batch, (*passes, SUM))),
    }


def _resized_batch(training: MeasuredTraining) -> "tuple[float, Batch]":
    """Return (ratio, batch) for a batch that is smaller or larger than the batch of a step.

    The batch has half the images of a step, or twice the images if a device has fewer than
    FEW_IMAGES. The ratio is the size of the batch divided by the size of a step.
    """
    batch = training.batch
    if min(map(len, batch.xs)) >= FEW_IMAGES:
        half = [slice(0, len(x) // 2) for x in batch.xs]
        xs, ys = ([a[s].copy() for a, s in zip(arrays, half)] for arrays in (batch.xs, batch.ys))
    else:
        xs, ys = ([nd.concat(a, a, dim=0) for a in arrays] for arrays in (batch.xs, batch.ys))
    images = sum(map(len, xs))
    return images / batch.size, Batch(xs, ys, images)


def _blocked_seconds(phase_costs: Any) -> float:
    """Return for how many seconds the host slept or waited during the sum."""
    cost = (phase_costs or {}).get(SUM)
    return 0.0 if cost is None else max(0.0, cost.seconds - cost.computing)


def _updates_in_store(training: MeasuredTraining) -> bool:
    trainer = getattr(training.strategy, "trainer", None)
    return bool(getattr(trainer, "_update_on_kvstore", False))  # a TrainerGroup has none


class _PlainCopySum:
    """A plain sum: arrays are copied to the first device, added there, and copied back.

    Calling the object queues the sum. The arrays are as large as the gradients, up to
    MAX_COPIED_BYTES. ``factor``: the size of the gradients divided by the size of the arrays.
    """

    def __init__(self, training: MeasuredTraining) -> None:
        params = training.strategy.net.collect_params().values()
        trained_params = [param for param in params if param.grad_req != "null"]
        self.gradient_bytes = 4 * sum(math.prod(param.shape) for param in trained_params)
        byte_count = max(4, min(self.gradient_bytes, MAX_COPIED_BYTES))
        self.factor = max(1.0, self.gradient_bytes / byte_count)
        first, *others = training.plan.ctxs
        shape = (byte_count // 4,)
        self._first = nd.zeros(shape, ctx=first)
        self._arrived = [nd.zeros(shape, ctx=first) for _ in others]
        self._others = [nd.zeros(shape, ctx=ctx) for ctx in others]
        self._copies_in = [CopyInto(array) for array in self._arrived]
        self._add = AddInto(self._first)
        self._copies_out = [CopyInto(array) for array in self._others]

    def __call__(self) -> None:
        for copy, array, arrived in zip(self._copies_in, self._others, self._arrived):
            copy.copy(array)
            self._add.add(arrived)
        for copy in self._copies_out:
            copy.copy(self._first)


# --- windows of steps


class HostPhaseCost(NamedTuple):
    """Seconds that the host spends on a phase while the devices are idle.

    ``seconds`` is elapsed time, and ``computing`` is processor time. In the rest of the elapsed
    time, the host sleeps or waits.
    """

    seconds: float
    computing: float


class MeasuredTraining:
    """Training with ``config``. Methods that train queue a step without waiting for it.

    Graphs are bound in the first step, so all methods that queue a step do so within the plan's
    ``overlap_context``. ``strategy``: see `gluonlab.training.loop.train`. Raises a UsageError for a
    config that cannot be trained, and ConfigError for a data set smaller than one batch.
    """

    def __init__(
        self, config: TrainConfig, dataset: Optional[Dataset] = None, strategy: Optional[MakeStrategy] = None
    ) -> None:
        plan = make_plan(config.replace(lr=LEARNING_RATE, scale_lr=False), dataset)
        self.plan, self.strategy = plan, prepare(plan, strategy).strategy
        self._log = AsyncLossMeter(self.strategy.outputs, self.plan.loss_scale is not None)
        self._batches = self._whole_batches()
        first = next(self._batches)
        self.batch = Batch([x.copy() for x in first.xs], [y.copy() for y in first.ys], first.size)

    @property
    def device_count(self) -> int:
        """Return the number of devices."""
        return len(self.plan.ctxs)

    @property
    def images(self) -> int:
        """Return the number of images per step."""
        return self.batch.size

    def step(self) -> None:
        """Train on the next batch and record its losses, as in a normal run."""
        self._train_on(next(self._batches))

    def step_window(self) -> "StreamedWindow":
        """Return a window of complete steps."""
        return StreamedWindow(self, self.step)

    def fetch_window(self) -> "StreamedWindow":
        """Return a window that only fetches batches."""
        return StreamedWindow(self, lambda: next(self._batches))

    def repeat_step(self) -> None:
        """Train on the first batch again."""
        self._train_on(self.batch)

    def close(self) -> None:
        """Stop the loader."""
        nd.waitall()
        self._batches.close()

    def queue_phases(self, batch: Batch, without: Collection[str] = ()) -> Dict[str, HostPhaseCost]:
        """Queue a step without the phases ``without``, and return the host's cost of the rest."""
        costs: Dict[str, HostPhaseCost] = {}
        with self.plan.overlap_context():
            for name, queue in self.strategy.phases(batch):
                if name in without:
                    continue
                wall, cpu = time.perf_counter(), time.thread_time()
                queue()
                previous = costs.get(name, HostPhaseCost(0.0, 0.0))
                costs[name] = HostPhaseCost(
                    previous.seconds + time.perf_counter() - wall, previous.computing + time.thread_time() - cpu
                )
        return costs

    def train_device_alone(self, device: int) -> None:
        """Queue forward and backward for one device's shard, while the other devices are idle."""
        assert isinstance(self.strategy, DataParallel)
        replica = self.strategy.replicas[device]
        shard = Batch([self.batch.xs[device]], [self.batch.ys[device]], len(self.batch.xs[device]))
        with self.plan.overlap_context():
            for number, [(_, images, labels)] in enumerate(self.plan.microbatches.split_into_rounds(shard)):
                replica.forward(images, labels, accumulate=number > 0)
                replica.backward()

    def record(self, steps: int) -> Timeline:
        """Record ``steps`` steps, or more if the loader has prefetched many batches."""
        for _ in range(self.ahead):
            self.step()
        steps = max(steps, 4 * self.ahead)
        recorder = Recorder(self.plan.ctxs, 1)
        batch = next(self._batches)
        recorder.learn(partial(self._step, batch))
        for _ in range(steps):
            batch = recorder.fetch(lambda: next(self._batches))
            self._log.append(recorder.record(partial(self._step, batch)), batch.size)
        return recorder.end()

    def _train_on(self, batch: Batch) -> None:
        self._log.append(self._step(batch), batch.size)

    def _step(self, batch: Batch, hook: Optional[PhaseHook] = None) -> List[nd.NDArray]:
        with self.plan.overlap_context():
            return self.strategy.step(batch, hook)

    def _whole_batches(self) -> "Any":
        """Yield full-size batches, epoch after epoch."""
        size = self.plan.global_batch_size
        loader = train_loader(self.plan, self.strategy.inputs)
        prepares_batches = not loader.is_resident or loader.augment is not None or loader.mixup is not None
        self.ahead = self.plan.prefetch + 1 if prepares_batches and self.plan.prefetch else 0
        if len(self.plan.dataset.train) < size:
            raise ConfigError(
                f"a batch of {size:,} images is larger than the training set of {self.plan.dataset.name}, which has "
                f"{len(self.plan.dataset.train):,} images: choose a smaller --batch-size"
            )
        while True:
            with closing(iter(loader)) as batches:
                for batch in batches:
                    if batch.size == size:
                        yield batch


def _mean_seconds(queue: Callable[[], Any], repeat: int) -> float:
    """Return the mean seconds of ``repeat`` calls of ``queue``, including the queued work."""
    nd.waitall()
    started = time.perf_counter()
    for _ in range(repeat):
        queue()
    nd.waitall()
    return (time.perf_counter() - started) / repeat


class StreamedWindow:
    """A window in which each step uses a new batch, after all prefetched batches are used up."""

    def __init__(self, trained: MeasuredTraining, queue: Callable[[], Any]) -> None:
        self._queue = queue
        self._ahead = trained.ahead

    def mean_seconds(self, repeat: int) -> float:
        """Return the mean seconds of a step.

        ``repeat`` steps are timed, or more if the loader has prefetched many batches.
        """
        for _ in range(self._ahead):
            self._queue()
        return _mean_seconds(self._queue, max(repeat, 2 * self._ahead))


class ZeroGradientWindow:
    """A window that repeats sums or updates of gradients.

    The gradients are zero, because other gradients would grow with each sum.
    """

    def __init__(self, trained: MeasuredTraining, queue: Callable[[], Any]) -> None:
        strategy: Any = trained.strategy
        self._updates = strategy.trainer
        self._copies, self._queue = range(len(strategy.inputs)), queue

    def mean_seconds(self, repeat: int) -> float:
        """Return the mean seconds of ``repeat`` sums or updates."""
        self._updates.zero_grad(self._copies)
        return _mean_seconds(self._queue, repeat)


class GatedWindow:
    """A window whose steps exclude the host's time.

    A gate stops the devices until the host has queued all steps. ``queue`` queues a step that reads
    ``arrays``, which are not ready until the gate opens.
    `gluonlab.bench.harness.interleaved_rounds` times the window.
    """

    def __init__(self, arrays: List[nd.NDArray], queue: Callable[[], Any]) -> None:
        self._arrays, self._queue = arrays, queue
        self._patience_s = 0.0
        self.last: Any = None  # the return value of the last ``queue``
        self.waits = False  # whether the host waits for the devices within a step

    def mean_seconds(self, repeat: int) -> float:
        """Return the mean seconds per step, over MIN_GATED_STEPS to MAX_GATED_STEPS steps."""
        if not self._patience_s:
            self._measure_ungated(1)  # the first step binds graphs and allocates arrays
            self._patience_s = PATIENCE_S + 3 * self._measure_ungated(1)
        repeat = max(MIN_GATED_STEPS, min(repeat, MAX_GATED_STEPS))
        return self._measure_ungated(repeat) if self.waits else self._measure_gated(repeat)

    def _measure_gated(self, repeat: int) -> float:
        """Return the mean seconds per step if the devices are held until all steps are queued.

        If the host waits for a device, the steps are measured again without holding the devices.
        """
        gate = EngineHold(self._arrays, self._patience_s)
        self.last = self._queue()
        self.waits = not gate.held_until_release
        gate.extend(self._patience_s * repeat)
        for _ in range(repeat - 1):
            self.last = self._queue()
        started = time.perf_counter()
        gate.release()
        nd.waitall()
        return self._measure_ungated(repeat) if self.waits else (time.perf_counter() - started) / repeat

    def _measure_ungated(self, repeat: int) -> float:
        """Return the mean seconds per step if the devices start immediately."""

        def queue() -> None:
            self.last = self._queue()

        return _mean_seconds(queue, repeat)
