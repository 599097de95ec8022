"""What a recipe is: settings that go together for data and networks, and their source."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Iterator, List, Mapping, Optional, Tuple

from gluonlab.data.sets.registry import of_image_files
from gluonlab.models.zoo import PREFIX
from gluonlab.plain import JOINED, entry

PHOTOGRAPHS = "photographs"  # in place of a data set's name: all that are read from image files
# Networks that gluonlab and gluoncv both have, under two names.
SAME = {
    "cifar_resnet20": f"{PREFIX}cifar_resnet20_v1",
    "resnet18": f"{PREFIX}resnet18_v1",
    "resnet50": f"{PREFIX}resnet50_v1",
}


# Settings that change images and labels, as a run and --list name them.
CHANGES = (
    "label_smoothing", "random_resized_crop", "crop_padding", "flip", "mixup", "normalise",
)  # fmt: skip


def named(settings: Any, *names: str) -> Iterator[str]:
    """``crop padding 4``, ``flip``, ...: those of the attributes that are turned on."""
    for name in names:
        value = getattr(settings, name)
        if value:
            shown = value if isinstance(value, str) else f"{value:g}"
            yield name.replace("_", " ") + f" {shown}" * (value is not True)


@dataclass(frozen=True)
class Recipe:
    """Values for the settings of TrainConfig that are not given, under the same names.

    ``data``: a data set, or PHOTOGRAPHS. ``figures``: the accuracy that the source reports, in
    percent, by network; a recipe without any is for all networks. ``reported``: a remark on the
    figures. ``pretrained``: it is for networks that begin with parameters of a file. Either
    ``batch_size``, per device, or ``global_batch_size``. ``lr`` is for that batch, or for
    ``lr_per_images`` images, and is then always scaled with the batch. The rate steps after
    ``decay_epochs`` of the recipe's ``epochs``, and after the same shares of a run that is shorter
    or longer. ``momentum_rule``: MXNet's for what was tuned with it; None is the rule of papers and
    PyTorch.
    """

    name: str
    data: str
    source: str
    epochs: int
    lr: float
    optimizer: str
    figures: Mapping[str, float] = field(default_factory=dict)
    reported: str = ""
    url: str = ""
    pretrained: bool = False
    batch_size: Optional[int] = None
    global_batch_size: Optional[int] = None
    lr_per_images: Optional[int] = None
    momentum: Optional[float] = None
    momentum_rule: Optional[str] = None
    wd: float = 0.0
    no_bias_decay: bool = False
    lr_schedule: str = "constant"
    lr_decay: Optional[float] = None
    decay_epochs: Tuple[int, ...] = ()
    warmup_epochs: float = 0.0
    label_smoothing: float = 0.0
    random_resized_crop: bool = False
    crop_padding: int = 0
    flip: bool = False
    mixup: float = 0.0
    normalise: Optional[str] = None

    @property
    def rate_batch(self) -> int:
        """The images of a step for which ``lr`` is made."""
        return self.lr_per_images or self.usual_batch

    @property
    def usual_batch(self) -> int:
        """The images of a step: those of one device, or all."""
        return self.global_batch_size or self.batch_size or 1

    @property
    def decay_shares(self) -> Tuple[Fraction, ...]:
        """``decay_epochs`` as shares of the run."""
        return tuple(Fraction(epoch, self.epochs) for epoch in self.decay_epochs)

    def figure(self, model: str) -> Optional[float]:
        """The accuracy that the source reports for this network, in percent."""
        return self.figures.get(SAME.get(model, model))

    def suits(self, dataset: str, model: str, pretrained: bool) -> bool:
        """Whether it is for this data set and network."""
        if self.pretrained and not pretrained:
            return False
        if dataset != self.data and not (self.data == PHOTOGRAPHS and of_image_files(dataset)):
            return False
        return not self.figures or self.figure(model) is not None

    def in_words(self) -> str:
        """``nag, rate 0.1 for 128 images, times 0.1 after 100 and 150 epochs, ...``"""
        *most, last = [*map(str, self.decay_epochs)] or [""]
        after = f"{', '.join(most)} and {last}" if most else last
        schedule = f"times {self.lr_decay:g} after {after} epochs" if after else self.lr_schedule
        said = [
            self.optimizer,
            f"{self.batch_size:,} images per device"
            if self.batch_size
            else f"{self.global_batch_size:,} images",
            f"rate {self.lr:g}"
            + (f" per {self.lr_per_images:,} images" if self.lr_per_images else ""),
            schedule if schedule != "constant" else "",
            f"warm-up {self.warmup_epochs:g} epochs" if self.warmup_epochs else "",
            *named(self, "momentum", "momentum_rule", "wd", "no_bias_decay", *CHANGES),
        ]
        return ", ".join(filter(None, said))

    def described(self) -> List[str]:
        """Lines for --list."""
        own = {theirs: ours for ours, theirs in SAME.items()}
        named = (f"{own.get(name, name)} {figure:g} %" for name, figure in self.figures.items())
        figures = ", ".join(each.replace(" ", JOINED) for each in named)
        pretrained = "with --pretrained, " if self.pretrained else ""
        first = f"{self.data}, {pretrained}{self.epochs} epochs: {self.source}"
        return entry(self.name, first, self.in_words(), figures, self.reported, self.url)
