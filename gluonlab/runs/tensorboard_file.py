"""A TensorBoard event file, written with tensorboardX.

tensorboardX's SummaryWriter writes events in a separate thread. If the disk is full, the thread
ends without an error, and the program waits for the thread forever. This module writes each event
in the calling thread, which takes about 50 microseconds. It does not import MXNet.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence

from gluonlab.engine.mxnet_and_cuda_libraries import pip_install_command
from gluonlab.errors import ConfigError
from gluonlab.files.atomic_files import raise_output_errors

EVENT_FILES = "*.tfevents.*"
FLUSH_INTERVAL_S = 10.0  # seconds between writes to disk, for readers during the run


def check_tensorboard() -> None:
    """Raise ConfigError if tensorboardX cannot be imported."""
    try:
        import tensorboardX
        import tensorboardX.event_file_writer  # noqa: F401
    except Exception as error:  # incompatible packages can raise any exception
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == "tensorboardX"
        reason = "is not installed" if is_missing else f"cannot be imported ({' '.join(str(error).split())})"
        raise ConfigError(
            f"--tensorboard needs tensorboardX, which {reason}: "
            f"{pip_install_command('tensorboard')}, or omit --tensorboard"
        ) from None


def has_events(folder: Path) -> bool:
    """Return True if the folder contains event files."""
    return any(folder.glob(EVENT_FILES))


class EventFile:
    """A new TensorBoard file in ``folder``, which is created if needed. Methods raise OutputError.

    ``purge_step``: from this step on, readers drop the events of earlier files in the folder.
    """

    def __init__(self, folder: Path, purge_step: int) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2, summary_pb2

        self._event, self._summary, self._folder = event_pb2.Event, summary_pb2.Summary, folder
        self._flush_time = time.monotonic()
        with raise_output_errors(folder):
            folder.mkdir(exist_ok=True)
            file_count = len(list(folder.glob(EVENT_FILES)))
            # the suffix makes the names of two files in one second different
            self._writer = EventsWriter(str(folder / "events"), f".{file_count:04}")
        if file_count:
            session_start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._write(self._event(step=purge_step, wall_time=time.time(), session_log=session_start))

    def write_scalars(self, step: int, wall_time: float, values: Mapping[str, Optional[float]]) -> None:
        """Write numbers as float32; None values are skipped.

        ``values``: the numbers by tag. ``wall_time``: seconds since 1970.
        """
        numbers = [
            self._summary.Value(tag=tag, simple_value=value) for tag, value in values.items() if value is not None
        ]
        if numbers:
            summary = self._summary(value=numbers)
            self._write(self._event(step=step, wall_time=wall_time, summary=summary))

    def write_settings(self, step: int, settings: Mapping[str, Any], metrics: Sequence[str]) -> None:
        """Write the settings as a text table and as hyperparameters.

        ``metrics``: the tags by which runs are compared.
        """
        from tensorboardX import summary

        plain = {name: _as_hyperparameter(value) for name, value in settings.items() if value is not None}
        cells = [(name, str(value).replace("|", "\\|")) for name, value in plain.items()]
        table = "\n".join(f"| {name} | {value} |" for name, value in [("setting", "value"), ("---",) * 2, *cells])
        experiment, session, self._session_end = summary.hparams(plain, dict.fromkeys(metrics))
        for part in (summary.text("settings", table), experiment, session):
            self._write(self._event(step=step, wall_time=time.time(), summary=part))

    def flush(self) -> None:
        """Write all events to disk."""
        with raise_output_errors(self._folder):
            self._writer.flush()
        self._flush_time = time.monotonic()

    def flush_for_readers(self) -> None:
        """Write all events to disk, if the last flush was more than FLUSH_INTERVAL_S ago."""
        if time.monotonic() - self._flush_time > FLUSH_INTERVAL_S:
            self.flush()

    def close(self, finished: bool) -> None:
        """Close the file. ``finished``: True if the run has completed."""
        if finished:
            self._write(self._event(wall_time=time.time(), summary=self._session_end))
        with raise_output_errors(self._folder):
            self._writer.close()

    def _write(self, event: Any) -> None:
        with raise_output_errors(self._folder):
            self._writer.write_event(event)


def _as_hyperparameter(value: Any) -> Any:
    """Convert a value to text, a number or a Boolean."""
    return value if isinstance(value, (str, int, float)) else json.dumps(value)
