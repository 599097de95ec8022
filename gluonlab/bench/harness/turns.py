"""Calls that take turns: what slows the machine for a while slows all of them."""

from __future__ import annotations

import time
from typing import Callable, Dict, List, Mapping, Optional, Protocol, Union

from mxnet import nd

from gluonlab.bench.harness.rounds import rotated

BLOCK_S = 0.03  # long beside the clock and the wait at its end
WARM_UP = 5
# calls are queued: an engine with far more waiting is measured in keeping its queue
MOST_REPEATS = 1000


class Elsewhere(Protocol):
    """A call in other processes, which time it themselves."""

    def seconds(self, repeat: int) -> float:
        """Seconds that it takes, the mean over ``repeat`` calls."""


Call = Callable[[], object]
Timed = Union[Call, Elsewhere]


def time_in_turns(
    calls: Mapping[str, Timed],
    rounds: int,
    repeat: Optional[int] = None,
    done: Callable[[], object] = lambda: None,
    block_s: Optional[float] = None,
) -> Dict[str, List[float]]:
    """Seconds that each call takes, by round; each round begins with another call.

    A round times a block of each: ``repeat`` calls, by default as many as take ``block_s``, or
    BLOCK_S. The host waits before and after a block, and not in between: the clock shows how fast
    the devices finish what is queued for them. ``done`` is called after each round.
    """
    repeats = {name: _warm_up(call, repeat, block_s or BLOCK_S) for name, call in calls.items()}
    seconds: Dict[str, List[float]] = {name: [] for name in calls}
    for number in range(rounds):
        for name in rotated(list(calls), number):
            seconds[name].append(time_block(calls[name], repeats[name]))
        done()
    return seconds


def time_block(call: Timed, repeat: int) -> float:
    """Seconds that ``call`` takes, the mean over a block of ``repeat`` calls."""
    nd.waitall()
    if not callable(call):
        return call.seconds(repeat)
    began = time.perf_counter()
    for _ in range(repeat):
        call()
    nd.waitall()
    return (time.perf_counter() - began) / repeat


def _warm_up(call: Timed, repeat: Optional[int], block_s: float) -> int:
    """Call it until it is as fast as it gets; how often it will be called in a block."""
    time_block(call, 1)
    seconds = time_block(call, 1)
    if seconds < block_s / WARM_UP:
        seconds = time_block(call, WARM_UP)
    return repeat or max(1, min(MOST_REPEATS, round(block_s / seconds)))
