"""How a run ends: what its folder holds then, and what its last words are."""

from __future__ import annotations

import shlex
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Iterator, Optional

from mxnet import gluon, nd
from mxnet.base import MXNetError

from gluonlab.config.values import ONNX
from gluonlab.errors import DivergedError, GluonlabError, UsageError
from gluonlab.export.files import export
from gluonlab.export.onnx_graph import Agreement
from gluonlab.host.limits import memory_limit, used_up
from gluonlab.host.memory import give_back
from gluonlab.host.signals import RAISED, EndRequest
from gluonlab.kvstores.compression import FP16
from gluonlab.runs.checkpoint import checkpoints
from gluonlab.runs.result import Result
from gluonlab.runs.schema import CONFUSION, EXPORT, DivergedEvent
from gluonlab.runs.writer import NoRunDirectory, RunDirectory, ended
from gluonlab.training.confusion import write_picture
from gluonlab.training.evaluate import Confusion
from gluonlab.training.plan import Plan

OVERFLOWS = f"or leave --compress {FP16} out, where gradients beyond 65504 become infinite"


@contextmanager
def recorded(
    run: "RunDirectory | NoRunDirectory", result: Result, request: EndRequest
) -> Iterator[None]:
    """Complete the run's folder when the block ends, in whatever way.

    The folder then has the curves of all finished epochs, and the reason of an early end. A
    KeyboardInterrupt gets a message that says what is left of the run. What fails on the way to an
    end that a signal has asked for becomes a part of that message. After a UsageError without any
    finished epoch there is no folder.
    """
    try:
        yield
        _draw(run, result)
        request.answer()
        run.close()
    except BaseException as error:
        if isinstance(error, DivergedError) and result.plan.compress == FP16:
            error.args = (f"{error}; {OVERFLOWS}",)
        for last in (partial(_note, run, error), partial(_draw, run, result), run.close):
            # none of it may hide why the run ends, nor a second Ctrl-C
            with suppress(Exception, KeyboardInterrupt):
                last()
        if isinstance(error, Exception) and request.number is not None:
            said = f"{what_is_left(result)}; {used_up(error) or error}"
            raise RAISED[request.number](said) from error
        if isinstance(error, UsageError) and not result.history:
            run.discard()
        if isinstance(error, KeyboardInterrupt):
            error.args = (what_is_left(result),)
        elif isinstance(error, DivergedError) and result.history:
            error.args = (f"{error}{_later(result)}",)
        raise


MOST_ERRORS = 100


@contextmanager
def limits_explained() -> Iterator[None]:
    """Make NoMemoryError of what Python, MXNet and the system raise when a limit is reached.

    At the end free memory goes back to the system, so that a hundred trainings in one process take
    no more than the largest.
    """
    try:
        yield
    except GluonlabError:
        raise
    except Exception as error:
        explained = used_up(error)
        if explained is None:
            raise
        if memory_limit() is None:  # under one a worker may be missing, for which all would wait
            _wait_for_what_is_queued()
        raise explained from error
    finally:
        give_back()


def _wait_for_what_is_queued() -> None:
    """Take note of its errors, which MXNet would raise at Python's end."""
    for _ in range(MOST_ERRORS):
        with suppress(MXNetError):
            nd.waitall()
            break


def write_extras(
    folder: Path, plan: Plan, net: gluon.HybridBlock, confusion: Optional[Confusion]
) -> Optional[Agreement]:
    """Write the picture of the confusion matrix, if given, and the export that the plan asks for.

    How nearly the ONNX model agrees with MXNet is returned, where there is one. Raises OutputError,
    and what `export` raises.
    """
    agreement = None
    if plan.export is not None:
        plain = net if plan.own.net is not None else None
        agreement = export(net, plan.model, plan.dataset, folder / EXPORT, plain, plan.export)
    if confusion is not None:  # last: nothing is lost if it cannot be drawn
        write_picture(confusion, plan.dataset.classes, folder / CONFUSION)
    return agreement


def write_end(run: "RunDirectory | NoRunDirectory", step: int, seconds: float) -> None:
    """Note that all files of the run, whose last step this was, are written. Raises OutputError."""
    if run.path is not None:
        run.write(ended(run.path, step, seconds))


def _note(run: "RunDirectory | NoRunDirectory", error: BaseException) -> None:
    if isinstance(error, DivergedError):
        run.write(DivergedEvent(str(error)))


def _draw(run: "RunDirectory | NoRunDirectory", result: Result) -> None:
    if result.history:
        run.curves()


def what_is_left(result: Result) -> str:
    """Describe what the folder of an unfinished run contains, and how to resume."""
    if result.run_dir is None:
        return "rank 0 has written the finished epochs"
    if not result.history:
        return f"no epoch was finished; {result.run_dir} holds the steps of the first{_on(result)}"
    epochs = f"{len(result.history)} of {result.plan.epochs}"
    holds = f"{result.run_dir} holds every epoch that was finished, {epochs}"
    return f"{holds}{_later(result)}{_on(result)}"


def _on(result: Result) -> str:
    """The command that goes on from the last checkpoint, if there is one."""
    if result.run_dir is None or not checkpoints(result.run_dir):
        return ""
    command = result.plan.group.command
    return f"; to go on: {command} --resume {shlex.quote(str(result.run_dir))}"


def _later(result: Result) -> str:
    """The command that makes the confusion matrix and export from the last finished epoch."""
    plan = result.plan
    with_onnx = f" {ONNX}" if plan.export == ONNX else ""
    wanted = {"--confusion": plan.confusion, f"--export{with_onnx}": plan.export}
    asked = [option for option in wanted if wanted[option]]
    if not asked or result.run_dir is None:
        return ""
    evaluate = f"python -m gluonlab.run --evaluate {shlex.quote(str(result.run_dir))}"
    return f"; for {' and '.join(asked)}: {evaluate} {' '.join(asked)}"
