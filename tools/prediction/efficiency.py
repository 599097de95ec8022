"""Predicted efficiency of data parallelism over hosts: the price of a sum compared with a step.

Nothing is run, and MXNet is not imported.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

import click

from gluonlab.bench.allreduce.message_sizes import parse_sizes
from gluonlab.bench.harness.measurement_command import JSON_OPTION, option
from gluonlab.bench.harness.table_format import format_table as as_table
from gluonlab.cli.command import command
from gluonlab.collectives.named_topologies import GBIT, MAX_HOSTS, NETWORKS, make_topology
from gluonlab.collectives.topology_file import is_file_name
from gluonlab.config.option_checks import real_number_check, whole_number_check
from gluonlab.errors import ConfigError, unknown
from gluonlab.files.atomic_files import check_new_path, new_file
from gluonlab.performance_model.gpu_specifications import GPUS
from gluonlab.performance_model.gpu_specifications import MACHINES as GPU_OF
from gluonlab.performance_model.gradient_sum_time import MULTI_HOST_SUMS as MULTI_HOST_SUMS
from gluonlab.performance_model.gradient_sum_time import SERVER_ADD_BYTES_PER_S as SERVER_ADD_BYTES_PER_S
from gluonlab.plain_text import json_text
from prediction.figures import find_single_gpu_figure

MACHINES, HOSTS = "p3.16xlarge,p3dn.24xlarge,p4d.24xlarge", 8
NETWORK, GRADIENTS = "ResNet-50", 102_303_648  # its gradients in float32, in bytes
BACKWARD = 2 / 3  # of a step: two matrix products for each one in forward


class GpuStep(NamedTuple):
    """A training step of a single GPU: its time, and the origin of the time."""

    gpu: str
    seconds: float
    origin: str


def _published_step(gpu: str, images: int, source: str, similar_gpu: str = "") -> GpuStep:
    """Return the step of a published figure, of ``similar_gpu`` if there is none of the GPU."""
    figure = find_single_gpu_figure(similar_gpu or gpu, NETWORK, images)
    rate, arithmetic = figure.value, GPUS[gpu].arithmetic(figure.dtype)
    origin = f"{images} images, {rate:g} a second, {arithmetic}, {source}"
    return GpuStep(gpu, images / rate, origin)


MXNET = "MXNet's page perf.md"
V100 = _published_step("V100", 64, MXNET)
A100 = _published_step("A100", 256, "NVIDIA's DeepLearningExamples for MXNet, DGX A100", "A100-80GB")
K80 = _published_step("K80", 32, MXNET)
STEPS: Dict[str, GpuStep] = {step.gpu: step for step in (K80, V100, A100)}


class ScalingPrediction(NamedTuple):
    """Weak scaling on ``hosts``: the time to sum all gradients, and a GPU's step."""

    machine: str
    hosts: int
    devices: int
    way: str
    sum_s: float
    step_s: float

    @property
    def efficiency_after(self) -> float:
        """Return the efficiency if the sum starts after backward."""
        return self._efficiency(0)

    @property
    def efficiency_behind(self) -> float:
        """Return the efficiency if the sum overlaps with all of backward, without slowing it."""
        return self._efficiency(self.step_s * BACKWARD)

    def _efficiency(self, hidden_s: float) -> float:
        return self.step_s / (self.step_s + max(0.0, self.sum_s - hidden_s))


def predict_scaling(machine: str, max_hosts: int, step_s: float, gradient_bytes: float) -> List[ScalingPrediction]:
    """Return predictions of each algorithm on 1 to ``max_hosts`` hosts of a machine."""
    topologies = [make_topology(f"{machine}*{hosts}") for hosts in range(1, max_hosts + 1)]
    return [
        ScalingPrediction(
            machine, len(topology.hosts), topology.world_size, way,
            sum_s(topology, NETWORKS[machine], gradient_bytes), step_s,
        )
        for way, sum_s in MULTI_HOST_SUMS.items()
        for topology in topologies
    ]  # fmt: skip


def select_way(rows: Sequence[ScalingPrediction], way: str) -> List[ScalingPrediction]:
    """Return the predictions of one algorithm, by hosts."""
    return [row for row in rows if row.way == way]


def describe(machine: str, step: GpuStep) -> str:
    """Return ``p3.16xlarge: 8 x V100 a host, 25 Gb/s, a step of one GPU 186.5 ms``."""
    return f"{machine}: {describe_host(machine, step)}, a step of one GPU takes {step.seconds * 1e3:.1f} ms"


def describe_host(machine: str, step: GpuStep) -> str:
    """Return ``8 x V100 a host, 25 Gb/s``: GPUs, and network speed in each direction."""
    network, count = NETWORKS[machine], make_topology(machine).world_size
    gigabits = f"{network.bytes_per_s / GBIT:g} Gb/s"
    several = f"{network.nics} x {gigabits}" if network.nics > 1 else gigabits
    return f"{count} x {step.gpu} per host, {several}"


def assumptions(steps: Mapping[str, GpuStep], gradient_bytes: float, network: bool) -> List[str]:
    """Return the assumptions as paragraphs; ``network``: whether the gradients are ResNet-50's."""
    step_by_gpu = {step.gpu: step for step in steps.values()}
    times = "; ".join(f"{gpu} {step.seconds * 1e3:.1f} ms ({step.origin})" for gpu, step in step_by_gpu.items())
    latencies = sorted({NETWORKS[name].latency_s * 1e6 for name in steps})
    messages = " or ".join(f"{latency:g}" for latency in latencies)
    gradients = f"{NETWORK}, {gradient_bytes / 1e6:.1f}" if network else f"{gradient_bytes / 1e6:,.1f}"
    return [
        "Predicted, not measured. Efficiency is images/s relative to those of one GPU times the "
        "number of GPUs, with a constant batch per GPU (weak scaling).",
        f"{gradients} MB of gradients, reduced once per step. A step of one GPU takes: {times}. "
        "Two thirds of it are backward.",
        "Networks have nominal speed and no other traffic. A message between hosts takes "
        f"{messages} µs (inferred), one after the other on a NIC. A barrier follows each step of "
        "a schedule. Links between GPUs are those of gluonlab's topologies, partly inferred.",
        "hierarchical: rings within hosts, then across hosts. flat ring: one ring through all "
        "GPUs. parameter server: a server on each host, with a ring within hosts, copies of one "
        "GPU to memory and back over PCIe, and additions at "
        f"{SERVER_ADD_BYTES_PER_S / 1e9:g} GB/s (inferred); no server for a single host.",
        "Not included: reading images, updates, unequal GPUs, other traffic.",
    ]


COLUMNS = (
    "allred.: time of the gradient allreduce per step, in ms. after, behind: the efficiency if "
    "the allreduce starts after backward, or if it overlaps with all of backward."
)

Options = Mapping[str, Any]


def run_command(options: Options) -> str:
    """Return the text to print. Raise a UsageError for impossible values."""
    if "out_file" in options:
        _check_out(options)
    hosts = whole_number_check(1, MAX_HOSTS)("--hosts", options.get("hosts", HOSTS))
    gradient_bytes = _gradient_bytes(options)
    steps = {name: _find_step(options, name) for name in _parse_machines(options.get("machines", MACHINES))}
    rows = {name: predict_scaling(name, hosts, step.seconds, gradient_bytes) for name, step in steps.items()}
    assumption_texts = assumptions(steps, gradient_bytes, network="gradients" not in options)
    if "out_file" in options:
        from prediction.efficiency_picture import as_svg

        path = Path(options["out_file"])
        with new_file("--out-file", path) as temporary:
            temporary.write_text(as_svg(steps, rows, assumption_texts), encoding="utf-8")
        return f"written to {path}: open it in a browser"
    if "json" in options:
        return _as_json(rows, assumption_texts)
    blocks = [line for name in rows for line in _machine_lines(name, steps[name], rows[name])]
    return as_table(blocks[1:], COLUMNS, *assumption_texts)


def _check_out(options: Options) -> None:
    path = Path(options["out_file"])
    if "json" in options:
        raise ConfigError("--json has no effect with --out-file: omit one of the two")
    if path.suffix.lower() != ".svg":
        raise ConfigError(f"--out-file {path}: must end in .svg, because the figure is an SVG file")
    check_new_path("--out-file", path)


def _parse_machines(text: str) -> List[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if is_file_name(name):
            raise ConfigError(
                f"--machines {name}: a topology file only describes one machine, not the network: "
                f"choose {', '.join(NETWORKS)}, or use the file with study speedup --predict"
            )
        if name not in NETWORKS:
            raise ConfigError(unknown("machine", name, NETWORKS))
    return names


def _gradient_bytes(options: Options) -> int:
    if "gradients" not in options:
        return GRADIENTS
    sizes = parse_sizes(options["gradients"], "--gradients")
    if len(sizes) > 1:
        raise ConfigError(f"--gradients {options['gradients']}: pass a single size, such as 102MB")
    return sizes[0]


def _find_step(options: Options, machine: str) -> GpuStep:
    gpu = GPU_OF[machine]
    if "step" in options:
        seconds = real_number_check(0, 1e9, above_minimum=True)("--step", options["step"]) / 1e3
        return GpuStep(gpu, seconds, "--step")
    if "gradients" in options:
        raise ConfigError(
            f"--gradients {options['gradients']} is for another model, whose step time is "
            "unknown: add --step MS, its step time on one GPU"
        )
    if gpu not in STEPS:
        raise ConfigError(
            f"{machine}: the step time on {gpu} is unknown, only on {', '.join(STEPS)}: add "
            "--step MS, the step time on one GPU"
        )
    return STEPS[gpu]


def _machine_lines(name: str, step: GpuStep, rows: List[ScalingPrediction]) -> List[str]:
    """Return the lines of a machine's table, after an empty line."""
    heads = "".join(f"{way:>23}" for way in MULTI_HOST_SUMS)
    columns = f"{'allred.':>9}{'after':>7}{'behind':>7}"
    lines = ["", describe(name, step), f"{'':11}{heads}", f"{'hosts':>5}{'GPUs':>6}{columns * 3}"]
    for same_hosts in zip(*(select_way(rows, way) for way in MULTI_HOST_SUMS)):
        cells = (
            f"{row.sum_s * 1e3:>9,.1f}{row.efficiency_after:>7.2f}{row.efficiency_behind:>7.2f}" for row in same_hosts
        )
        lines.append(f"{same_hosts[0].hosts:>5}{same_hosts[0].devices:>6}{''.join(cells)}")
    return lines


def _as_json(rows: Mapping[str, List[ScalingPrediction]], assumption_texts: List[str]) -> str:
    content = [
        {**row._asdict(), "efficiency_after": row.efficiency_after, "efficiency_behind": row.efficiency_behind}
        for of_machine in rows.values()
        for row in of_machine
    ]
    return json_text({"assumptions": assumption_texts, "rows": content})


@command(
    "python tools/prediction efficiency",
    most_used="--machines --hosts --gradients --step --out-file --json",
    renamed={"--out": "--out-file"},
)
@option("--machines", "NAMES", f"some of {', '.join(NETWORKS)}", MACHINES)
@option("--hosts", "N", f"largest number of hosts, up to {MAX_HOSTS}  [default: {HOSTS}]")
@option("--gradients", "SIZE", "bytes of the gradients, such as 46MB  [default: ResNet-50's, 102.3MB]")
@option("--step", "MS", "step time of one GPU  [default: as published, for K80, V100 and A100]")
@option("--out-file", "FILE", "write a figure to a new .svg file")
@JSON_OPTION
def main(as_json: bool, **options: Optional[str]) -> None:
    """Predict the scaling efficiency of training on 1 to 8 hosts.

    The prediction adds a GPU's published step time and the predicted time of three gradient
    reductions over all hosts. Nothing is run. The assumptions are printed.

    \b
    python tools/prediction efficiency --machines p3.16xlarge --hosts 16
    python tools/prediction efficiency --gradients 46MB --step 90 --out-file efficiency.svg
    """
    given = {name: value for name, value in options.items() if value is not None}
    click.echo(run_command({**given, **({"json": True} if as_json else {})}))
