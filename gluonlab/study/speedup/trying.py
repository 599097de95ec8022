"""An advice is tried before it is given: its settings beside the present ones, in turns."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Dict, Optional, Sequence

from gluonlab.bench.harness.interval import Estimate, estimates
from gluonlab.bench.harness.rounds import Timed, time_in_turns
from gluonlab.config import TrainConfig
from gluonlab.data.sets.dataset import Dataset
from gluonlab.errors import UsageError
from gluonlab.host.resources import give_back
from gluonlab.parallel.strategy import MakeStrategy
from gluonlab.study.speedup.advice import Candidate
from gluonlab.study.speedup.judge import helps
from gluonlab.study.speedup.measure import BLOCK_S, Measured, on_one
from gluonlab.study.speedup.model import StepModel
from gluonlab.study.speedup.trained import Trained

ROUNDS = 11


@dataclass(frozen=True)
class Tried:
    """An advice that was tried: images/s over those of the present settings.

    ``speed_up``: of all devices over one, measured where the advice changes the batch, for which
    ``expected`` was solved. ``reason``: why it could not be tried.
    """

    candidate: Candidate
    gain: Optional[Estimate] = None
    speed_up: Optional[Estimate] = None
    expected: Optional[float] = None
    reason: Optional[str] = None

    @property
    def given(self) -> bool:
        """Whether it is an advice."""
        return self.gain is not None and helps(self.gain)


def tried(
    config: TrainConfig,
    found: Measured,
    solved: StepModel,
    candidate: Candidate,
    strategy: Optional[MakeStrategy],
) -> Tried:
    """Some steps with the advised settings and with the present ones, in turns."""
    try:
        advised = config.replace(**candidate.settings)
        with ExitStack() as stack:
            ways = {"present": _made(config, found.dataset, strategy, stack)}
            ways["advised"] = _made(advised, found.dataset, strategy, stack)
            if candidate.each is not None:
                one = on_one(advised, ways["advised"])
                ways["one"] = _made(one, found.dataset, strategy, stack)
            calls: Dict[str, Timed] = {name: way.steps() for name, way in ways.items()}
            seconds = time_in_turns(calls, ROUNDS, block_s=BLOCK_S)
            images = {name: way.images for name, way in ways.items()}
    except UsageError as error:
        return Tried(candidate, reason=str(error))
    finally:
        give_back()
    rates = {name: [images[name] / each for each in values] for name, values in seconds.items()}
    gain = _ratio(rates["advised"], rates["present"])
    if candidate.each is None:
        return Tried(candidate, gain)
    speed_up = _ratio(rates["advised"], rates["one"])
    # the model counts by device, and the advice by copy of the network
    each = candidate.each * found.facts.copies / len(found.devices)
    return Tried(candidate, gain, speed_up, solved.speed_up(each))


def _made(
    config: TrainConfig,
    dataset: Dataset,
    strategy: Optional[MakeStrategy],
    stack: ExitStack,
) -> Trained:
    trained = Trained(config, dataset, strategy)
    stack.callback(trained.close)
    return trained


def _ratio(above: Sequence[float], below: Sequence[float]) -> Estimate:
    return estimates({"ratio": [a / b for a, b in zip(above, below)]}, dict)["ratio"]
