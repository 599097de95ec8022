"""``bench efficiency``: options in, the table or the picture out. MXNet is not imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Mapping

from gluonlab.bench.allreduce.sizes import parse_sizes
from gluonlab.bench.efficiency.assume import assumptions, describe
from gluonlab.bench.efficiency.names import HOSTS, MACHINES
from gluonlab.bench.efficiency.predict import (
    GRADIENTS,
    STEPS,
    WAYS,
    Prediction,
    Step,
    of_way,
    predict,
)
from gluonlab.bench.harness.text import table as as_table
from gluonlab.collectives.hosts import MOST_HOSTS, NETWORKS
from gluonlab.collectives.topology_file import is_file_name
from gluonlab.config.values import real, whole
from gluonlab.errors import ConfigError, unknown
from gluonlab.files.whole import check_new, new_file
from gluonlab.plain import json_text
from gluonlab.prediction.machines import MACHINES as GPU_OF

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
    hosts = whole(1, MOST_HOSTS)("--hosts", asked.get("hosts", HOSTS))
    size = _size(asked)
    steps = {name: _step(asked, name) for name in _names(asked.get("machines", MACHINES))}
    rows = {name: predict(name, hosts, step.seconds, size) for name, step in steps.items()}
    assumed = assumptions(steps, size, network="gradients" not in asked)
    if "out" in asked:
        from gluonlab.bench.efficiency.picture import as_svg

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
        seconds = real(0, 1e9, above_minimum=True)("--step", asked["step"]) / 1e3
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
