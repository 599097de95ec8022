"""Reads settings files for --config, and writes them for --save-config.

A settings file is TOML or JSON, or the config.json of a run. Its keys are the names of options,
with dashes or underscores. Options on the command line override the file. Paths in the file are
relative to the folder in which the command is started.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import click

from gluonlab.cli.old_names import warn_renamed
from gluonlab.config import TrainConfig, option_name
from gluonlab.config.command_line import FILE_SETTINGS_KEY, SettingOption
from gluonlab.config.option_checks import check_flag
from gluonlab.config.option_hints import nearest_option
from gluonlab.config.renamed_settings import RENAMED_SETTINGS, RENAMED_VALUES, current_settings
from gluonlab.errors import ConfigError, DataError, unknown
from gluonlab.files.atomic_files import check_new_path, read_bounded, write_text

TOML, JSON = ".toml", ".json"
# TOML files must be short, because readers need time quadratic in the length of a dotted key. JSON
# files may be long, because config.json contains the names of all classes.
MAX_FILE_BYTES = {TOML: 2**14, JSON: 2**24}
MAX_BRACKETS = 1000  # compiled readers of TOML may recurse until the stack overflows
FILE_ADVICE = f"use a settings file that ends in {TOML} or {JSON}, for example one from --save-config"
INVALID_VALUE_NAMES = {dict: "a table", list: "a nested list or table", int: "too large a number"}
FIELDS = {field.name: field for field in dataclasses.fields(TrainConfig)}


def add_config_file_option(function: Callable[..., None]) -> Callable[..., None]:
    """Add the option --config to a command that has the options of `add_config_options`."""

    def read(ctx: click.Context, param: click.Parameter, path: Optional[str]) -> None:
        if path is not None:
            ctx.meta[FILE_SETTINGS_KEY] = read_settings(path, ctx.command)

    return click.option(
        "--config", metavar="FILE", callback=read, is_eager=True, expose_value=False,
        help="read settings from a TOML or JSON file, such as a run's config.json; options on the command line "
        "override the file",
    )(function)  # fmt: skip


def read_settings(path: str, command: click.Command) -> Dict[str, Any]:
    """Read and check a settings file; return a dict from fields of TrainConfig to values.

    From a run's config.json, only settings that differ from their defaults and that the command
    supports are returned. ``out``, the run's folder, is left out. Raises ConfigError, which names
    the file and the key.
    """
    supported = {param.name for param in command.params if isinstance(param, SettingOption) and param.name}
    options = {name for param in command.params for name in param.opts}
    other_options = options - set(map(option_name, supported))
    source = f"--config {path}"
    content, is_run = _read_content(path, source)
    settings: Dict[str, Any] = {}
    for key, value in content.items():
        option = option_name(key)
        if option in other_options and not is_run:
            raise ConfigError(f"{source}: {key} is not a setting: use the option {option} instead")
        if isinstance(value, dict) and key.replace("-", "_") not in FIELDS:
            raise ConfigError(
                f"{source}: [{key[:80]}] is a table: write the settings outside of tables, such as epochs = 5"
            )
        old = key.replace("-", "_")
        if old in RENAMED_SETTINGS:
            warn_renamed(f"{source}: {key}", RENAMED_SETTINGS[old])
            [(key, value)] = current_settings({old: value}).items()
        elif isinstance(value, str) and value in RENAMED_VALUES.get(old, {}):
            value = RENAMED_VALUES[old][value]
            warn_renamed(f"{source}: {key} {content[key]}", value)
        name = _field_name(key, source)
        if value is None or (is_run and (name == "out" or value == FIELDS[name].default)):
            continue
        if name not in supported:
            if is_run:
                continue
            raise ConfigError(f"{source}: this command does not use {key}: remove it")
        if name in settings:
            raise ConfigError(f"{source}: {key} is set twice: remove one of the two settings")
        settings[name] = _check_value(f"{source}: {key}", name, value)
    try:
        TrainConfig(**settings)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    return settings


def _read_content(path: str, source: str) -> Tuple[Dict[str, Any], bool]:
    """Return the settings in a file, and whether the file is a run's config.json.

    ``source``: the option and the path, for messages.
    """
    ending = Path(path).suffix.lower()
    if ending not in MAX_FILE_BYTES:
        from gluonlab.runs.run_schema import CONFIG

        config_path = Path(path) / CONFIG
        advice = f"it is a run directory: use its file {config_path}" if config_path.is_file() else FILE_ADVICE
        raise ConfigError(f"{source}: {advice}")
    try:
        text = read_bounded(Path(path), MAX_FILE_BYTES[ending]).decode("utf-8-sig")
    except DataError as error:
        raise ConfigError(f"--config {error}: {FILE_ADVICE}") from None
    except OSError as error:
        raise ConfigError(f"{source} cannot be read ({error.strerror or error}): {FILE_ADVICE}") from None
    except UnicodeDecodeError as error:
        reason = f"byte {error.start} is not valid UTF-8"
        raise ConfigError(f"{source} cannot be read ({reason}): {FILE_ADVICE}") from None
    try:
        content = _parse_toml(text) if ending == TOML else _parse_json(text)
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:80]
        raise ConfigError(f"{source} is not valid {ending[1:].upper()} ({reason}): fix the file") from None
    if not isinstance(content, dict):
        raise ConfigError(f'{source} must contain a JSON object of settings, such as {{"epochs": 5}}: fix the file')
    if ending == JSON and isinstance(content.get("config"), dict):
        return _run_settings(path, content), True
    return content, False


def _parse_toml(text: str) -> Any:
    """Parse TOML. Raises ConfigError if no parser is installed, and ValueError for invalid text."""
    if sys.version_info >= (3, 11):
        import tomllib as reader
    else:
        try:
            import tomli as reader
        except ImportError:
            raise ConfigError(
                "reading a TOML file with Python before 3.11 requires tomli: run pip install tomli, or use a JSON file"
            ) from None
    if text.count("[") + text.count("{") > MAX_BRACKETS:
        raise ValueError(f"it contains more than {MAX_BRACKETS} brackets")
    return reader.loads(text)


def _parse_json(text: str) -> Any:
    """Parse JSON. Raises ValueError for repeated keys, NaN and infinity."""

    def reject_repeated_keys(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
        """Return the pairs as a dict. Raises ValueError if a key occurs twice."""
        values = dict(pairs)
        if len(values) < len(pairs):
            repeated, _ = Counter(key for key, _ in pairs).most_common(1)[0]
            raise ValueError(f"the key {repeated[:40]!r} occurs twice")
        return values

    def reject_constant(name: str) -> None:
        raise ValueError(f"{name} is not a valid number")

    return json.loads(text, parse_constant=reject_constant, object_pairs_hook=reject_repeated_keys)


def _run_settings(path: str, content: Mapping[str, Any]) -> Dict[str, Any]:
    """Return all settings of a run, including defaults, from the run's config.json."""
    from gluonlab.runs.run_reader import parse_description

    try:
        run = parse_description(Path(path).parent, content, f"--config {path}", FILE_ADVICE)
    except DataError as error:
        raise ConfigError(str(error)) from None
    if run.is_comparison:
        raise ConfigError(f"--config {path} belongs to a comparison: use the file config.json of one of its runs")
    return run.requested


def _field_name(key: str, source: str) -> str:
    """Return the name of TrainConfig's field for a key. Raises ConfigError for an unknown key."""
    name = key.replace("-", "_")
    if name in FIELDS:
        return name
    option = nearest_option(f"--{key[:80]}", [option_name(each) for each in FIELDS])
    if option is not None:
        raise ConfigError(f"{source}: unknown key {key!r}: did you mean {option[2:]!r}?")
    raise ConfigError(f"{source}: {unknown('key', key[:80], FIELDS)}")


def _check_value(source: str, name: str, value: Any) -> Any:
    """Check and convert a value of the file. ``source``: file and key, for messages."""
    if not _is_plain_value(value):
        description = INVALID_VALUE_NAMES.get(type(value)) or repr(value)
        raise ConfigError(f"{source} is {description}: use text, a number, true or false, or a list of such values")
    if FIELDS[name].metadata["check"] is check_flag and not isinstance(value, bool):
        raise ConfigError(f"{source} {json.dumps(value)}: must be true or false")
    return FIELDS[name].metadata["check"](source, value)


def _is_plain_value(value: Any, levels: int = 2) -> bool:
    """Return whether a value is text, a number, a boolean, or a list (of lists) of these values.

    ``levels``: how many levels of lists are allowed.
    """
    if isinstance(value, list):
        return levels > 0 and all(_is_plain_value(each, levels - 1) for each in value)
    if isinstance(value, str):
        return "\0" not in value and _is_valid_utf8(value)
    # Larger numbers are refused, because Python cannot convert very long numbers to text.
    return isinstance(value, (bool, float)) or (isinstance(value, int) and abs(value) < 2**128)


def _is_valid_utf8(value: str) -> bool:
    """Return whether UTF-8 can encode the text. UTF-8 cannot encode lone surrogates."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def save_settings(path: str, settings: Mapping[str, Any]) -> None:
    """Write settings to a new file for --config: TOML or JSON, depending on the suffix.

    Raises ConfigError and OutputError.
    """
    ending, checked = Path(path).suffix.lower(), TrainConfig(**settings).to_dict()
    if ending not in MAX_FILE_BYTES:
        raise ConfigError(f"--save-config {path}: choose a new file that ends in {TOML} or {JSON}")
    values = {name: checked[name] for name in FIELDS if name in settings}
    values = {name: value for name, value in values.items() if value is not None}
    for name, value in values.items():
        if not _is_plain_value(value):
            reason = "contains bytes that a settings file cannot store"
            raise ConfigError(f"{option_name(name)} {value} {reason}: choose another value")
    check_new_path("--save-config", Path(path))
    lines = [(option_name(name)[2:], _format_value(value)) for name, value in values.items()]
    if ending == TOML:
        text = "".join(f"{key} = {value}\n" for key, value in lines)
    else:
        text = "{\n" + ",\n".join(f'  "{key}": {value}' for key, value in lines) + "\n}\n"
    write_text(Path(path), text, "choose another file with --save-config")


def _format_value(value: Any) -> str:
    """Format a value as JSON that is also valid TOML; TOML requires character 127 to be escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
