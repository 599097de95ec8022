"""A program that repeatedly kills and resumes a run of several processes.

group_kills.py FOLDER JSON: FOLDER/run is the run, FOLDER/whole the same run without kills. JSON
holds the arguments of `main`. The program prints how many attempts resumed from a checkpoint.

The processes are forked before MXNet has computed anything. They train over MXNet's parameter
server. A group of one process trains without servers.
"""

import json
import os
import random
import signal
import sys
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import gluonlab  # noqa: F401 # isort: skip  # first: MXNet starts faster with it
from mxnet.kvstore.kvstore_server import _init_kvstore_server_module

from gluonlab.config import TrainConfig
from gluonlab.kvstores.process_groups import SINGLE_PROCESS
from gluonlab.launch.parameter_server_group import ParameterServer
from gluonlab.runs.checkpoint import list_checkpoints
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter
from gluonlab.training.resume import read_resume_point, resumed_config
from support.drawn_runs import load_few_digits, register_drawn_network
from support.kills import StepReporter, fork_process, wait_for_exit, wait_for_steps
from support.parameter_server import free_port


@contextmanager
def start_process_group(size, work):
    """Yield the ids of ``size`` processes that each run ``work(group)``; kill all at the end."""
    shared = {
        "DMLC_NUM_WORKER": str(size), "DMLC_NUM_SERVER": "1", "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
    }  # fmt: skip

    def play(role):
        os.environ.update(shared, DMLC_ROLE=role)
        if role != "worker":
            with suppress(SystemExit):
                _init_kvstore_server_module()
            return
        with ParameterServer() as group:
            work(group)

    if size == 1:
        servers, workers = [], [fork_process(partial(work, SINGLE_PROCESS))]
    else:
        servers = [fork_process(partial(play, role)) for role in ("scheduler", "server")]
        workers = [fork_process(partial(play, "worker")) for _ in range(size)]
    try:
        yield workers
    finally:
        for child in servers + workers:
            with suppress(ProcessLookupError, ChildProcessError):  # seen already
                os.kill(child, signal.SIGKILL)
                wait_for_exit(child)


def train_rank(folder, settings, devices, reporter, group):
    """Train one rank of the run, from its checkpoint if there is any. Rank 0 reports."""
    own = {"devices": f"cpu*{devices[group.rank]}"}
    reporter = reporter if group.rank == 0 else Reporter()
    resume_point = read_resume_point(folder, group) if list_checkpoints(folder) else None
    if resume_point is not None:
        config = resumed_config(resume_point, group, **own)
    else:
        config = TrainConfig(**{**settings, **own}, out=str(folder))
    train(config, None, reporter, load_few_digits(), group, resume_point)


def train_to_the_end(folder, settings, devices):
    """Train or finish the run without kills."""
    work = partial(train_rank, folder, settings, devices, Reporter())
    with start_process_group(len(devices), work) as workers:
        for child in workers:
            assert wait_for_exit(child) == 0


def train_until_killed(folder, settings, devices, moment):
    """Train or resume the run, and kill one process or more at a random moment."""
    if folder.exists() and not list_checkpoints(folder):  # killed before its first checkpoint
        folder.rename(folder.with_name(f"{folder.name}-{time.monotonic_ns()}"))
    read_end, write_end = os.pipe()
    with start_process_group(
        len(devices), partial(train_rank, folder, settings, devices, StepReporter(write_end))
    ) as workers:
        os.close(write_end)
        wait_for_steps(read_end, moment.randint(1, 9))
        time.sleep(moment.uniform(0, 0.04))
        for child in moment.sample(workers, moment.randint(1, len(workers))):
            os.kill(child, signal.SIGKILL)
        time.sleep(moment.choice([0, 0.1]))
    os.close(read_end)


def is_finished(run, epochs):
    """Return whether the last checkpoint is at the end of the last epoch."""
    states = [json.loads((path / "state.json").read_text()) for path in list_checkpoints(run)[:1]]
    return any(state["loader"]["epoch"] == epochs for state in states)


def main(folder, seed, kills, devices, settings, layers, then=None):
    """Kill a run repeatedly, finish it, and train the same run without kills.

    Args:
        folder: gets the runs.
        seed: of the moments of the kills.
        kills: the number of kills.
        devices: the number of devices of each process.
        settings: the settings of the run.
        layers: as in `support.drawn_runs.register_drawn_network`.
        then: the number of devices of each process that finishes the run.
    """
    moment, run, resumed = random.Random(seed), folder / "run", 0
    with register_drawn_network(layers):
        for _ in range(kills):
            if is_finished(run, settings["epochs"]):
                break  # the run finished before the kill
            resumed += bool(list_checkpoints(run))
            train_until_killed(run, settings, devices, moment)
        if not is_finished(run, settings["epochs"]):
            train_to_the_end(run, settings, then or devices)
        train_to_the_end(folder / "whole", {**settings, "checkpoint_every": None}, devices)
    print(json.dumps({"resumed": resumed}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), **json.loads(sys.argv[2]))
