"""What MXNet refuses in words of its own: arrays of 2**31 - 1 elements and more."""

from __future__ import annotations

from gluonlab.engine.invoke import ARRAY_LIMIT
from gluonlab.errors import ConfigError


def check_elements(images: int, elements: int) -> None:
    """Raise ConfigError when so many ``images`` make an array of more ``elements`` than MXNet
    has.
    """
    if elements >= ARRAY_LIMIT:
        raise ConfigError(
            f"{images:,} images make an array of {elements:,} elements, "
            f"and MXNet's have fewer than {ARRAY_LIMIT:,}: "
            "choose a smaller --batch-size, or smaller microbatches"
        )
