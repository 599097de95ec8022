"""What a notebook shows of a learner's schedule: proof, price, and the page that plays it."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, List, Optional

from gluonlab.collectives.bounds import floor_of
from gluonlab.collectives.render import as_page
from gluonlab.collectives.schedule import Schedule
from gluonlab.errors import ScheduleError
from gluonlab.exercises.exercise import Wrong
from gluonlab.exercises.languages import language, say
from gluonlab.exercises.shared.schedule_faults import check_proof
from gluonlab.files.whole import write_text
from gluonlab.sizes import in_words as size_in_words

if TYPE_CHECKING:
    from gluonlab.exercises.shared.puzzle import Puzzle

HEIGHT = 980  # px of the page in a notebook, which scrolls in it


@dataclass(frozen=True)
class Played:
    """``text`` in words, and ``page``, HTML that plays the schedule; None where there is none."""

    text: str
    page: Optional[str] = None

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        said = f'<pre style="white-space: pre-wrap">{html.escape(self.text)}</pre>'
        if self.page is None:
            return f"<div>{said}</div>"
        source = f'srcdoc="{html.escape(self.page)}" sandbox="allow-scripts"'
        frame = f'<iframe {source} width="100%" height="{HEIGHT}" style="border: 0"></iframe>'
        return f"<div>{said}{frame}</div>"


def played(puzzle: "Puzzle", answer: Any, file: Optional[str]) -> Played:
    """`Puzzle.play`."""
    try:
        schedule = puzzle.schedule(answer)
    except NotImplementedError:
        return Played(
            say(
                en="not written yet: write the function, run its cell, then this one again",
                ja="まだ書かれていません。関数を書いてそのセルを実行し、"
                "このセルをもう一度実行してください",
            )
        )
    except Wrong as wrong:
        return Played(wrong.texts[language()])
    fault = _fault(puzzle, schedule)
    lines = [fault] if fault else [_proved(), *_price(puzzle, schedule)]
    try:
        page = as_page([schedule], (schedule.name, schedule.world_size), language=language())
    except ScheduleError as error:  # too large to draw
        return Played("\n".join([*lines, str(error)]))
    if file is not None:
        write_text(Path(file), page)
        lines.append(say(en=f"written to {file}", ja=f"{file} に書き込みました"))
    return Played("\n".join(lines), page)


def _fault(puzzle: "Puzzle", schedule: Schedule) -> str:
    try:
        check_proof(puzzle.call, schedule)
    except Wrong as wrong:
        return wrong.texts[language()]
    return ""


def _proved() -> str:
    return say(en="proved: it does what it should", ja="証明済み: 求められた動作をします")


def _price(puzzle: "Puzzle", schedule: Schedule) -> List[str]:
    cost = puzzle.price(schedule)
    of_size = size_in_words(int(puzzle.size_bytes))
    time, steps = microseconds(cost.seconds), len(cost.steps)
    lines = [
        say(
            en=f"price: {time} in {steps} step{'s' * (steps != 1)}, for {of_size} on each device",
            ja=f"見積もり: {steps} ステップで {time} (各デバイス {of_size})",
        )
    ]
    if puzzle.optimum_s is not None:
        best = microseconds(puzzle.optimum_s)
        lines.append(say(en=f"optimum: {best}", ja=f"最適値: {best}"))
    else:
        floor_s = floor_of(puzzle.topology, puzzle.collective).seconds(puzzle.size_bytes)
        times = f"{cost.seconds / floor_s:.3f}"
        lines.append(
            say(
                en=f"floor: {microseconds(floor_s)}; the price is {times} times that",
                ja=f"下限: {microseconds(floor_s)}。見積もりはその {times} 倍です",
            )
        )
    return lines


def microseconds(seconds: float) -> str:
    """``1,598.3 µs``; whole ones without a point."""
    micros = round(seconds * 1e6, 1)
    return f"{micros:,.0f} µs" if micros == int(micros) else f"{micros:,.1f} µs"
