"""The panels of the study, and what it is asked for. Does not import MXNet."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from gluonlab.config.values import real, whole
from gluonlab.errors import ConfigError, unknown
from gluonlab.study.options import ascending, check, positive
from gluonlab.study.options import whole as whole_number

NAME = "batch-size"
STEPS, EPOCHS = "steps", "epochs"  # what is equal where errors are compared
MOST_IMAGES = 2**20  # of a batch


class Panel(NamedTuple):
    """A network of `gluonlab.models` that is trained on a data set with plain SGD.

    ``target``: the share of test images that is to be right. ``sizes``: of batches, ``quick`` those
    of --quick. ``rate``: with which the search for the smallest size begins. ``limit``: of steps;
    ``most_images``: so many in all steps of a training. ``equal_steps``, ``equal_epochs``: after
    which all sizes are compared. ``resolution``: each look is so many times as late as the last.
    """

    title: str
    dataset: str
    model: str
    momentum: float
    target: float
    sizes: Tuple[int, ...]
    quick: Tuple[int, ...]
    rate: float
    limit: int
    most_images: int
    equal_steps: int
    equal_epochs: int
    resolution: float


def _powers(first: int, last: int) -> Tuple[int, ...]:
    return tuple(2**power for power in range(first, last + 1))


def _downloaded(title: str, dataset: str, model: str, target: float) -> Panel:
    sizes = _powers(3, 13)
    return Panel(title, dataset, model, 0.9, target, sizes, sizes[::2], 2**-9, 30_000, 10_000_000,
                 500, 3, 1.1)  # fmt: skip


PANELS = {
    "digits": Panel(
        "MLP on handwritten digits", "digits", "mlp", 0.0, 0.93, _powers(0, 10),
        (2, 4, 8, 16, 32, 64, 256, 1024), 2**-6, 8000, 400_000, 64, 2, 1.05,
    ),
    "mnist": _downloaded("Simple CNN on MNIST", "mnist", "lenet", 0.99),
    "fashion-mnist": _downloaded("Simple CNN on Fashion-MNIST", "fashion-mnist", "lenet", 0.9),
    "cifar10": _downloaded("ResNet-8 on CIFAR-10", "cifar10", "resnet8", 0.7),
}  # fmt: skip
SEEDS, TUNING_SEEDS = {False: 7, True: 4}, {False: 3, True: 2}  # by --quick


class Options(NamedTuple):
    """What was asked: names of panels, their batch sizes and targets, seeds, and devices."""

    panels: Dict[str, Dict[str, Any]]
    seeds: int
    tuning_seeds: int
    gpus: Optional[int]

    def to_dict(self) -> Dict[str, Any]:
        """Plain values, which the study's folder keeps."""
        return self._asdict()


def asked(
    names: List[str],
    quick: bool,
    sizes: Optional[str] = None,
    target: Optional[str] = None,
    seeds: Optional[str] = None,
    gpus: Optional[str] = None,
) -> Options:
    """The options of a command, as text. Raises ConfigError."""
    chosen = {}
    for name in names:
        if name not in PANELS:
            raise ConfigError(unknown("panel", name, PANELS))
        panel = PANELS[name]
        usual = panel.quick if quick else panel.sizes
        own = list(usual) if sizes is None else _sizes(sizes)
        share = panel.target if target is None else _share(target)
        chosen[name] = {"sizes": own, "target": share}
    return Options(
        chosen,
        SEEDS[quick] if seeds is None else whole(1, 1000)("--seeds", seeds),
        TUNING_SEEDS[quick],
        None if gpus is None else whole(1)("--gpus", gpus),
    )


def _share(text: str) -> float:
    return float(real(0, 1, above_minimum=True)("--target", text))


def _sizes(text: str) -> List[int]:
    number = whole(1, MOST_IMAGES)
    sizes = sorted({number("--sizes", part.strip()) for part in text.split(",")})
    if len(sizes) < 2:
        raise ConfigError(f"--sizes {text}: give two batch sizes or more, such as 16,64,256")
    return sizes


def from_dict(options: Mapping[str, Any]) -> Options:
    """What `Options.to_dict` gave. Raises ValueError for anything else."""
    fits = {
        "panels": lambda panels: isinstance(panels, dict) and set() < set(panels) <= set(PANELS),
        "seeds": whole_number(1, 1000), "tuning_seeds": whole_number(1, 1000),
        "gpus": lambda count: count is None or whole_number(1)(count),
    }  # fmt: skip
    check(options, fits)
    of_panel = {"sizes": ascending(whole_number(1, MOST_IMAGES), 2), "target": positive(1)}
    for panel in options["panels"].values():
        if not isinstance(panel, dict):
            raise ValueError("panels")
        check(panel, of_panel)
    return Options(**options)
