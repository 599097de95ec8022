"""An event file, as TensorBoard reads it, by tensorboardX.

Its SummaryWriter hands events to a thread that ends without a word where the disk is full, and then
waits for it for ever. Here they are written by who has them, at some 50 microseconds each.
Does not import MXNet.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence

from gluonlab.engine.mxnet_installation import pip_install_command
from gluonlab.errors import ConfigError
from gluonlab.files.atomic_files import on_disk

FILES = "*.tfevents.*"
FLUSHED_EVERY = 10.0  # seconds, for those who look on


def check_tensorboard() -> None:
    """Raise ConfigError, with the command that cures it, where tensorboardX is missing."""
    try:
        import tensorboardX
        import tensorboardX.event_file_writer  # noqa: F401
    except Exception as error:  # of others' packages that do not go together, too
        missing = isinstance(error, ModuleNotFoundError) and error.name == "tensorboardX"
        why = "not installed" if missing else f"broken here ({' '.join(str(error).split())})"
        raise ConfigError(
            f"--tensorboard needs tensorboardX, which is {why}: "
            f"{pip_install_command('tensorboard')}, or leave --tensorboard out"
        ) from None


def has_events(folder: Path) -> bool:
    """Whether event files are in the folder."""
    return any(folder.glob(FILES))


class EventFile:
    """A new event file in ``folder``, which is made. Its methods raise OutputError.

    ``purge_step``: of the files that are there already, readers leave events out from this step on.
    """

    def __init__(self, folder: Path, purge_step: int) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2, summary_pb2

        self._event, self._summary, self._folder = event_pb2.Event, summary_pb2.Summary, folder
        self._flushed = time.monotonic()
        with on_disk(folder):
            folder.mkdir(exist_ok=True)
            there = len(list(folder.glob(FILES)))
            # within a second the names of two files would be the same
            self._writer = EventsWriter(str(folder / "events"), f".{there:04}")
        if there:
            begun = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._write(self._event(step=purge_step, wall_time=time.time(), session_log=begun))

    def scalars(self, step: int, wall_time: float, values: Mapping[str, Optional[float]]) -> None:
        """Numbers by their tags, which TensorBoard keeps as float32; those that are None are not.

        ``wall_time``: in seconds since 1970.
        """
        numbers = [
            self._summary.Value(tag=tag, simple_value=value)
            for tag, value in values.items()
            if value is not None
        ]
        if numbers:
            summary = self._summary(value=numbers)
            self._write(self._event(step=step, wall_time=wall_time, summary=summary))

    def settings(self, step: int, settings: Mapping[str, Any], metrics: Sequence[str]) -> None:
        """Settings as a table among the texts, and among the hyperparameters.

        ``metrics``: the tags by which runs are compared.
        """
        from tensorboardX import summary

        plain = {name: _plain(value) for name, value in settings.items() if value is not None}
        cells = [(name, str(value).replace("|", "\\|")) for name, value in plain.items()]
        table = "\n".join(
            f"| {name} | {value} |" for name, value in [("setting", "value"), ("---",) * 2, *cells]
        )
        experiment, session, self._end = summary.hparams(plain, dict.fromkeys(metrics))
        for each in (summary.text("settings", table), experiment, session):
            self._write(self._event(step=step, wall_time=time.time(), summary=each))

    def flush(self) -> None:
        """Have all of it on disk."""
        with on_disk(self._folder):
            self._writer.flush()
        self._flushed = time.monotonic()

    def flush_for_readers(self) -> None:
        """Have it on disk once in a while."""
        if time.monotonic() - self._flushed > FLUSHED_EVERY:
            self.flush()

    def close(self, finished: bool) -> None:
        """Nothing more will be written. ``finished``: whether what was planned has been done."""
        if finished:
            self._write(self._event(wall_time=time.time(), summary=self._end))
        with on_disk(self._folder):
            self._writer.close()

    def _write(self, event: Any) -> None:
        with on_disk(self._folder):
            self._writer.write_event(event)


def _plain(value: Any) -> Any:
    """What a hyperparameter can be: text, a number, true or false."""
    return value if isinstance(value, (str, int, float)) else json.dumps(value)
