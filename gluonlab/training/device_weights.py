"""--device-weights in a run: whether they fit its devices and batches, and how batches are cut."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import List, Optional, Sequence

import mxnet as mx

from gluonlab.config.values import read_weights
from gluonlab.data.loading.shards import in_proportion, shard_sizes
from gluonlab.errors import ConfigError

MOST_SIZES = 8  # that a line has room for


def weights_of(given: Optional[str], processes: int = 1) -> Optional[List[Fraction]]:
    """One for each device of so many processes; None where batches are shared evenly."""
    return None if given is None else read_weights(given) * processes


def check_count(given: Optional[str], devices: int) -> None:
    """Raise ConfigError unless there is a weight for each of a process's devices."""
    weights = weights_of(given)
    if weights is not None and len(weights) != devices:
        many = f"{len(weights)} number{'s' * (len(weights) > 1)}"
        raise ConfigError(
            f"--device-weights {given} has {many}, and this process {devices} "
            f"device{'s' * (devices > 1)}: give one for each, or leave it out"
        )


def check_shares(
    given: Optional[str], images: int, ctxs: Sequence[mx.Context], processes: int
) -> None:
    """Raise ConfigError where whole batches of ``images`` have enough for all, and one gets none.

    Of an epoch's smaller last batch it gets one image all the same.
    """
    weights = weights_of(given, processes)
    if weights is None or images < len(weights):
        return
    sizes = in_proportion(images, weights)
    if 0 in sizes:
        idle = ctxs[sizes.index(0) % len(ctxs)]
        raise ConfigError(
            f"--device-weights {given}: {idle} would get none of the {images} images of a batch: "
            "give it a larger weight, choose a larger batch, or leave it out of --devices"
        )


def largest_part(weights: Optional[Sequence[Fraction]], copies: int) -> Fraction:
    """The part of a batch that the device gets which gets most, before it is whole images."""
    return Fraction(1, copies) if weights is None else max(weights) / sum(weights)


def largest_share(images: int, weights: Optional[Sequence[Fraction]], copies: int) -> int:
    """The most images that one of ``copies`` can get of batches of up to ``images``."""
    return math.ceil(images * largest_part(weights, copies))


def fewest(images: int, weights: Optional[Sequence[Fraction]], copies: int) -> int:
    """The fewest images that one of ``copies`` gets of a batch of ``images``."""
    sizes = shard_sizes(images, copies, weights)
    return min(sizes) if len(sizes) == copies else 0


def batch_in_words(
    images: int, copies: int, has_copy: str, given: Optional[str], processes: int
) -> str:
    """``32 per device``, ``21 or 22 per device`` or ``43, 21 per device (weights 2,1)``."""
    weights = weights_of(given, processes)
    if weights is None:  # shards differ by at most one image
        each, rest = divmod(images, copies)
        return (f"{each:,}" if not rest else f"{each:,} or {each + 1:,}") + f" per {has_copy}"
    sizes = [*shard_sizes(images, copies, weights), *[0] * (copies - images)]
    listed = ", ".join(f"{size:,}" for size in sizes)
    if len(sizes) > MOST_SIZES:
        listed = f"{min(sizes):,} to {max(sizes):,}"
    return f"{listed} per {has_copy} (weights {given})"
