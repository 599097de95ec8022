"""What a notebook shows of a learner's schedule: proof, price, and the page that plays it."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional

from gluonlab.collectives.cost import Price
from gluonlab.collectives.render import as_page
from gluonlab.collectives.schedule import Schedule
from gluonlab.errors import ScheduleError
from gluonlab.exercises.languages import language, say
from gluonlab.files.whole import write_text
from gluonlab.plain import in_words

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


def unwritten() -> Played:
    """What is said of a stub."""
    return Played(
        say(
            en="not written yet: write the function, run its cell, then this one again",
            ja="まだ書かれていません。関数を書いてそのセルを実行し、"
            "このセルをもう一度実行してください",
        )
    )


def played(schedule: Schedule, lines: List[str], file: Optional[str]) -> Played:
    """``lines`` and the page, which is written to ``file``, too, if one is named."""
    try:
        page = as_page([schedule], (schedule.name, schedule.world_size), language=language())
    except ScheduleError as error:  # too large to draw
        return Played("\n".join([*lines, str(error)]))
    if file is not None:
        write_text(Path(file), page)
        lines = [*lines, say(en=f"written to {file}", ja=f"{file} に書き込みました")]
    return Played("\n".join(lines), page)


def standing(cost: Price, least_s: float, *, is_floor: bool) -> List[str]:
    """Of a proved schedule: its price, and ``least_s``, which is the floor or the optimum."""
    steps = len(cost.steps)
    size = in_words(int(cost.size_bytes)) if cost.size_bytes else ""
    time, least = microseconds(cost.seconds), microseconds(least_s)
    times = f"{cost.seconds / least_s:.3f}"
    lines = [
        say(en="proved: it does what it should", ja="証明済み: 求められた動作をします"),
        say(
            en=f"price: {time} in {steps} step{'s' * (steps != 1)}"
            + f", for {size} on each device" * bool(size),
            ja=f"見積もり: {steps} ステップで {time}" + f" (各デバイス {size})" * bool(size),
        ),
    ]
    if is_floor:
        en, ja = f"; the price is {times} times that", f"。見積もりはその {times} 倍です"
        return [*lines, say(en=f"floor: {least}{en}", ja=f"下限: {least}{ja}")]
    return [*lines, say(en=f"optimum: {least}", ja=f"最適値: {least}")]


def microseconds(seconds: float) -> str:
    """``1,598.3 µs``; whole ones without a point."""
    micros = round(seconds * 1e6, 1)
    return f"{micros:,.0f} µs" if micros == int(micros) else f"{micros:,.1f} µs"
