"""Settings in a file: --config reads TOML, JSON, or a run's config.json; --save-config writes.

A file holds names of options, as on the command line, with dashes or underscores. What stands on
the command line counts, and then the file; paths are relative to where the command is started.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import click

from gluonlab.config import TrainConfig, option_name
from gluonlab.config.command_line import FROM_FILE, Setting
from gluonlab.config.option_hints import nearest
from gluonlab.config.option_types import flag
from gluonlab.errors import ConfigError, DataError, unknown
from gluonlab.files.atomic_files import check_new, read_bounded, write_text

TOML, JSON = ".toml", ".json"
# TOML's readers take the square of a dotted key's length; config.json has the classes' names
LARGEST_BYTES = {TOML: 2**14, JSON: 2**24}
MOST_BRACKETS = 1000  # compiled readers of TOML may follow them until the stack is full
HOW = f"give a file of settings that ends in {TOML} or {JSON}, such as --save-config writes"
NO_VALUES = {dict: "a table", list: "a list that holds more", int: "too large a number"}
FIELDS = {field.name: field for field in dataclasses.fields(TrainConfig)}


def config_file(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command with `config_options` the option --config."""

    def read(ctx: click.Context, param: click.Parameter, path: Optional[str]) -> None:
        if path is not None:
            ctx.meta[FROM_FILE] = read_settings(path, ctx.command)

    return click.option(
        "--config", metavar="FILE", callback=read, is_eager=True, expose_value=False,
        help="settings of a TOML or JSON file, or a run's config.json; options given here win",
    )(function)  # fmt: skip


def read_settings(path: str, command: click.Command) -> Dict[str, Any]:
    """The settings in a file, checked: fields of TrainConfig.

    Of a run's config.json they are those that are not the default, without ``out``, which is that
    run's folder, nor what else the command does not take. Raises ConfigError, in one line that
    names file and key.
    """
    taken = {each.name for each in command.params if isinstance(each, Setting) and each.name}
    others = {name for each in command.params for name in each.opts} - set(map(option_name, taken))
    where = f"--config {path}"
    content, is_run = _content(path, where)
    found: Dict[str, Any] = {}
    for key, value in content.items():
        option = option_name(key)
        if option in others and not is_run:
            raise ConfigError(f"{where}: {key} is no setting: write {option} as an option")
        if isinstance(value, dict) and key.replace("-", "_") not in FIELDS:
            raise ConfigError(
                f"{where}: [{key[:80]}] is a table: write its settings without one, as epochs = 5"
            )
        name = _name(key, where)
        if value is None or (is_run and (name == "out" or value == FIELDS[name].default)):
            continue
        if name not in taken:
            if is_run:  # it says what a run writes
                continue
            raise ConfigError(f"{where}: this command has no {key}: leave it out")
        if name in found:
            raise ConfigError(f"{where}: {key} is there twice: give it once")
        found[name] = _checked(f"{where}: {key}", name, value)
    try:
        TrainConfig(**found)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return found


def _content(path: str, where: str) -> Tuple[Dict[str, Any], bool]:
    """What a file holds, and whether a run has written it."""
    ending = Path(path).suffix.lower()
    if ending not in LARGEST_BYTES:
        from gluonlab.runs.run_schema import CONFIG

        ours = Path(path) / CONFIG
        how = f"it is a run's folder: give its file, {ours}" if ours.is_file() else HOW
        raise ConfigError(f"{where}: {how}")
    try:
        text = read_bounded(Path(path), LARGEST_BYTES[ending]).decode("utf-8-sig")
    except DataError as error:
        raise ConfigError(f"--config {error}: {HOW}") from None
    except OSError as error:
        raise ConfigError(f"{where} cannot be read ({error.strerror or error}): {HOW}") from None
    except UnicodeDecodeError as error:
        said = f"byte {error.start} is no UTF-8"
        raise ConfigError(f"{where} cannot be read ({said}): {HOW}") from None
    try:
        content = _toml(text) if ending == TOML else _json(text)
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:
        why = " ".join(str(error).split())[:80]
        raise ConfigError(f"{where} is no {ending[1:].upper()} ({why}): mend it") from None
    if not isinstance(content, dict):
        raise ConfigError(f'{where} holds no settings by name: write {{"epochs": 5}}')
    if ending == JSON and isinstance(content.get("config"), dict):
        return _of_run(path, content), True
    return content, False


def _toml(text: str) -> Any:
    if sys.version_info >= (3, 11):
        import tomllib as reader
    else:
        try:
            import tomli as reader
        except ImportError:
            raise ConfigError(
                "to read TOML, Python before 3.11 needs tomli: pip install tomli, or give JSON"
            ) from None
    if text.count("[") + text.count("{") > MOST_BRACKETS:
        raise ValueError(f"more than {MOST_BRACKETS} brackets")
    return reader.loads(text)


def _json(text: str) -> Any:
    def once(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
            raise ValueError(f"the key {twice[:40]!r} is there twice")
        return found

    def no_number(name: str) -> None:
        raise ValueError(f"{name} is no number")

    return json.loads(text, parse_constant=no_number, object_pairs_hook=once)


def _of_run(path: str, content: Mapping[str, Any]) -> Dict[str, Any]:
    from gluonlab.runs.run_reader import parse_description

    try:
        found = parse_description(Path(path).parent, content, f"--config {path}", HOW)
    except DataError as error:
        raise ConfigError(str(error)) from None
    if found.is_comparison:
        raise ConfigError(f"--config {path} is of a comparison: give that of one of its runs")
    return found.requested


def _name(key: str, where: str) -> str:
    """The field that a key names."""
    name = key.replace("-", "_")
    if name in FIELDS:
        return name
    meant = nearest(f"--{key[:80]}", [option_name(each) for each in FIELDS])
    if meant is not None:
        raise ConfigError(f"{where}: unknown key {key!r}: did you mean {meant[2:]!r}?")
    raise ConfigError(f"{where}: {unknown('key', key[:80], FIELDS)}")


def _checked(where: str, name: str, value: Any) -> Any:
    if not _is_plain(value):
        given = NO_VALUES.get(type(value)) or repr(value)
        raise ConfigError(f"{where} is {given}: give text, a number, true, false or a list of them")
    if FIELDS[name].metadata["check"] is flag and not isinstance(value, bool):
        raise ConfigError(f"{where} {json.dumps(value)}: give true or false")
    return FIELDS[name].metadata["check"](where, value)


def _is_plain(value: Any, levels: int = 2) -> bool:
    """Whether a command line could say it: no table, no date, no character that is none."""
    if isinstance(value, list):
        return levels > 0 and all(_is_plain(each, levels - 1) for each in value)
    if isinstance(value, str):
        return "\0" not in value and _is_text(value)
    # of longer ones, written in base 16, Python refuses to make text
    return isinstance(value, (bool, float)) or (isinstance(value, int) and abs(value) < 2**128)


def _is_text(value: str) -> bool:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def save_settings(path: str, given: Mapping[str, Any]) -> None:
    """Write settings, checked, as a new file that --config reads: TOML or JSON, by its ending.

    Raises ConfigError and OutputError.
    """
    ending, checked = Path(path).suffix.lower(), TrainConfig(**given).to_dict()
    if ending not in LARGEST_BYTES:
        raise ConfigError(f"--save-config {path}: give a new file that ends in {TOML} or {JSON}")
    values = {name: checked[name] for name in FIELDS if name in given}
    values = {name: value for name, value in values.items() if value is not None}
    for name, value in values.items():
        if not _is_plain(value):
            said = "has bytes that are no text, which a file of settings cannot hold"
            raise ConfigError(f"{option_name(name)} {value} {said}: give another one")
    check_new("--save-config", Path(path))
    lines = [(option_name(name)[2:], _written(value)) for name, value in values.items()]
    if ending == TOML:
        text = "".join(f"{key} = {value}\n" for key, value in lines)
    else:
        text = "{\n" + ",\n".join(f'  "{key}": {value}' for key, value in lines) + "\n}\n"
    write_text(Path(path), text, "choose another file with --save-config")


def _written(value: Any) -> str:
    """As both formats have it; TOML, unlike JSON, does not take the character 127 as it is."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
