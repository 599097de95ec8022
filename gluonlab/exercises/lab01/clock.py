"""01-2: a clock that counts all of the work that is queued, and nothing else."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Callable, List, NamedTuple, Sequence
from unittest.mock import patch

import mxnet as mx
from mxnet import nd

from gluonlab.exercises.exercise import Wrong, exercise
from gluonlab.exercises.lab01.pause import queue_pause
from gluonlab.exercises.shared.arrays import cpus
from gluonlab.exercises.shared.counterexamples import NUMBERS, check

PAUSE_S = 0.3  # of the work that is timed; an idle machine times it to a thousandth of that
TRIES = 3  # other programs of a busy machine may interrupt an answer for as long

Clock = Callable[[Callable[[], None]], float]


@exercise("01-2")
def a_clock_that_tells_the_truth(answer: Clock) -> None:
    """The seconds of work that is queued: all of it, and nothing else."""
    first, second = cpus(2)
    calls: List[float] = []

    def work(ctxs: Sequence[mx.Context] = (first,)) -> None:
        calls.append(time.perf_counter())
        for ctx in ctxs:
            queue_pause(ctx, PAUSE_S)

    def waiting() -> None:
        work()
        nd.waitall()

    nd.waitall()
    timed = _timed(answer, work)
    if len(calls) != 1:
        raise Wrong(
            en=f"`work` was called {len(calls)} times: call it once, "
            "the seconds of a single call are wanted",
            ja=f"`work` が {len(calls)} 回呼ばれました。1 回分の秒数を返すので、"
            "呼び出しは 1 回だけにしてください",
        )
    _check_pause(timed, first)
    nd.waitall()
    _check_pause(_timed(answer, lambda: work((second,))), second)
    nd.waitall()
    got, took, _ = _timed(answer, waiting)
    if got > _late(took):
        raise Wrong(
            en=f"work that waits for its own {PAUSE_S} s before it returns was said to take "
            f"{got:.3g} s, and your clock came back after {took:.3g} s: the time of the call is "
            "counted twice. Read the clock once before the call, and once when the work is done",
            ja=f"{PAUSE_S} 秒の計算を自分で待ってから戻る処理が {got:.3g} 秒になりましたが、"
            f"呼び出しから {took:.3g} 秒で戻っています。`work` を呼び出している時間を 2 回"
            "数えています。時刻は、呼び出す前と処理が終わったときの 1 回ずつ取ってください",
        )
    if got < 0.9 * PAUSE_S:
        raise Wrong(
            en=f"work that waits for its own {PAUSE_S} s before it returns was said to take "
            f"{got:.3f} s: the clock was started when `work` had come back. "
            "Start it before the call",
            ja=f"{PAUSE_S} 秒の計算を自分で待ってから戻る処理が {got:.3f} 秒になりました。"
            "`work` が戻ってから計測を始めています。呼び出す前に始めてください",
        )
    for _ in range(TRIES):
        queue_pause(first, PAUSE_S)
        got = _timed(answer, lambda: None).got
        if got <= 0.8 * PAUSE_S:
            break
        nd.waitall()
    else:
        raise Wrong(
            en=f"work that does nothing was said to take {got:.2f} s: "
            f"{PAUSE_S} s of other work had been queued before, and were counted as well. "
            "Wait for that before the clock is started",
            ja=f"何もしない処理に {got:.2f} 秒かかったことになりました。"
            f"その前にキューに入っていた {PAUSE_S} 秒の別の処理まで数えています。"
            "計測を始める前に、それが終わるのを待ってください",
        )


class Timed(NamedTuple):
    """What the answer said, how long it took itself, and which clocks of computing it read."""

    got: float
    took: float
    of_computing: List[str]


def _timed(answer: Clock, work: Callable[[], None]) -> Timed:
    read: List[str] = []

    def noted(name: str) -> Callable[[], float]:
        clock = getattr(time, name)

        def reads() -> float:
            read.append(name)
            return float(clock())

        return reads

    with ExitStack() as patched:
        for name in ("process_time", "thread_time"):
            patched.enter_context(patch.object(time, name, noted(name)))
        begin = time.perf_counter()
        got = answer(work)
        took = time.perf_counter() - begin
    if isinstance(got, NUMBERS):
        return Timed(float(got), took, read)
    raise Wrong(
        en=f"it returned {got!r}: return the number of seconds",
        ja=f"{got!r} が返りました。秒数を数値で返してください",
    )


def _late(took: float) -> float:
    """More than this counts what did not happen in a call of so many seconds."""
    return took * 1.02 + 0.01


def _check_pause(timed: Timed, ctx: mx.Context) -> None:
    """Raise Wrong unless it is about what a device was kept busy for."""
    got, took, of_computing = timed
    en = f"work that keeps {ctx} busy for {PAUSE_S} s was said to take {got:.3g}"
    ja = f"{ctx} での {PAUSE_S} 秒の処理が {got:.3g}"
    clock = f"`time.{of_computing[0]}`" if of_computing else ""
    late, thousands = _late(took), (1e3, 1e6, 1e9)
    check(
        (got < 0, f"{en} s: subtract the earlier time from the later one",
         f"{ja} 秒になりました。後の時刻から前の時刻を引いてください"),
        (clock and got < 0.9 * PAUSE_S,
         f"{en} s: {clock} counts the time in which this process computes, and whoever waits for "
         "a device does not. Read `time.perf_counter`",
         f"{ja} 秒になりました。{clock} はこのプロセスが計算した時間だけを数え、"
         "デバイスを待つ時間は含みません。`time.perf_counter` を使ってください"),
        (got < 0.9 * PAUSE_S,
         f"{en} s: the clock was read when the work had been queued, before it was done",
         f"{ja} 秒になりました。処理をキューに入れただけで、終わる前に時刻を取っています"),
        (any(0.9 * PAUSE_S <= got / unit <= late for unit in thousands),
         f"{en}: return seconds", f"{ja} になりました。単位は秒にしてください"),
        (got > late,
         f"{en} s, and your clock came back after {took:.3g} s: it counts too much",
         f"{ja} 秒になりましたが、呼び出しから {took:.3g} 秒で戻っています。数えすぎです"),
    )  # fmt: skip
