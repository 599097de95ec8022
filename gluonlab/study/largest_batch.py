"""Finds the largest batch that fits in a given amount of memory (gluonlab find-batch-size).

`gluonlab.training.run_memory` measures the memory of a short run. Since memory grows almost
linearly with the batch size, two small sizes predict the largest size. The predicted size is
accepted if a run with this size stays below the budget by a margin that allows for differences
between runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, NoReturn, Optional, Tuple

from gluonlab.config import TrainConfig
from gluonlab.data.sets.dataset_registry import accepts_option
from gluonlab.engine.nd_and_np_arrays import nd_semantics
from gluonlab.errors import ConfigError
from gluonlab.host.resources import available_memory
from gluonlab.parallel.memory_estimate import MIB
from gluonlab.parallel.strategy import DATA
from gluonlab.training.plan import Plan, make_plan
from gluonlab.training.run_memory import (
    DeviceMemory,
    MemoryEstimator,
    MemoryLimitExceeded,
    MemoryRow,
    format_memory_table,
    make_memory_estimator,
    measure_run_memory,
)

# Margin for differences between runs. Runs of the same config differ by 1 %.
MARGIN_SHARE, MIN_MARGIN_BYTES = 0.03, 16 * MIB
MIN_PROCESS_BYTES = 128 * MIB  # even without a network, Python and MXNet need more
MAX_ARRAY_IMAGES = 2**31  # more images than an array of MXNet can contain

PrintLine = Callable[[str], None]


@dataclass(frozen=True)
class LargestBatch:
    """The largest batch, and the reason why it cannot be larger.

    - ``rows``: the estimated memory of each device, from MXNet's memory plan.
    - ``taken``: peak memory in bytes of a run with this batch. For CPU devices, this is the memory
      of the whole process; for GPUs, it is the memory of each GPU.
    - ``budget``: the allowed memory, in bytes.
    - ``limit``: why the batch cannot be larger: "budget"; "machine", if less memory than the budget
      is free; "data", if a device has no more images; "arrays", if MXNet does not allow larger
      arrays.
    - ``would_fit``: for "data" and "arrays", about how many images per device would fit in memory.
    - ``per``: what the batch size refers to: a device, or a copy of the network that devices share.
    """

    rows: List[MemoryRow]
    taken: int
    budget: int
    limit: str
    would_fit: Optional[int] = None
    per: str = "device"

    @property
    def memory(self) -> DeviceMemory:
        """Return the memory of the device that needs the most memory."""
        return max((memory for _, memory in self.rows), key=lambda memory: memory.total)

    @property
    def images(self) -> int:
        """Return the batch size per device, or per copy of the network."""
        return self.memory.images

    def to_dict(self) -> Dict[str, Any]:
        """Return the result for JSON. ``total`` is the largest estimate for any device."""
        planned = {name: {**memory._asdict(), "total": memory.total} for name, memory in self.rows}
        return {
            **self.memory._asdict(), "total": self.memory.total,
            **({"devices": planned} if len(planned) > 1 else {}), "taken": self.taken,
            "budget": self.budget, "limit": self.limit, "would_fit": self.would_fit,
        }  # fmt: skip

    def summary_lines(self) -> List[str]:
        """Return text lines: the batch size, its memory, its limit, and the estimated memory."""
        training = f"training uses {_format_bytes(self.taken)} of {_format_bytes(self.budget)}"
        if self.would_fit is None:
            machine_note = "" if self.limit == "budget" else ", all that is free on this machine"
            first = f"--batch-size {self.images} is the largest that fits: {training}{machine_note}"
            return [first, *format_memory_table(self.rows)]
        limit_text = (
            f"the data set has only {self.images:,} images per {self.per}"
            if self.limit == "data"
            else "MXNet does not support larger arrays"
        )
        return [
            f"--batch-size {self.images} fits: {training}",
            f"memory is not the limit: {limit_text}; about {self.would_fit:,} images would fit into memory",
            *format_memory_table(self.rows),
        ]


@nd_semantics()
def find_batch_size(config: TrainConfig, budget_bytes: int, tell: PrintLine = lambda line: None) -> LargestBatch:
    """Return the largest batch per device with which a run needs at most ``budget_bytes``.

    If devices share a copy of the network, the result is the batch per copy. For CPU devices, the
    budget is for the whole process; for GPUs, it is for each GPU. ``tell`` is called with a line
    about each size that is tried.

    Raises ConfigError if not even the smallest batch fits, or if the config sets a batch size.
    """
    if config.batch_size is not None or config.global_batch_size is not None:
        raise ConfigError("the search determines the batch size: omit --batch-size and --global-batch-size")
    smallest = config.microbatches or 1
    plan = make_plan(config.replace(batch_size=smallest))
    return _BatchSizeSearch(plan, budget_bytes, smallest, tell).find_largest()


class _BatchSizeSearch:
    """The search for a plan's largest batch: the sizes to try, and the memory that they need."""

    def __init__(self, plan: Plan, budget: int, smallest: int, tell: PrintLine) -> None:
        self.plan, self.budget, self.smallest, self.tell = plan, budget, smallest, tell
        self.dataset_grows = accepts_option(plan.config.dataset, "samples")
        split = plan.parallelism.mode != DATA
        self.per = plan.parallelism.shard_owner
        # A pipeline uses its usual number of microbatches only with at least as many images.
        self.planned_sizes = (8 * smallest, 72 * smallest) if split else (smallest, 9 * smallest)
        self.needs = self._estimate_needs(self.planned_sizes[1]) if split else make_memory_estimator(plan)
        self.on_gpus = plan.ctxs[0].device_type == "gpu"
        self.ceiling, self.limit = _subtract_margin(budget), "budget"

    def find_largest(self) -> LargestBatch:
        """Search for the largest batch. Raises ConfigError if no batch fits."""
        self._limit_to_free_memory()
        share = (
            MAX_ARRAY_IMAGES
            if self.dataset_grows
            else max(self.smallest, len(self.plan.dataset.train) // len(self.plan.parallelism.copies))
        )
        sizes = LargestSizeSearch(
            self._measure_within_ceiling, self.smallest, self.needs.limit.largest_images(share),
            self.ceiling, self._planned_image_bytes(),
        )  # fmt: skip
        largest = sizes.search()
        if largest is None:
            self._raise_too_small(_format_bytes(self._measure_peak(self.smallest, None)))
        images, peak_bytes = largest
        if images < sizes.largest_images:
            return LargestBatch(self._planned_rows(images), peak_bytes, self.budget, self.limit, per=self.per)
        would_fit = images + int((self.ceiling - peak_bytes) / sizes.cost_per_unit())
        return LargestBatch(
            self._planned_rows(images), peak_bytes, self.budget,
            "data" if images == share else "arrays", would_fit, self.per,
        )  # fmt: skip

    def _limit_to_free_memory(self) -> None:
        """Lower the memory limit to this machine's free memory, unless GPUs are used.

        Raises ConfigError if the free memory is too small for any process.
        """
        if self.on_gpus:
            return
        memory = available_memory()
        if memory is not None and _subtract_margin(memory.free) < self.ceiling:
            self.ceiling, self.limit = _subtract_margin(memory.free), "machine"
        if self.ceiling < MIN_PROCESS_BYTES:
            self._raise_too_small(
                f"more than the {_format_bytes(MIN_PROCESS_BYTES)} that Python and MXNet need by themselves"
            )

    def _planned_image_bytes(self) -> float:
        """Return MXNet's estimate of the bytes for one more image per copy, an underestimate."""
        bytes_of_smaller, bytes_of_larger = (self._planned_bytes(images) for images in self.planned_sizes)
        return (bytes_of_larger - bytes_of_smaller) / (self.planned_sizes[1] - self.planned_sizes[0])

    def _planned_bytes(self, images: int) -> int:
        """Return the estimated bytes of all CPU devices together, or of the GPU that needs most."""
        needs = self.needs
        if self.on_gpus:
            return needs.memory(images).total
        copy_bytes = sum(memory.total for _, memory in needs.rows(images))
        return copy_bytes * len(self.plan.parallelism.copies)

    def _planned_rows(self, images: int) -> List[MemoryRow]:
        """Return the estimated memory of each device for a batch."""
        needs_scale = self.plan.parallelism.mode == DATA and not self.dataset_grows
        return (self.needs if needs_scale else self._estimate_needs(images)).rows(images)

    def _estimate_needs(self, images: int) -> MemoryEstimator:
        """Return an estimator of the plan's memory for batches of this size."""
        dataset = None if self.dataset_grows else self.plan.dataset
        return make_memory_estimator(make_plan(self.plan.config.replace(batch_size=images), dataset))

    def _measure_within_ceiling(self, size: int) -> Optional[int]:
        """Measure and report the peak memory of a batch; return None if it exceeds the limit."""
        try:
            peak_bytes = self._measure_peak(size, self.ceiling)
        except MemoryLimitExceeded:
            self.tell(f"a batch of {size:,} per {self.per} uses too much memory")
            return None
        self.tell(f"a batch of {size:,} per {self.per} uses {_format_bytes(peak_bytes)}")
        return peak_bytes

    def _measure_peak(self, size: int, ceiling: Optional[int]) -> int:
        config = self.plan.config.replace(batch_size=size)
        return measure_run_memory(config, limit_bytes=None if self.on_gpus else ceiling)

    def _raise_too_small(self, needed: str) -> NoReturn:
        """Raise ConfigError to report that not even the smallest batch fits."""
        raise ConfigError(
            f"{_format_bytes(self.budget)} is too little memory, because a batch of "
            f"{self.smallest} per {self.per} needs {needed}: pass a larger memory size, or choose a "
            "smaller --model"
        )


def _subtract_margin(size: int) -> int:
    return size - int(max(MIN_MARGIN_BYTES, MARGIN_SHARE * size))


def _format_bytes(size: int) -> str:
    return f"{size / MIB:,.1f} MiB" if size >= MIB else f"{size:,} bytes"


# --- search for the largest size whose cost fits; costs are slow to measure and nearly linear

TARGET_SHARE = 0.97  # of the ceiling: estimated cost of the next size to try
SUFFICIENT_SHARE = 0.93  # of the ceiling: the search stops at a size with this cost or more
SIZE_TOLERANCE = 0.02  # of a size: the search stops if a size fits, and one this much larger does not
MAX_TRIES = 10
FIRST_SHARE = 0.06  # of the ceiling: estimated cost of the first size to try

MeasureCost = Callable[[int], Optional[int]]
SizeCost = Tuple[int, int]  # (size, cost)


class LargestSizeSearch:
    """A search for the largest size, up to ``largest``, that costs less than ``ceiling``.

    ``measure_cost(size)`` returns the cost, or None if it is above the ceiling. ``unit_cost``: a
    low estimate of the cost of increasing the size by 1. ``fitting``: (size, cost) for the sizes
    that fit, in ascending order.
    """

    def __init__(self, measure_cost: MeasureCost, smallest: int, largest: int, ceiling: int, unit_cost: float) -> None:
        self.measure_cost, self.unit_cost = measure_cost, max(unit_cost, 1.0)
        self.smallest, self.largest_images, self.ceiling = smallest, largest, ceiling
        self.fitting: List[SizeCost] = []
        self.smallest_failing: Optional[int] = None
        self.tries = 0

    def search(self) -> Optional[SizeCost]:
        """Return the largest size that fits, and its cost. Return None if no size fits."""
        first = max(self.smallest, int(FIRST_SHARE * self.ceiling / self.unit_cost))
        self._try_size(first)
        if not self._is_finished():
            self._try_size(2 * first)
        while not self._is_finished():
            self._try_size(self._next_size())
        return self.fitting[-1] if self.fitting else None

    def cost_per_unit(self) -> float:
        """Return the cost of increasing the size by 1, from the two largest sizes that fit."""
        if len(self.fitting) < 2:
            return 2 * self.unit_cost
        (size, cost), (larger, larger_cost) = self.fitting[-2:]
        return max((larger_cost - cost) / (larger - size), self.unit_cost / 4)

    def _is_finished(self) -> bool:
        """Return True if the largest size is known accurately enough, or if no tries are left."""
        if not self.fitting:
            return self.smallest_failing == self.smallest
        size, cost = self.fitting[-1]
        close = self.smallest_failing is not None and self.smallest_failing - size <= max(1, SIZE_TOLERANCE * size)
        return (
            size == self.largest_images or close or cost >= SUFFICIENT_SHARE * self.ceiling or self.tries >= MAX_TRIES
        )

    def _try_size(self, size: int) -> None:
        """Measure a size, and record whether it fits. Skip sizes that are known to be too large."""
        size = min(size, self.largest_images)
        if self.smallest_failing is not None and size >= self.smallest_failing:
            return
        self.tries += 1
        cost = self.measure_cost(size)
        if cost is None or cost > self.ceiling:
            self.smallest_failing = size
        else:
            self.fitting = sorted([*self.fitting, (size, cost)])

    def _next_size(self) -> int:
        """Return the size at which the extrapolated cost reaches TARGET_SHARE of ``ceiling``.

        If a smaller size has already failed, the result is halfway to the smallest failing size.
        """
        if not self.fitting:
            assert self.smallest_failing is not None
            return max(self.smallest, self.smallest_failing // 4)
        size, cost = self.fitting[-1]
        candidate = max(size + 1, size + int((TARGET_SHARE * self.ceiling - cost) / self.cost_per_unit()))
        if self.smallest_failing is None or candidate < self.smallest_failing:
            return candidate
        return (size + self.smallest_failing) // 2
