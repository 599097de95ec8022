"""A program: a sweep that is killed again and again, and goes on each time, until it is finished.

sweep_kills.py FOLDER SEED KILLS: ``FOLDER/study`` is killed KILLS times with SIGKILL, each time a
moment after some more measurements, as SEED draws, and ``FOLDER/whole`` is undisturbed. A second
sweep of the same study depends on what the first has found. Prints how often each measurement was
made and kept, and how many tries were killed in the middle of the study.
"""

import json
import os
import random
import signal
import sys
import time
from functools import partial
from pathlib import Path

from gluonlab.study.sweep import Sweep, open_study
from support.kills import fork_process, wait_for_exit

OPTIONS = {"sizes": [1, 2, 4, 8], "rounds": 20}


def draw_value(settings, number):
    return random.Random(f"{settings['size']} {settings.get('best')} {number}").random()


def run_study(out, pause_s=0.0):
    """The study's table. Each measurement takes a moment, before and after its number is known."""

    def measure(settings, number):
        time.sleep(pause_s)
        return {"value": draw_value(settings, number), "long": "x" * 5000}

    with open_study("toy", OPTIONS, str(out)) as folder, Sweep(folder.store, measure) as sweep:
        first = [{"size": size} for size in OPTIONS["sizes"]]
        found = sweep.run(first, range(OPTIONS["rounds"]))
        best = max(range(len(first)), key=lambda place: found[place][0]["value"])
        again = [{**first[best], "best": True}]
        found += sweep.run(again, range(OPTIONS["rounds"]))
        table = [[each["value"] for each in row] for row in found]
        folder.write_result(table)
    return table


def count_measurements(folder):
    """Return how many measurements the study holds."""
    try:
        return (folder / "measurements.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def main(folder, seed, kills):
    random_moment, cut_short = random.Random(seed), 0
    for _ in range(kills):
        wanted = count_measurements(folder / "study") + random_moment.randint(0, 5)
        child = fork_process(partial(run_study, folder / "study", 0.01))
        while count_measurements(folder / "study") < wanted:
            time.sleep(0.001)
        time.sleep(random_moment.uniform(0, 0.01))
        os.kill(child, signal.SIGKILL)
        cut_short += wait_for_exit(child) == -signal.SIGKILL
    run_study(folder / "study")
    run_study(folder / "whole")
    lines = (folder / "study" / "measurements.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    names = {json.dumps([line["settings"], line["round"]], sort_keys=True) for line in found}
    print(json.dumps({"lines": len(lines), "different": len(names), "cut_short": cut_short}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
