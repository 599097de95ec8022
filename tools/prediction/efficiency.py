"""Predicted efficiency of data parallelism over hosts: the price of a sum beside a GPU's step.

Nothing is run, and MXNet is not imported.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

import click

from gluonlab.bench.allreduce.message_sizes import parse_sizes
from gluonlab.bench.harness.measurement_command import JSON, option
from gluonlab.bench.harness.table_format import table as as_table
from gluonlab.cli.command import command
from gluonlab.collectives.named_topologies import GBIT, MOST_HOSTS, NETWORKS, make_topology
from gluonlab.collectives.topology_file import is_file_name
from gluonlab.config.option_types import real_number_check, whole_number_check
from gluonlab.errors import ConfigError, unknown
from gluonlab.files.atomic_files import check_new, new_file
from gluonlab.performance_model.allreduce_time import SERVER_ADDS as SERVER_ADDS
from gluonlab.performance_model.allreduce_time import WAYS as WAYS
from gluonlab.performance_model.gpu_specifications import GPUS
from gluonlab.performance_model.gpu_specifications import MACHINES as GPU_OF
from gluonlab.plain_text import json_text
from prediction.figures import training_on_one

MACHINES, HOSTS = "p3.16xlarge,p3dn.24xlarge,p4d.24xlarge", 8


NETWORK, GRADIENTS = "ResNet-50", 102_303_648  # its gradients in float32, in bytes
BACKWARD = 2 / 3  # of a step: two products of matrices for each of forward


class Step(NamedTuple):
    """A training step of one GPU alone: its time, and what that is."""

    gpu: str
    seconds: float
    origin: str


def _published(gpu: str, images: int, source: str, of: str = "") -> Step:
    """By a figure of `gluonlab.performance_model.published_speeds`; ``of``: that of another GPU,
    alike.
    """
    figure = training_on_one(of or gpu, NETWORK, images)
    rate, arithmetic = figure.value, GPUS[gpu].arithmetic(figure.dtype)
    origin = f"{images} images, {rate:g} a second, {arithmetic}, {source}"
    return Step(gpu, images / rate, origin)


MXNET = "MXNet's page perf.md"
V100 = _published("V100", 64, MXNET)
A100 = _published("A100", 256, "NVIDIA's DeepLearningExamples for MXNet, DGX A100", "A100-80GB")
K80 = _published("K80", 32, MXNET)
STEPS: Dict[str, Step] = {step.gpu: step for step in (K80, V100, A100)}


class Prediction(NamedTuple):
    """Weak scaling on ``hosts``: the time of a sum of all gradients beside a GPU's step."""

    machine: str
    hosts: int
    devices: int
    way: str
    sum_s: float
    step_s: float

    @property
    def alone(self) -> float:
        """Efficiency if the sum begins after backward: nothing else is done meanwhile."""
        return self._efficiency(0)

    @property
    def hidden(self) -> float:
        """Efficiency if the sum hides behind the whole of backward, and does not slow it down."""
        return self._efficiency(self.step_s * BACKWARD)

    def _efficiency(self, hidden_s: float) -> float:
        return self.step_s / (self.step_s + max(0.0, self.sum_s - hidden_s))


def predict(
    machine: str, most_hosts: int, step_s: float, gradient_bytes: float
) -> List[Prediction]:
    """Every way to sum on 1 to ``most_hosts`` of a machine, way by way."""
    topologies = [make_topology(f"{machine}*{hosts}") for hosts in range(1, most_hosts + 1)]
    return [
        Prediction(
            machine,
            len(topology.hosts),
            topology.world_size,
            way,
            sum_s(topology, NETWORKS[machine], gradient_bytes),
            step_s,
        )
        for way, sum_s in WAYS.items()
        for topology in topologies
    ]


def of_way(rows: Sequence[Prediction], way: str) -> List[Prediction]:
    """The predictions of one way to sum, by hosts."""
    return [row for row in rows if row.way == way]


def describe(machine: str, step: Step) -> str:
    """``p3.16xlarge: 8 x V100 a host, 25 Gb/s, a step of one GPU 186.5 ms``."""
    return (
        f"{machine}: {host_in_words(machine, step)}, a step of one GPU {step.seconds * 1e3:.1f} ms"
    )


def host_in_words(machine: str, step: Step) -> str:
    """``8 x V100 a host, 25 Gb/s``: its GPUs, and the speed of its network in each direction."""
    network, count = NETWORKS[machine], make_topology(machine).world_size
    gigabits = f"{network.bytes_per_s / GBIT:g} Gb/s"
    several = f"{network.nics} x {gigabits}" if network.nics > 1 else gigabits
    return f"{count} x {step.gpu} a host, {several}"


def assumptions(steps: Mapping[str, Step], gradient_bytes: float, network: bool) -> List[str]:
    """Sentences, paragraph by paragraph; ``network``: whether the gradients are ResNet-50's."""
    known = {step.gpu: step for step in steps.values()}
    times = "; ".join(
        f"{gpu} {step.seconds * 1e3:.1f} ms ({step.origin})" for gpu, step in known.items()
    )
    latencies = sorted({NETWORKS[name].latency_s * 1e6 for name in steps})
    messages = " or ".join(f"{latency:g}" for latency in latencies)
    whose = f"{NETWORK}, {gradient_bytes / 1e6:.1f}" if network else f"{gradient_bytes / 1e6:,.1f}"
    return [
        "Predicted, not measured. Efficiency is images/s by one GPU's times their number; each "
        "keeps its batch (weak scaling).",
        f"{whose} MB of gradients, summed once a step. A step of one GPU: {times}. Two thirds of "
        "it are backward.",
        f"Networks at nominal speed and otherwise idle; {messages} µs a message between hosts "
        "(inferred), one after the other on a NIC; a barrier after each step of a schedule. Links "
        "of GPUs: gluonlab's topologies, partly inferred.",
        "hierarchical: rings within hosts, then across. flat ring: one through all GPUs. parameter "
        "server: a server on each host; a ring within hosts, one GPU's copies to memory and back "
        f"over PCIe, additions at {SERVER_ADDS / 1e9:g} GB/s (inferred); none for one host.",
        "Not counted: reading images, updates, unequal GPUs, other traffic.",
    ]


COLUMNS = (
    "sum: of all gradients, once a step, ms. after, behind: the efficiency if it begins after "
    "backward, and if it hides behind the whole of backward."
)

Asked = Mapping[str, Any]
Predicted = Dict[Step, Dict[str, List[Prediction]]]


def answer(asked: Asked) -> str:
    """The text to print. Raises a UsageError for impossible values."""
    if "out" in asked:
        _check_out(asked)
    hosts = whole_number_check(1, MOST_HOSTS)("--hosts", asked.get("hosts", HOSTS))
    size = _size(asked)
    steps = {name: _step(asked, name) for name in _names(asked.get("machines", MACHINES))}
    rows = {name: predict(name, hosts, step.seconds, size) for name, step in steps.items()}
    assumed = assumptions(steps, size, network="gradients" not in asked)
    if "out" in asked:
        from prediction.efficiency_picture import as_svg

        path = Path(asked["out"])
        with new_file("--out", path) as temporary:
            temporary.write_text(as_svg(steps, rows, assumed), encoding="utf-8")
        return f"written to {path}: open it in a browser"
    if "json" in asked:
        return _as_json(rows, assumed)
    blocks = [line for name in rows for line in _block(name, steps[name], rows[name])]
    return as_table(blocks[1:], COLUMNS, *assumed)


def _check_out(asked: Asked) -> None:
    path = Path(asked["out"])
    if "json" in asked:
        raise ConfigError("--json has no effect with --out: leave it out")
    if path.suffix.lower() != ".svg":
        raise ConfigError(f"--out {path}: the picture is an SVG: give a name that ends in .svg")
    check_new("--out", path)


def _names(text: str) -> List[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if is_file_name(name):
            raise ConfigError(
                f"--machines {name}: a file has the links of one machine, and no network to others "
                f"like it: choose {', '.join(NETWORKS)}; study speedup --predict takes files"
            )
        if name not in NETWORKS:
            raise ConfigError(unknown("machine", name, NETWORKS))
    return names


def _size(asked: Asked) -> int:
    if "gradients" not in asked:
        return GRADIENTS
    sizes = parse_sizes(asked["gradients"], "--gradients")
    if len(sizes) > 1:
        raise ConfigError(f"--gradients {asked['gradients']}: give one size, such as 102MB")
    return sizes[0]


def _step(asked: Asked, machine: str) -> Step:
    gpu = GPU_OF[machine]
    if "step" in asked:
        seconds = real_number_check(0, 1e9, above_minimum=True)("--step", asked["step"]) / 1e3
        return Step(gpu, seconds, "--step")
    if "gradients" in asked:
        raise ConfigError(
            f"--gradients {asked['gradients']} are another network's: give --step MS, its training "
            "step on one GPU, too"
        )
    if gpu not in STEPS:
        raise ConfigError(
            f"{machine}: no time of a step on {gpu} is known here, only of {', '.join(STEPS)}: "
            "give --step MS, that of one GPU"
        )
    return STEPS[gpu]


def _block(name: str, step: Step, rows: List[Prediction]) -> List[str]:
    """The lines of a machine, below an empty one."""
    heads = "".join(f"{way:>23}" for way in WAYS)
    columns = f"{'sum':>9}{'after':>7}{'behind':>7}"
    lines = ["", describe(name, step), f"{'':11}{heads}", f"{'hosts':>5}{'GPUs':>6}{columns * 3}"]
    for same in zip(*(of_way(rows, way) for way in WAYS)):
        cells = (f"{row.sum_s * 1e3:>9,.1f}{row.alone:>7.2f}{row.hidden:>7.2f}" for row in same)
        lines.append(f"{same[0].hosts:>5}{same[0].devices:>6}{''.join(cells)}")
    return lines


def _as_json(rows: Mapping[str, List[Prediction]], assumed: List[str]) -> str:
    content = [
        {**row._asdict(), "efficiency_after": row.alone, "efficiency_behind": row.hidden}
        for of_machine in rows.values()
        for row in of_machine
    ]
    return json_text({"assumptions": assumed, "rows": content})


@command(
    "python tools/prediction efficiency",
    most_used="--machines --hosts --gradients --step --out --json",
)
@option("--machines", "NAMES", f"some of {', '.join(NETWORKS)}", MACHINES)
@option("--hosts", "N", f"up to so many, at most {MOST_HOSTS}  [default: {HOSTS}]")
@option("--gradients", "SIZE", "of another network, such as 46MB  [default: ResNet-50's, 102.3MB]")
@option("--step", "MS", "of one GPU alone  [default: as published, for K80, V100 and A100]")
@option("--out", "FILE", "write the picture, a new file that ends in .svg")
@JSON
def main(as_json: bool, **options: Optional[str]) -> None:
    """Predict the efficiency of training on 1 to 8 known hosts.

    Nothing is run, and nothing was measured: a GPU's published time of a step, beside the price of
    summing its gradients over all GPUs of all hosts, in three ways. The assumptions are printed.

    \b
    --machines p3.16xlarge --hosts 16
    --gradients 46MB --step 90 --out efficiency.svg
    """
    asked = {name: value for name, value in options.items() if value is not None}
    click.echo(answer({**asked, **({"json": True} if as_json else {})}))
