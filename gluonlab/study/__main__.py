"""python -m gluonlab.study NAME: a question about training, answered by many runs.

A study's module is loaded when it is called, so that the list costs nothing.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from gluonlab.cli.command import dispatch, main_of

# name -> (summary, module that has ``main``)
STUDIES: Dict[str, Tuple[str, str]] = {
    "speedup": (
        "why several devices are not faster, and what would help",
        "gluonlab.study.speedup.__main__",
    ),
    "batch-size": ("steps, epochs and seconds to a target", "gluonlab.study.batch_size.__main__"),
    "learning-rate": (
        "accuracy against the rate, on 1, 2 and 4 devices",
        "gluonlab.study.learning_rate.__main__",
    ),
    "scaling": ("strong and weak, by devices and stores", "gluonlab.study.scaling.__main__"),
    "splits": ("one network under every split", "gluonlab.study.splits.__main__"),
}


def commands() -> Dict[str, Tuple[str, Callable[[List[str]], Any]]]:
    """The studies as `dispatch` takes them."""
    return {name: (summary, main_of(module)) for name, (summary, module) in STUDIES.items()}


def main(args: Optional[Sequence[str]] = None) -> None:
    """Hand the remaining options to the study that is named first."""
    dispatch("python -m gluonlab.study", commands(), sys.argv[1:] if args is None else args)


if __name__ == "__main__":
    main()
