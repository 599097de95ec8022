"""A program that repeatedly kills and resumes a study, until the study is finished.

sweep_kills.py FOLDER SEED KILLS kills FOLDER/study KILLS times with SIGKILL, each time at a random
moment after some more measurements. FOLDER/whole is the same study without kills. The second sweep
of the study depends on the results of the first. The program prints the number of measurements, of
different measurements, and of attempts that were killed before the end.
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
    """Run or resume the study; return its table. Each measurement takes ``pause_s``."""

    def measure(settings, number):
        time.sleep(pause_s)
        return {"value": draw_value(settings, number), "long": "x" * 5000}

    with open_study("toy", OPTIONS, str(out)) as folder, Sweep(folder.store, measure) as sweep:
        first = [{"size": size} for size in OPTIONS["sizes"]]
        results = sweep.run(first, range(OPTIONS["rounds"]))
        best = max(range(len(first)), key=lambda i: results[i][0]["value"])
        second = [{**first[best], "best": True}]
        results += sweep.run(second, range(OPTIONS["rounds"]))
        table = [[result["value"] for result in row] for row in results]
        folder.write_result(table)
    return table


def count_measurements(folder):
    """Return the number of measurements in the folder of a study."""
    try:
        return (folder / "measurements.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def main(folder, seed, kills):
    random_moment, cut_short = random.Random(seed), 0
    for _ in range(kills):
        target = count_measurements(folder / "study") + random_moment.randint(0, 5)
        child = fork_process(partial(run_study, folder / "study", 0.01))
        while count_measurements(folder / "study") < target:
            time.sleep(0.001)
        time.sleep(random_moment.uniform(0, 0.01))
        os.kill(child, signal.SIGKILL)
        cut_short += wait_for_exit(child) == -signal.SIGKILL
    run_study(folder / "study")
    run_study(folder / "whole")
    lines = (folder / "study" / "measurements.jsonl").read_text().splitlines()
    measurements = [json.loads(line) for line in lines]
    names = {json.dumps([line["settings"], line["round"]], sort_keys=True) for line in measurements}
    print(json.dumps({"lines": len(lines), "different": len(names), "cut_short": cut_short}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
