"""python -m gluonlab.data NAME: options of the commands about data sets."""

from __future__ import annotations

import sys
from typing import Any, Dict, Optional, Sequence

import click

from gluonlab.cli import command, dispatch
from gluonlab.config import TrainConfig
from gluonlab.errors import ConfigError


@command("python -m gluonlab.data pack", interrupted="interrupted: nothing was written")
@click.argument("name", metavar="NAME", required=False)
@click.option("--out", metavar="DIR", help="the new folder")
@click.option("--data-dir", metavar="DIR", help="the folder that holds the data set's files")
@click.option("--image-size", metavar="PIXELS", help="width and height of all images (default: their own, at most 224)")
@click.option("--decoders", metavar="N", help="processes that decode image files (default: one for each core)")
@click.option("--skip-bad", is_flag=True, help="leave out images that cannot be decoded")
def pack(name: Optional[str], out: Optional[str], **given: Any) -> None:
    """Decode a data set of image files once, such as folder:PATH or imagenette2-320.

    Training then reads pixels: python -m gluonlab.run --dataset folder:DIR
    """
    if name is None or out is None:
        lacks = "the data set" if name is None else "--out DIR"
        raise ConfigError(f"pack lacks {lacks}: write python -m gluonlab.data pack folder:PATH --out DIR")
    from gluonlab.data.pack import pack as write
    from gluonlab.data.registry import load_dataset
    from gluonlab.training.plan import file_options

    settings: Dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    config = TrainConfig(dataset=name, resident_bytes=0, **settings)
    dataset = load_dataset(config.dataset, config.data_dir, **file_options(config))
    size = write(dataset, out)
    images = f"{len(dataset.train):,} training and {len(dataset.test):,} validation images"
    pixels = "x".join(map(str, dataset.image_shape))
    click.echo(f"packed {images} of {pixels}, {size / 2**20:,.1f} MiB: python -m gluonlab.run --dataset folder:{out}")


COMMANDS = {"pack": ("decode the images of a data set once", pack)}


def main(args: Optional[Sequence[str]] = None) -> None:
    """Hand the remaining options to the command that is named first."""
    dispatch("python -m gluonlab.data", COMMANDS, sys.argv[1:] if args is None else args)


if __name__ == "__main__":
    main()
