"""The ways of giving k devices a rate, and what is asked for. Does not import MXNet."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional

from gluonlab.config.values import whole
from gluonlab.errors import ConfigError
from gluonlab.study.options import ascending, check, positive
from gluonlab.study.options import whole as whole_number

NAME = "learning-rate"
DATASET, MODEL, MOMENTUM = "digits", "mlp", 0.9
SAME, LINEAR, WARM_UP, UNCORRECTED = "same", "linear", "warm-up", "uncorrected"
WAYS: Dict[str, Dict[str, Any]] = {  # the settings of a TrainConfig
    SAME: {},
    LINEAR: {"scale_lr": True},
    WARM_UP: {"scale_lr": True, "warmup_epochs": 1.0},
    UNCORRECTED: {"scale_lr": True, "warmup_epochs": 1.0, "momentum_rule": "mxnet"},
}
MOST_DEVICES = 64


class Options(NamedTuple):
    """What was asked: numbers of devices, images of each, rates, epochs and seeds."""

    devices: List[int]
    batch_size: int
    rates: List[float]
    epochs: int
    seeds: int

    def to_dict(self) -> Dict[str, Any]:
        """Plain values, which the study's folder keeps."""
        return self._asdict()

    def points(self) -> List[Dict[str, Any]]:
        """All settings. For one device, whose rate nothing scales, the linear rule is none."""
        return [
            {"way": way, "devices": count, "rate": rate}
            for count in self.devices
            for way in WAYS
            for rate in self.rates
            if count > 1 or way != LINEAR
        ]


def asked(
    quick: bool,
    devices: Optional[str] = None,
    batch_size: Optional[str] = None,
    epochs: Optional[str] = None,
    seeds: Optional[str] = None,
) -> Options:
    """The options of a command, as text. Raises ConfigError."""
    counts = [1, 2, 4] if devices is None else _counts(devices)
    powers = range(-8, -2, 1) if quick else range(-10, 0)
    return Options(
        counts,
        32 if batch_size is None else whole(1)("--batch-size", batch_size),
        [2.0**power for power in powers],
        3 if epochs is None else whole(2, 1000)("--epochs", epochs),
        (2 if quick else 5) if seeds is None else whole(1, 1000)("--seeds", seeds),
    )


def _counts(text: str) -> List[int]:
    number = whole(1, MOST_DEVICES)
    counts = sorted({number("--devices", part.strip()) for part in text.split(",")})
    if len(counts) < 2:
        raise ConfigError(f"--devices {text}: give two numbers of devices or more, such as 1,2,4")
    return counts


def from_dict(options: Mapping[str, Any]) -> Options:
    """What `Options.to_dict` gave. Raises ValueError for anything else."""
    fits = {
        "devices": ascending(whole_number(1, MOST_DEVICES), 2), "batch_size": whole_number(1),
        "rates": ascending(positive()), "epochs": whole_number(2, 1000),
        "seeds": whole_number(1, 1000),
    }  # fmt: skip
    check(options, fits)
    return Options(**options)
