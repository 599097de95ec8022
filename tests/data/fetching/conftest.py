"""Downloads that try again at once."""

import time
from types import SimpleNamespace

import pytest
from support.made_up_sources import FILE_CONTENT, read_files, single_file_source
from urllib3.util.retry import Retry

import gluonlab.data.fetching.download as downloads


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    """Remove the pauses between two attempts, but not the waiting for a server."""
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: None)
    monkeypatch.setattr(downloads, "time", clock)
    monkeypatch.setattr(Retry, "get_backoff_time", lambda self: 0)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def arrives(root):
    """``arrives(*servers)`` downloads FILE_CONTENT from these servers, tried in turn; returns the log lines."""

    def check(*servers, **options):
        lines = []
        source = single_file_source(*(server.url for server in servers))
        downloads.download(source, root, log=lines.append, **options)
        assert read_files(root) == {"set/file.gz": FILE_CONTENT}
        return lines

    return check
