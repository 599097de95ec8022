"""05-5: the order in which a device goes forward and backward under 1F1B."""

from __future__ import annotations

from typing import Any, Callable, List, Sequence, Tuple

import numpy as np

from gluonlab.errors import ScheduleError
from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.lab05.lists import listed
from gluonlab.exercises.shared.counterexamples import Case, in_english, returned
from gluonlab.parallel.pipeline.check import check as prove
from gluonlab.parallel.pipeline.check import peaks
from gluonlab.parallel.pipeline.price import Costs, price
from gluonlab.parallel.pipeline.schedule import (
    BACKWARD,
    FORWARD,
    Instruction,
    PipelineSchedule,
    from_orders,
    one_forward_one_backward,
)

Order = List[Tuple[str, int]]
JAPANESE = {FORWARD: "順伝播", BACKWARD: "逆伝播"}


@exercise("05-5")
def one_f_one_b(answer: Callable[[int, int, int], Sequence[Tuple[str, int]]]) -> None:
    """An order of forwards and backwards that is proved, as fast as GPipe, in less memory."""
    cases = [(2, 4), (4, 8), (2, 1), (4, 2), (3, 3), (1, 3), (1, 1)]  # devices, microbatches
    random = draws(55)
    cases += [(int(random.randint(2, 9)), int(random.randint(1, 25))) for _ in range(6)]
    for devices, microbatches in cases:
        orders = []
        for device in range(devices):
            call = f"one_f_one_b({device}, {devices}, {microbatches})"
            order = _order(Case(call, call), answer(device, devices, microbatches))
            _check_alone(Case(call, call), order, microbatches)
            orders.append([(op, device, microbatch) for op, microbatch in order])
        schedule = from_orders("your order", orders, microbatches)
        case = Case(
            f"{in_english(devices, 'device')}, {microbatches} microbatch"
            f"{'es' * (microbatches > 1)}",
            f"デバイス {devices} 台、マイクロバッチ {microbatches} 個",
        )
        _check_together(case, schedule)
        _check_memory(case, schedule)
        _check_time(case, schedule)


def _order(case: Case, given: Any) -> Order:
    en = 'a list of ("forward", microbatch) and ("backward", microbatch)'
    ja = '("forward", マイクロバッチ) と ("backward", マイクロバッチ) のリスト'
    order, found = listed(given), []
    if not isinstance(order, list):
        raise returned(given, case.en, en, ja)
    for step in map(listed, order):
        whole = isinstance(step, list) and len(step) == 2
        if not whole or not isinstance(step[1], (int, np.integer)) or step[0] not in JAPANESE:
            raise returned(given, case.en, en, ja)
        found.append((str(step[0]), int(step[1])))
    return found


def _check_alone(case: Case, order: Order, microbatches: int) -> None:
    """Raise Wrong for the first step that is wrong whatever the other devices do."""
    done = dict.fromkeys(JAPANESE, 0)
    for place, (op, microbatch) in enumerate(order):
        due = done[op]
        at = f"step {place} is {(op, microbatch)}"
        at_ja = f"ステップ {place} が {(op, microbatch)} です"
        case.check(
            (not 0 <= microbatch < microbatches,
             f"{at}: microbatches go from 0 to {microbatches - 1}",
             f"{at_ja}。マイクロバッチは 0 から {microbatches - 1} までです"),
            (microbatch < due,
             f"{at}, which was done before", f"{at_ja}が、それは済んでいます"),
            (microbatch > due,
             f"{at}, before ({op!r}, {due}): all devices take them in the same order, 0, 1, 2, ...",
             f"{at_ja}が、({op!r}, {due}) がまだです。"
             "どのデバイスも 0, 1, 2, ... の順に処理します"),
            (op == BACKWARD and microbatch >= done[FORWARD],
             f"{at}, before its forward", f"{at_ja}が、順伝播がまだです"),
        )  # fmt: skip
        done[op] += 1
    for op, count in done.items():
        case.check(
            (count < microbatches,
             f"there is no ({op!r}, {count}): each microbatch goes forward and backward once",
             f"({op!r}, {count}) がありません。"
             "どのマイクロバッチにも順伝播と逆伝播が 1 回ずつ要ります"),
        )  # fmt: skip


def _check_together(case: Case, schedule: PipelineSchedule) -> None:
    """Raise Wrong where the devices wait for each other for ever, as the proof finds."""
    try:
        prove(schedule)
    except ScheduleError as error:
        device = error.device if error.device is not None else 0
        program = schedule.programs[device]
        waits = program[error.place] if error.place is not None else program[-1]
        step = _next_step(program, waits)
        raise case.wrong(
            f"device {device} waits for ever before its {step.op} of microbatch "
            f"{step.microbatch}; the proof's words: {error}",
            f"デバイス {device} はマイクロバッチ {step.microbatch} の{JAPANESE[step.op]}の前で"
            f"永久に待ちます。証明の出力: {error}",
        ) from None


def _next_step(program: Sequence[Instruction], waits: Instruction) -> Instruction:
    rest = program[list(program).index(waits) :]
    steps = [one for one in (*rest, *program) if one.op in JAPANESE]
    return steps[0]


def _check_memory(case: Case, schedule: PipelineSchedule) -> None:
    for device, kept in enumerate(peaks(schedule)):
        enough = min(schedule.devices - device, schedule.microbatches)
        if kept > enough:
            gpipe = all(most == schedule.microbatches for most in peaks(schedule))
            why = " (all of them, as GPipe does)" if gpipe else ""
            are = "is" if enough == 1 else "are"
            why_ja = " (GPipe と同じく全部)" if gpipe else ""
            raise case.wrong(
                f"the order is right, but device {device} keeps the activations of {kept} "
                f"microbatches at once{why}, where {enough} {are} enough",
                f"順序は正しいのですが、デバイス {device} が一度に {kept} 個のマイクロバッチの"
                f"活性値を保持します{why_ja}。{enough} 個で足ります",
            )


def _check_time(case: Case, schedule: PipelineSchedule) -> None:
    costs = Costs.equal(schedule.stages)
    best = price(one_forward_one_backward(schedule.devices, schedule.microbatches), costs).seconds
    took = price(schedule, costs)
    if took.seconds > best * (1 + 1e-9):
        idle = max(range(schedule.devices), key=lambda device: took.bubbles[device])
        raise case.wrong(
            f"the order is right, and needs little memory, but a step takes as long as "
            f"{took.seconds:g} forwards of a stage, where "
            f"{best:g} are possible: device {idle} is idle for {took.bubbles[idle]:.0%} of it",
            "順序は正しくメモリも少ないのですが、1 ステップにステージの順伝播 "
            f"{took.seconds:g} 回分の時間がかかります。{best:g} 回分で済みます。"
            f"デバイス {idle} はその {took.bubbles[idle]:.0%} の間、何もしていません",
        )
