"""The rows of ``bench allreduce`` that are measured here, by the options that were given."""

from __future__ import annotations

import textwrap
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

import mxnet as mx

from gluonlab.bench.allreduce import table
from gluonlab.bench.allreduce.measure import DTYPES, Report, measure
from gluonlab.bench.allreduce.plans import Plan, auto_plan, make_plans, parse_algorithms
from gluonlab.bench.allreduce.processes import started
from gluonlab.bench.allreduce.sizes import DEVICES, SIZES, parse_sizes
from gluonlab.bench.allreduce.variants import CHOICES, make_variants
from gluonlab.bench.harness.backends import parse_backends
from gluonlab.bench.harness.machine import describe_machine
from gluonlab.bench.harness.measured_on import in_words
from gluonlab.bench.harness.session import Session
from gluonlab.bench.harness.text import WIDTH
from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.collectives.auto import MOST_DEVICES
from gluonlab.collectives.auto import NAME as AUTO
from gluonlab.collectives.for_links import FOR_LINKS, ForLinks
from gluonlab.collectives.topology import Topology
from gluonlab.config import option_name
from gluonlab.config.values import whole
from gluonlab.devices import devices
from gluonlab.errors import ConfigError, unknown
from gluonlab.kvstores.for_links import ForLinksKVStore
from gluonlab.kvstores.placement import ground_of
from gluonlab.plain import json_text

Asked = Mapping[str, Any]


class Measured(NamedTuple):
    """What was run: the plans and their rows; ``auto``: what auto chose from, if it was run."""

    ctxs: Sequence[mx.Context]
    topology: Optional[Topology]
    plans: List[Plan]
    report: Report
    auto: Optional[ForLinks]

    @property
    def failure(self) -> Optional[str]:
        """Which rows had wrong sums, if any."""
        wrong = ", ".join(table.wrong(self.report.rows))
        return f"wrong sums by {wrong}: see the column error" if wrong else None

    def as_json(self, content: Mapping[str, Any]) -> str:
        """``content`` after what was measured, and on what."""
        speeds = vars(self.report.speeds) if self.report.speeds else None
        head: Dict[str, Any] = {
            "machine": describe_machine(),
            "devices": [str(ctx) for ctx in self.ctxs],
            "on": in_words(self.ctxs),
            "rounds": self.report.rounds,
            "speeds": speeds,
        }
        return json_text({**head, **content})

    def as_text(self, tables: str) -> str:
        """``tables`` after a line on the machine, and one on its devices."""
        on = textwrap.fill(f"devices: {in_words(self.ctxs)}", WIDTH)
        return "\n".join([describe_machine(), on, "", tables])


def measured(asked: Asked, schedules_alone: bool = False) -> Measured:
    """Run all that the options ask for. Raises a UsageError for what is impossible.

    ``schedules_alone``: auto, and beside it every algorithm as it is by default, and those that are
    made for the links; nothing of MXNet's.
    """
    sizes = parse_sizes(asked.get("sizes", SIZES))
    counts = [name for name in ("arrays", "repeat", "rounds") if name in asked]
    numbers = {name: whole(1)(option_name(name), asked[name]) for name in counts}
    names = parse_algorithms(asked.get("algorithms", "all"), CHOICES)
    dtype = asked.get("dtype", DTYPES[0])
    if dtype not in DTYPES:
        raise ConfigError(unknown("dtype", dtype, DTYPES))
    ctxs = devices(asked.get("devices", DEVICES))
    topology = ground_of(ctxs, asked.get("topology")).topology
    auto = None
    if AUTO in (names or ([AUTO] if schedules_alone or len(ctxs) <= MOST_DEVICES else [])):
        auto = ForLinksKVStore(AUTO, asked.get("topology")).schedules(ctxs)
    known = (*FOR_LINKS, *ALGORITHMS)
    scheduled = None if names is None else [name for name in names if name in known]
    on = auto.topology if auto and schedules_alone else topology
    plans = make_plans(scheduled, len(ctxs), asked.get("chunks"), asked.get("groups"), on)
    plans += [auto_plan(auto)] if auto else []
    others = [] if schedules_alone else names
    variants = make_variants(others, plans, ctxs, numbers.get("arrays", 1))
    backends = _backends(asked, ctxs, dtype)
    session = Session()
    with started(backends, len(ctxs)) as processes:
        report = measure(
            sizes, variants, ctxs, dtype, topology=topology, processes=processes, **numbers
        )
    session.warn_if_busy()
    return Measured(ctxs, topology, plans, report, auto)


def _backends(asked: Asked, ctxs: Sequence[Any], dtype: str) -> List[str]:
    """What --processes names, if given. Raises ConfigError for what they cannot do."""
    if "processes" not in asked:
        return []
    names = parse_backends(asked["processes"])
    if dtype != "float32" or ctxs[0].device_type != "cpu" or len(ctxs) < 2:
        raise ConfigError(
            f"--processes {asked['processes']}: processes sum float32 on CPU devices, one in each: "
            "give two or more with --devices cpu*N, and leave --dtype out"
        )
    return names
