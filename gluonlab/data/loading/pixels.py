"""Bytes of images as a network's numbers, computed on the device that they lie on."""

from __future__ import annotations

from typing import Any, Callable, Optional

from gluonlab.data.sets.dataset import Colours


def to_float(F: Any, images: Any) -> Any:
    """uint8 0..255 -> float32 0..1, on the device; ``F`` is mx.nd or mx.sym."""
    return F.cast(images, dtype="float32") * (1 / 255)


def make_input(colours: Optional[Colours]) -> Callable[[Any, Any], Any]:
    """``f(F, images)``: uint8 images -> the network's input, 0..1 or normalised by ``colours``."""
    if colours is None:
        return to_float
    mean, deviation = colours

    def normalised(F: Any, images: Any) -> Any:
        return F.image.normalize(to_float(F, images), mean=mean, std=deviation)

    return normalised
