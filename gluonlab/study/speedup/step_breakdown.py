"""Breaks a training step into parts, by timing steps with one part left out.

For example, the cost of summing gradients is the time for a complete step minus the time for a step
without the sum. Each part is measured independently, so the sum of all parts checks the
measurement.
"""

from __future__ import annotations

from typing import List, Mapping, NamedTuple

# Names of the windows. A window is a number of steps that are timed together.
ONE_DEVICE = "one device"  # complete steps on one device
STEP = "step"  # complete steps on all devices
SAME_BATCH = "again"  # steps without loading: the same batch each time
# Steps without the host's time: the host queues all operators before the devices start.
WITHOUT_HOST = "all"  # forward, backward, sum and update
NO_SUM, NO_UPDATE = "no sum", "no update"
PASSES = "passes"  # forward and backward
FORWARD = "forward"  # only forward; missing if forward and backward are one phase
OTHER_SIZE = "other size"  # forward and backward, with another number of images
SINGLE_DEVICE = "alone"  # forward and backward of one device, while the others are idle
# Single parts, repeated without the others: the most that each part can cost in a step.
JUST_INPUT, JUST_SUM, JUST_UPDATE = "just input", "just sum", "just update"
QUEUED = "queued"  # the host's time to queue a step of WITHOUT_HOST, while the devices are idle
BLOCKED = "blocked"  # the part of QUEUED in which the host sleeps or waits within the sum
PLAIN_SUM = "plain sum"  # gradients copied to one device, added there, and copied back

# A sum that takes more than this many times as long as PLAIN_SUM is waiting for something.
SLOW_SUM_FACTOR = 4.0
# Limit for the host's time while the devices are busy, divided by QUEUED.
MAX_HOST_SLOWDOWN = 2.0


class StepParts(NamedTuple):
    """Seconds per step, by part. The parts named in PARTS add up to the whole step.

    Attributes:
        step: The complete step.
        input: Loading the batch.
        host: Queueing the operators.
        forward: Forward, including backward if the strategy runs both in one phase.
        backward: Backward.
        sum: Summing the gradients.
        waiting: Waiting within the sum.
        update: Updating the parameters.
        straggler: Excess of the slowest device over the second slowest. This attribute and the next
            two are included in forward and backward.
        shared: Slowdown because devices compute at the same time.
        fixed: Time that would be the same for a single image.
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
        """Return how many seconds forward and backward take."""
        return self.forward + self.backward

    @property
    def parts_total(self) -> float:
        """Return the sum of PARTS, in seconds."""
        return float(sum(getattr(self, name) for name in PARTS))


PARTS = ("input", "host", "forward", "backward", "sum", "waiting", "update")
JOINT_PARTS = tuple(PASSES if name == "forward" else name for name in PARTS if name != "backward")
WindowSeconds = Mapping[str, float]


def single_device_window(device: int) -> str:
    """Return the name of the window in which only this device works."""
    return f"{SINGLE_DEVICE} {device}"


def part_differences(times: WindowSeconds) -> WindowSeconds:
    """Return the fraction of a step that leaving out each part saves.

    The value of STEP itself is in seconds. ``times``: seconds per step in each window of one round.
    `compute_parts` corrects the fractions.
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
    """Return how many seconds each part of a step takes, limited to plausible values.

    Each part is at least 0, and at most the time that the part takes when it is repeated alone.

    Args:
        differences: Medians of `part_differences`.
        ratio: Images in the window OTHER_SIZE divided by the images in a step.
    """
    sum_share = _clamp(differences["sum"], differences[JUST_SUM])
    host_share = _clamp(differences["host"], MAX_HOST_SLOWDOWN * differences[QUEUED])
    blocked = min(differences[BLOCKED], host_share)
    waiting_share = sum_share - differences[PLAIN_SUM] if sum_share > SLOW_SUM_FACTOR * differences[PLAIN_SUM] else 0.0
    passes = differences["passes"]
    forward = min(differences["forward"], passes)
    singles = single_device_seconds(differences)
    shares = {
        "step": 1.0, "input": _clamp(differences["input"], differences[JUST_INPUT]),
        "host": host_share - blocked, "forward": forward, "backward": passes - forward,
        "sum": sum_share - waiting_share, "waiting": waiting_share + blocked,
        "update": _clamp(differences["update"], differences[JUST_UPDATE]),
        "straggler": _excess_over_second_slowest(singles),
        "shared": max(0.0, passes - max(singles)) if singles else 0.0,
        "fixed": _fixed_share(passes, differences[OTHER_SIZE], ratio),
    }  # fmt: skip
    return StepParts(**{name: share * differences[STEP] for name, share in shares.items()})


def _clamp(share: float, maximum: float) -> float:
    return min(max(0.0, share), max(0.0, maximum))


def single_device_seconds(times: WindowSeconds) -> List[float]:
    """Return the seconds per step of each device alone; empty if these were not measured."""
    names = [name for name in times if name.startswith(SINGLE_DEVICE)]
    return [times[name] for name in sorted(names, key=lambda name: int(name.split()[-1]))]


def _excess_over_second_slowest(singles: List[float]) -> float:
    """Return how many seconds longer the slowest device takes than the second slowest."""
    if len(singles) < 2:
        return 0.0
    *_, second_slowest, slowest = sorted(singles)
    return slowest - second_slowest


def _fixed_share(passes: float, resized_passes: float, ratio: float) -> float:
    """Return the fraction of a step that does not grow with the number of images.

    The fraction is extrapolated from ``passes`` and from ``resized_passes``, which has ``ratio``
    times as many images.
    """
    slope = (resized_passes - passes) / (ratio - 1)
    return min(passes, max(0.0, passes - max(0.0, slope)))
