"""How much memory a run takes, measured on a run that is cut down, in a process of its own.

No plan knows oneDNN's scratch memory and rearranged copies, buffers of kvstores, what Python and
its libraries take, or how the allocator rounds. What is measured is

- on CPU devices, which share one memory: the peak of the resident memory of the whole process, with
  all devices, Python, MXNet and the data set, and of the processes that decode images for it; that
  is what counts for the limit of a container;
- on GPUs: the memory that the device with the least left has lost by the end, before which MXNet
  gives nothing back. CUDA's own context is not included.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import mxnet as mx

import gluonlab
from gluonlab import errors
from gluonlab.config import TrainConfig
from gluonlab.data.sets.dataset import Dataset
from gluonlab.errors import RunError
from gluonlab.files.whole import temporary_folder
from gluonlab.host.limits import OUT_OF_MEMORY
from gluonlab.host.memory import peak_bytes

LOOK_S = 0.02  # a process that takes too much is ended after so long


class TooMuch(Exception):
    """The process took more than it should, or than there is."""


class OtherData(Exception):
    """The data set of that name is not the one that was meant."""


class DeviceMemory:
    """What a GPU loses of its free memory from now on; nothing on CPUs."""

    def __init__(self, ctxs: Sequence[mx.Context]) -> None:
        self._gpus = [ctx.device_id for ctx in ctxs if ctx.device_type == "gpu"]
        self.on_gpus = bool(self._gpus)
        self._before = self._free()

    def taken(self) -> int:
        """Bytes, of the GPU that lost most."""
        mx.nd.waitall()
        return max((before - now for before, now in zip(self._before, self._free())), default=0)

    def _free(self) -> List[int]:
        return [int(mx.context.gpu_memory_info(gpu)[0]) for gpu in self._gpus]


def about(dataset: Dataset) -> List[Any]:
    """The sizes of a data set that decide its memory, as plain values."""
    return [len(dataset.train), len(dataset.test), list(dataset.image_shape), len(dataset.classes)]


def measure(
    config: TrainConfig, dataset: Optional[Dataset] = None, ceiling: Optional[int] = None
) -> int:
    """The bytes that a run of ``config`` takes at its peak, see above; its folder is not made.

    Raises TooMuch once the process has more than ``ceiling`` bytes resident, or gets none any more,
    OtherData where the config names another data set than ``dataset``, if that is given, and what
    the run itself would raise.
    """
    with temporary_folder("trial") as folder:
        settings = config.replace(
            out=str(Path(folder, "run")), memory=False, profile=None, tensorboard=False
        ).to_dict()
        package = str(Path(gluonlab.__file__).resolve().parent.parent)
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        said, complaints = Path(folder, "said"), Path(folder, "complaints")
        words = [json.dumps(settings), json.dumps(dataset and about(dataset))]
        command = [sys.executable, "-m", "gluonlab.training.trial_process", *words]
        with said.open("wb") as out, complaints.open("wb") as err:
            child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # it ends when this is closed, however this process ends
                stdout=out,
                stderr=err,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C is for the parent
            )
        try:
            _watch(child, ceiling)
        finally:
            _end(child)
        answer = _answer(said)
        if answer is None:
            _explain(child.returncode, complaints.read_text(errors="replace"))
        return _taken(answer or {}, ceiling)


def in_words(config: TrainConfig, dataset: Dataset, ctxs: Sequence[mx.Context]) -> str:
    """A line that says what `measure` found.

    Raises RunError where there is not enough, and what the run would raise.
    """
    whose = "each GPU" if ctxs[0].device_type == "gpu" else "process"
    try:
        mebibytes = measure(config, dataset) / 2**20
    except OtherData:
        why = f"the data set is not the one that {config.dataset} names"
        return f"{'':<11}{whose:<16}not measured: {why}"
    except TooMuch:
        raise RunError(
            "such batches need more memory than there is: "
            "choose a smaller --batch-size, or --microbatches"
        ) from None
    of_what = "" if whose == "each GPU" else ": all devices, Python, data"
    return f"{'':<11}{whose:<16}{mebibytes:10,.1f} MiB at its peak, measured{of_what}"


def _watch(child: "subprocess.Popen[bytes]", ceiling: Optional[int]) -> None:
    """Wait for its end, or until it has too much."""
    while True:
        try:
            child.wait(LOOK_S)
            return
        except subprocess.TimeoutExpired:
            if ceiling is not None and peak_bytes(child.pid) > ceiling:
                raise TooMuch from None


def _end(child: "subprocess.Popen[bytes]") -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:  # by itself, meanwhile
        pass
    child.wait()
    assert child.stdin is not None
    child.stdin.close()


def _answer(said: Path) -> Optional[Dict[str, Any]]:
    """The last line that is a JSON object; libraries may have printed others."""
    for line in reversed(said.read_text(errors="replace").split("\n")):
        try:
            answer = json.loads(line)
        except ValueError:
            continue
        if isinstance(answer, dict):
            return answer
    return None


def _explain(status: int, complaints: str) -> None:
    if status == -signal.SIGKILL or any(words in complaints for words in OUT_OF_MEMORY):
        raise TooMuch
    last = next(
        (line.strip() for line in reversed(complaints.split("\n")) if line.strip()),
        "no message",
    )
    raise RunError(
        f"the process that measures memory ended with status {status}: {last}; "
        "try to train with these settings"
    )


def _taken(answer: Dict[str, Any], ceiling: Optional[int]) -> int:
    if "other" in answer:
        raise OtherData
    if "error" in answer:
        raise getattr(errors, answer["raised"])(answer["error"])
    taken = int(answer["bytes"])
    if ceiling is not None and taken > ceiling:
        raise TooMuch
    return taken
