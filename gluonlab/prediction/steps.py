"""The steps of a training on a machine, by numbers of GPUs: what each part of a step takes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import List, NamedTuple, Optional, Union

from gluonlab.parallel.data.microbatches import Microbatches
from gluonlab.prediction.constants import FITTED, MEASURED_NOW
from gluonlab.prediction.machines import Machine
from gluonlab.prediction.outcome import Row
from gluonlab.prediction.overlap import (
    PIECE,
    bucket_sizes,
    buckets,
    exposed_s,
    usual_bucket_bytes,
)
from gluonlab.prediction.roofline import Setting, operator_s, step_parts
from gluonlab.prediction.stores import within_host
from gluonlab.prediction.sums import Gradients, over_hosts_s, within_host_s
from gluonlab.prediction.work import Work

# Of the one thread that queues, by GPU: a step with one pass and one bucket, `bench host` with load
# and log; and each further bucket, as a parameter in Gluon's own sums, 100 us for eight.
HOST_S, KEY_S = 168e-6, 12.5e-6
OFF = "off"
Overlap = Union[int, str, None]


class Training(NamedTuple):
    """What is trained, and how. ``batch_size`` images a GPU, or ``shared`` by all GPUs of a step.

    ``setting``: but for what depends on a GPU's images, microbatches and buckets. ``by_bucket``:
    whether an update takes a whole bucket. ``bucket_bytes``: None for the usual.
    """

    work: Work
    machine: Machine
    batch_size: int
    shared: Optional[int]
    microbatches: Microbatches
    setting: Setting
    by_bucket: bool
    overlap: Overlap
    bucket_bytes: Optional[int]

    def share(self, gpus: int) -> int:
        """Images of a GPU, of the one with most of them."""
        return self.batch_size if self.shared is None else math.ceil(self.shared / gpus)

    def passes(self, gpus: int) -> int:
        """In how many microbatches they go through the network."""
        return len(self.microbatches.bounds(self.share(gpus)))

    def rows(self, store: str, counts: List[int]) -> List[Row]:
        """A row for each of ``counts`` GPUs, the first of which is 1."""
        found = [self._row(store, count) for count in counts]
        one = found[0].images_per_s
        return [replace(row, speedup=row.images_per_s / one) for row in found]

    def _row(self, store: str, gpus: int) -> Row:
        work, machine, share, passes = self.work, self.machine, self.share(gpus), self.passes(gpus)
        most = self.bucket_bytes
        bucket_bytes = usual_bucket_bytes(work, store, gpus) if most is None else most
        sizes = bucket_sizes(work, bucket_bytes)
        updates = max(1, len(sizes) if self.by_bucket else len(work.tensors))
        setting = self.setting._replace(microbatches=passes, updates=updates)
        one = step_parts(work, share, machine.gpu, FITTED, setting)
        hosts = max(1, gpus // machine.gpus_each)
        sum_s = self._sum_s(store, gpus, hosts, sizes)
        behind_s = self._exposed_s(sum_s, share / passes, bucket_bytes) if sum_s else 0.0
        queued_s = passes * HOST_S + KEY_S * (max(1, len(sizes)) - 1)
        host_s = queued_s * min(gpus, machine.gpus_each)
        images = gpus * share if self.shared is None else self.shared
        return Row(
            gpus=gpus,
            hosts=hosts,
            batch_size=share,
            input_s=one.input_s,
            compute_s=one.compute_s,
            sum_s=sum_s,
            exposed_s=behind_s,
            update_s=one.update_s,
            host_s=host_s,
            images_per_s=images / max(one.seconds + behind_s, host_s),
            speedup=1.0,
        )

    def _sum_s(self, store: str, gpus: int, hosts: int, sizes: List[float]) -> float:
        if gpus == 1:
            return 0.0
        topology, gradients = self.machine.topology.subset(gpus), Gradients(sizes, apart=True)
        if hosts > 1:
            return over_hosts_s(store, self.machine.kind, topology, gradients)
        return within_host_s(within_host(store), topology, gradients, MEASURED_NOW)

    def _exposed_s(self, sum_s: float, images: float, bucket_bytes: float) -> float:
        """Sums begin in the last pass, with whose gradients a bucket is complete."""
        backward_s = [
            operator_s(operator, images, self.machine.gpu, FITTED, self.setting)[1]
            for operator in self.work.operators
        ]
        overlap = self.overlap
        piece = None if overlap == OFF else PIECE if overlap is None else int(overlap)
        made = buckets(self.work, backward_s, piece, bucket_bytes)
        return exposed_s(made, sum_s, math.fsum(backward_s))
