"""What --prove does: try everything, say it as it goes, and write two files."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Callable, Dict, NamedTuple, Optional

from tqdm import tqdm

from gluonlab.doctor.findings import FAULT
from gluonlab.doctor.prove.machine import describe
from gluonlab.doctor.prove.page import as_page
from gluonlab.doctor.prove.proof import TOTAL_S, TRIALS, Tried, as_object, try_all
from gluonlab.errors import DeviceError
from gluonlab.files.whole import check_new, write_text
from gluonlab.gpu import nvml
from gluonlab.gpu.visible import visible_gpus

OUT = "gpu-proof"
ALL = "gpu:*"
Say = Callable[[str], Any]


class Asked(NamedTuple):
    """The two files that are going to be written, and the GPUs that there are."""

    data: Path
    page: Path
    driver: nvml.Driver

    @classmethod
    def of(cls, name: str) -> Asked:
        """Raises OutputError for files that exist already or cannot be written, and DeviceError
        where there is no GPU.
        """
        data, page = Path(f"{name}.json"), Path(f"{name}.html")
        for path in (data, page):
            check_new("--out", path)
        driver, visible = nvml.look(), os.environ.get("CUDA_VISIBLE_DEVICES")
        if not visible_gpus(driver.gpus, visible).gpus:
            hidden = (
                f"CUDA_VISIBLE_DEVICES={visible!r} hides all"
                if driver.gpus
                else "the driver shows none"
            )
            raise DeviceError(
                f"--prove tries GPUs, and here are none ({driver.error or hidden}): leave it out"
            )
        return cls(data, page, driver)

    def prove(self, say: Optional[Say]) -> Dict[str, Any]:
        """Try everything and write the files; the object that is in one of them.

        ``say`` prints a line; None: nothing is said.
        """
        with tqdm(
            total=len(TRIALS),
            disable=None,
            leave=False,
            file=sys.stderr,
            bar_format="trying {desc} {bar} {elapsed}",
        ) as bar:
            bar.set_description_str(next(iter(TRIALS)))

            def done(tried: Tried) -> None:
                bar.update()
                following = [*TRIALS, ""][[*TRIALS].index(tried.name) + 1]
                bar.set_description_str(following)
                if say is not None:
                    with bar.external_write_mode():
                        say(in_lines(tried))

            if say is not None:
                say(f"\ntrying the GPUs, {TOTAL_S:g} s at most")
            proof = as_object(describe(self.driver), try_all(ALL, done))
        write_text(self.data, json.dumps(proof, indent=1) + "\n")
        write_text(self.page, as_page(proof))
        if say is not None:
            count = proof["faults"]
            say(
                f"{count or 'no'} fault{'' if count == 1 else 's'}; "
                f"written to {self.data} and {self.page}"
            )
        return proof


def in_lines(tried: Tried) -> str:
    """A line for each verdict."""
    shown = (
        ("fault" if verdict.status == FAULT else "ok", verdict.what) for verdict in tried.verdicts
    )
    return "\n".join(f"{status:<9}{tried.name:<12}{what}" for status, what in shown)
