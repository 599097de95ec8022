"""Addresses that are busy, silent, gone, elsewhere or wrong: each is named with what it did, and
the next one is asked.
"""

import re

import pytest
from support.file_server import hang_response, redirect_to, respond_with_status, trickle_body, truncate_body
from support.made_up_sources import CUT_BYTES, FILE_CONTENT, make_source, read_files, sha256, single_file_source

import gluonlab.data.fetching.download as downloads
from gluonlab.data.fetching.download import download
from gluonlab.errors import ConfigError, DownloadError


@pytest.mark.parametrize("number", [404, 403, 410, 501])
def test_a_permanent_status_is_named_and_not_retried(serve, arrives, number):
    missing, right = serve({}), serve({"file.gz": FILE_CONTENT})
    missing.add_faults("file.gz", respond_with_status(number))
    told = "\n".join(arrives(missing, right))
    assert len(missing.request_headers()) == 1
    assert f"{missing.url}file.gz answers with status {number}" in told


@pytest.mark.parametrize("number", [500, 503, 429])
def test_a_temporary_status_is_retried(serve, arrives, number):
    server = serve({"file.gz": FILE_CONTENT})
    server.add_faults("file.gz", respond_with_status(number), respond_with_status(number))
    arrives(server)
    assert len(server.request_headers()) == 3


def test_a_long_retry_after_is_ignored(serve, arrives):
    busy, right = serve({}), serve({"file.gz": FILE_CONTENT})
    busy.add_faults("file.gz", *[respond_with_status(503, retry_after="3600")] * 9)
    assert "answers with status 503" in "\n".join(arrives(busy, right))


@pytest.mark.parametrize("after", [None, CUT_BYTES])
def test_a_silent_server_is_abandoned_for_the_next_mirror(serve, arrives, after):
    slow, right = serve({"file.gz": FILE_CONTENT}), serve({"file.gz": FILE_CONTENT})
    slow.add_faults("file.gz", hang_response(after), *[hang_response(after and 0)] * 9)
    assert any("timed out" in line for line in arrives(slow, right, timeout_s=0.5))


class Clock:
    """A second goes by with each byte that trickles."""

    seconds = 0

    def tick(self):
        self.seconds += 1

    def monotonic(self):
        return self.seconds


def test_a_very_slow_server_is_abandoned_and_the_next_mirror_resumes(serve, arrives, monkeypatch):
    """It is never silent for the time-out, but would take hours."""
    clock, at_once = Clock(), 2 * CUT_BYTES
    monkeypatch.setattr(downloads, "time", clock)
    slow, right = serve({"file.gz": FILE_CONTENT}), serve({"file.gz": FILE_CONTENT})
    slow.add_faults("file.gz", trickle_body(at_once, clock.tick))
    told = arrives(slow, right, timeout_s=30)
    [line] = [line for line in told if "trying the next" in line]
    said = (
        rf"{slow.url}file.gz is too slow \((\d+) bytes in \d+ s, "
        r"at least 1,024 a second are required\); trying the next address"
    )
    came = int(re.fullmatch(said, line)[1])
    [headers] = right.request_headers()
    begin = int(re.fullmatch(r"bytes=(\d+)-", headers["Range"])[1])
    assert at_once + came <= begin <= at_once + clock.seconds  # what came before, too


def test_a_redirect_is_followed_and_resumed(serve, arrives):
    server = serve({"elsewhere": FILE_CONTENT})
    server.add_faults("file.gz", *[redirect_to("/elsewhere")] * 2)
    server.add_faults("elsewhere", truncate_body(CUT_BYTES))
    arrives(server)
    assert server.request_headers("elsewhere")[1]["Range"] == f"bytes={CUT_BYTES}-"


@pytest.mark.parametrize("where", ["/file.gz", "file:///etc/passwd", "http://["])
def test_a_redirect_that_leads_nowhere_is_named(serve, root, where):
    server = serve({})
    server.add_faults("file.gz", *[redirect_to(where)] * 50)
    with pytest.raises(DownloadError, match=f"{server.url}file.gz cannot be reached"):
        download(single_file_source(server.url), root)
    assert read_files(root) == {}


def test_without_a_network_the_files_and_their_place_are_named(root):
    mirrors = [f"http://127.0.0.1:9/{name}/" for name in ("one", "two")]
    with pytest.raises(DownloadError) as error:
        download(make_source("set", {"a": FILE_CONTENT, "b": b"b"}, *mirrors), root)
    for words in (
        "http://127.0.0.1:9/one/a cannot be reached (Connection refused)",
        f"\n  by hand: put into {root / 'set'}\n",
        f"\n    a ({len(FILE_CONTENT):,} bytes, sha256 {sha256(FILE_CONTENT)})\n",
        f"\n    b (1 bytes, sha256 {sha256(b'b')})\n",
        "\n    http://127.0.0.1:9/one/\n    http://127.0.0.1:9/two/",
    ):
        assert words in str(error.value)
    assert read_files(root) == {}


def test_the_users_mirror_is_tried_first_in_two_folders(serve, root):
    flat, by_name, public = (serve({f"{name}file.gz": FILE_CONTENT}) for name in ("", "set/", ""))
    source = single_file_source(public.url)
    for number, mirror in enumerate((flat, by_name)):
        download(source, root / str(number), mirror.url.rstrip("/"))
    assert public.request_headers() == []
    assert [path for path, _ in by_name.requests] == ["/file.gz", "/set/file.gz"]


@pytest.mark.parametrize("mirror", ["", "ftp://host/", "/srv/data", "host:80", "http://"])
def test_a_mirror_that_is_no_address_is_refused(root, mirror):
    with pytest.raises(ConfigError, match=f"--mirror {mirror}.*http:// or https://"):
        download(single_file_source(), root, mirror)
    assert not root.exists()


@pytest.mark.parametrize("host", ["127.0.0.1:9", "[", "host:port"])
def test_a_password_in_an_address_is_not_printed(root, host):
    with pytest.raises(DownloadError) as error:
        download(single_file_source(), root, f"http://user:secret@{host}/")
    assert f"http://{host}/file.gz cannot be reached" in str(error.value)
    assert "secret" not in str(error.value)


def test_a_proxy_of_the_environment_is_used(serve, root, monkeypatch):
    proxy = serve({"mnist/file.gz": FILE_CONTENT})
    monkeypatch.setenv("http_proxy", proxy.url)
    download(single_file_source("http://files.invalid/mnist/"), root)
    assert [headers["Host"] for headers in proxy.request_headers()] == ["files.invalid"]
    assert read_files(root) == {"set/file.gz": FILE_CONTENT}
