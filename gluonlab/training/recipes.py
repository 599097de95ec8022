"""Published training recipes: settings for a data set and its networks, with reported accuracies.

A recipe contains only settings that gluonlab supports. The field ``reported`` describes differences
between the recipe and its source. The recipe ``quick``, for a first try, consists of the default
settings of a data set (`gluonlab.data.sets.dataset.Defaults`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

from gluonlab.config import TrainConfig
from gluonlab.data.sets.dataset import Defaults
from gluonlab.data.sets.dataset_registry import DATASETS, has_image_files
from gluonlab.errors import ConfigError, unknown
from gluonlab.models.gluoncv_zoo import PREFIX
from gluonlab.optimizers.sgd_and_nag import MXNET
from gluonlab.plain_text import NO_BREAK_SPACE, wrap_entry

PHOTOGRAPHS = "photographs"  # stands for all data sets of image files
# gluonlab's name of a network -> gluoncv's name of the same network
GLUONCV_NAMES = {
    "cifar_resnet20": f"{PREFIX}cifar_resnet20_v1",
    "resnet18": f"{PREFIX}resnet18_v1",
    "resnet50": f"{PREFIX}resnet50_v1",
}


# settings that change images and labels, in the order in which they are listed
IMAGE_AND_LABEL_CHANGES = ("label_smoothing", "random_resized_crop", "crop_padding", "flip", "mixup", "normalize")


def enabled_settings(settings: Any, *names: str) -> Iterator[str]:
    """Yield the enabled settings as text: ``crop padding 4``, ``flip``, ..."""
    for name in names:
        value = getattr(settings, name)
        if value:
            shown = value if isinstance(value, str) else f"{value:g}"
            yield name.replace("_", " ") + f" {shown}" * (value is not True)


@dataclass(frozen=True)
class TrainingRecipe:
    """Values for TrainConfig settings that the user does not set.

    A field with the name of a setting is the value of this setting. Some fields:

    - ``data``: a data set, or PHOTOGRAPHS.
    - ``figures``: the reported accuracy in percent for each network. A recipe without figures is
      for all networks.
    - ``reported``: a remark about the figures.
    - ``pretrained``: True for networks that start with parameters from a file.
    - ``batch_size`` (per device) or ``global_batch_size``: a recipe sets one of the two.
    - ``lr``: the learning rate for the recipe's batch size. If ``lr_per_images`` is set, ``lr`` is
      meant for this number of images, and is always scaled with the batch size.
    - ``decay_epochs``: epochs after which the learning rate changes. A shorter or longer run
      changes the rate after the same fractions of the run.
    - ``momentum_rule``: MXNet's rule for recipes that were tuned with this rule; None means the
      rule of papers and PyTorch.
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
    normalize: Optional[str] = None

    @property
    def lr_batch_size(self) -> int:
        """The number of images per step for which ``lr`` is meant."""
        return self.lr_per_images or self.default_batch_size

    @property
    def default_batch_size(self) -> int:
        """The recipe's batch size, per device or for all devices together."""
        return self.global_batch_size or self.batch_size or 1

    @property
    def decay_shares(self) -> Tuple[Fraction, ...]:
        """The ``decay_epochs`` as fractions of the run."""
        return tuple(Fraction(epoch, self.epochs) for epoch in self.decay_epochs)

    def reported_accuracy(self, model: str) -> Optional[float]:
        """Return the accuracy that the source reports for this network, in percent."""
        return self.figures.get(GLUONCV_NAMES.get(model, model))

    def is_for(self, dataset: str, model: str, pretrained: bool) -> bool:
        """Return True if the recipe is for this data set and network."""
        if self.pretrained and not pretrained:
            return False
        if dataset != self.data and not (self.data == PHOTOGRAPHS and has_image_files(dataset)):
            return False
        return not self.figures or self.reported_accuracy(model) is not None

    def in_words(self) -> str:
        """Return text such as ``nag, rate 0.1 for 128 images, times 0.1 after 100 epochs, ...``."""
        *earlier, last_epoch = [*map(str, self.decay_epochs)] or [""]
        decay_text = f"{', '.join(earlier)} and {last_epoch}" if earlier else last_epoch
        schedule = f"times {self.lr_decay:g} after {decay_text} epochs" if decay_text else self.lr_schedule
        parts = [
            self.optimizer,
            f"{self.batch_size:,} images per device" if self.batch_size else f"{self.global_batch_size:,} images",
            f"learning rate {self.lr:g}" + (f" per {self.lr_per_images:,} images" if self.lr_per_images else ""),
            schedule if schedule != "constant" else "",
            f"warm-up {self.warmup_epochs:g} epochs" if self.warmup_epochs else "",
            *enabled_settings(self, "momentum", "momentum_rule", "wd", "no_bias_decay", *IMAGE_AND_LABEL_CHANGES),
        ]
        return ", ".join(filter(None, parts))

    def description_lines(self) -> List[str]:
        """Return the lines that `gluonlab list` prints about the recipe."""
        own_names = {gluoncv_name: own_name for own_name, gluoncv_name in GLUONCV_NAMES.items()}
        figure_texts = (f"{own_names.get(name, name)} {figure:g} %" for name, figure in self.figures.items())
        figures = ", ".join(text.replace(" ", NO_BREAK_SPACE) for text in figure_texts)
        pretrained = "with --pretrained, " if self.pretrained else ""
        summary = f"{self.data}, {pretrained}{self.epochs} epochs: {self.source}"
        return wrap_entry(self.name, summary, self.in_words(), figures, self.reported, self.url)


QUICK, PUBLISHED, IMAGENET, FINETUNE = "quick", "published", "imagenet", "finetune"
_LOGS = "https://github.com/dmlc/web-data (gluoncv/logs/classification/{})"


# the optimizer of both scripts of gluon-cv, by default or in its published commands
_NAG: Dict[str, Any] = {"optimizer": "nag", "momentum": 0.9, "momentum_rule": MXNET, "wd": 1e-4}


def _gluoncv_accuracies(**figures: float) -> Dict[str, float]:
    """Return accuracies by network: ``mobilenet0p5=65.2`` -> ``{"gluoncv:mobilenet0.5": 65.2}``."""
    return {
        PREFIX + (name.replace("p", ".") if name.startswith("mobilenet") else name): figure
        for name, figure in figures.items()
    }


_CIFAR = TrainingRecipe(
    PUBLISHED, "cifar10", "gluon-cv, train_cifar10.py", epochs=200, global_batch_size=128, lr=0.1,
    lr_schedule="step", lr_decay=0.1, decay_epochs=(100, 150), **_NAG, crop_padding=4, flip=True,
    normalize="cifar10", url=_LOGS.format("cifar"),
    figures=_gluoncv_accuracies(
        cifar_resnet20_v1=92.1, cifar_resnet56_v1=93.6, cifar_resnet110_v1=93.0,
        cifar_resnet20_v2=92.1, cifar_resnet56_v2=93.7, cifar_resnet110_v2=94.3,
    ),
)  # fmt: skip
_PHOTOGRAPHS = TrainingRecipe(
    IMAGENET, PHOTOGRAPHS, "gluon-cv, train_imagenet.py", epochs=120,
    batch_size=64,  # the source uses 32 to 256
    lr=0.1, lr_per_images=256,  # as He et al., 2019, section 3.1; they have 1,024 images and 0.4
    lr_schedule="cosine", warmup_epochs=5, **_NAG, random_resized_crop=True, flip=True,
    figures=_gluoncv_accuracies(
        resnet18_v1=70.93, resnet34_v1=74.37, resnet101_v1=78.34, resnet18_v2=71.00,
        resnet34_v2=74.40, resnet50_v2=77.11, resnet101_v2=78.53,
    ),
    reported="on ImageNet; the original also jitters colors", url=_LOGS.format("imagenet"),
)  # fmt: skip
_TRICKS = replace(
    _PHOTOGRAPHS, source="gluon-cv, train_imagenet.py; He et al., Bag of tricks, 2019",
    label_smoothing=0.1, no_bias_decay=True,
    reported="on ImageNet; the original also jitters colors and initializes the last gamma of residual blocks to 0",
)  # fmt: skip

RECIPES: Tuple[TrainingRecipe, ...] = (
    _CIFAR,
    replace(
        _CIFAR, lr_decay=0.2, decay_epochs=(60, 120, 160), wd=5e-4,
        figures=_gluoncv_accuracies(
            cifar_wideresnet16_10=95.1, cifar_wideresnet28_10=95.6, cifar_wideresnet40_8=95.9
        ),
    ),
    replace(
        _CIFAR, epochs=300, decay_epochs=(150, 225), wd=5e-4,
        figures=_gluoncv_accuracies(cifar_resnext29_16x64d=96.3),
    ),
    replace(
        _CIFAR, data="fashion-mnist", source="Zhong et al., Random erasing, 2020: the baseline",
        epochs=300, decay_epochs=(150, 225), optimizer="sgd", momentum_rule=None, wd=5e-4,
        normalize="mnist", figures=_gluoncv_accuracies(cifar_resnet20_v1=95.61),
        url="https://github.com/zhunzhong07/Random-Erasing",
    ),
    TrainingRecipe(
        FINETUNE, PHOTOGRAPHS, "gluon-cv, transfer learning with MINC-2500", pretrained=True,
        epochs=40, batch_size=64, lr=0.001, lr_schedule="step", lr_decay=0.75,
        decay_epochs=(10, 20, 30), **{**_NAG, "optimizer": "sgd"},
        random_resized_crop=True, flip=True,
        reported="resnet50_v2 pretrained on ImageNet: around 80 % on MINC-2500; "
        "the original also jitters colors",
        url="https://cv.gluon.ai/build/examples_classification/transfer_learning_minc.html",
    ),
    _PHOTOGRAPHS,
    replace(
        _TRICKS,
        figures=_gluoncv_accuracies(
            resnet50_v1=77.36, resnet50_v1b=77.67, resnet50_v1c=78.03, resnet101_v1b=79.20,
            resnet101_v1c=79.60, resnet152_v1=79.22, resnet152_v1b=79.69, resnet152_v1c=80.01,
            mobilenet0p25=52.91, mobilenet0p5=65.20, mobilenet0p75=70.25,
        ),
    ),
    replace(
        _TRICKS, epochs=200, mixup=0.2,
        figures=_gluoncv_accuracies(
            resnet50_v1d=79.15, resnet101_v1d=80.51, resnet152_v1d=80.61, resnext50_32x4d=79.32,
            resnext101_32x4d=80.37, resnext101_64x4d=80.69, se_resnext50_32x4d=79.95,
            se_resnext101_32x4d=80.91, se_resnext101_64x4d=81.01, darknet53=78.56,
            mobilenet1p0=73.28,
        ),
    ),
    replace(
        _TRICKS, epochs=150, lr=0.05, wd=4e-5, reported=_PHOTOGRAPHS.reported,
        figures=_gluoncv_accuracies(
            mobilenetv2_0p25=51.76, mobilenetv2_0p5=64.43, mobilenetv2_0p75=69.36,
            mobilenetv2_1p0=72.04,
        ),
    ),
    replace(
        _PHOTOGRAPHS, epochs=100, lr=0.01, lr_schedule="step", lr_decay=0.1, decay_epochs=(50, 80),
        warmup_epochs=0,
        figures=_gluoncv_accuracies(vgg16=73.23, vgg19=74.11, vgg16_bn=73.10, vgg19_bn=74.33),
    ),
)  # fmt: skip


def quick_recipe(dataset: str, defaults: Defaults) -> TrainingRecipe:
    """Return the recipe ``quick``: the data set's default settings, for any network."""
    names = ("epochs", "batch_size", "lr", "optimizer", "momentum", "wd")
    values = {name: getattr(defaults, name) for name in names}
    return TrainingRecipe(QUICK, dataset, "gluonlab's defaults", **values)


def choose_model(config: TrainConfig, defaults: Defaults) -> str:
    """Return the network's name: from the config, else the default of the data set and recipe."""
    if config.model is not None:
        return config.model
    published = defaults.published_model if config.recipe != QUICK else None
    return published or defaults.model


def find_recipes(config: TrainConfig, defaults: Defaults) -> List[TrainingRecipe]:
    """Return the recipes for the config's data set and network. The first recipe is the default.

    For the default network of a data set, the first recipe is ``quick`` (except with --pretrained).
    """
    model, pretrained = choose_model(config, defaults), config.pretrained is not None
    published = [recipe for recipe in RECIPES if recipe.is_for(config.dataset, model, pretrained)]
    quick = quick_recipe(config.dataset, defaults)
    if published and (model != defaults.model or published[0].pretrained):
        return [*published, quick]
    return [quick, *published]


def choose_recipe(config: TrainConfig, defaults: Defaults) -> TrainingRecipe:
    """Return the recipe that ``config`` names, or the first recipe for its data set and network.

    Raises a ConfigError that lists the choices.
    """
    recipes = find_recipes(config, defaults)
    if config.recipe is None:
        return recipes[0]
    names = list(dict.fromkeys([QUICK, *(recipe.name for recipe in RECIPES)]))
    if config.recipe not in names:
        raise ConfigError(unknown("--recipe", config.recipe, names))
    recipe = next((recipe for recipe in recipes if recipe.name == config.recipe), None)
    if recipe is None:
        model = choose_model(config, defaults)
        needs_pretrained = any(
            candidate.name == config.recipe and candidate.is_for(config.dataset, model, pretrained=True)
            for candidate in RECIPES
        )
        hint = " without --pretrained" if needs_pretrained else ""
        choices = " or ".join(recipe.name for recipe in recipes)
        raise ConfigError(
            f"--recipe {config.recipe} does not support {model} on {config.dataset}{hint}: "
            f"choose {choices}, or remove --recipe (see gluonlab list)"
        )
    return recipe


def format_recipes() -> List[str]:
    """Return the lines that `gluonlab list` prints about all recipes."""
    epochs = [dataset_entry.defaults.epochs for dataset_entry in DATASETS.values()]
    summary = f"all data sets and models, {min(epochs)} to {max(epochs)} epochs: gluonlab's defaults"
    lines = (line for recipe in RECIPES for line in recipe.description_lines())
    return [*wrap_entry(QUICK, summary, _default_models_text()), *lines]


def _default_models_text() -> str:
    """Return the default networks of data sets as text, for example:

    ``without --model: lenet for digits, cifar10 (cifar_resnet20 without --recipe quick); resnet18
    for ...``
    """
    datasets_by_model: Dict[str, Dict[str, None]] = {}
    for name, dataset_entry in DATASETS.items():
        published_model = dataset_entry.defaults.published_model
        note = f" ({published_model} without --recipe {QUICK})" if published_model else ""
        datasets_by_model.setdefault(dataset_entry.defaults.model, {})[
            (PHOTOGRAPHS if has_image_files(name) else name) + note
        ] = None
    return "without --model: " + "; ".join(
        f"{model} for {', '.join(names)}" for model, names in datasets_by_model.items()
    )
