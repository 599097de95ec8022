"""python tests/gpus/start.py [--gpus 4] [--driver 470.57.02] [--delay-us 100] ...

COMMAND...: a command on a made-up machine.
"""

import argparse
import os
import tempfile
from pathlib import Path

from machines import A10G, A100, G4DN_12XLARGE, H100, P3_16XLARGE, T4, V100, Machine, environment

KINDS = {"V100": V100, "T4": T4, "A100": A100, "A10G": A10G, "H100": H100}
MACHINES = {"p3.16xlarge": P3_16XLARGE, "g4dn.12xlarge": G4DN_12XLARGE}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--kind", choices=KINDS, default="V100")
    parser.add_argument("--machine", choices=MACHINES, help="instead of --gpus and --kind")
    parser.add_argument("--driver", default="535.183.01")
    parser.add_argument("--delay-us", type=int, default=0, help="everything queued begins up to so much later")
    parser.add_argument("--seed", type=int, default=0, help="of the delays")
    parser.add_argument("--counts-only", action="store_true", help="compute nothing")
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--promise-peers", action="store_true", help="a copy through the host between peers is a fault")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    machine = MACHINES[options.machine] if options.machine else Machine((KINDS[options.kind],) * options.gpus)
    machine = machine._replace(
        driver=options.driver, delay_us=options.delay_us, seed=options.seed,
        computes=not options.counts_only, tf32=options.tf32, promises_peers=options.promise_peers,
    )  # fmt: skip
    folder = tempfile.mkdtemp(prefix="gluonlab-machine-")
    os.environ.update(environment(machine, folder))
    tests = str(Path(__file__).resolve().parents[1])  # programs here share helpers with the tests
    paths = filter(None, [tests, os.environ.get("PYTHONPATH")])
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.execvp(options.command[0], options.command)


if __name__ == "__main__":
    main()
