"""A program that repeatedly kills and resumes a run, until the run is finished.

kills.py FOLDER SEED KILLS SETTINGS kills FOLDER/run KILLS times with SIGKILL at random moments.
FOLDER/whole is the same run without kills. Each attempt is a separate process, forked before MXNet
has computed anything. The program prints how many attempts resumed from a checkpoint, and how many
damaged checkpoints they left.
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
    """Fork a process that calls ``work`` and exits with status 0; return its id."""
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
    """Wait for a child process; return its exit status, or minus the number of its signal."""
    _, status = os.waitpid(child, 0)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)


class StepReporter(Reporter):
    """A reporter that writes a byte into a pipe for each step."""

    def __init__(self, pipe):
        self.pipe = pipe

    def step_done(self, images, known):
        os.write(self.pipe, b".")


def run_attempt(folder, settings, digits, reporter):
    """Start or resume the run."""
    config = TrainConfig(**settings, out=str(folder))
    train(config, reporter=reporter, dataset=digits, autoresume=True)


def wait_for_steps(pipe, steps):
    """Wait until a pipe has a byte for each step, or its writer has exited."""
    while steps > 0:
        done = len(os.read(pipe, steps))
        steps = steps - done if done else 0


def main(folder, seed, kills, settings):
    digits, random_moment, run = load_dataset("digits"), random.Random(seed), folder / "run"
    damaged = resumed = 0
    for _ in range(kills):
        resumed += bool(list_checkpoints(run))
        read_end, write_end = os.pipe()
        child = fork_process(partial(run_attempt, run, settings, digits, StepReporter(write_end)))
        os.close(write_end)
        wait_for_steps(read_end, random_moment.randint(1, 12))
        time.sleep(random_moment.uniform(0, 0.04))
        os.kill(child, signal.SIGKILL)
        os.close(read_end)
        if wait_for_exit(child) == 0:
            break  # the run finished before the kill
        if list_checkpoints(run):
            damaged += len(read_newest_checkpoint(run).damaged)
    else:
        assert wait_for_exit(fork_process(lambda: run_attempt(run, settings, digits, Reporter()))) == 0
    whole = TrainConfig(**{**settings, "checkpoint_every": None}, out=str(folder / "whole"))
    assert wait_for_exit(fork_process(lambda: train(whole, reporter=Reporter(), dataset=digits))) == 0
    print(json.dumps({"damaged": damaged, "resumed": resumed}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]))
