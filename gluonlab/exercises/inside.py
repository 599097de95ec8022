"""Inside the container of one notebook: run it as outside, and say what came out.

It reads one line of JSON, ``{"name": .., "bounds": .., "seed": ..}``, and writes two: the version
of gluonlab and what is missing for notebooks, and the outcome. All ends with it as soon as its
input is closed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Sequence

import gluonlab
from gluonlab.exercises.bounds import Bounds
from gluonlab.exercises.container import BEGUN, MISSING, PLACE
from gluonlab.exercises.kernel import missing
from gluonlab.exercises.process import Outcome, run_in_processes


def main(arguments: Sequence[str]) -> None:
    """``[FOLDER]``: where the notebook lies, PLACE unless a folder is given."""
    print(json.dumps({BEGUN: gluonlab.__version__, MISSING: missing()}), flush=True)
    order = json.loads(sys.stdin.buffer.readline())
    stop, place = threading.Event(), Path(arguments[0] if arguments else PLACE)
    threading.Thread(target=_stop_at_end_of_input, args=(stop,), daemon=True).start()
    try:
        path = place / Path(order["name"]).name
        outcome = run_in_processes(path, Bounds(**order["bounds"]), order["seed"], stop)
    except OSError as error:
        outcome = Outcome(note=f"cannot be run ({error})")
    verdicts = {
        id: {
            "status": one.status,
            "message": one.sentence,
            "hidden": one.hidden,
            "micros": one.micros,
        }
        for id, one in outcome.verdicts.items()
    }
    line = json.dumps({"lab": outcome.lab, "note": outcome.note, "verdicts": verdicts})
    sys.stdout.buffer.write(line.encode() + b"\n")
    sys.stdout.buffer.flush()
    os._exit(0)  # whatever thread still waits for input


def _stop_at_end_of_input(stop: threading.Event) -> None:
    while os.read(0, 2**16):
        pass
    stop.set()


if __name__ == "__main__":
    main(sys.argv[1:])
