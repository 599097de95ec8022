"""Trainings bound by one thing or another, made so by sleeping devices, stores and loaders.

Sleep takes no core, so that what binds a training binds it on a busy machine, too. The network is
small; what its images cost is slept, or only counted (`SimulatedClock`).
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

IMAGE_S = 0.0006  # that an image costs a device
BATCH = 16  # images per device
TICK_S = (
    1e-5  # of `SimulatedClock`: next to nothing, but what takes no time at all cannot be repeated
)
SHAPE, WIDE_SHAPE = (1, 8, 8), (1, 64, 64)
SLEEPY, LATE, LINK, WIDE = "sleepy", "late", "link", "wide"


class SimulatedClock:
    """A clock of two devices that take the seconds of their pauses, and no others.

    What is queued is computed as always, but nobody sleeps and no time is measured: each look at
    the clock takes TICK_S, and a wait for the devices takes what they have left to do.
    """

    def __init__(self) -> None:
        self._host, self._devices = 0.0, {0: 0.0, 1: 0.0}

    def perf_counter(self) -> float:
        self._host += TICK_S
        return self._host

    thread_time = perf_counter

    def wait(self) -> None:
        """As the host waits for both devices."""
        self._host = max(self._host, *self._devices.values())

    def compute(self, device: int, seconds: float) -> None:
        """Let a device compute, after what it has begun."""
        self._devices[device] = max(self._host, self._devices[device]) + seconds

    def exchange(self, seconds: float) -> None:
        """Let both wait for each other, and for so long."""
        end = max(self._host, *self._devices.values()) + seconds
        self._devices = dict.fromkeys(self._devices, end)

    @classmethod
    def instead_of_clock(cls, monkeypatch: Any) -> "SimulatedClock":
        """Let windows of steps be timed by such a clock, in short blocks."""
        made, wait_for_all = cls(), nd.waitall

        def waitall() -> None:
            wait_for_all()
            made.wait()

        monkeypatch.setattr(nd, "waitall", waitall)
        for module in (interleaved_rounds, measure_step):
            monkeypatch.setattr(module, "time", made)
        for module in (measure_step, diagnosis):
            monkeypatch.setattr(module, "BLOCK_S", TICK_S)
        monkeypatch.setattr(measure_step, "RECORDED_S", 0.0)
        monkeypatch.setattr(pause, "made", made)
        monkeypatch.setattr(OtherProcessLoad, "busy_cores", lambda self: 0.0)
        return made


class DevicePause:
    """``pause(array)``: whatever uses the array waits for so long, and its device sleeps.

    ``after``: it begins when that array has been written. A GPU has two workers, so that what does
    not depend on a sum may run beside it. ``made``: the clock that counts instead, if any.
    """

    def __init__(self) -> None:
        self._callbacks: Dict[float, Any] = {}
        self.made: Optional[SimulatedClock] = None

    def __call__(
        self, array: Any, seconds: float, name: bytes = b"compute", after: Any = None
    ) -> None:
        if self.made is not None:
            if name == b"link":
                self.made.exchange(seconds)
            else:
                self.made.compute(array.context.device_id, seconds)
            return
        if seconds not in self._callbacks:
            self._callbacks[seconds] = EngineCallback(lambda *_: time.sleep(seconds))
        push_engine_operation(self._callbacks[seconds], array, name, after)


pause = DevicePause()  # its callbacks live as long as the engine may call them


class SlowSplit(ArraySplit):
    """Images that take their time to be read."""

    seconds = 0.0

    def batch(self, indices: Any) -> Any:
        time.sleep(self.seconds)
        return super().batch(indices)


class SleepingStore(ScheduleKVStore):
    """Sums, but sleeps before, in a step: the host, or, if it is ``late``, the first device."""

    late, seconds = False, 0.0

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        lists = value if isinstance(value[0], (list, tuple)) else [value]
        if self.late:
            pause(lists[0][0], self.seconds if is_first_bucket(key) else 0.0, b"link")
        else:
            time.sleep(self.seconds if is_first_bucket(key) else 0.0)
        super().pushpull(key, value, out, priority)


def is_first_bucket(key: Any) -> bool:
    """Whether a store is called for the first bucket of a step."""
    return (key[0] if isinstance(key, (list, tuple)) else key) == 0


class BottleneckCase(NamedTuple):
    """A training of small images on two devices, and what keeps it from being faster.

    Seconds that a step is made to take: ``loader`` for a batch, ``host`` in Python, ``late`` and
    ``sleepy`` in the store, ``slow`` on the second device, and ``slower`` there for each image.
    ``image``: an image's own. ``wide``:
    parameters of a dense layer, whose gradients take ``link`` to be summed by whatever copies them;
    ``fixed``: what a device computes for no image.
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

    def config(self) -> TrainConfig:
        made: Dict[str, Any] = {"devices": device_spec(2), "threads": None if runs_on_gpus() else 1}
        made.update(dataset="synthetic", model=WIDE if self.wide else "mlp", batch_size=BATCH,
                    optimizer="sgd", resident_bytes=0 if self.loader else 2**28)  # fmt: skip
        if self.sleepy or self.late:
            made["kvstore"] = SLEEPY if self.sleepy else LATE
        if self.link:
            made["kvstore"] = LINK
        return TrainConfig(**{**made, **(self.settings or {})})

    def dataset(self) -> Dataset:
        random = np.random.RandomState(0)
        shape = WIDE_SHAPE if self.wide else SHAPE
        images = random.randint(0, 256, (BATCH * 2 * 8, *shape), dtype=np.uint8)
        labels = random.randint(0, 10, len(images)).astype(np.int32)
        train = SlowSplit(images, labels)
        train.seconds = self.loader
        classes = tuple("0123456789")
        return Dataset("synthetic", train, ArraySplit(images[:8], labels[:8]), classes, Defaults())

    def strategy(self, make_net: Any, loss: Any, plan: Any, group: Any) -> DataParallel:
        """Data parallelism that takes its time."""
        made = DataParallel(make_net, loss, plan, group)
        for number, replica in enumerate(made.replicas):
            slow, slower = (self.slow, self.slower) if number == 1 else (0.0, 0.0)
            replica.forward = self._slowly(replica.forward, slow, slower, made.net)
        if self.host:
            made.phases = self._busily(made.phases)
        return made

    def _slowly(
        self, forward: Callable[..., Any], slow: float, slower: float, net: Any
    ) -> Callable[..., Any]:
        def slowed(images: Any, labels: Any, **options: Any) -> Any:
            seconds = round((self.image + slower) * len(images) + self.fixed + slow, 6)
            if seconds:
                weights = next(iter(net.collect_params().values()))
                pause(images, seconds, after=weights.data(images.context))
            return forward(images, labels, **options)

        return slowed

    def _busily(self, phases: Callable[..., Any]) -> Callable[..., Any]:
        def delayed(queue: Callable[[], None], seconds: float) -> None:
            until = time.thread_time() + seconds
            while time.thread_time() < until:
                pass
            queue()

        def made(batch: Any, around: Any = None) -> Any:
            for name, queue in phases(batch, around):
                yield name, lambda queue=queue: delayed(queue, self.host / 4)

        return made


def _wide(count: int) -> Any:
    def make(classes: int) -> Any:
        net = nn.HybridSequential(prefix="wide_")
        with net.name_scope():
            net.add(nn.Flatten(), nn.Dense(count // 4096, activation="relu"), nn.Dense(classes))
        return net

    return make


def register_fake_components(monkeypatch: Any, bound: BottleneckCase) -> None:
    """Let the names of its network and its store be known."""

    def sleepy(name: str, topology: Any) -> SleepingStore:
        store = SleepingStore("sharded")
        store.late, store.seconds = name != SLEEPY, getattr(bound, name)
        return store

    plain = measure_step._PlainCopySum.__call__

    def over_the_link(self: Any) -> None:
        if bound.link:
            pause(self._first, bound.link / self.factor, b"link")
        plain(self)

    monkeypatch.setattr(measure_step._PlainCopySum, "__call__", over_the_link)
    for name in (SLEEPY, LATE, LINK):
        kind = kvstores.KVStoreKind(sleepy, "sleeps before it sums")
        monkeypatch.setitem(kvstores.KVSTORES, name, kind)
    kind = models.ModelKind(_wide(bound.wide or 64), "one dense layer")
    monkeypatch.setitem(models.MODELS, WIDE, kind)


def bottleneck_cases() -> List[BottleneckCase]:
    """Each cause at three strengths, mixed, and what nothing helps."""
    steps = (0.008, 0.02, 0.06)  # beside BATCH images, which take 0.01
    return [
        *(BottleneckCase("input", loader=seconds + BATCH * IMAGE_S) for seconds in steps),
        *(BottleneckCase("host", host=seconds + BATCH * IMAGE_S) for seconds in steps),
        *(BottleneckCase("waiting", sleepy=seconds + BATCH * IMAGE_S) for seconds in steps),
        *(BottleneckCase("waiting", late=seconds) for seconds in steps[:2]),
        *(BottleneckCase("straggler", slow=seconds) for seconds in steps),
        *(BottleneckCase("few", fixed=seconds) for seconds in steps),
        *(BottleneckCase("sum", wide=400_000, link=seconds) for seconds in steps),
        *(BottleneckCase("update", wide=count, image=0.0,
        settings={"optimizer": "adam", "batch_size": 1})
          for count in (1_000_000, 2_000_000, 4_000_000)),
        BottleneckCase("input", loader=0.05, late=0.008),
        BottleneckCase("waiting", late=0.03, slow=0.01),
        BottleneckCase("nothing"),
        BottleneckCase("nothing", image=4 * IMAGE_S),
    ]  # fmt: skip
