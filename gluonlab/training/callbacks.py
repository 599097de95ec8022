"""Callbacks: code of the user's own that is told how a run goes, and may end it.

They are told what the run knows anyway, so that no step waits for them: the loss of a step is told
LATE steps after it, or at the end of its epoch. That is as late as a loss can become known; so a
run that goes on from a checkpoint tells the same at the same steps as an undisturbed one.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import (
    Any,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

from gluonlab.engine.np_compatibility import user_semantics
from gluonlab.errors import CallbackError, ConfigError, OutputError, error_type_and_text, unknown
from gluonlab.runs.run_result import Result
from gluonlab.runs.run_schema import Epoch, Step
from gluonlab.training.evaluate import Score
from gluonlab.training.loss_meter import STRIDE
from gluonlab.training.plan import Plan
from gluonlab.training.stop_consensus import Consensus

LATE = 2 * STRIDE  # steps; see `gluonlab.training.loss_meter`
FINISHED, STOPPED, FAILED, INTERRUPTED = "finished", "stopped", "failed", "interrupted"


class RunEnd(NamedTuple):
    """How a run has ended: ``how`` is finished, stopped, failed or interrupted.

    ``message``: by whom and why it was stopped, or what failed; empty where it has finished.
    ``step`` and ``epoch``: the last of each.
    """

    how: str
    message: str
    step: int
    epoch: int


class RunView:
    """A run as its callbacks see it.

    ``path``: its folder. ``settings``: what it uses, as config.json has it. ``net``: the network,
    on the devices. ``epochs`` and ``steps_per_epoch``: how many there are to be. ``step``: the
    last one that has been queued, from 1. ``history``: the finished epochs, also those from before
    the run went on.
    """

    def __init__(self, plan: Plan, result: Result, consensus: Consensus) -> None:
        self.path, self.net, self.history = result.run_dir, result.net, result.history
        self.settings: Mapping[str, Any] = plan.settings()
        self.epochs, self.steps_per_epoch = plan.epochs, plan.steps_per_epoch
        self.step = 0
        self.stopped: Optional[str] = None  # by whom, and why
        self._scale, self._waits = plan.loss_scale, plan.group.waits
        self._consensus, self._speaker = consensus, ""

    @property
    def loss_scale(self) -> Optional[float]:
        """The dynamic loss scale by now; None without one."""
        return None if self._scale is None else self._scale.value

    @property
    def is_last_step(self) -> bool:
        """Whether training ends after the step that has been queued last."""
        stops = self._waits and self._consensus.stops_after(self.step)
        return stops or self.step == self.epochs * self.steps_per_epoch

    def stop(self, why: str = "") -> None:
        """End the training, which is no error; at least one step is trained.

        A process alone ends after this step, or after this epoch if its last step is done; several
        end after the same step, within WITHIN of `gluonlab.training.stop_consensus`, or with the
        epoch.
        An epoch that is cut short is evaluated, and noted with the images that it had. ``why`` is
        recorded; the first call counts.
        """
        if self.stopped is None:
            self.stopped = f"{self._speaker}: {why}" if why else self._speaker
            self._consensus.ask_to_stop(self.step)


class Callback:
    """A callback; any object, or class, that has some of these methods is one, too.

    ``on_`` methods are called in the process of rank 0 alone, as are the files written there, in
    the order in which the callbacks were given. A class is made anew for each run. What a method
    raises ends the run with a CallbackError.
    """

    def on_run_start(self, run: RunView) -> None:
        """The first epoch is about to begin, or to go on."""

    def on_epoch_start(self, run: RunView, epoch: int) -> None:
        """An epoch, from 1, begins; one that goes on has begun before."""

    def on_step_end(self, run: RunView, step: int) -> None:
        """A step has been queued; its loss is not known yet."""

    def on_step(self, run: RunView, step: Step) -> None:
        """A step's loss is known: a line of metrics.jsonl. ``run.step`` is up to LATE steps on."""

    def on_evaluation(self, run: RunView, score: Score) -> None:
        """The test images have been evaluated after an epoch; nothing of it is written yet."""

    def on_epoch_end(self, run: RunView, epoch: Epoch) -> None:
        """An epoch has been noted: a line of metrics.jsonl."""

    def on_run_end(self, run: RunView, end: RunEnd) -> None:
        """The run ends, in whatever way."""

    def state_dict(self) -> Dict[str, Any]:
        """What a checkpoint is to keep, as JSON has it."""
        return {}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """The run goes on from a checkpoint with this state, before `on_run_start`."""


class BuiltInCallback:
    """A callback of gluonlab's own: it computes with mx.nd, and its errors are the run's."""


STATE = ("state_dict", "load_state_dict")
METHODS = tuple(name for name in vars(Callback) if name.startswith("on_"))


def made(callbacks: Sequence[Any]) -> List[Any]:
    """The callbacks of a run, classes made. Raises ConfigError for what is no callback."""
    if isinstance(callbacks, type) or not isinstance(callbacks, Iterable):
        raise ConfigError(f"callbacks {callbacks!r} is no list: put it into one, callbacks=[...]")
    return [_made(each) for each in callbacks]


def _made(given: Any) -> Any:
    try:
        callback = given() if isinstance(given, type) else given
    except Exception as error:
        raise ConfigError(
            f"callback {given.__name__} cannot be made: {error_type_and_text(error)}"
        ) from error
    name, has = name_of(callback), [each for each in dir(callback) if each.startswith("on_")]
    for each in has:
        if each not in METHODS:
            raise ConfigError(unknown(f"method of callback {name}", each, METHODS))
    if not has:
        raise ConfigError(
            f"callback {name} has no method that could be called: "
            f"give it one of {', '.join(METHODS)}"
        )
    lacking = [each for each in STATE if not hasattr(callback, each)]
    if len(lacking) == 1:
        raise ConfigError(
            f"callback {name} has no {lacking[0]}: give it both of {' and '.join(STATE)}, or none"
        )
    return callback


def name_of(callback: Any) -> str:
    """The name of its class."""
    return type(callback).__name__


class Callbacks:
    """The callbacks of one run, and what they have not been told yet."""

    def __init__(self, callbacks: Sequence[Any], run: RunView, consensus: Consensus) -> None:
        self._callbacks, self._run, self._consensus = list(callbacks), run, consensus
        self._untold: List[Step] = []
        self._over = False

    @property
    def stopped(self) -> Optional[str]:
        """By whom, and why training was stopped."""
        return self._run.stopped

    def run_starts(self, step: int) -> None:
        """From here on they are told."""
        self._run.step = step
        self._tell("on_run_start")

    def epoch_starts(self, epoch: int) -> None:
        """An epoch begins."""
        self._tell("on_epoch_start", epoch)

    def known(self, steps: Sequence[Step]) -> None:
        """The losses of these steps are known."""
        self._untold += steps

    def after_step(self, step: int) -> None:
        """A step is queued: tell of it, and of those that are LATE steps older."""
        self._run.step = step
        self._tell_until(step - LATE)
        self._tell("on_step_end", step)

    def epoch_trained(self) -> None:
        """All steps of an epoch are done: tell all of them."""
        self._tell_until(self._run.step)

    def evaluated(self, score: Score) -> None:
        """An epoch has been evaluated."""
        self._tell("on_evaluation", score)

    def epoch_ends(self, epoch: Epoch) -> None:
        """An epoch has been noted."""
        self._tell("on_epoch_end", epoch)

    def run_ends(self, stopped: Optional[str]) -> None:
        """Training is over, as it should be; ``stopped``: by whom and why, if before its end."""
        self._over = True
        how = FINISHED if stopped is None else STOPPED
        self._tell("on_run_end", self._end(how, stopped or ""))

    @contextmanager
    def told_of_failures(self) -> Iterator[None]:
        """Tell them that the run ends, too, if the block ends by an exception."""
        try:
            yield
        except BaseException as error:
            if not self._over:
                self._over = True
                how = FAILED if isinstance(error, Exception) else INTERRUPTED
                end = self._end(how, str(error) or type(error).__name__)
                for each in self._callbacks:
                    try:
                        with user_semantics():
                            getattr(each, "on_run_end", lambda run, end: None)(self._run, end)
                    except Exception:
                        pass  # nothing may hide why the run ends
            raise

    def state(self) -> Dict[str, Any]:
        """What a checkpoint keeps of them. Raises CallbackError for what JSON cannot hold."""
        states: List[Tuple[str, Any]] = []
        for each in self._callbacks:
            if hasattr(each, "state_dict"):
                state = self._call(each, "state_dict")
                try:
                    state = json.loads(json.dumps(state, allow_nan=False))
                except (TypeError, ValueError, RecursionError) as error:
                    raise CallbackError(
                        f"callback {name_of(each)}: its state_dict holds what JSON cannot: {error}"
                    ) from None
                states.append((name_of(each), state))
        untold = [vars(step) for step in self._untold]
        stop = {"message": self._run.stopped, "after": self._consensus.asked_to_stop}
        return {"states": states, "untold": untold, **({"stop": stop} if stop["message"] else {})}

    def restore(self, state: Mapping[str, Any], stop: bool) -> List[str]:
        """Go on from a `state`; lines about callbacks that are not those of before.

        ``stop``: whether a stop that was asked for there still counts.
        """
        self._untold = [Step(**step) for step in state.get("untold", [])]
        left = [(str(name), found) for name, found in state.get("states", [])]
        lines = []
        for each in self._callbacks:
            name = name_of(each)
            if not hasattr(each, "load_state_dict"):
                continue
            place = next((n for n, (other, _) in enumerate(left) if other == name), None)
            if place is None:
                lines.append(f"callback {name} is new: it begins without a state")
            else:
                self._call(each, "load_state_dict", left.pop(place)[1])
        if self._consensus.rank == 0:
            lines += [f"callback {name}, which the run had, is not there" for name, _ in left]
        asked = state.get("stop")
        if asked and stop:
            self._run.stopped = asked["message"]
            self._consensus.asked_to_stop = asked["after"]
        return lines

    def _end(self, how: str, message: str) -> RunEnd:
        return RunEnd(how, message, self._run.step, len(self._run.history))

    def _tell_until(self, step: int) -> None:
        while self._untold and self._untold[0].step <= step:
            self._tell("on_step", self._untold.pop(0))

    def _tell(self, method: str, *facts: Any) -> None:
        for each in self._callbacks:
            if hasattr(each, method):
                self._run._speaker = name_of(each)
                self._call(each, method, self._run, *facts)

    def _call(self, callback: Any, method: str, *given: Any) -> Any:
        if isinstance(callback, BuiltInCallback):
            return getattr(callback, method)(*given)
        try:
            with user_semantics():
                return getattr(callback, method)(*given)
        except (MemoryError, OutputError):  # which says itself what cannot be written, and why
            raise
        except Exception as error:
            raise CallbackError(
                f"callback {name_of(callback)} failed in {method} after step {self._run.step}: "
                f"{error_type_and_text(error)}"
            ) from error
