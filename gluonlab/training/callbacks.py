"""Callbacks: user code that follows the progress of a run, and may stop it.

Callbacks never make a step wait for the devices. Callbacks get the loss of a step exactly
LOSS_DELAY steps later, or at the end of its epoch, even if the loss was read earlier. So a resumed
run calls its callbacks at the same steps as an uninterrupted run.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from gluonlab.engine.nd_and_np_arrays import user_semantics
from gluonlab.errors import CallbackError, ConfigError, OutputError, error_type_and_text, unknown
from gluonlab.runs.run_result import Result
from gluonlab.runs.run_schema import Epoch, Step
from gluonlab.training.evaluate import Score
from gluonlab.training.loss_meter import READ_EVERY
from gluonlab.training.plan import Plan
from gluonlab.training.stop_consensus import StopCoordinator

LOSS_DELAY = 2 * READ_EVERY  # steps; see `gluonlab.training.loss_meter`
FINISHED, STOPPED, FAILED, INTERRUPTED = "finished", "stopped", "failed", "interrupted"


class RunEnd(NamedTuple):
    """The end of a run.

    Attributes:
        how: ``finished``, ``stopped``, ``failed`` or ``interrupted``.
        message: The callback that stopped the run and its reason, or the error message. Empty for a
            finished run.
        step: The last step, counted from 1.
        epoch: The last epoch, counted from 1.
    """

    how: str
    message: str
    step: int
    epoch: int


class RunView:
    """The view of a run that callbacks get.

    Attributes:
        path: the run's folder.
        settings: the settings that the run uses, as in config.json.
        net: the network, on the devices.
        epochs: the planned number of epochs.
        steps_per_epoch: the number of steps in an epoch.
        step: the last step that has been queued, counted from 1.
        history: the finished epochs, including those before the run was resumed.
        stopped: the callback that stopped the run, with its reason, or None.
    """

    def __init__(self, plan: Plan, result: Result, coordinator: StopCoordinator) -> None:
        self.path, self.net, self.history = result.run_dir, result.net, result.history
        self.settings: Mapping[str, Any] = plan.settings()
        self.epochs, self.steps_per_epoch = plan.epochs, plan.steps_per_epoch
        self.step = 0
        self.stopped: Optional[str] = None
        self._scale, self._is_synchronous = plan.loss_scale, plan.group.is_synchronous
        self._coordinator, self._current_callback = coordinator, ""

    @property
    def loss_scale(self) -> Optional[float]:
        """The current dynamic loss scale, or None if the loss is not scaled."""
        return None if self._scale is None else self._scale.value

    @property
    def is_last_step(self) -> bool:
        """True if training ends after the step that was queued last."""
        is_stopped = self._is_synchronous and self._coordinator.stops_after(self.step)
        return is_stopped or self.step == self.epochs * self.steps_per_epoch

    def stop(self, why: str = "") -> None:
        """Stop the training without an error. At least one step is trained.

        A single process stops after this step, or after this epoch if all steps of the epoch are
        done. Several processes stop after the same step, at most 9 steps later, or at the end of
        the epoch. A partial epoch is evaluated, and recorded with the number of images it trained
        on.

        Args:
            why: the reason, which the run records. Later calls do not change the reason.
        """
        if self.stopped is None:
            self.stopped = f"{self._current_callback}: {why}" if why else self._current_callback
            self._coordinator.request_stop(self.step)


class Callback:
    """The base class of callbacks. Any object or class with some of these methods also works.

    Only rank 0 calls the ``on_`` methods, in the order in which the callbacks are listed. If a
    callback is a class, each run creates a new instance of it. An exception in a method ends the
    run with a CallbackError.
    """

    def on_run_start(self, run: RunView) -> None:
        """Called before the first epoch that is trained, also in a resumed run."""

    def on_epoch_start(self, run: RunView, epoch: int) -> None:
        """Called before each epoch (counted from 1), except for an epoch that is resumed midway."""

    def on_step_end(self, run: RunView, step: int) -> None:
        """Called when a step (counted from 1) has been queued. The step's loss is not known yet."""

    def on_step(self, run: RunView, step: Step) -> None:
        """Called when the loss of a step is known, up to 8 steps later.

        Args:
            run: the run. ``run.step`` is the last step that was queued.
            step: the step as a line of metrics.jsonl.
        """

    def on_evaluation(self, run: RunView, score: Score) -> None:
        """Called after the evaluation of an epoch, before any results of the epoch are written."""

    def on_epoch_end(self, run: RunView, epoch: Epoch) -> None:
        """Called after an epoch has been recorded as a line of metrics.jsonl."""

    def on_run_end(self, run: RunView, end: RunEnd) -> None:
        """Called at the end of the run, also after an error."""

    def state_dict(self) -> Dict[str, Any]:
        """Return the state to save in a checkpoint, as values that JSON can represent."""
        return {}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Restore the state of a checkpoint, before `on_run_start` of a resumed run."""


class BuiltInCallback:
    """The base class of gluonlab's callbacks.

    These callbacks use mx.nd, and their exceptions are not converted to CallbackError.
    """


STATE_METHODS = ("state_dict", "load_state_dict")
EVENT_METHODS = tuple(name for name in vars(Callback) if name.startswith("on_"))


def make_callbacks(callbacks: Sequence[Any]) -> List[Any]:
    """Check a run's callbacks, and return them with an instance in place of each class.

    Raises ConfigError for an invalid callback.
    """
    if isinstance(callbacks, type) or not isinstance(callbacks, Iterable):
        raise ConfigError(f"callbacks {callbacks!r} is not a list: pass a list, callbacks=[...]")
    return [_make_callback(callback) for callback in callbacks]


def _make_callback(callback_or_class: Any) -> Any:
    """Check a callback. Return the callback, or a new instance if the callback is a class.

    Raises ConfigError for an invalid callback.
    """
    try:
        callback = callback_or_class() if isinstance(callback_or_class, type) else callback_or_class
    except Exception as error:
        raise ConfigError(
            f"callback {callback_or_class.__name__} cannot be created: {error_type_and_text(error)}"
        ) from error
    name, methods = callback_name(callback), [m for m in dir(callback) if m.startswith("on_")]
    for method in methods:
        if method not in EVENT_METHODS:
            raise ConfigError(unknown(f"method of callback {name}", method, EVENT_METHODS))
    if not methods:
        raise ConfigError(f"callback {name} has no callback method: add one of {', '.join(EVENT_METHODS)}")
    missing = [method for method in STATE_METHODS if not hasattr(callback, method)]
    if len(missing) == 1:
        both = " and ".join(STATE_METHODS)
        raise ConfigError(f"callback {name} lacks {missing[0]}: define both {both}, or neither")
    return callback


def callback_name(callback: Any) -> str:
    """Return the name of a callback's class."""
    return type(callback).__name__


class Callbacks:
    """The callbacks of one run, and the steps whose losses they have not received yet."""

    def __init__(self, callbacks: Sequence[Any], run: RunView, coordinator: StopCoordinator) -> None:
        self._callbacks, self._run, self._coordinator = list(callbacks), run, coordinator
        self._pending_steps: List[Step] = []
        self._has_ended = False

    @property
    def stop_message(self) -> Optional[str]:
        """The callback that stopped the training, with its reason, or None."""
        return self._run.stopped

    def start_run(self, step: int) -> None:
        """Call ``on_run_start``; ``step``: the last step of the run so far."""
        self._run.step = step
        self.call_all("on_run_start")

    def add_step_losses(self, steps: Sequence[Step]) -> None:
        """Add steps whose losses are known. The callbacks get the losses later."""
        self._pending_steps += steps

    def after_step(self, step: int) -> None:
        """Call ``on_step_end`` for this step, and ``on_step`` for the step LOSS_DELAY steps ago."""
        self._run.step = step
        self._report_losses_until(step - LOSS_DELAY)
        self.call_all("on_step_end", step)

    def report_remaining_steps(self) -> None:
        """Call ``on_step`` for all remaining steps of an epoch."""
        self._report_losses_until(self._run.step)

    def end_run(self, stop_message: Optional[str]) -> None:
        """Call ``on_run_end`` after training without an error.

        ``stop_message``: None unless a callback stopped the training.
        """
        self._has_ended = True
        how = FINISHED if stop_message is None else STOPPED
        self.call_all("on_run_end", self._run_end(how, stop_message or ""))

    @contextmanager
    def notify_on_failure(self) -> Iterator[None]:
        """Call ``on_run_end`` if the body of the with statement raises an exception."""
        try:
            yield
        except BaseException as error:
            if not self._has_ended:
                self._has_ended = True
                how = FAILED if isinstance(error, Exception) else INTERRUPTED
                end = self._run_end(how, str(error) or type(error).__name__)
                for callback in self._callbacks:
                    try:
                        with user_semantics():
                            getattr(callback, "on_run_end", lambda run, end: None)(self._run, end)
                    except Exception:
                        pass  # a further error must not replace the first one
            raise

    def state(self) -> Dict[str, Any]:
        """Return the callbacks' states to save. Raises CallbackError for non-JSON values."""
        states: List[Tuple[str, Any]] = []
        for callback in self._callbacks:
            if hasattr(callback, "state_dict"):
                name, state = callback_name(callback), self._call(callback, "state_dict")
                try:
                    state = json.loads(json.dumps(state, allow_nan=False))
                except (TypeError, ValueError, RecursionError) as error:
                    raise CallbackError(
                        f"the result of state_dict() of callback {name} cannot be saved as JSON: {error}"
                    ) from None
                states.append((name, state))
        untold = [vars(step) for step in self._pending_steps]
        stop = {"message": self._run.stopped, "after": self._coordinator.stop_step_of_rank_0}
        return {"states": states, "untold": untold, **({"stop": stop} if stop["message"] else {})}

    def restore(self, state: Mapping[str, Any], keeps_stop: bool) -> List[str]:
        """Restore the result of `state`, and return lines about added or removed callbacks.

        ``keeps_stop``: whether to also restore a callback's request to stop.
        """
        self._pending_steps = [Step(**step) for step in state.get("untold", [])]
        saved_states = [(str(name), saved) for name, saved in state.get("states", [])]
        lines = []
        for callback in self._callbacks:
            name = callback_name(callback)
            if not hasattr(callback, "load_state_dict"):
                continue
            index = next((i for i, (other, _) in enumerate(saved_states) if other == name), None)
            if index is None:
                lines.append(f"callback {name} is new: it starts without saved state")
            else:
                self._call(callback, "load_state_dict", saved_states.pop(index)[1])
        if self._coordinator.rank == 0:
            lines += [f"callback {name} of the interrupted run is missing" for name, _ in saved_states]
        stop = state.get("stop")
        if stop and keeps_stop:
            self._run.stopped = stop["message"]
            self._coordinator.stop_step_of_rank_0 = stop["after"]
        return lines

    def _run_end(self, how: str, message: str) -> RunEnd:
        return RunEnd(how, message, self._run.step, len(self._run.history))

    def _report_losses_until(self, step: int) -> None:
        while self._pending_steps and self._pending_steps[0].step <= step:
            self.call_all("on_step", self._pending_steps.pop(0))

    def call_all(self, method: str, *arguments: Any) -> None:
        """Call a method, such as ``on_epoch_end``, of all callbacks that have it."""
        for callback in self._callbacks:
            if hasattr(callback, method):
                self._run._current_callback = callback_name(callback)
                self._call(callback, method, self._run, *arguments)

    def _call(self, callback: Any, method: str, *arguments: Any) -> Any:
        """Call a method of a callback. Exceptions of the user's callbacks become CallbackError."""
        if isinstance(callback, BuiltInCallback):
            return getattr(callback, method)(*arguments)
        try:
            with user_semantics():
                return getattr(callback, method)(*arguments)
        except (MemoryError, OutputError):  # their messages need no name of a callback
            raise
        except Exception as error:
            name, step = callback_name(callback), self._run.step
            raise CallbackError(
                f"callback {name} failed in {method} after step {step}: {error_type_and_text(error)}"
            ) from error
