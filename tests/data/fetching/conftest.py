"""Downloads that try again at once."""

import time
from types import SimpleNamespace

import pytest
from urllib3.util.retry import Retry

import gluonlab.data.fetching.download as downloads


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    """Let the pauses between two attempts take no time; waiting for a server still does."""
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: None)
    monkeypatch.setattr(downloads, "time", clock)
    monkeypatch.setattr(Retry, "get_backoff_time", lambda self: 0)
