"""Which parameters a run leaves: those after its last epoch, or with --patience after the best."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, Optional

import numpy as np

from gluonlab.files.arrays import read_arrays, save_arrays
from gluonlab.kvstores.groups import Group
from gluonlab.parallel.strategy import Strategy
from gluonlab.runs.checkpoint import with_parameters
from gluonlab.runs.schema import PARAMETERS
from gluonlab.runs.writer import NoRunDirectory, RunDirectory
from gluonlab.training.early_stopping import EarlyStopping
from gluonlab.training.gathering import arrays_of_first
from gluonlab.training.standing import put_parameters


class Kept:
    """The run's file of parameters; ``early``: what knows the best epoch, if that counts."""

    def __init__(
        self,
        run: "RunDirectory | NoRunDirectory",
        strategy: Strategy,
        group: Group,
        early: Optional[EarlyStopping],
    ) -> None:
        self._run, self._strategy, self._group, self._early = run, strategy, group, early

    def write(self, epoch: int) -> None:
        """Write the parameters after this epoch, unless an earlier one was better."""
        early, folder = self._early, self._run.path
        if early is None or early.best_epoch in (None, epoch):
            self._run.parameters(self._strategy.net)
            if early is not None and folder is not None:
                early.digest = _digest(folder)

    def mended(self) -> bool:
        """Whether the file is the best epoch's, or could be made so again from a checkpoint.

        It is a later one's, where the run had come further than its last checkpoint. All processes
        forget the best where it is gone.
        """
        early, folder, there = self._early, self._run.path, True
        if early is None:
            return True
        if folder is not None and early.digest and _digest(folder) != early.digest:
            file = with_parameters(folder, early.digest)
            there = file is not None
            if file is not None:
                save_arrays(folder / PARAMETERS, read_arrays(file))
        there = bool(self._group.everyones(np.array(there))[0])
        if not there:
            early.forget()
        return there

    def give_back(self) -> None:
        """Give the network the parameters of the best epoch; every process calls this."""
        if self._early is None:
            return
        arrays: Dict[str, Any] = {}
        if self._run.path is not None:
            arrays = read_arrays(self._run.path / PARAMETERS)
        put_parameters(self._strategy, arrays_of_first(arrays, self._group))


def _digest(folder: Path) -> str:
    """The SHA-256 of the run's parameters; empty where there are none."""
    with suppress(FileNotFoundError):
        return hashlib.sha256((folder / PARAMETERS).read_bytes()).hexdigest()
    return ""
