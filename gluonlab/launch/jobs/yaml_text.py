"""Lines of YAML with a comment each; strings as JSON writes them, which YAML reads alike."""

from __future__ import annotations

import json
from typing import Any, Dict, Iterator, List, Union

Node = Union[Dict[str, Any], List[Any], str, int, bool]


class Said:
    """A value, and the comment that goes on its line."""

    def __init__(self, value: Node, comment: str) -> None:
        self.value, self.comment = value, comment


def yaml_string(text: str) -> str:
    """``text`` in double quotes: YAML takes printable letters as they are, and JSON's escapes."""
    letters = json.dumps(text, ensure_ascii=False)
    return "".join(
        letter if letter.isprintable() or ord(letter) > 0xFFFF else f"\\u{ord(letter):04x}"
        for letter in letters
    )


def yaml_lines(node: Dict[str, Any], indent: str = "") -> Iterator[str]:
    """A mapping, line by line."""
    for key, said in node.items():
        value, comment = (
            (said.value, f"  # {said.comment}") if isinstance(said, Said) else (said, "")
        )
        if isinstance(value, dict):
            yield f"{indent}{key}:{comment}"
            yield from yaml_lines(value, f"{indent}  ")
        elif isinstance(value, list):
            yield f"{indent}{key}:{comment}"
            for item in value:
                yield from _item(item, f"{indent}  ")
        else:
            yield f"{indent}{key}: {_scalar(value)}{comment}"


def _item(said: Any, indent: str) -> Iterator[str]:
    value, comment = (said.value, f"  # {said.comment}") if isinstance(said, Said) else (said, "")
    if isinstance(value, dict):
        first, *rest = yaml_lines(value, f"{indent}  ")
        yield f"{indent}- {first[len(indent) + 2 :]}"
        yield from rest
    else:
        yield f"{indent}- {_scalar(value)}{comment}"


def _scalar(value: Node) -> str:
    return yaml_string(value) if isinstance(value, str) else json.dumps(value)
