"""Check answers and animate schedules in a browser, where neither NumPy nor MXNet is installed.

The worker of the page (`labs/gluonlab_labs/template/browser`) runs this module in Pyodide.
"""

from __future__ import annotations

import json
import linecache
import os
from contextlib import redirect_stdout
from dataclasses import replace
from traceback import walk_tb
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from gluonlab.errors import ScheduleError
from gluonlab.exercises.exercise_registry import (
    PASSED,
    RAISED,
    WRONG,
    Verdict,
    Wrong,
    find_exercise,
    format_error,
    judge_answer,
    unwritten_texts,
)
from gluonlab.exercises.lab04_allreduce import BEAT_THE_EIGHT, lower_bound_s
from gluonlab.exercises.lab05_model_parallelism import read_pipeline_schedule
from gluonlab.exercises.lab10_schedule_puzzles import PUZZLES
from gluonlab.exercises.languages import Texts, choose_text, language
from gluonlab.exercises.schedule_answers import describe_cost
from gluonlab.parallel.pipeline.pipeline_cost import Costs, predict_timeline
from gluonlab.parallel.pipeline.pipeline_schedule import one_forward_one_backward
from gluonlab.parallel.pipeline.render import as_page
from gluonlab.parallel.pipeline.verify_pipeline_schedule import verify

BROWSER_EXERCISES = (*PUZZLES, "04-6", "05-4", "05-5", "05-6")
PIPELINE_DEVICES, PIPELINE_MICROBATCHES = 4, 8  # of the animation of 05-5
CELL_FILE = "<cell>"  # the file name of the learner's code in tracebacks


class _Playback(NamedTuple):
    """The estimated time of a schedule as lines of text, and its animation as an HTML page."""

    lines: List[str] = []
    page: Optional[str] = None


def run_cell(id: str, name: str, source: str, chosen_language: str, run_code: Callable[..., Any]) -> str:
    """Run a learner's cell, and check the function that it defines. Return JSON like `judge_cell`.

    Args:
        id: the id of an exercise, one of `BROWSER_EXERCISES`.
        name: the name of the function.
        source: the learner's cell.
        chosen_language: "en" or "ja".
        run_code: a function that runs Python code. Its arguments are the code, a dictionary for
            the global variables, and ``filename``.

    Raises:
        BaseException: an error outside the cell, after which Python may no longer work.
    """
    language(chosen_language)
    cell: Dict[str, Any] = {"__name__": "__main__"}
    try:
        run_code(source, cell, filename=CELL_FILE)
    except BaseException as error:  # including KeyboardInterrupt
        return _report_error(id, _error_texts(error, source))
    if name not in cell:
        texts = {
            "en": f"your code does not define `{name}`: keep the name of the function",
            "ja": f"コードに `{name}` の定義がありません。関数の名前は変えないでください",
        }
        return _report_error(id, texts)
    try:
        return judge_cell(id, source, cell[name], chosen_language)
    except BaseException as error:
        if _find_cell_line(error) is None:
            raise
        return _report_error(id, _error_texts(error, source))


def _report_error(id: str, texts: Texts) -> str:
    return _to_json(Verdict(id, RAISED, texts, language()), _Playback())


def _find_cell_line(error: BaseException) -> Optional[int]:
    """Return the number of the cell's line that led to an error, or None."""
    if isinstance(error, SyntaxError) and error.filename == CELL_FILE:
        return error.lineno
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == CELL_FILE]
    return lines[-1] if lines else None


def _error_texts(error: BaseException, source: str) -> Texts:
    """Return the message about an error in the learner's cell, with the line that led to it."""
    line = _find_cell_line(error)
    code = "".join(source.splitlines()[line - 1 : line]).strip() if line else ""
    if isinstance(error, SyntaxError) and code.startswith(("%", "!")):
        return {
            "en": f"`{code}` in line {line} is a Jupyter command, not Python code: delete the line",
            "ja": f"{line} 行目の `{code}` は Python ではなく Jupyter のコマンドです。この行を消してください",
        }
    message = format_error(error)
    if isinstance(error, SyntaxError):  # its text also contains the file name
        message = f"{type(error).__name__}: {error.msg}"
    if line is None:
        return {"en": message, "ja": message}
    shown = f": `{code}`" if code else ""
    return {"en": f"{message}\nin line {line}{shown}", "ja": f"{message}\n{line} 行目{shown}"}


def refuse_input(prompt: object = "") -> str:
    """Raise an error. The page replaces Python's ``input`` with this function."""
    raise EOFError(
        choose_text(
            en="input() does not work on this page: write the value in your code",
            ja="このページでは input() を使えません。値をコードに直接書いてください",
        )
    )


def judge_cell(id: str, source: str, answer: Any, chosen_language: str) -> str:
    """Check an answer, and return everything that the page shows about the answer, as JSON.

    Args:
        id: the id of an exercise, one of `BROWSER_EXERCISES`.
        source: the learner's cell, which defined the answer. Messages quote lines of the cell.
        answer: the function that the cell defined.
        chosen_language: "en" or "ja".

    Returns:
        An object with ``status``, ``heading`` and ``message`` of the verdict, the numbers in
        ``micros``, the ``lines`` about the estimated time, and ``page``, the animation, or null.
    """
    language(chosen_language)
    linecache.cache[CELL_FILE] = (len(source), None, source.splitlines(True), CELL_FILE)
    verdict = judge_answer(find_exercise(id), answer)
    name = getattr(answer, "__name__", "")
    if verdict.texts == unwritten_texts(name):  # these texts mention two cells of a notebook
        texts = {
            "en": f"write the body of `{name}`, then press Run",
            "ja": f"`{name}` の中身を書いてから、「実行」を押してください",
        }
        verdict = replace(verdict, texts=texts)
    playback = _Playback()
    if verdict.status in (PASSED, WRONG):
        # The answer runs a second time here, so discard what it prints again.
        with open(os.devnull, "w") as devnull, redirect_stdout(devnull):
            playback = _play_pipeline(answer) if id == "05-5" else _play_schedule(id, answer)
    return _to_json(verdict, playback)


def _to_json(verdict: Verdict, playback: _Playback) -> str:
    shown: Dict[str, Any] = {
        "status": verdict.status,
        "heading": verdict.heading,
        "message": verdict.message,
        "micros": verdict.micros,
        "lines": playback.lines,
        "page": playback.page,
    }
    return json.dumps(shown)


def _play_schedule(id: str, answer: Any) -> _Playback:
    """Return the playback of an answer to a puzzle, or an empty playback for other exercises."""
    puzzle = BEAT_THE_EIGHT if id == "04-6" else PUZZLES.get(id)
    if puzzle is None:
        return _Playback()
    page = puzzle.play(answer).page
    try:
        schedule = puzzle.read_proved_schedule(answer)
    except Wrong:
        return _Playback(page=page)
    cost, optimum_s = puzzle.estimate_cost(schedule), puzzle.optimum_s
    least_s = lower_bound_s() if optimum_s is None else optimum_s
    lines = describe_cost(cost, least_s, is_lower_bound=optimum_s is None)[1:]
    if optimum_s is not None:
        ratio = f"{cost.seconds / least_s:.3f}"
        lines.append(choose_text(en=f"{ratio} times the optimum", ja=f"最適値の {ratio} 倍"))
    return _Playback(lines, page)


def _play_pipeline(answer: Any) -> _Playback:
    """Return the playback of an answer to 05-5, if its devices do not wait forever.

    All stages take equal time, 1 s forward and 2 s backward. A step cannot take less time than with
    1F1B, because the last stage computes all microbatches, the first microbatch must reach the last
    stage, and the last gradient must come back.
    """
    try:
        schedule = read_pipeline_schedule(answer, PIPELINE_DEVICES, PIPELINE_MICROBATCHES)
        schedule = replace(schedule, name=choose_text(en="your order", ja="自分の順序"))
        verify(schedule)
    except (Wrong, ScheduleError):
        return _Playback()
    costs = Costs.uniform(schedule.stages)
    timeline = predict_timeline(schedule, costs)
    least = predict_timeline(one_forward_one_backward(PIPELINE_DEVICES, PIPELINE_MICROBATCHES), costs).seconds
    ratio = f"{timeline.seconds / least:.3f}"
    line = choose_text(
        en=f"{PIPELINE_DEVICES} devices and {PIPELINE_MICROBATCHES} microbatches, 1 s forward and 2 s backward in each "
        f"stage: a step takes {timeline.seconds:g} s; lower bound: {least:g} s; the step takes {ratio} times that",
        ja=f"{PIPELINE_DEVICES} 台、マイクロバッチ {PIPELINE_MICROBATCHES} 個、各ステージの順伝播 1 秒、逆伝播 2 秒の"
        f"とき、1 ステップは {timeline.seconds:g} 秒、下限は {least:g} 秒です。下限の {ratio} 倍です",
    )
    return _Playback([line], as_page([(schedule, timeline)], language=language()))
