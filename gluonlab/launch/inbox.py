"""What all agents have said and nobody has read."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Deque, Generic, Optional, Tuple, TypeVar

from gluonlab.launch.awake import within
from gluonlab.launch.messages import Message

Sender = TypeVar("Sender")


class Inbox(Generic[Sender]):
    """A queue that loses nothing where waiting for it ends."""

    def __init__(self) -> None:
        self._messages: Deque[Tuple[Sender, Message]] = deque()
        self._some = asyncio.Event()

    def put(self, sender: Sender, message: Message) -> None:
        """Add a message, and who has sent it."""
        self._messages.append((sender, message))
        self._some.set()

    async def get(self, seconds: float) -> Optional[Tuple[Sender, Message]]:
        """The oldest message, which is waited for so long; None if there is none then."""
        if not self._messages:
            self._some.clear()
            try:
                await within(seconds, self._some.wait())
            except asyncio.TimeoutError:
                return None
        return self._messages.popleft()
