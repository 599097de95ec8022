"""Trainings with one known bottleneck, made by sleeping devices, stores and loaders.

Sleep takes no core, so that a bottleneck remains one on a busy machine. The network is small. The
devices sleep for the cost of its images, or `SimulatedClock` only counts the cost.
"""

import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional

import numpy as np
from mxnet import nd
from mxnet.gluon import nn

from gluonlab import kvstores, models
from gluonlab.bench.harness import interleaved_rounds
from gluonlab.bench.harness.machine_info import OtherProcessLoad
from gluonlab.config import TrainConfig
from gluonlab.data.sets.dataset import ArraySplit, Dataset, Defaults
from gluonlab.engine.cpu_threads import EngineCallback, push_engine_operation
from gluonlab.kvstores.schedule_stores import ScheduleKVStore
from gluonlab.parallel.data.strategy import DataParallel
from gluonlab.study.speedup import diagnosis, measure_step
from support.devices import device_spec, runs_on_gpus

IMAGE_S = 0.0006  # cost of an image on a device
BATCH = 16  # images per device
TICK_S = 1e-5  # of `SimulatedClock`: each window of steps must take some time
SHAPE, WIDE_SHAPE = (1, 8, 8), (1, 64, 64)
SLEEPY, LATE, LINK, WIDE = "sleepy", "late", "link", "wide"


class SimulatedClock:
    """A clock that advances by the pauses of two devices only.

    Operations are computed as usual, but nothing sleeps and no time is measured. Each read of the
    clock takes TICK_S. A wait for the devices takes the rest of their pauses.
    """

    def __init__(self) -> None:
        self._host, self._devices = 0.0, {0: 0.0, 1: 0.0}

    def perf_counter(self) -> float:
        self._host += TICK_S
        return self._host

    thread_time = perf_counter

    def wait(self) -> None:
        """Advance the host to the end of both devices' work."""
        self._host = max(self._host, *self._devices.values())

    def compute(self, device: int, seconds: float) -> None:
        """Add seconds to the queued work of a device."""
        self._devices[device] = max(self._host, self._devices[device]) + seconds

    def exchange(self, seconds: float) -> None:
        """Add an exchange of data, for which both devices wait for each other."""
        end = max(self._host, *self._devices.values()) + seconds
        self._devices = dict.fromkeys(self._devices, end)

    @classmethod
    def install(cls, monkeypatch: Any) -> "SimulatedClock":
        """Make the measurements of steps use a simulated clock, in short blocks."""
        clock, wait_for_all = cls(), nd.waitall

        def waitall() -> None:
            wait_for_all()
            clock.wait()

        monkeypatch.setattr(nd, "waitall", waitall)
        for module in (interleaved_rounds, measure_step):
            monkeypatch.setattr(module, "time", clock)
        for module in (measure_step, diagnosis):
            monkeypatch.setattr(module, "BLOCK_S", TICK_S)
        monkeypatch.setattr(measure_step, "RECORDED_S", 0.0)
        monkeypatch.setattr(pause, "clock", clock)
        monkeypatch.setattr(OtherProcessLoad, "busy_cores", lambda self: 0.0)
        return clock


class DevicePause:
    """A function that makes the device of an array sleep, and later users of the array wait.

    ``after``: the array that must be written before the sleep starts. A GPU has two workers, so
    that an operation that does not depend on a sum may overlap it. ``clock``: a simulated clock
    that replaces the sleep.
    """

    def __init__(self) -> None:
        self._callbacks: Dict[float, Any] = {}
        self.clock: Optional[SimulatedClock] = None

    def __call__(self, array: Any, seconds: float, name: bytes = b"compute", after: Any = None) -> None:
        if self.clock is not None:
            if name == b"link":
                self.clock.exchange(seconds)
            else:
                self.clock.compute(array.context.device_id, seconds)
            return
        if seconds not in self._callbacks:
            self._callbacks[seconds] = EngineCallback(lambda *_: time.sleep(seconds))
        push_engine_operation(self._callbacks[seconds], array, name, after)


pause = DevicePause()  # its callbacks live as long as the engine may call them


class SlowSplit(ArraySplit):
    """Images that are slow to read."""

    seconds = 0.0

    def batch(self, indices: Any) -> Any:
        time.sleep(self.seconds)
        return super().batch(indices)


class SleepingStore(ScheduleKVStore):
    """A kvstore that sleeps once in a step: on the host, or, if ``late``, on the first device."""

    late, seconds = False, 0.0

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        lists = value if isinstance(value[0], (list, tuple)) else [value]
        if self.late:
            pause(lists[0][0], self.seconds if is_first_bucket(key) else 0.0, b"link")
        else:
            time.sleep(self.seconds if is_first_bucket(key) else 0.0)
        super().pushpull(key, value, out, priority)


def is_first_bucket(key: Any) -> bool:
    """Return whether a key is that of the first bucket of a step."""
    return (key[0] if isinstance(key, (list, tuple)) else key) == 0


class BottleneckCase(NamedTuple):
    """A training of small images on two devices, and its bottleneck, the ``cause``.

    Seconds that sleeps add to a step: ``loader`` for a batch, ``host`` in Python, ``late`` and
    ``sleepy`` in the kvstore, ``slow`` on the second device, ``slower`` there for each image,
    ``image`` for each image on both devices, ``fixed`` on both devices, and ``link`` for the sum of
    the gradients of a dense layer of ``wide`` parameters.
    """

    cause: str
    loader: float = 0.0
    host: float = 0.0
    sleepy: float = 0.0
    late: float = 0.0
    slow: float = 0.0
    slower: float = 0.0
    image: float = IMAGE_S
    fixed: float = 0.0
    link: float = 0.0
    wide: int = 0
    settings: Optional[Dict[str, Any]] = None

    def make_config(self) -> TrainConfig:
        values: Dict[str, Any] = {"devices": device_spec(2), "threads": None if runs_on_gpus() else 1}
        values.update(dataset="synthetic", model=WIDE if self.wide else "mlp", batch_size=BATCH,
                    optimizer="sgd", device_cache_bytes=0 if self.loader else 2**28)  # fmt: skip
        if self.sleepy or self.late:
            values["kvstore"] = SLEEPY if self.sleepy else LATE
        if self.link:
            values["kvstore"] = LINK
        return TrainConfig(**{**values, **(self.settings or {})})

    def make_dataset(self) -> Dataset:
        random = np.random.RandomState(0)
        shape = WIDE_SHAPE if self.wide else SHAPE
        images = random.randint(0, 256, (BATCH * 2 * 8, *shape), dtype=np.uint8)
        labels = random.randint(0, 10, len(images)).astype(np.int32)
        train = SlowSplit(images, labels)
        train.seconds = self.loader
        classes = tuple("0123456789")
        return Dataset("synthetic", train, ArraySplit(images[:8], labels[:8]), classes, Defaults())

    def make_strategy(self, make_net: Any, loss: Any, plan: Any, group: Any) -> DataParallel:
        """Return data parallelism with the sleeps of this case."""
        strategy = DataParallel(make_net, loss, plan, group)
        for number, replica in enumerate(strategy.replicas):
            slow, slower = (self.slow, self.slower) if number == 1 else (0.0, 0.0)
            replica.forward = self._slow_forward(replica.forward, slow, slower, strategy.net)
        if self.host:
            strategy.phases = self._delay_phases(strategy.phases)
        return strategy

    def _slow_forward(self, forward: Callable[..., Any], slow: float, slower: float, net: Any) -> Callable[..., Any]:
        def sleep_and_forward(images: Any, labels: Any, **options: Any) -> Any:
            seconds = round((self.image + slower) * len(images) + self.fixed + slow, 6)
            if seconds:
                weights = next(iter(net.collect_params().values()))
                pause(images, seconds, after=weights.data(images.context))
            return forward(images, labels, **options)

        return sleep_and_forward

    def _delay_phases(self, phases: Callable[..., Any]) -> Callable[..., Any]:
        def queue_late(queue: Callable[[], None], seconds: float) -> None:
            until = time.thread_time() + seconds
            while time.thread_time() < until:
                pass
            queue()

        def delayed_phases(batch: Any, around: Any = None) -> Any:
            for name, queue in phases(batch, around):
                yield name, lambda queue=queue: queue_late(queue, self.host / 4)

        return delayed_phases


def _make_wide_net(count: int) -> Any:
    def make(classes: int) -> Any:
        net = nn.HybridSequential(prefix="wide_")
        with net.name_scope():
            net.add(nn.Flatten(), nn.Dense(count // 4096, activation="relu"), nn.Dense(classes))
        return net

    return make


def register_fake_components(monkeypatch: Any, bound: BottleneckCase) -> None:
    """Register the network and the kvstores of a case under their names."""

    def make_store(name: str, topology: Any) -> SleepingStore:
        store = SleepingStore("sharded")
        store.late, store.seconds = name != SLEEPY, getattr(bound, name)
        return store

    copy_sum = measure_step._PlainCopySum.__call__

    def copy_slowly(self: Any) -> None:
        if bound.link:
            pause(self._first, bound.link / self.factor, b"link")
        copy_sum(self)

    monkeypatch.setattr(measure_step._PlainCopySum, "__call__", copy_slowly)
    for name in (SLEEPY, LATE, LINK):
        kind = kvstores.KVStoreKind(make_store, "sleeps before it sums")
        monkeypatch.setitem(kvstores.KVSTORES, name, kind)
    kind = models.ModelKind(_make_wide_net(bound.wide or 64), "one dense layer")
    monkeypatch.setitem(models.MODELS, WIDE, kind)


def bottleneck_cases() -> List[BottleneckCase]:
    """Return cases of each cause at several strengths, of two causes, and of none."""
    delays = (0.008, 0.02, 0.06)  # BATCH images take 0.01
    return [
        *(BottleneckCase("input", loader=seconds + BATCH * IMAGE_S) for seconds in delays),
        *(BottleneckCase("host", host=seconds + BATCH * IMAGE_S) for seconds in delays),
        *(BottleneckCase("waiting", sleepy=seconds + BATCH * IMAGE_S) for seconds in delays),
        *(BottleneckCase("waiting", late=seconds) for seconds in delays[:2]),
        *(BottleneckCase("straggler", slow=seconds) for seconds in delays),
        *(BottleneckCase("few", fixed=seconds) for seconds in delays),
        *(BottleneckCase("sum", wide=400_000, link=seconds) for seconds in delays),
        *(BottleneckCase("update", wide=count, image=0.0,
        settings={"optimizer": "adam", "batch_size": 1})
          for count in (1_000_000, 2_000_000, 4_000_000)),
        BottleneckCase("input", loader=0.05, late=0.008),
        BottleneckCase("waiting", late=0.03, slow=0.01),
        BottleneckCase("nothing"),
        BottleneckCase("nothing", image=4 * IMAGE_S),
    ]  # fmt: skip
