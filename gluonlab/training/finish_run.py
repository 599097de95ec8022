"""Ends a run: writes the parameters and exports, and completes the folder, also after an error.

`finalize_run` completes the run's folder, and explains what an unfinished run has left in it.
"""

from __future__ import annotations

import hashlib
import shlex
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Iterator, Optional

import numpy as np
from mxnet import gluon, nd
from mxnet.base import MXNetError

from gluonlab.errors import DivergedError, GluonlabError, UsageError
from gluonlab.files.array_files import read_arrays, save_arrays
from gluonlab.host.out_of_memory import explain_exhausted_resource, memory_limit
from gluonlab.host.resources import release_free_memory as give_back_memory
from gluonlab.host.signals import EXCEPTION_BY_SIGNAL, StopRequest
from gluonlab.kvstores.gradient_compression import FP16
from gluonlab.kvstores.process_groups import ProcessGroup
from gluonlab.parallel.strategy import Strategy
from gluonlab.runs.checkpoint import find_parameters_file, list_checkpoints
from gluonlab.runs.run_result import Result
from gluonlab.runs.run_schema import CONFUSION, EXPORT, PARAMETERS, DivergedEvent
from gluonlab.runs.run_writer import NoRunDirectory, RunDirectory
from gluonlab.training.builtin_callbacks import EarlyStopping
from gluonlab.training.checkpoint_writer import broadcast_arrays
from gluonlab.training.evaluate import Confusion, write_confusion_picture
from gluonlab.training.plan import Plan
from gluonlab.training.train_state import set_strategy_parameters

if TYPE_CHECKING:
    from gluonlab.export.onnx_graph import Agreement


class BestWeights:
    """Writes a run's parameters to its folder.

    With early stopping, the parameters are from the best epoch, otherwise from the last epoch.
    """

    def __init__(
        self,
        run: "RunDirectory | NoRunDirectory",
        strategy: Strategy,
        group: ProcessGroup,
        early_stopping: Optional[EarlyStopping],
    ) -> None:
        self._run, self._strategy, self._group = run, strategy, group
        self._early_stopping = early_stopping

    def save(self, epoch: int) -> None:
        """Write the parameters after this epoch, unless an earlier epoch was better."""
        early_stopping, folder = self._early_stopping, self._run.path
        if early_stopping is None or early_stopping.best_epoch in (None, epoch):
            self._run.write_parameters(self._strategy.net)
            if early_stopping is not None and folder is not None:
                early_stopping.digest = _parameters_digest(folder)

    def restore(self) -> bool:
        """Put the best epoch's parameters into the run's folder again, when the run is resumed.

        A killed run may have replaced the file in an epoch after its last checkpoint. Return False
        if no checkpoint has the parameters. All processes then forget the best epoch.
        """
        early_stopping, folder, is_available = self._early_stopping, self._run.path, True
        if early_stopping is None:
            return True
        digest = early_stopping.digest
        if folder is not None and digest and _parameters_digest(folder) != digest:
            file = find_parameters_file(folder, digest)
            is_available = file is not None
            if file is not None:
                save_arrays(folder / PARAMETERS, read_arrays(file))
        is_available = bool(self._group.all_gather(np.array(is_available))[0])
        if not is_available:
            early_stopping.forget_best()
        return is_available

    def load(self) -> None:
        """With early stopping, load the best epoch's parameters in every process."""
        if self._early_stopping is not None:
            arrays = {} if self._run.path is None else read_arrays(self._run.path / PARAMETERS)
            set_strategy_parameters(self._strategy, broadcast_arrays(arrays, self._group))


def _parameters_digest(folder: Path) -> str:
    """Return the SHA-256 of the run's parameters, or an empty string if there is no file."""
    with suppress(FileNotFoundError):
        return hashlib.sha256((folder / PARAMETERS).read_bytes()).hexdigest()
    return ""


FP16_HINT = f"or remove --compress {FP16}, which makes gradients beyond 65504 infinite"


@contextmanager
def finalize_run(run: "RunDirectory | NoRunDirectory", result: Result, request: StopRequest) -> Iterator[None]:
    """Complete the run's folder at the end of the with statement, even after an exception.

    - The folder then contains the curves of all finished epochs, and the reason for a divergence.
    - A KeyboardInterrupt gets a message that describes the unfinished run.
    - If an error occurs after a signal, the message of the signal's exception includes the error.
    - After a UsageError before the first finished epoch, the folder is removed.
    """
    try:
        yield
        _draw_curves(run, result)
        request.raise_if_requested()
        run.close()
    except BaseException as error:
        if isinstance(error, DivergedError) and result.plan.compress == FP16:
            error.args = (f"{error}; {FP16_HINT}",)
        events = [DivergedEvent(str(error))] if isinstance(error, DivergedError) else []
        for finish in (partial(run.write, *events), partial(_draw_curves, run, result), run.close):
            # a further error, or a second Ctrl-C, must not replace the first error
            with suppress(Exception, KeyboardInterrupt):
                finish()
        if isinstance(error, Exception) and request.number is not None:
            message = f"{describe_unfinished_run(result)}; {explain_exhausted_resource(error) or error}"
            raise EXCEPTION_BY_SIGNAL[request.number](message) from error
        if isinstance(error, UsageError) and not result.history:
            run.discard()
        if isinstance(error, KeyboardInterrupt):
            error.args = (describe_unfinished_run(result),)
        elif isinstance(error, DivergedError) and result.history:
            error.args = (f"{error}{_evaluate_hint(result)}",)
        raise


MAX_ENGINE_ERRORS = 100  # operators whose errors are discarded after memory is exhausted


@contextmanager
def explain_resource_limits() -> Iterator[None]:
    """Convert errors of Python, MXNet and the system about exhausted resources to NoMemoryError.

    On exit, free memory is returned to the system. Otherwise many runs in one process would need
    more memory than the largest run alone.
    """
    try:
        yield
    except GluonlabError:
        raise
    except Exception as error:
        explained = explain_exhausted_resource(error)
        if explained is None:
            raise
        # With a memory limit, a worker thread of the engine may have failed to start. Waiting for
        # its operators would then never end.
        if memory_limit() is None:
            _discard_engine_errors()
        raise explained from error
    finally:
        give_back_memory()


def _discard_engine_errors() -> None:
    """Wait for all queued operators, and discard their errors.

    Otherwise, MXNet would raise the errors at exit.
    """
    for _ in range(MAX_ENGINE_ERRORS):
        with suppress(MXNetError):
            nd.waitall()
            break


def write_exports(
    folder: Path, plan: Plan, net: gluon.HybridBlock, confusion: Optional[Confusion]
) -> "Optional[Agreement]":
    """Write the exported network and the picture of the confusion matrix, if requested.

    Return how closely an exported ONNX model agrees with MXNet, or None. Raises OutputError if a
    file cannot be written, and the errors of `write_export`.
    """
    agreement = None
    if plan.export is not None:
        from gluonlab.export.export_network import write_export

        user_net = net if plan.user_components.net is not None else None
        agreement = write_export(net, plan.model, plan.dataset, folder / EXPORT, user_net, plan.export)
    if confusion is not None:  # last, so that an error in drawing loses nothing else
        write_confusion_picture(confusion, plan.dataset.classes, folder / CONFUSION)
    return agreement


def _draw_curves(run: "RunDirectory | NoRunDirectory", result: Result) -> None:
    if result.history:
        run.draw_curves()


def describe_unfinished_run(result: Result) -> str:
    """Describe what the folder of an unfinished run contains, and how to resume."""
    folder = result.run_dir
    if folder is None:
        return "rank 0 has saved the finished epochs"
    hint = _resume_hint(result)
    if not result.history:
        return f"no epoch is finished; {folder} contains the steps of the first epoch{hint}"
    finished = f"{folder} contains the finished epochs ({len(result.history)} of {result.plan.epochs})"
    return f"{finished}{_evaluate_hint(result)}{hint}"


def _resume_hint(result: Result) -> str:
    """Return the command that resumes the run; "" if it has no checkpoint."""
    if result.run_dir is None or not list_checkpoints(result.run_dir):
        return ""
    command = result.plan.group.command
    return f"; to resume: {command} resume {shlex.quote(str(result.run_dir))}"


def _evaluate_hint(result: Result) -> str:
    """Return the command that writes the requested --confusion and --export files."""
    plan = result.plan
    outputs = {"--confusion": plan.confusion, f"--export {plan.export}": plan.export}
    options = [option for option, is_requested in outputs.items() if is_requested]
    if not options or result.run_dir is None:
        return ""
    evaluate = f"gluonlab evaluate {shlex.quote(str(result.run_dir))}"
    return f"; for {' and '.join(options)}: {evaluate} {' '.join(options)}"
