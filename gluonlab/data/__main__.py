"""The command gluonlab data, with the subcommands list, download, verify, path, pack."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any, Dict, Optional, Sequence

import click

from gluonlab.cli.command import add_json_option, command, run_subcommand
from gluonlab.config import TrainConfig
from gluonlab.config.option_checks import check_text, real_number_check
from gluonlab.data.fetching.data_folders import DAMAGED, OK, data_root, download_command, find_dataset_folder
from gluonlab.data.fetching.data_folders import verify_files as _verify
from gluonlab.data.fetching.download import MIN_BYTES_PER_S, TIMEOUT_S
from gluonlab.data.fetching.download import download as _download
from gluonlab.data.fetching.download_sources import SOURCES, Source, find_source
from gluonlab.data.sets.dataset_registry import (
    DATASETS,
    accepts_option,
    has_image_files,
    image_file_datasets,
    load_dataset,
)
from gluonlab.errors import ConfigError, DataError, RunError
from gluonlab.plain_text import json_text

RUN_COMMAND = "gluonlab run --dataset"
KEPT_HINT = "downloaded files are kept: run the same command again to resume"
LONGEST_TIMEOUT_S = 86_400
SourceTable = Dict[str, Source]


FOLDER = "directory that contains all data sets  [default: $GLUONLAB_DATA, or ~/.cache/gluonlab]"
MIRROR = "mirror to try first, at URL/FILE and then at URL/NAME/FILE"
TIMEOUT = "time limit for a connection that sends no data"
TIMEOUT += f", or less than {MIN_BYTES_PER_S:,} bytes per second"
IMAGE_SIZE = "resize and crop images to this width and height  [default: the original size, but at most 224]"
VAL_SPLIT = "fraction of each class's images to use for validation, if there is no val folder"
WORKERS = "number of processes that decode images  [default: one per core]"
_in_folder = click.option("--data-dir", metavar="DIR", help=FOLDER)
_as_json = add_json_option()


def _resolve_root(data_dir: Optional[str]) -> Path:
    return data_root(None if data_dir is None else check_text("--data-dir", data_dir))


def _find_source(name: str, sources: SourceTable) -> Source:
    """Return the download source of a data set. Raises DataError if there is no source."""
    if name not in DATASETS or name in sources:
        return find_source(name, sources)
    if not accepts_option(name, "root"):
        raise DataError(f"{name} needs no download: choose {', '.join(sources)}")
    # The data set has files, but no known address.
    smaller = ", ".join([other for other in sources if other.startswith(f"{name}-")] or sources)
    raise DataError(
        f"gluonlab cannot download {name}, because its address and digest are unknown: choose {smaller}, "
        f"or download {name} yourself and unpack it in the folder that --data-dir names"
    )


@command("gluonlab data list")
@_in_folder
@_as_json
@click.pass_obj
def list_sources(sources: SourceTable, data_dir: Optional[str], as_json: bool) -> None:
    """List the data sets, and show which of them are downloaded."""
    root = _resolve_root(data_dir)
    folders = {name: find_dataset_folder(source, root) for name, source in sources.items()}
    if as_json:
        rows = [
            {"name": name, "bytes": source.size, "folder": folders[name] and str(folders[name])}
            for name, source in sources.items()
        ]
        click.echo(json_text(rows))
        return
    for name, source in sources.items():
        click.echo(f"{name:<18}{source.size / 2**20:>6.0f} MiB  {folders[name] or 'not here'}")


@command("gluonlab data download", interrupted=KEPT_HINT)
@click.argument("name")
@_in_folder
@click.option("--mirror", metavar="URL", help=MIRROR)
@click.option("--timeout", metavar="SECONDS", default=str(TIMEOUT_S), show_default=True, help=TIMEOUT)
@click.pass_obj
def download(sources: SourceTable, name: str, data_dir: Optional[str], mirror: Optional[str], timeout: str) -> None:
    """Download the data set NAME, and verify it.

    Complete files are not downloaded again, and an interrupted download is resumed. Proxies are
    read from environment variables such as HTTPS_PROXY.
    """
    source, root = _find_source(name, sources), _resolve_root(data_dir)
    timeout_s = real_number_check(0, LONGEST_TIMEOUT_S, above_minimum=True)("--timeout", timeout)
    folder = _download(source, root, mirror, timeout_s, log=partial(click.echo, err=True))
    click.echo(f"{name} is complete in {folder}")


@command("gluonlab data verify")
@click.argument("name")
@_in_folder
@_as_json
@click.pass_obj
def verify(sources: SourceTable, name: str, data_dir: Optional[str], as_json: bool) -> None:
    """Check the files of the data set NAME against their digests.

    The exit status is 1 if a file is missing or damaged. For an unpacked archive, the command
    prints only missing and damaged files.
    """
    source, root = _find_source(name, sources), _resolve_root(data_dir)
    findings = _verify(source, root)
    failures = [finding for finding in findings if finding.state != OK]
    if as_json:
        rows = [{**finding._asdict(), "path": str(finding.path)} for finding in findings]
        click.echo(json_text(rows))
    else:
        lines = "\n".join(map(str, failures if len(findings) > 20 else findings))
        click.echo(lines or f"{OK:<8}{len(findings):,} files of {name}")
    if failures:
        damaged = sum(finding.state == DAMAGED for finding in failures)
        counts = f"{damaged:,} damaged and {len(failures) - damaged:,} missing files out of {len(findings):,}"
        raise RunError(f"{name} has {counts}: run {download_command(name, data_dir)}")


@command("gluonlab data path")
@click.argument("name")
@_in_folder
@click.pass_obj
def path(sources: SourceTable, name: str, data_dir: Optional[str]) -> None:
    """Print the path of the data set NAME, if the data set is complete."""
    source, root = _find_source(name, sources), _resolve_root(data_dir)
    folder = find_dataset_folder(source, root)
    if folder is None:
        raise DataError(f"{name} was not found in {root}: run {download_command(name, data_dir)}")
    click.echo(folder)


@command(
    "gluonlab data pack",
    interrupted="nothing was written",
    renamed={"--decoders": "--workers", "--skip-bad": "--skip-corrupt", "--val-share": "--val-split"},
)
@click.argument("name", metavar="NAME", required=False)
@click.option("--out", metavar="DIR", help="new folder for the packed data set")
@click.option("--data-dir", metavar="DIR", help="directory with the files of the data set")
@click.option("--image-size", metavar="PIXELS", help=IMAGE_SIZE)
@click.option("--workers", "-j", metavar="N", help=WORKERS)
@click.option("--skip-corrupt", is_flag=True, help="skip images that cannot be decoded")
@click.option("--val-split", metavar="FRACTION", help=VAL_SPLIT)
def pack(name: Optional[str], out: Optional[str], **given: Any) -> None:
    """Decode the images of a data set once, and save their pixels.

    NAME is a data set of image files, such as folder:PATH, record:FILE or imagenette2-320. To train
    with the saved pixels, run gluonlab run --dataset folder:DIR
    """
    if name is None or out is None:
        missing = "the data set" if name is None else "--out DIR"
        raise ConfigError(f"gluonlab data pack requires {missing}: run gluonlab data pack folder:PATH --out DIR")
    if not has_image_files(name):
        raise ConfigError(f"{name} has no image files to decode: choose {', '.join(image_file_datasets())}")
    from gluonlab.data.sets.packed_folder import check_new_folder
    from gluonlab.data.sets.packed_folder import pack_dataset as write
    from gluonlab.training.image_loader_options import image_file_options

    settings: Dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    config = TrainConfig(dataset=name, device_cache_bytes=0, **settings)
    check_new_folder(out)  # with --skip-corrupt the images are tried while the data set is loaded
    dataset = load_dataset(config.dataset, config.data_dir, **image_file_options(config))
    size = write(dataset, out)
    images = f"{len(dataset.train):,} training and {len(dataset.test):,} validation images"
    pixels = "x".join(map(str, dataset.image_shape))
    click.echo(f"packed {images} of {pixels}, {size / 2**20:,.1f} MiB: {RUN_COMMAND} folder:{out}")


COMMANDS = dict(list=list_sources, download=download, verify=verify, path=path, pack=pack)


def main(args: Optional[Sequence[str]] = None, sources: SourceTable = SOURCES) -> None:
    """Run the subcommand whose name is the first argument."""
    commands = {
        name: (subcommand.get_short_help_str(100), partial(subcommand, obj=sources))
        for name, subcommand in COMMANDS.items()
    }
    run_subcommand("gluonlab data", commands, sys.argv[1:] if args is None else args)


if __name__ == "__main__":
    main()
