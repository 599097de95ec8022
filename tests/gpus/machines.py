"""Descriptions of simulated machines with GPUs, and the environment of a process on one."""

import os
import sys
from pathlib import Path
from typing import Dict, NamedTuple, Optional, Tuple

GIB = 2**30

V100 = ("Tesla V100-SXM2-16GB", (7, 0), 16 * GIB)
T4 = ("Tesla T4", (7, 5), 15 * GIB)
A100 = ("NVIDIA A100-SXM4-40GB", (8, 0), 40 * GIB)
A10G = ("NVIDIA A10G", (8, 6), 22 * GIB)
H100 = ("NVIDIA H100 80GB HBM3", (9, 0), 80 * GIB)

# The NVLinks of a p3.16xlarge, which is a DGX-1 with V100s.
CUBE = {
    (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 5): 2, (2, 3): 2, (4, 7): 2, (5, 6): 2, (6, 7): 2,
    (0, 1): 1, (0, 2): 1, (1, 3): 1, (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (5, 7): 1,
}  # fmt: skip


class Machine(NamedTuple):
    """``kinds``: (name, capability, bytes) of each GPU. ``nvlinks``: {(a, b): how many}.

    ``peers``: pairs that may read each other's memory; None: all. ``delay_us``: everything that is
    queued begins up to so much later. ``patience_s``: so long a collective of NCCL waits for ranks
    that do not come. ``computes``: whether anything is computed, and not only counted. ``tf32``:
    float32 products of rounded factors, as on an A100. ``promises_peers``: a copy between peers
    whose access was not enabled is a fault. What may be broken about it: ``changes_copies``, from a
    GPU to another; a GPU that ``forgets_kernels`` now and then; one that ``hangs``.
    """

    kinds: Tuple
    nvlinks: Dict = {}
    peers: Optional[Tuple] = None
    driver: str = "535.183.01"
    delay_us: int = 0
    patience_s: float = 20
    seed: int = 0
    computes: bool = True
    tf32: bool = False
    promises_peers: bool = False
    changes_copies: Tuple = ()
    forgets_kernels: Optional[int] = None
    hangs: Optional[int] = None

    def lines(self):
        """What the libraries read: src/shared/machine.cpp."""
        yield f"driver {self.driver}"
        for place, (name, (major, minor), memory) in enumerate(self.kinds):
            bus, uuid = (f"00000000:00:{0x17 + place:02X}.0", f"GPU-{place:08d}-1a2b-3c4d-5e6f-708192a3b4c5")
            yield f"gpu {major} {minor} {memory} {bus} {uuid} {name}"
        for (a, b), links in self.nvlinks.items():
            yield f"nvlink {a} {b} {links}"
        if self.peers is not None:
            able = {frozenset(pair) for pair in self.peers}
            count = range(len(self.kinds))
            yield from (f"no_peers {a} {b}" for b in count for a in count[:b] if frozenset((a, b)) not in able)
        yield f"delay_us {self.delay_us}"
        yield f"patience_s {self.patience_s}"
        yield f"seed {self.seed}"
        yield from ["counts_only"] * (not self.computes)
        yield from ["tf32"] * self.tf32
        yield from ["promise_peers"] * self.promises_peers
        yield from (f"changes_copies {a} {b}" for a, b in self.changes_copies)
        yield from [f"forgets_kernels {self.forgets_kernels}"] * (self.forgets_kernels is not None)
        yield from [f"hangs {self.hangs}"] * (self.hangs is not None)


def v100s(count, **others):
    """Return a machine of V100s that may all read each other's memory."""
    return Machine((V100,) * count, **others)


# GPUs 0 and 5, for example, have no link, and so no peer access.
P3_16XLARGE = Machine((V100,) * 8, CUBE, tuple(CUBE))
G4DN_12XLARGE = Machine((T4,) * 4, peers=())


def libraries():
    """Return the folder of the libraries: GLUONLAB_SIMULATED_GPUS, or gpus in this environment."""
    folder = Path(os.environ.get("GLUONLAB_SIMULATED_GPUS", Path(sys.prefix) / "gpus"))
    if not (folder / "libcuda.so.1").is_file():
        sys.exit(f"error: no simulated GPUs in {folder}: python tests/gpus/build.py {folder}")
    return folder


def environment(machine, folder):
    """Describe ``machine`` in a file in ``folder``; return the variables of a process on it."""
    file = Path(folder) / "machine.txt"
    file.write_text("\n".join(machine.lines()) + "\n", encoding="utf-8")
    return {"LD_LIBRARY_PATH": str(libraries()), "SIMULATED_GPUS": str(file)}
