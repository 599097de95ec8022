"""A notebook's lifecycle configuration: the scripts that AWS runs when it is made and started.

It has the notebook's name. Its scripts come from `sagemaker/lifecycle.py`, with the settings of
this notebook.
"""

from __future__ import annotations

import base64
from typing import Any, Dict, List

import lifecycle
from gluonlab_sagemaker.calls import Caller
from gluonlab_sagemaker.errors import AWSError, RefusedError

_OF_CONFIG = "NotebookInstanceLifecycleConfig"


def scripts(settings: Dict[str, str]) -> Dict[str, Any]:
    """OnCreate and OnStart, as the API takes them."""
    try:
        return {
            key: [{"Content": lifecycle.content(lifecycle.script(name, settings))}]
            for key, name in (("OnCreate", "on-create"), ("OnStart", "on-start"))
        }
    except ValueError as error:
        raise RefusedError(f"AWS would refuse the start scripts: {error}") from error


def ensure_config(
    caller: Caller, name: str, settings: Dict[str, str], tags: List[Dict[str, str]]
) -> None:
    """Make the configuration; one that an earlier attempt left is brought up to date."""
    content = {f"{_OF_CONFIG}Name": name, **scripts(settings)}
    try:
        found = caller("sagemaker", f"Describe{_OF_CONFIG}", **{f"{_OF_CONFIG}Name": name})
    except AWSError as error:
        if not error.missing:
            raise
        caller("sagemaker", f"Create{_OF_CONFIG}", **content, Tags=tags)
        return
    if not _is_ours(found):
        raise RefusedError(
            f"the lifecycle configuration {name} exists and was not made here: "
            "choose another --name"
        )
    if {key: found.get(key) for key in ("OnCreate", "OnStart")} != {
        key: content[key] for key in ("OnCreate", "OnStart")
    }:
        caller("sagemaker", f"Update{_OF_CONFIG}", **content)


def delete_config(caller: Caller, name: str) -> bool:
    """Delete the configuration that `ensure_config` made; False if there is none, or not ours."""
    try:
        if not _is_ours(
            caller("sagemaker", f"Describe{_OF_CONFIG}", **{f"{_OF_CONFIG}Name": name})
        ):
            return False
    except AWSError as error:
        if error.missing:
            return False
        raise
    caller("sagemaker", f"Delete{_OF_CONFIG}", **{f"{_OF_CONFIG}Name": name})
    return True


def _is_ours(found: Dict[str, Any]) -> bool:
    """Known by what the scripts set; DescribeNotebookInstanceLifecycleConfig gives no tags."""
    contents = [
        script.get("Content", "")
        for key in ("OnCreate", "OnStart")
        for script in found.get(key) or []
    ]
    try:
        return any(b"GLUONLAB_" in base64.b64decode(content) for content in contents)
    except ValueError:  # no base64, so not from here
        return False
