"""Processes that a worker starts, so that several ranks work on a job together.

The worker is rank 0, the one that the parent knows. The others are in its process group, which the
parent ends; they end with the worker, too.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from typing import Any, List, Mapping

from gluonlab.host.processes import die_with_parent


class Rank:
    """Another process of the job; ``words``: what stands behind ``python`` on its command line."""

    def __init__(self, words: List[str], variables: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *words],
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
        )
        atexit.register(self._end)

    def order(self, **words: int) -> None:
        """Have it do what these words ask of its job, while this process does the same."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words).encode() + b"\n")
        self._process.stdin.flush()

    def _end(self) -> None:
        """By its id: a rank whose peers have gone would wait for them."""
        self._process.kill()
        self._process.wait()


def worker(job: str, options: Mapping[str, Any], variables: Mapping[str, str]) -> Rank:
    """A rank that runs a job of `gluonlab.bench.worker`."""
    return Rank(["-m", "gluonlab.bench.worker", job, json.dumps(dict(options))], variables)
