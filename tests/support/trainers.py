"""Trainers whose states are saved and loaded."""

from gluonlab.optimizers.registry import make_optimizer


def made(optimizer, params):
    """What a Trainer takes: MXNet's by its name, or one of gluonlab's own."""
    return (
        (make_optimizer(optimizer[4:], params),)
        if optimizer.startswith("own ")
        else (optimizer, params)
    )
