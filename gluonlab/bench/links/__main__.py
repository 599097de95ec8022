"""Command ``gluonlab bench links``: measures latency and bandwidth between all pairs of devices."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any, Dict, Optional, Sequence

import click
from click.core import ParameterSource

from gluonlab.bench.allreduce.message_sizes import parse_sizes
from gluonlab.bench.harness.machine_info import describe_machine
from gluonlab.bench.harness.measurement_command import INTERRUPTED, JSON_OPTION, MeasurementSession, option
from gluonlab.bench.harness.table_format import WIDTH
from gluonlab.cli.command import command
from gluonlab.config.option_checks import whole_number_check
from gluonlab.errors import ConfigError, DeviceError
from gluonlab.files.atomic_files import check_new_path, new_file
from gluonlab.plain_text import json_text

DEFAULT_DEVICES, DEFAULT_SIZES, DEFAULT_ROUNDS = "cpu*2", "4KiB,64KiB,1MiB,16MiB", 7


@command(
    "gluonlab bench links",
    INTERRUPTED,
    most_used="--devices --bytes --rounds --save --nvml --json",
    renamed={"--sizes": "--bytes"},
)
@option("--devices", "SPEC", "devices to use, such as gpu:*, gpu:0,2 or cpu*4, or a number of GPUs", DEFAULT_DEVICES)
@option("--bytes", "SIZES", "at least two sizes of copies between devices", DEFAULT_SIZES)
@option("--rounds", "N", "number of measurements of each copy", str(DEFAULT_ROUNDS))
@option("--save", "FILE", "write the topology to a new file, such as m.json, for use with other commands")
@click.option(
    "--nvml",
    is_flag=True,
    help="with --save: save the links and nominal speeds that the driver reports, without measuring them",
)
@JSON_OPTION
def links_command(as_json: bool, devices: str, bytes: str, rounds: str, save: Optional[str], nvml: bool) -> None:
    """Measure latency and bandwidth between all pairs of devices.

    The measurement also finds shared links. Predictions from measured speeds are more accurate than
    predictions from nominal speeds. Other commands accept the saved file instead of the name of a
    machine:

    \b
    gluonlab bench links --devices 'gpu:*' --save m.json
    gluonlab bench links --nvml --save m.json
    gluonlab allreduce simulate m.json
    gluonlab run --gpus 8 --kvstore ring --topology m.json
    gluonlab study speedup --predict m.json
    """
    copy_sizes, count = parse_sizes(bytes), whole_number_check(1)("--rounds", rounds)
    if len(copy_sizes) < 2:
        raise ConfigError(
            f"--bytes {bytes}: measuring latency and bandwidth requires at least two sizes: pass more sizes, "
            f"such as {DEFAULT_SIZES}"
        )
    if save is not None:
        _check_save_file(save)
    if nvml:
        click.echo(_save_driver_topology(save, as_json))
        return
    click.echo(_measure_and_save(copy_sizes, count, devices, save, as_json))


def _check_save_file(save: str) -> None:
    """Raise an error unless ``save`` is a new file with the suffix of topology files."""
    from gluonlab.collectives.topology_file import SUFFIX, is_file_name

    if not is_file_name(save):
        raise ConfigError(f"--save {save}: must end in {SUFFIX}")
    check_new_path("--save", Path(save))


def _save_driver_topology(save: Optional[str], as_json: bool) -> str:
    """Reject options that --nvml excludes, and save the topology that the driver reports."""
    context = click.get_current_context()
    for name in ("devices", "bytes", "rounds"):
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise ConfigError(f"--{name} has no effect with --nvml, which measures nothing: omit --{name}")
    if save is None:
        raise ConfigError(
            "--nvml saves the links that the driver reports: set the output file, for example with --save m.json"
        )

    from gluonlab.bench.links.topology_from_links import save_reported_topology

    return save_reported_topology(save, as_json)


def _measure_and_save(sizes: Sequence[int], rounds: int, spec: str, save: Optional[str], as_json: bool) -> str:
    """Measure links, save the topology if requested, and return the text to print."""
    # MXNet is loaded here, not for the other commands
    from gluonlab.bench.harness.measurement_command import describe_devices
    from gluonlab.bench.links import topology_from_links
    from gluonlab.bench.links.measure_links import format_measurement, measure_links
    from gluonlab.collectives.topology_file import write_topology
    from gluonlab.devices import devices as devices_of

    ctxs = devices_of(spec)
    if len(ctxs) < 2:
        raise DeviceError(f"--devices {spec}: a link connects two devices: pass at least two devices")
    ctxs = ctxs if save is None else topology_from_links.order_devices(ctxs)
    session = MeasurementSession()
    measurement = measure_links(ctxs, sizes, rounds)
    session.warn_if_busy()
    if save is not None:
        with new_file("--save", Path(save)) as temporary:
            write_topology(topology_from_links.topology_from_measurement(measurement, ctxs, Path(save).stem), temporary)
    if as_json:
        head: Dict[str, Any] = {"machine": describe_machine(), "on": describe_devices(ctxs)}
        return json_text({**head, "devices": [str(ctx) for ctx in ctxs], **measurement.as_json()})
    lines = [describe_machine(), textwrap.fill(f"devices: {describe_devices(ctxs)}", WIDTH), ""]
    written = [] if save is None else ["", f"written to {save}: use it with gluonlab allreduce simulate {save}"]
    return "\n".join([*lines, format_measurement(measurement), *written])


if __name__ == "__main__":
    links_command()
