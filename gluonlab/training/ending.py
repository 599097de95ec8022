"""How a run ends: what its folder holds then, and what is said of it."""

from __future__ import annotations

import shlex
from contextlib import contextmanager, suppress
from functools import partial
from typing import Iterator

from gluonlab.errors import DivergedError, UsageError
from gluonlab.runs.record import RunDirectory
from gluonlab.training.result import Result


@contextmanager
def recorded(run: RunDirectory, result: Result) -> Iterator[None]:
    """Bring the folder to an end when the block ends, however that is: with the curves of all
    finished epochs, and the reason.

    An interruption says what is left of the run. A mistake of the user without any finished epoch
    leaves no folder.
    """
    try:
        yield
        _draw(run, result)
        run.close()
    except BaseException as error:
        for last in (partial(_note, run, error), partial(_draw, run, result), run.close):
            # none of it may hide why the run ends, nor a second Ctrl-C
            with suppress(Exception, KeyboardInterrupt):
                last()
        if isinstance(error, UsageError) and not result.history:
            run.discard()
        if isinstance(error, KeyboardInterrupt):
            error.args = (_in_words(result),)
        elif isinstance(error, DivergedError) and result.history:
            error.args = (f"{error}{_later(result)}",)
        raise


def _note(run: RunDirectory, error: BaseException) -> None:
    if isinstance(error, DivergedError):
        run.line("event", event="diverged", message=str(error))


def _draw(run: RunDirectory, result: Result) -> None:
    if result.history:
        run.curves()


def _in_words(result: Result) -> str:
    if not result.history:
        return f"no epoch was finished; {result.run_dir} holds the steps of the first"
    epochs = f"{len(result.history)} of {result.plan.epochs}"
    return f"{result.run_dir} holds every epoch that was finished, {epochs}{_later(result)}"


def _later(result: Result) -> str:
    """How to get what was asked for besides, from the last finished epoch."""
    config = result.plan.config
    asked = [
        option
        for option, wanted in (("--confusion", config.confusion), ("--export", config.export))
        if wanted
    ]
    if not asked:
        return ""
    return (
        f"; for {' and '.join(asked)}: python -m gluonlab.run --evaluate "
        f"{shlex.quote(str(result.run_dir))} {' '.join(asked)}"
    )
