"""Variables of an environment: numbers, names, and what is wrong with them in one line."""

from __future__ import annotations

import hashlib
import re
from typing import Mapping, Optional, Tuple

from gluonlab.errors import ConfigError
from gluonlab.host.launchers import Launcher

Environ = Mapping[str, str]
# Linux gives ports from 32768 on to whoever asks for any
FIRST_PORT, PORTS = 10000, 20000


def job_port(launcher: Launcher, environ: Environ) -> int:
    """A port for the group, the same in all of its processes."""
    job = "\n".join(environ.get(name, "") for name in launcher.job)
    digest = hashlib.sha256(job.encode("utf-8", "replace")).digest()
    return FIRST_PORT + int.from_bytes(digest, "big") % PORTS


def port_number(environ: Environ, name: str) -> int:
    """A port that a variable gives."""
    port = number(environ, name, least=1)
    if port > 65535:
        raise ConfigError(f"{name}={port}: a port from 1 to 65535 is possible")
    return port


def number(environ: Environ, name: str, least: int) -> int:
    """The whole number that a variable gives; ConfigError if it is none, or below ``least``."""
    text = environ[name]
    if re.fullmatch(r"[0-9]{1,7}", text) is None or int(text) < least:
        raise ConfigError(
            f"{name}={text!r}: a whole number from {least} on is possible; set it anew"
        )
    return int(text)


def optional(environ: Environ, names: Tuple[str, ...], least: int) -> Optional[int]:
    """The number of the first of these variables that is set; None if none is."""
    name = first_of(environ, names)
    return number(environ, name, least) if name else None


def first_of(environ: Environ, names: Tuple[str, ...]) -> str:
    """The first of these variables that is set; "" if none is."""
    return next((name for name in names if environ.get(name)), "")


def missing(launcher: Launcher, environ: Environ, name: str) -> ConfigError:
    """What to say when a launcher has left a variable out."""
    mark = launcher.mark or launcher.rank
    return ConfigError(
        f"{mark}={environ[mark]} says that this process was started by {launcher.name}, but {name} "
        f"is not set: set it, or unset {mark} to start processes from here"
    )


def contradiction(text: str) -> ConfigError:
    """What to say when two variables cannot both be true."""
    return ConfigError(f"{text}: variables of two launchers are mixed; unset those that are stale")
