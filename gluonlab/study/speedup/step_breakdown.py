"""Breakdown of a step into parts, from the times of steps with one part left out.

All times are seconds of a step. Each part is measured independently, so that their sum is a check.
"""

from __future__ import annotations

from typing import List, Mapping, NamedTuple

# Windows of steps, and what they leave out. Those from ALL on leave the host out, too.
ONE_DEVICE = "one device"  # a whole step of one device
STEP = "step"  # nothing
SAME_BATCH = "again"  # the loader: the same batch comes again
WITHOUT_HOST = "all"
NO_SUM, NO_UPDATE = "no sum", "no update"
PASSES = "passes"  # sum and update
FORWARD = "forward"  # backward, sum and update; not where both passes are one phase
OTHER_SIZE = "other size"  # sum and update; of another number of images
SINGLE_DEVICE = "alone"  # sum and update, and all devices but one
# Parts of steps, repeated by themselves: the most that each can cost a step.
JUST_INPUT, JUST_SUM, JUST_UPDATE = "just input", "just sum", "just update"
QUEUED = "queued"  # the host's own time for all of ALL, while the devices stand still
BLOCKED = "blocked"  # how long of that it sleeps, or waits for others, within a sum
PLAIN_SUM = "plain sum"  # gradients of this size, copied to a device, added, copied back

# a sum that takes so many times as long as plain copies waits for something
SLOW_SUM_FACTOR = 4.0
# what the host takes among busy devices, at most, over what it takes while they stand still
MAX_HOST_SLOWDOWN = 2.0


class StepParts(NamedTuple):
    """Seconds of a step by part. PARTS add up to the step; the others are included in forward and
    backward.

    ``forward`` includes both passes of a strategy that has them in one phase. ``waiting``: a sum
    that needs far longer than copies of its size. ``straggler``: the excess of the slowest device;
    ``shared``: the slowdown of devices that compute at the same time; ``fixed``: the cost that
    would be the same for a single image.
    """

    step: float
    input: float
    host: float
    forward: float
    backward: float
    sum: float
    waiting: float
    update: float
    straggler: float
    shared: float
    fixed: float

    @property
    def passes(self) -> float:
        """Return the seconds of forward and backward."""
        return self.forward + self.backward

    @property
    def parts_total(self) -> float:
        """Return the sum of the parts."""
        return float(sum(getattr(self, name) for name in PARTS))


PARTS = ("input", "host", "forward", "backward", "sum", "waiting", "update")
JOINT_PARTS = tuple(PASSES if name == "forward" else name for name in PARTS if name != "backward")
WindowSeconds = Mapping[str, float]


def single_device_window(device: int) -> str:
    """Return the name of the window in which only this device works."""
    return f"{SINGLE_DEVICE} {device}"


def part_differences(times: WindowSeconds) -> WindowSeconds:
    """Return the raw shares of a round's step for each part, from the differences of its
    windows.
    """
    without_host, step = times[WITHOUT_HOST], times[STEP]
    differences = {
        "input": step - times[SAME_BATCH], "host": times[SAME_BATCH] - without_host,
        "sum": without_host - times[NO_SUM], "update": without_host - times[NO_UPDATE],
        "passes": times[PASSES], "forward": times.get(FORWARD, times[PASSES]),
        OTHER_SIZE: times[OTHER_SIZE],
        **{name: times[name] for name in (JUST_INPUT, JUST_SUM, JUST_UPDATE, QUEUED, BLOCKED)},
        PLAIN_SUM: times[PLAIN_SUM],
        **{name: times[name] for name in times if name.startswith(SINGLE_DEVICE)},
    }  # fmt: skip
    return {STEP: step, **{name: value / step for name, value in differences.items()}}


def compute_parts(differences: WindowSeconds, ratio: float) -> StepParts:
    """Return the parts from the medians of `part_differences`.

    ``ratio``: the images of OTHER_SIZE over those of a step. A part is at least 0, and at most what
    it needs in isolation.
    """
    sum_share = _clamp(differences["sum"], differences[JUST_SUM])
    host_share = _clamp(differences["host"], MAX_HOST_SLOWDOWN * differences[QUEUED])
    blocked = min(differences[BLOCKED], host_share)
    waiting_share = (
        sum_share - differences[PLAIN_SUM]
        if sum_share > SLOW_SUM_FACTOR * differences[PLAIN_SUM]
        else 0.0
    )
    passes = differences["passes"]
    forward = min(differences["forward"], passes)
    singles = single_device_seconds(differences)
    shares = {
        "step": 1.0, "input": _clamp(differences["input"], differences[JUST_INPUT]),
        "host": host_share - blocked, "forward": forward, "backward": passes - forward,
        "sum": sum_share - waiting_share, "waiting": waiting_share + blocked,
        "update": _clamp(differences["update"], differences[JUST_UPDATE]),
        "straggler": _straggler_excess(singles),
        "shared": max(0.0, passes - max(singles)) if singles else 0.0,
        "fixed": _fixed_share(passes, differences[OTHER_SIZE], ratio),
    }  # fmt: skip
    return StepParts(**{name: share * differences[STEP] for name, share in shares.items()})


def _clamp(share: float, maximum: float) -> float:
    return min(max(0.0, share), max(0.0, maximum))


def single_device_seconds(times: WindowSeconds) -> List[float]:
    """Return the seconds of each device alone, or an empty list if they were not measured."""
    names = [name for name in times if name.startswith(SINGLE_DEVICE)]
    return [times[name] for name in sorted(names, key=lambda name: int(name.split()[-1]))]


def _straggler_excess(singles: List[float]) -> float:
    """Return the slowest device's excess over the second slowest."""
    if len(singles) < 2:
        return 0.0
    *_, second_slowest, slowest = sorted(singles)
    return slowest - second_slowest


def _fixed_share(passes: float, resized_passes: float, ratio: float) -> float:
    """Return the cost without images, extrapolated from both sizes to a single image."""
    slope = (resized_passes - passes) / (ratio - 1)
    return min(passes, max(0.0, passes - max(0.0, slope)))
