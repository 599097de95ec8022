"""Lifecycle configuration of a notebook: the scripts that AWS runs on creation and on each start.

The configuration has the notebook's name. `sagemaker/lifecycle.py` builds its scripts.
"""

from __future__ import annotations

import base64
from typing import Any, Dict, List

import lifecycle
from gluonlab_sagemaker.calls import Caller
from gluonlab_sagemaker.errors import AWSError, RefusedError

_CONFIG = "NotebookInstanceLifecycleConfig"


def encode_scripts(settings: Dict[str, str]) -> Dict[str, Any]:
    """Return the API's parameters OnCreate and OnStart."""
    try:
        return {
            key: [{"Content": lifecycle.encode_script(lifecycle.build_script(name, settings))}]
            for key, name in (("OnCreate", "on-create"), ("OnStart", "on-start"))
        }
    except ValueError as error:
        raise RefusedError(f"AWS would refuse the start scripts: {error}") from error


def ensure_lifecycle_config(caller: Caller, name: str, settings: Dict[str, str], tags: List[Dict[str, str]]) -> None:
    """Create the configuration, or update one that an earlier attempt created."""
    content = {f"{_CONFIG}Name": name, **encode_scripts(settings)}
    try:
        current = caller("sagemaker", f"Describe{_CONFIG}", **{f"{_CONFIG}Name": name})
    except AWSError as error:
        if not error.is_not_found:
            raise
        caller("sagemaker", f"Create{_CONFIG}", **content, Tags=tags)
        return
    if not _has_gluonlab_scripts(current):
        raise RefusedError(
            f"the lifecycle configuration {name} exists, but was not created by this program: choose another --name"
        )
    if any(current.get(key) != content[key] for key in ("OnCreate", "OnStart")):
        caller("sagemaker", f"Update{_CONFIG}", **content)


def delete_lifecycle_config(caller: Caller, name: str) -> bool:
    """Delete the configuration; return False if there is none with gluonlab's scripts."""
    try:
        if not _has_gluonlab_scripts(caller("sagemaker", f"Describe{_CONFIG}", **{f"{_CONFIG}Name": name})):
            return False
    except AWSError as error:
        if error.is_not_found:
            return False
        raise
    caller("sagemaker", f"Delete{_CONFIG}", **{f"{_CONFIG}Name": name})
    return True


def _has_gluonlab_scripts(config: Dict[str, Any]) -> bool:
    # DescribeNotebookInstanceLifecycleConfig does not return tags.
    contents = [script.get("Content", "") for key in ("OnCreate", "OnStart") for script in config.get(key) or []]
    try:
        return any(b"GLUONLAB_" in base64.b64decode(content) for content in contents)
    except ValueError:  # not base64, so not from gluonlab
        return False
