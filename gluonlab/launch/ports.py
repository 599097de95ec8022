"""The scheduler's port: the agent of its host keeps one, until the scheduler listens there."""

from __future__ import annotations

from typing import Callable, Optional

from gluonlab.errors import ConfigError
from gluonlab.launch.awake import BEAT, awake
from gluonlab.launch.connections import Connection
from gluonlab.launch.inbox import Inbox

TRIES = 5  # ports that are chosen, one after the other, where somebody else is faster with each


async def kept_port(
    root: Connection,
    wanted: Optional[int],
    inbox: "Inbox[Connection]",
    patience: float,
    signalled: Callable[[int], None],
) -> Optional[int]:
    """The port that ``root``'s agent keeps: the ``wanted`` one, or any; None if the host is gone.

    ``signalled`` is called with the number of a signal that has come to a process meanwhile. Raises
    ConfigError where the port is taken.
    """
    root.send(port=wanted or 0)
    until = awake() + patience
    while root.gone is None:
        connection, message = await inbox.get(BEAT) or (None, {})
        if awake() > until:
            root.lose("does not answer")
        elif "came" in message:
            signalled(message["came"])
        elif connection is root and "taken" in message:
            raise ConfigError(refusal(wanted, root, message["taken"]))
        elif connection is root and "port" in message:
            return int(message["port"])
    return None


def refusal(wanted: Optional[int], root: Connection, why: str) -> str:
    """What to say where the ``wanted`` port cannot be had; None: where no port at all can."""
    if wanted is None:
        return f"no port of {root.host.name} can be had: {why}: name one with --port"
    return f"--port {wanted} on {root.host.name}: {why}: choose another, or leave it out"
