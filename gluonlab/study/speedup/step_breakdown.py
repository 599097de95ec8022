"""What a step is made of, from the times of steps that lacked a part.

All times are seconds of a step. Each part is measured by itself, so nothing makes them add up to
the step but that they are its parts.
"""

from __future__ import annotations

from typing import List, Mapping, NamedTuple

# Windows of steps, and what they leave out. Those from ALL on leave the host out, too.
ONE = "one device"  # a whole step of one device
STEP = "step"  # nothing
AGAIN = "again"  # the loader: the same batch comes again
ALL = "all"
NO_SUM, NO_UPDATE = "no sum", "no update"
PASSES = "passes"  # sum and update
FORWARD = "forward"  # backward, sum and update; not where both passes are one phase
OTHER_SIZE = "other size"  # sum and update; of another number of images
ALONE = "alone"  # sum and update, and all devices but one
# Parts of steps, repeated by themselves: the most that each can cost a step.
JUST_INPUT, JUST_SUM, JUST_UPDATE = "just input", "just sum", "just update"
QUEUED = "queued"  # the host's own time for all of ALL, while the devices stand still
BLOCKED = "blocked"  # how long of that it sleeps, or waits for others, within a sum
PLAIN = "plain sum"  # gradients of this size, copied to a device, added, copied back

# a sum that takes so many times as long as plain copies waits for something
SLOW_SUM = 4.0
# what the host takes among busy devices, at most, over what it takes while they stand still
QUEUES = 2.0


class StepParts(NamedTuple):
    """Seconds of a step. Those of PARTS make it up; the others are of forward and backward.

    Where a strategy has both passes in one phase, all of it is ``forward``.
    ``waiting``: a sum that takes far longer than copies of its size. ``straggler``: what the
    slowest device takes more than the others; ``shared``: what devices take longer together than
    each for itself; ``fixed``: what would be the same for a single image.
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
        """Forward and backward."""
        return self.forward + self.backward

    @property
    def total(self) -> float:
        """The sum of the parts."""
        return float(sum(getattr(self, name) for name in PARTS))


PARTS = ("input", "host", "forward", "backward", "sum", "waiting", "update")
TOGETHER = tuple(PASSES if name == "forward" else name for name in PARTS if name != "backward")
Times = Mapping[str, float]


def alone(device: int) -> str:
    """The name of the window in which this device works alone."""
    return f"{ALONE} {device}"


def differences(times: Times) -> Times:
    """What the windows of a round say of each part, as shares of its step, noise and all."""
    every, step = times[ALL], times[STEP]
    found = {
        "input": step - times[AGAIN], "host": times[AGAIN] - every,
        "sum": every - times[NO_SUM], "update": every - times[NO_UPDATE],
        "passes": times[PASSES], "forward": times.get(FORWARD, times[PASSES]),
        OTHER_SIZE: times[OTHER_SIZE],
        **{name: times[name] for name in (JUST_INPUT, JUST_SUM, JUST_UPDATE, QUEUED, BLOCKED)},
        PLAIN: times[PLAIN], **{name: times[name] for name in times if name.startswith(ALONE)},
    }  # fmt: skip
    return {STEP: step, **{name: value / step for name, value in found.items()}}


def parts(found: Times, ratio: float) -> StepParts:
    """The parts, from the medians of `differences`.

    ``ratio``: the images of OTHER_SIZE over those of a step. No part is less than nothing, nor more
    than it takes by itself.
    """
    summed = _between(found["sum"], found[JUST_SUM])
    late = _between(found["host"], QUEUES * found[QUEUED])
    blocked = min(found[BLOCKED], late)
    slow = summed - found[PLAIN] if summed > SLOW_SUM * found[PLAIN] else 0.0
    passes = found["passes"]
    forward = min(found["forward"], passes)
    singles = singly(found)
    shares = {
        "step": 1.0,
        "input": _between(found["input"], found[JUST_INPUT]),
        "host": late - blocked,
        "forward": forward,
        "backward": passes - forward,
        "sum": summed - slow,
        "waiting": slow + blocked,
        "update": _between(found["update"], found[JUST_UPDATE]),
        "straggler": _straggler(singles),
        "shared": max(0.0, passes - max(singles)) if singles else 0.0,
        "fixed": _fixed(passes, found[OTHER_SIZE], ratio),
    }
    return StepParts(**{name: share * found[STEP] for name, share in shares.items()})


def _between(share: float, most: float) -> float:
    return min(max(0.0, share), max(0.0, most))


def singly(times: Times) -> List[float]:
    """What each device takes alone, if that was measured."""
    names = [name for name in times if name.startswith(ALONE)]
    return [times[name] for name in sorted(names, key=lambda name: int(name.split()[-1]))]


def _straggler(singles: List[float]) -> float:
    """The slowest over the slowest of the others."""
    if len(singles) < 2:
        return 0.0
    *_, others, slowest = sorted(singles)
    return slowest - others


def _fixed(passes: float, other: float, ratio: float) -> float:
    """Where the line through both sizes meets that of no images: passes = fixed + slope x 1."""
    slope = (other - passes) / (ratio - 1)
    return min(passes, max(0.0, passes - max(0.0, slope)))
