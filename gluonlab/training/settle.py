"""From what was asked to settings without gaps: what is given wins, the recipe fills the rest."""

from __future__ import annotations

import textwrap
from typing import Any, Dict, Iterator, NamedTuple, Optional, Tuple

from gluonlab.config import TrainConfig
from gluonlab.data.sets.dataset import Dataset, Defaults, ReadAheadSplit
from gluonlab.data.sets.registry import is_cut_already, of_image_files
from gluonlab.training.recipe import Recipe
from gluonlab.training.recipes import choose, fitting, network

OPTIONS_WIDTH = 69  # beside their title, in 80 columns
# They differ in where the gradient is taken; rates and momenta are given for one and used for both.
WITH_MOMENTUM = ("sgd", "nag")


class Settled(NamedTuple):
    """The settings of a run: as given (``asked``), and with the recipe's values (``config``).

    What stays None in ``config`` has no value: the other batch size, options of another schedule,
    and the rate and momentum of an optimizer for which the recipe has none.
    """

    asked: TrainConfig
    config: TrainConfig
    recipe: Recipe
    alternatives: Tuple[Recipe, ...]
    defaults: Defaults

    @property
    def model(self) -> str:
        """The network's name."""
        return str(self.config.model)  # which is no gap any more

    @property
    def is_recipes_rate(self) -> bool:
        """Whether the learning rate is the recipe's."""
        return self.asked.lr is None and self.config.lr is not None

    @property
    def rate_batch(self) -> int:
        """The images of a step for which the learning rate is made, before --scale-lr.

        For the recipe's rate that is the recipe's batch; for a rate of the user's own, the batch of
        one device: --batch-size, or its default.
        """
        if self.is_recipes_rate:
            return self.recipe.rate_batch
        return self.asked.batch_size or self.recipe.usual_batch

    @property
    def scales(self) -> bool:
        """Whether the learning rate is scaled with the batch."""
        by_images = self.recipe.lr_per_images is not None
        return self.config.scale_lr or (self.is_recipes_rate and by_images)

    def in_words(self) -> Iterator[Tuple[str, str]]:
        """(title, text) of the lines in which a run names its recipe, where there is a choice."""
        if not self.alternatives:
            return
        names = ", ".join(
            f"--recipe {each.name}: {self._network_of(each)}{each.epochs}"
            for each in self.alternatives
        )
        figure, epochs = self.recipe.figure(self.model), self.config.epochs or 0
        where = self.recipe.reported.partition(";")[0] or "there"
        reached = f", {figure:g} % {where}" if figure is not None else ""
        said = [
            f"{self.recipe.name}: {self.recipe.source}{reached}",
            f"{epochs} epoch{'s' * (epochs > 1)} ({names})",
        ]
        left_out = self.recipe.random_resized_crop and not self.config.random_resized_crop
        if left_out and self.asked.random_resized_crop is None:
            said.append("without its random resized crops: the images are cropped already")
        wrap = textwrap.TextWrapper(OPTIONS_WIDTH, break_on_hyphens=False).wrap
        lines = [line for text in said for line in wrap(text)]
        yield from zip(["recipe", *[""] * len(lines)], lines)

    def _network_of(self, recipe: Recipe) -> str:
        """``lenet, `` where that recipe would choose another network than this one."""
        model = network(self.asked.replace(recipe=recipe.name), self.defaults)
        return f"{model}, " if model != self.model else ""


def settle(config: TrainConfig, defaults: Defaults) -> Settled:
    """Give the settings of ``config`` that are None the values of its recipe.

    ``defaults``: the data set's. Raises ConfigError for a recipe that does not fit.
    """
    recipe = choose(config, defaults)
    filled = config.replace(
        **{
            name: value
            for name, value in _values(config, recipe, defaults).items()
            if getattr(config, name) is None
        }
    )
    others = {each.name: each for each in fitting(config, defaults) if each.name != recipe.name}
    return Settled(config, filled, recipe, tuple(others.values()), defaults)


def without_crops(settled: Settled, dataset: Optional[Dataset] = None) -> Settled:
    """The same without a recipe's random crops, where images are cropped already.

    Crops that the user asked for are an error elsewhere. ``dataset``: the data set, where it has
    been read already. Raises DataError for a folder that cannot be read.
    """
    config = settled.config
    is_recipes = config.random_resized_crop and settled.asked.random_resized_crop is None
    if not is_recipes:
        return settled
    if dataset is not None:
        can_be_cut = isinstance(dataset.train, ReadAheadSplit)
    else:
        can_be_cut = not is_cut_already(config.dataset, config.data_dir)
    if can_be_cut:
        return settled
    return settled._replace(config=config.replace(random_resized_crop=False))


def _values(config: TrainConfig, recipe: Recipe, defaults: Defaults) -> Dict[str, Any]:
    """What each gap takes."""
    epochs = config.epochs or recipe.epochs
    optimizer = (config.optimizer or recipe.optimizer).lower()
    suits = _suits(optimizer, recipe)
    schedule = config.lr_schedule or recipe.lr_schedule
    steps = schedule == "step" and recipe.lr_schedule == "step"
    wd = recipe.wd if config.wd is None else config.wd
    # a short run has no less of the rest
    warmup = recipe.warmup_epochs * min(1.0, epochs / recipe.epochs)
    given_batch = config.batch_size or config.global_batch_size
    taken = ["optimizer", "wd", "label_smoothing", "crop_padding", "flip", "mixup", "normalise"]
    taken += [] if given_batch else ["batch_size", "global_batch_size"]
    taken += ["lr", "momentum", "momentum_rule"] if suits else []
    taken += ["lr_decay"] if steps else []
    return {
        **{name: getattr(recipe, name) for name in taken},
        "recipe": recipe.name,
        "model": network(config, defaults),
        "epochs": epochs,
        "no_bias_decay": recipe.no_bias_decay and wd > 0,
        "lr_schedule": schedule,
        "warmup_epochs": warmup,
        "random_resized_crop": recipe.random_resized_crop and of_image_files(config.dataset),
    }


def _suits(optimizer: str, recipe: Recipe) -> bool:
    """Whether the recipe's rate and momentum are made for this optimizer."""
    made_for = recipe.optimizer
    alike = optimizer in WITH_MOMENTUM and made_for in WITH_MOMENTUM and recipe.momentum is not None
    return optimizer == made_for or alike
