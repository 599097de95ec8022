"""From the parts of a step to what keeps several devices from being faster.

Nothing is measured here, and nothing drawn: the same parts have the same verdict.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from gluonlab.bench.harness.interval import Estimate
from gluonlab.study.speedup.parts import Parts

# Causes: where the time of a step goes that is no work on its images.
INPUT, HOST, SUM, WAITING, UPDATE = "input", "host", "sum", "waiting", "update"
STRAGGLER, CORES, FEW, NOTHING = "straggler", "cores", "few", "nothing"
CAUSES = (INPUT, HOST, SUM, WAITING, UPDATE, STRAGGLER, CORES, FEW)

LEAST = 0.2  # of a step: what takes less is not worth changing
MANY = 0.4  # of a step: what is worth changing together, though no part of it is
SURE = 0.1  # of a step: what may take less is not named
AGREE = 0.1  # of a step: two measurements of a part that differ by no more agree
ACCOUNTED = 0.95  # of a step: what is known of each device is at least that


class Cause(NamedTuple):
    """``share``: of a step. ``device``: the straggler's position; ``singles``: each device's time.

    ``together``: the share is that of all `without_images`, since no single part is large.
    """

    name: str
    share: float
    device: Optional[int] = None
    together: bool = False
    singles: Sequence[float] = ()


def overheads(found: Parts) -> Dict[str, float]:
    """Seconds of a step by cause: what is no work on the step's images.

    What a straggler takes is fixed, too, and a device that shares its core is slow in all it does;
    neither is told twice.
    """
    passes = found.passes
    straggler = min(found.straggler, passes)
    shared = min(found.shared, passes - straggler)
    alone = 1 - shared / passes if passes else 0.0
    few = min(max(0.0, found.fixed - straggler) * alone, passes - straggler - shared)
    return {
        INPUT: found.input, HOST: found.host, SUM: found.sum, WAITING: found.waiting,
        UPDATE: found.update, STRAGGLER: straggler, CORES: shared, FEW: few,
    }  # fmt: skip


def without_images(spent: Mapping[str, float]) -> float:
    """Of `overheads`: what no image costs."""
    return sum(spent[name] for name in (HOST, SUM, UPDATE, FEW))


def causes(
    found: Parts,
    lowest: Optional[Mapping[str, float]] = None,
    singles: Sequence[float] = (),
) -> List[Cause]:
    """What takes LEAST of a step or more, the largest first; none: the step is well spent.

    ``lowest``: the least share of a step that each may have; ``singles``: seconds of each device
    alone, of which the slowest is the straggler. Where none does, but all together what no image
    costs takes MANY of a step, there are too few images.
    """
    spent = overheads(found)
    named = [
        Cause(name, spent[name] / found.step, _slowest(singles), singles=tuple(singles))
        if name == STRAGGLER
        else Cause(name, spent[name] / found.step)
        for name in CAUSES
        if spent[name] >= LEAST * found.step and (lowest is None or lowest[name] >= SURE)
    ]
    together = without_images(spent) / found.step
    if not named and together >= MANY:
        named.append(Cause(FEW, together, together=True))
    return sorted(named, key=lambda cause: -cause.share)


def _slowest(singles: Sequence[float]) -> Optional[int]:
    return max(range(len(singles)), key=singles.__getitem__) if singles else None


def disagreement(
    first: Mapping[str, float], second: Mapping[str, float], joint: bool = False
) -> Dict[str, Tuple[float, float]]:
    """Parts whose shares of a step differ by more than AGREE, with both.

    Both have the same parts. A sum, what it waits for, and with a store that updates (``joint``)
    the update are one.
    """
    as_one = (SUM, WAITING, UPDATE) if joint else (SUM, WAITING)
    groups = [as_one, *((name,) for name in first if name not in as_one)]
    found = {
        names[0]: (sum(first[name] for name in names), sum(second[name] for name in names))
        for names in groups
    }
    return {name: both for name, both in found.items() if abs(both[0] - both[1]) > AGREE}


def helps(gain: Estimate) -> bool:
    """Whether an advice that was tried is given: all that its gain may be is one."""
    return gain.lowest > 1.0
