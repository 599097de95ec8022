"""Old names of a run's settings, which still work.

They may appear in ``TrainConfig(...)``, on the command line, in settings files, and in run folders
that older versions of gluonlab wrote.
"""

from __future__ import annotations

import warnings
from typing import Any, Dict, Mapping

# old name -> current name
RENAMED_SETTINGS = {
    "normalise": "normalize",  # codespell:ignore normalise
    "skip_bad": "skip_corrupt",
    "val_share": "val_split",
    "resident_bytes": "device_cache_bytes",
    "decoders": "workers",
    "memory": "estimate_memory",
    "keep": "keep_checkpoints",
    "overlap": "backward_bulk_size",
    "split": "strategy",
    "ways": "tensor_parallel",
    "stages": "pipeline_parallel",
    "channels": "tensor_parallel_mode",
}
# name of the setting, old or current -> {old value: current value}
RENAMED_VALUES = {
    "split": {"channels": "tensor"},
    "kvstore": {"synthesised": "synthesized"},  # codespell:ignore synthesised
}
RENAMED_KVSTORES = RENAMED_VALUES["kvstore"]  # also names of allreduce algorithms


def option_name(setting: str) -> str:
    """Return the option of a setting: ``--batch-size`` for ``batch_size``."""
    return "--" + setting.replace("_", "-")


def opposite_option(name: str) -> str:
    """Return the option that disables another: ``--no-flip`` for ``--flip``, and vice versa."""
    return f"--{name[len('--no-') :]}" if name.startswith("--no-") else f"--no-{name[len('--') :]}"


# Old form -> current form on the command line, for `gluonlab.cli.command.command`.
RENAMED_OPTIONS = {
    **{option_name(old): option_name(new) for old, new in RENAMED_SETTINGS.items()},
    **{
        f"{option_name(old)} {value}": f"{option_name(RENAMED_SETTINGS.get(old, old))} {new}"
        for old, values in RENAMED_VALUES.items()
        for value, new in values.items()
    },
    "--export": "--export mxnet",
}


def current_settings(settings: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the settings with their current names and values.

    >>> current_settings({"split": "channels", "epochs": 2})
    {'strategy': 'tensor', 'epochs': 2}
    """
    result = {}
    for name, value in settings.items():
        values = RENAMED_VALUES.get(name, {})
        result[RENAMED_SETTINGS.get(name, name)] = values.get(value, value) if isinstance(value, str) else value
    if isinstance(result.get("schedules"), list):  # recorded texts such as "1 B ring (6 steps, 4 chunks)"
        result["schedules"] = [
            " ".join(RENAMED_KVSTORES.get(word, word) for word in str(text).split(" ")) for text in result["schedules"]
        ]
    return result


def warn_of_old_settings(settings: Mapping[str, Any], stacklevel: int) -> None:
    """Warn about each old setting name or value. ``stacklevel``: as in ``warnings.warn``."""
    for old in RENAMED_SETTINGS.keys() & settings:
        warnings.warn(f"{old} is now {RENAMED_SETTINGS[old]}", DeprecationWarning, stacklevel=stacklevel + 1)
    if "kvstore" in settings:
        current_kvstore(settings["kvstore"], stacklevel + 1)


def current_kvstore(name: Any, stacklevel: int) -> Any:
    """Return a kvstore's current name. Warn about an old name, as `warn_of_old_settings` does.

    >>> current_kvstore("ring", 1)
    'ring'
    """
    current = RENAMED_KVSTORES.get(name, name) if isinstance(name, str) else name
    if current != name:
        warnings.warn(f"kvstore {name!r} is now {current!r}", DeprecationWarning, stacklevel=stacklevel + 1)
    return current
