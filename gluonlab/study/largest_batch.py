"""The largest batch that fits into a given amount of memory, found by short runs of some sizes.

`gluonlab.training.run_memory` says what is measured. Memory grows almost linearly with the batch:
two small sizes predict the largest one, and a run of that size must stay below the budget, with a
little left for what differs from run to run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, NoReturn, Optional, Tuple

from gluonlab.config import TrainConfig
from gluonlab.data.sets.dataset_registry import takes
from gluonlab.engine.np_compatibility import nd_semantics
from gluonlab.errors import ConfigError
from gluonlab.host.resources import available_memory
from gluonlab.parallel.memory_estimate import MIB
from gluonlab.parallel.strategy import DATA
from gluonlab.training.plan import Plan, make_plan
from gluonlab.training.run_memory import Memory, Needs, Row, TooMuch, measure, needs_of, table

# of the budget, for what differs between runs; those of one config differ by 1 %
SPARE, LEAST_SPARE = 0.03, 16 * MIB
LEAST = 128 * MIB  # Python and MXNet alone take more
UNBOUNDED = 2**31  # images: more than MXNet's arrays hold

Tell = Callable[[str], None]


@dataclass(frozen=True)
class LargestBatch:
    """The largest batch, and what limits it.

    ``rows``: the plan's figures for each device. ``taken``: the peak of a run with it, of the
    ``budget``, both in bytes: of the whole process on CPU devices, of each GPU on GPUs. ``limit``:
    the "budget"; the "machine", which has less memory free; the "data", of which a device has no
    more; the "arrays", which MXNet does not allow larger. ``would_fit``: in the last two cases,
    about how many images per device the memory would hold. Where devices share a copy of the
    network, sizes are those of a copy, ``per``.
    """

    rows: List[Row]
    taken: int
    budget: int
    limit: str
    would_fit: Optional[int] = None
    per: str = "device"

    @property
    def memory(self) -> Memory:
        """Of the device that takes most."""
        return max((memory for _, memory in self.rows), key=lambda memory: memory.total)

    @property
    def images(self) -> int:
        """The batch size per device, or per copy of the network."""
        return self.memory.images

    def to_dict(self) -> Dict[str, Any]:
        """Plain values; ``total`` is the plan's sum for a device, of several that takes most."""
        planned = {name: {**each._asdict(), "total": each.total} for name, each in self.rows}
        return {
            **self.memory._asdict(),
            "total": self.memory.total,
            **({"devices": planned} if len(planned) > 1 else {}),
            "taken": self.taken,
            "budget": self.budget,
            "limit": self.limit,
            "would_fit": self.would_fit,
        }

    def lines(self) -> List[str]:
        """For people: the size, what it takes, what limits it, and the plan's figures."""
        training = f"training takes {_mib(self.taken)} of {_mib(self.budget)}"
        if self.would_fit is None:
            less = "" if self.limit == "budget" else ", and no more is free on this machine"
            first = f"--batch-size {self.images} is the largest that fits: {training}{less}"
            return [first, *table(self.rows)]
        ends = (
            f"the data set has only {self.images:,} images per {self.per}"
            if self.limit == "data"
            else "MXNet allows no larger arrays"
        )
        return [
            f"--batch-size {self.images} fits: {training}",
            (
                f"memory is not the limit: {ends}; "
                f"memory would hold batches of up to about {self.would_fit:,}"
            ),
            *table(self.rows),
        ]


@nd_semantics()
def find_batch_size(
    config: TrainConfig, budget_bytes: int, tell: Tell = lambda line: None
) -> LargestBatch:
    """The largest batch per device with which a run takes at most ``budget_bytes``.

    It is per copy of the network where devices share one, and at most the share of the training
    images. The budget is for the whole process on
    CPU devices, for each GPU on GPUs. ``tell`` gets a line for each size that is tried. Raises
    ConfigError when not even the smallest batch fits, or when the config has a batch size already.
    """
    if config.batch_size is not None or config.global_batch_size is not None:
        raise ConfigError(
            "--find-batch-size looks for the batch size: "
            "leave --batch-size and --global-batch-size out"
        )
    smallest = config.microbatches or 1
    plan = make_plan(config.replace(batch_size=smallest))
    return _Search(plan, budget_bytes, smallest, tell).result()


class _Search:
    """What the sizes are, and what they cost."""

    def __init__(self, plan: Plan, budget: int, smallest: int, tell: Tell) -> None:
        self.plan, self.budget, self.smallest, self.tell = plan, budget, smallest, tell
        self.grows = takes(plan.config.dataset, "samples")
        split = plan.split.way != DATA
        self.per = plan.split.has_copy
        # a share of a pipeline has as many microbatches as usual only if it has as many images
        self.few = (8 * smallest, 72 * smallest) if split else (smallest, 9 * smallest)
        self.needs = self._needs(self.few[1]) if split else needs_of(plan)
        self.on_gpus = plan.ctxs[0].device_type == "gpu"
        self.ceiling, self.limit = _less_spare(budget), "budget"

    def result(self) -> LargestBatch:
        """Find it. Raises ConfigError if nothing fits."""
        self._look_at_the_machine()
        share = (
            UNBOUNDED
            if self.grows
            else max(self.smallest, len(self.plan.dataset.train) // len(self.plan.split.copies))
        )
        sizes = LargestSize(
            self._cost,
            self.smallest,
            self.needs.limit.largest(share),
            self.ceiling,
            self._planned_image_bytes(),
        )
        found = sizes.search()
        if found is None:
            self._refuse(_mib(self._measure(self.smallest, None)))
        images, taken = found
        if images < sizes.most:
            return LargestBatch(self._planned(images), taken, self.budget, self.limit, per=self.per)
        would_fit = images + int((self.ceiling - taken) / sizes.slope())
        return LargestBatch(
            self._planned(images),
            taken,
            self.budget,
            "data" if images == share else "arrays",
            would_fit,
            self.per,
        )

    def _look_at_the_machine(self) -> None:
        """No more than there is, and not less than any process takes."""
        if self.on_gpus:
            return
        here = available_memory()
        if here is not None and _less_spare(here.free) < self.ceiling:
            self.ceiling, self.limit = _less_spare(here.free), "machine"
        if self.ceiling < LEAST:
            self._refuse(f"more than the {_mib(LEAST)} that Python and MXNet take by themselves")

    def _planned_image_bytes(self) -> float:
        """What another image for every copy takes by MXNet's plan, which knows only a part."""
        fewer, more = (self._taken_by_all(images) for images in self.few)
        return (more - fewer) / (self.few[1] - self.few[0])

    def _taken_by_all(self, images: int) -> int:
        """Bytes of all devices, which share one memory, or of the GPU that takes most."""
        needs = self.needs
        if self.on_gpus:
            return needs.memory(images).total
        of_a_copy = sum(memory.total for _, memory in needs.rows(images))
        return of_a_copy * len(self.plan.split.copies)

    def _planned(self, images: int) -> List[Row]:
        """The plan's figures; a made-up data set has grown with the batch, and cuts have moved."""
        same = self.plan.split.way == DATA and not self.grows
        return (self.needs if same else self._needs(images)).rows(images)

    def _needs(self, images: int) -> Needs:
        """Those of a plan for batches of this size."""
        dataset = None if self.grows else self.plan.dataset
        return needs_of(make_plan(self.plan.config.replace(batch_size=images), dataset))

    def _cost(self, size: int) -> Optional[int]:
        try:
            taken = self._measure(size, self.ceiling)
        except TooMuch:
            self.tell(f"a batch of {size:,} per {self.per} takes too much")
            return None
        self.tell(f"a batch of {size:,} per {self.per} takes {_mib(taken)}")
        return taken

    def _measure(self, size: int, ceiling: Optional[int]) -> int:
        config = self.plan.config.replace(batch_size=size)
        return measure(config, ceiling=None if self.on_gpus else ceiling)

    def _refuse(self, needed: str) -> NoReturn:
        raise ConfigError(
            f"--find-batch-size {_mib(self.budget)}: "
            f"a batch of {self.smallest} per {self.per} needs {needed}: "
            "give more, or choose a smaller --model"
        )


def _less_spare(size: int) -> int:
    return size - int(max(LEAST_SPARE, SPARE * size))


def _mib(size: int) -> str:
    return f"{size / MIB:,.1f} MiB" if size >= MIB else f"{size:,} bytes"


# --- the largest size whose cost, slow to measure and nearly even, stays below a ceiling

AIM = 0.97  # of the ceiling: a size that is estimated to cost so much is tried
ENOUGH = 0.93  # of the ceiling: what costs so much needs no further search
CLOSE = 0.02  # of a size: as near to one that costs too much
TRIES = 10
FIRST_SHARE = 0.06  # of the ceiling, by the estimate: the first size that is tried

Cost = Callable[[int], Optional[int]]
Point = Tuple[int, int]  # a size, and what it costs


class LargestSize:
    """Tries sizes from ``smallest`` to ``most``; ``fit`` has those that fit, the largest last.

    ``cost(size)`` is None where it exceeds ``ceiling``. ``each``: a lower estimate of the cost of
    one more.
    """

    def __init__(self, cost: Cost, smallest: int, most: int, ceiling: int, each: float) -> None:
        self.cost, self.each = cost, max(each, 1.0)
        self.smallest, self.most, self.ceiling = smallest, most, ceiling
        self.fit: List[Point] = []
        self.beyond: Optional[int] = None  # the smallest size that was found to cost too much
        self.tries = 0

    def search(self) -> Optional[Point]:
        """The largest size that fits, and its cost; None if not even the smallest fits."""
        first = max(self.smallest, int(FIRST_SHARE * self.ceiling / self.each))
        self._try(first)
        if not self._done():
            self._try(2 * first)
        while not self._done():
            self._try(self._next())
        return self.fit[-1] if self.fit else None

    def slope(self) -> float:
        """What another one costs, by the last two sizes that fit."""
        if len(self.fit) < 2:
            return 2 * self.each
        (size, cost), (larger, larger_cost) = self.fit[-2:]
        return max((larger_cost - cost) / (larger - size), self.each / 4)

    def _done(self) -> bool:
        if not self.fit:
            return self.beyond == self.smallest
        size, cost = self.fit[-1]
        close = self.beyond is not None and self.beyond - size <= max(1, CLOSE * size)
        return size == self.most or close or cost >= ENOUGH * self.ceiling or self.tries >= TRIES

    def _try(self, size: int) -> None:
        size = min(size, self.most)
        if self.beyond is not None and size >= self.beyond:
            return
        self.tries += 1
        cost = self.cost(size)
        if cost is None or cost > self.ceiling:
            self.beyond = size
        else:
            self.fit = sorted([*self.fit, (size, cost)])

    def _next(self) -> int:
        """Where the line through the last two sizes meets the ceiling, or halfway to too large."""
        if not self.fit:
            assert self.beyond is not None
            return max(self.smallest, self.beyond // 4)
        size, cost = self.fit[-1]
        there = max(size + 1, size + int((AIM * self.ceiling - cost) / self.slope()))
        return there if self.beyond is None or there < self.beyond else (size + self.beyond) // 2
