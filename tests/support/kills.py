"""A program: a run that is killed again and again, and goes on each time, until it is finished.

kills.py FOLDER SEED KILLS SETTINGS: ``FOLDER/run`` is killed KILLS times with SIGKILL, at moments
that SEED draws, and ``FOLDER/whole`` is the undisturbed run. Each try is a process of its own,
forked before MXNet has computed anything. Prints how many tries began at a checkpoint, and how many
found one that is not whole.
"""

import json
import os
import random
import signal
import sys
import time
import traceback
from functools import partial
from pathlib import Path

from gluonlab.config import TrainConfig
from gluonlab.data import load_dataset
from gluonlab.runs.checkpoint import list_checkpoints, read_newest_checkpoint
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter


def fork_process(work):
    """The id of a process that does this, and ends with 0."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def wait_for_exit(child):
    """Wait; the exit status, or minus the signal that ended it."""
    _, status = os.waitpid(child, 0)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)


class StepReporter(Reporter):
    """Writes a byte for every step."""

    def __init__(self, pipe):
        self.pipe = pipe

    def step_done(self, images, known):
        os.write(self.pipe, b".")


def run_attempt(folder, settings, digits, reporter):
    """Begin the run, or go on with it."""
    config = TrainConfig(**settings, out=str(folder))
    train(config, reporter=reporter, dataset=digits, autoresume=True)


def wait_for_steps(pipe, steps):
    """Until so many are done, or there is nobody to do more."""
    while steps > 0:
        done = len(os.read(pipe, steps))
        steps = steps - done if done else 0


def main(folder, seed, kills, settings):
    digits, random_moment, run = load_dataset("digits"), random.Random(seed), folder / "run"
    damaged = resumed = 0
    for _ in range(kills):
        resumed += bool(list_checkpoints(run))
        there, here = os.pipe()
        child = fork_process(partial(run_attempt, run, settings, digits, StepReporter(here)))
        os.close(here)
        wait_for_steps(there, random_moment.randint(1, 12))
        time.sleep(random_moment.uniform(0, 0.04))
        os.kill(child, signal.SIGKILL)
        os.close(there)
        if wait_for_exit(child) == 0:
            break  # it was faster
        if list_checkpoints(run):
            damaged += len(read_newest_checkpoint(run).damaged)
    else:
        assert (
            wait_for_exit(fork_process(lambda: run_attempt(run, settings, digits, Reporter()))) == 0
        )
    whole = TrainConfig(**{**settings, "checkpoint_every": None}, out=str(folder / "whole"))
    assert (
        wait_for_exit(fork_process(lambda: train(whole, reporter=Reporter(), dataset=digits))) == 0
    )
    print(json.dumps({"damaged": damaged, "resumed": resumed}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]))
