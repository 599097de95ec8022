"""A network's images, where running statistics are looked at."""

SHAPE = (3, 12, 12)
