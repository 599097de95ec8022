"""From which batch, and up to which network, another device pays: a step as a line in its images.

A step of n devices with b images each takes ``fixed + per_image * b``, as does one of a single
device, which has the images of one copy of the network, or all images of the batch if the batch is
shared. The parts of the step say what is fixed: host, sum, update, and what forward and backward
take without any image.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

from gluonlab.study.speedup.parts import Parts


class Line(NamedTuple):
    """Seconds of a step of ``images`` per device: ``fixed + per_image * images``."""

    fixed: float
    per_image: float

    def seconds(self, images: float) -> float:
        """Of a step."""
        return self.fixed + self.per_image * images


class StepModel(NamedTuple):
    """The steps of one device, and of ``devices`` of them with ``images`` each.

    ``batches``: how many batches of one device make one of all: as many as there are copies of the
    network; 1 if one device would have all images, as with --global-batch-size. ``moved``: seconds
    of sum and update, which grow with the network; ``update``: of the update alone, which one
    device has, too.
    """

    one: Line
    several: Line
    devices: int
    images: float
    batches: float
    moved: float
    update: float

    def speed_up(self, images: float) -> float:
        """Images/s of all devices, with so many images each, over those of one."""
        of_one = self.one.seconds(images * self.devices / self.batches)
        return self.batches * of_one / self.several.seconds(images)

    def pays_from(self, speed_up: float = 1.0) -> Optional[float]:
        """The images per device from which on all batches have this speed-up.

        0: any batch has it; None: no large one has.
        """
        n, s = self.devices, speed_up
        missing = s * self.several.fixed - self.batches * self.one.fixed
        gained = n * self.one.per_image - s * self.several.per_image
        if gained <= 0:
            return 0.0 if missing <= 0 == gained else None
        return max(0.0, missing / gained)

    def largest_network(self) -> Optional[float]:
        """How many times as large gradients may be until all devices are only as fast as one.

        The rest of the step stays; None: that may be as large as they like.
        """
        n = self.batches
        of_one = self.one.seconds(self.images * self.devices / n)
        room = n * (of_one - self.update) - (self.several.seconds(self.images) - self.moved)
        grows = self.moved - n * self.update
        if grows <= 0:
            return None
        return max(0.0, room / grows)


def model(
    found: Parts, one_step: float, devices: int, images: int, images_of_one: int
) -> StepModel:
    """The model of what was measured; ``images``: of a step of all devices."""
    each = images / devices
    passes = found.passes
    slope = max(0.0, passes - found.fixed) / each
    alone = max(0.0, passes - found.shared) / passes if passes else 1.0
    per_image = slope + found.input / each
    slope_of_one = min(slope * alone + found.input / images, one_step / images_of_one)
    return StepModel(
        one=Line(one_step - slope_of_one * images_of_one, slope_of_one),
        several=Line(max(0.0, found.step - per_image * each), per_image),
        devices=devices,
        images=each,
        batches=images / images_of_one,
        moved=found.sum + found.waiting + found.update,
        update=min(found.update, one_step),
    )
