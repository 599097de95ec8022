"""Downloads from a real server that fails: what arrives is right, and nothing else gets a final name."""

import re
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from support.file_server import (
    hang_response,
    hold_response,
    redirect_to,
    respond_with_status,
    send_chunked,
    trickle_body,
    truncate_body,
)
from support.full_disk import limit_file_size
from support.made_up_sources import (
    CUT_BYTES,
    FILE_CONTENT,
    make_source,
    random_bytes,
    read_files,
    sha256,
    single_file_source,
    write_table,
)
from support.processes import clean_environment
from support.waiting import LIMIT_S, wait_until

import gluonlab.data.fetching.download as downloads
from gluonlab.data.fetching.download import CHUNK_BYTES, download
from gluonlab.errors import ConfigError, DownloadError, OutputError

NOWHERE = "http://127.0.0.1:9/"


@pytest.fixture
def part(root):
    return root / "set" / "file.gz.part"


def ranges(server):
    return [headers.get("Range") for headers in server.request_headers()]


# --- files that are used as they come


def test_existing_files_are_not_requested_again(serve, root):
    files = {"a": FILE_CONTENT, "b": b"", "c": b"c"}
    server = serve(files)
    source = make_source("set", files, server.url)
    assert download(source, root) == root / "set"
    (root / "set" / "c").write_bytes(b"damaged")
    download(source, root)
    download(source, root)
    assert [len(server.request_headers(name)) for name in files] == [1, 1, 2]
    assert read_files(root) == {f"set/{name}": content for name, content in files.items()}
    assert all(headers["Accept-Encoding"] == "identity" for headers in server.request_headers())


def test_a_lost_connection_is_resumed(serve, arrives):
    server = serve({"file.gz": FILE_CONTENT})
    server.add_faults("file.gz", truncate_body(CUT_BYTES), truncate_body(CUT_BYTES))
    arrives(server)
    assert ranges(server) == [None, f"bytes={CUT_BYTES}-", f"bytes={2 * CUT_BYTES}-"]


def test_the_next_command_resumes_after_a_server_restart(serve, root, part, arrives):
    first = serve({"file.gz": FILE_CONTENT})
    first.add_faults("file.gz", truncate_body(CUT_BYTES), *[truncate_body(0)] * 9)
    size = len(FILE_CONTENT)
    message = rf"/file.gz failed .*after {CUT_BYTES:,} bytes of {size:,}: the connection was closed"
    with pytest.raises(DownloadError, match=message):
        download(single_file_source(first.url), root)
    assert part.read_bytes() == FILE_CONTENT[:CUT_BYTES]
    first.close()
    restarted = serve({"file.gz": FILE_CONTENT}, port=first.port)
    arrives(restarted)
    assert ranges(restarted) == [f"bytes={CUT_BYTES}-"]


def test_a_file_that_changes_during_the_download_is_fetched_again(serve, arrives):
    other = random_bytes(len(FILE_CONTENT), seed=1)
    server = serve({"file.gz": FILE_CONTENT})

    def part_of_another(handler):
        handler.send_file(other, lambda body: [handler.wfile.write(body[:CUT_BYTES]), handler.drop()])

    server.add_faults("file.gz", part_of_another)
    arrives(server)
    assert ranges(server) == [None, f"bytes={CUT_BYTES}-", None]


def test_a_server_without_ranges_sends_the_file_again(serve, arrives):
    server = serve({"file.gz": FILE_CONTENT}, ranges=False)
    server.add_faults("file.gz", truncate_body(CUT_BYTES))
    arrives(server)
    assert ranges(server)[1] == f"bytes={CUT_BYTES}-"


def ignore_range_start(handler):
    handler.send_response(206)
    handler.send_header("Content-Range", f"bytes 0-{len(FILE_CONTENT) - 1}/{len(FILE_CONTENT)}")
    handler.send_header("Content-Length", str(len(FILE_CONTENT)))
    handler.end_headers()
    handler.wfile.write(FILE_CONTENT)


@pytest.mark.parametrize("range_fault", [ignore_range_start, respond_with_status(416)])
def test_a_server_without_progress_is_abandoned(serve, root, range_fault):
    server = serve({"file.gz": FILE_CONTENT})
    server.add_faults("file.gz", *[truncate_body(CUT_BYTES), range_fault] * 10)
    with pytest.raises(DownloadError, match=r"the download from .* failed"):
        download(single_file_source(server.url), root)
    assert len(server.request_headers()) <= 4
    assert not (root / "set" / "file.gz").exists()


PARTS = {
    "of another file": random_bytes(CUT_BYTES, seed=2),
    "another file": random_bytes(len(FILE_CONTENT), seed=2),
    "too long": random_bytes(len(FILE_CONTENT) + 5, seed=2),
    "longer than the first server's": FILE_CONTENT[: 2 * CUT_BYTES],  # which answers 416, then the wrong size
}


@pytest.mark.parametrize("content", PARTS.values(), ids=list(PARTS))
def test_a_partial_file_that_does_not_fit_is_discarded(serve, part, arrives, content):
    part.parent.mkdir(parents=True)
    part.write_bytes(content)
    arrives(serve({"file.gz": FILE_CONTENT[:CUT_BYTES]}), serve({"file.gz": FILE_CONTENT}))


def test_complete_files_need_no_server(root, part):
    part.parent.mkdir(parents=True)
    part.write_bytes(FILE_CONTENT)
    assert download(single_file_source(NOWHERE), root) == root / "set"
    assert read_files(root) == {"set/file.gz": FILE_CONTENT}
    (root / "set" / "file.gz").rename(root / "file.gz")  # put directly into the folder by hand
    assert download(single_file_source(NOWHERE), root) == root


def test_wrong_content_names_both_digests_and_tries_the_next_mirror(serve, root, arrives):
    content = random_bytes(len(FILE_CONTENT), seed=1)
    wrong, right = serve({"file.gz": content}), serve({"file.gz": FILE_CONTENT})
    with pytest.raises(DownloadError) as error:
        download(single_file_source(wrong.url), root)
    assert (
        f"{wrong.url}file.gz sent a different file than expected: the sha256 of file.gz.part is {sha256(content)} "
        f"instead of {sha256(FILE_CONTENT)}"
    ) in str(error.value)
    assert read_files(root) == {}
    arrives(wrong, right)
    assert (len(wrong.request_headers()), len(right.request_headers())) == (2, 1)


@pytest.mark.parametrize("other", [b"", b"<html>", FILE_CONTENT + b"!"])
def test_a_file_of_another_size_is_refused_before_it_is_fetched(serve, root, other):
    server = serve({"file.gz": other})
    with pytest.raises(DownloadError, match=f"has {len(other):,} bytes instead of {len(FILE_CONTENT):,}"):
        download(single_file_source(server.url), root)
    assert read_files(root) == {}


def test_a_missing_content_length_is_counted(serve, root, arrives):
    files = (FILE_CONTENT, FILE_CONTENT + random_bytes(3 * CHUNK_BYTES), FILE_CONTENT[:-1])
    right, long, short = servers = [serve({"file.gz": file}) for file in files]
    for server in servers:
        server.add_faults("file.gz", send_chunked)
    message = f"(?s)has {len(FILE_CONTENT) + 1:,} bytes instead of .*has {len(FILE_CONTENT) - 1:,} bytes instead of"
    with pytest.raises(DownloadError, match=message):
        download(single_file_source(long.url, short.url), root)
    assert read_files(root) == {}
    arrives(right)


def test_a_full_disk_keeps_the_partial_file(serve, root, part, arrives):
    server = serve({"file.gz": FILE_CONTENT})
    message = r"File too large; free disk space, or choose another directory with --data-dir"
    with limit_file_size(CUT_BYTES + 100), pytest.raises(OutputError, match=message):
        download(single_file_source(server.url), root)
    assert part.read_bytes() == FILE_CONTENT[: CUT_BYTES + 100]
    assert not (root / "set" / "file.gz").exists()
    arrives(server)
    assert ranges(server)[1] == f"bytes={CUT_BYTES + 100}-"


@pytest.mark.parametrize("below", ["file", "file/data"])
def test_a_place_that_cannot_be_written_is_named(tmp_path, below):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=f"cannot write {tmp_path}/.*choose another directory with --data-dir"):
        download(single_file_source(NOWHERE), tmp_path / below)


# --- addresses that are busy, silent, gone, elsewhere or wrong


PERMANENT = {404: {}, 403: {}, 410: {}, 501: {}, 503: {"retry_after": "3600"}}


@pytest.mark.parametrize("number", PERMANENT)
def test_a_permanent_status_is_named_and_a_long_retry_after_is_ignored(serve, arrives, number):
    missing, right = serve({}), serve({"file.gz": FILE_CONTENT})
    missing.add_faults("file.gz", *[respond_with_status(number, **PERMANENT[number])] * 9)
    lines = "\n".join(arrives(missing, right))
    assert f"{missing.url}file.gz answered with status {number}" in lines
    assert number == 503 or len(missing.request_headers()) == 1


@pytest.mark.parametrize("number", [500, 503, 429])
def test_a_temporary_status_is_retried(serve, arrives, number):
    server = serve({"file.gz": FILE_CONTENT})
    server.add_faults("file.gz", respond_with_status(number), respond_with_status(number))
    arrives(server)
    assert len(server.request_headers()) == 3


@pytest.mark.parametrize("after", [None, CUT_BYTES])
def test_a_silent_server_is_abandoned_for_the_next_mirror(serve, arrives, after):
    slow, right = serve({"file.gz": FILE_CONTENT}), serve({"file.gz": FILE_CONTENT})
    slow.add_faults("file.gz", hang_response(after), *[hang_response(after and 0)] * 9)
    assert any("timed out" in line for line in arrives(slow, right, timeout_s=0.5))


def test_a_very_slow_server_is_abandoned_and_the_next_mirror_resumes(serve, arrives, monkeypatch):
    """A second passes with each byte: the server is never silent for the time-out, but would take hours."""
    seconds, at_once = [], 2 * CUT_BYTES
    monkeypatch.setattr(downloads, "time", SimpleNamespace(monotonic=lambda: len(seconds)))
    slow, right = serve({"file.gz": FILE_CONTENT}), serve({"file.gz": FILE_CONTENT})
    slow.add_faults("file.gz", trickle_body(at_once, lambda: seconds.append(1)))
    [line] = [line for line in arrives(slow, right, timeout_s=30) if "trying the next" in line]
    message = (
        rf"{slow.url}file.gz is too slow: it sent (\d+) bytes in \d+ s, "
        r"but at least 1,024 bytes per second are required; trying the next address"
    )
    slow_bytes = int(re.fullmatch(message, line)[1])
    begin = int(re.fullmatch(r"bytes=(\d+)-", ranges(right)[0])[1])
    assert at_once + slow_bytes <= begin <= at_once + len(seconds)


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
        f"\n  to download these files by hand, put them into {root / 'set'}\n",
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


# --- processes


@pytest.fixture
def start(root, tmp_path):
    """``start(source)``: a process that downloads it to ``root``; it is killed in the end."""
    processes = []

    def run(source):
        table = str(write_table(tmp_path / "table", source))
        command = [sys.executable, "-m", "support.made_up_sources", table, "download", "set", "--data-dir", str(root)]
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")
        processes.append(subprocess.Popen(command, cwd=tmp_path, env=clean_environment(), **pipes))
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def test_two_processes_download_once(serve, root, start):
    server = serve({"file.gz": FILE_CONTENT})
    reached, go_on = threading.Event(), threading.Event()
    server.add_faults("file.gz", hold_response(reached, go_on))
    first = start(single_file_source(server.url))
    assert reached.wait(LIMIT_S)
    second = start(single_file_source(server.url))
    assert second.stderr.readline() == "waiting for another process that downloads set\n"
    go_on.set()
    for process in (first, second):
        out, _ = process.communicate(timeout=LIMIT_S)
        assert (out, process.returncode) == (f"set is complete in {root / 'set'}\n", 0)
    assert len(server.request_headers()) == 1
    assert read_files(root) == {"set/file.gz": FILE_CONTENT}


def test_ctrl_c_keeps_received_bytes_and_the_next_command_resumes(serve, start, part, arrives):
    server = serve({"file.gz": FILE_CONTENT})
    server.add_faults("file.gz", hang_response(after=CUT_BYTES))
    process = start(single_file_source(server.url))
    wait_until(lambda: part.exists() and part.stat().st_size >= CUT_BYTES)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (130, "")
    message = "interrupted: downloaded files are kept: run the same command again to resume"
    assert err.splitlines()[-1] == message
    assert part.read_bytes() == FILE_CONTENT[:CUT_BYTES]
    arrives(server)
    assert ranges(server)[1] == f"bytes={CUT_BYTES}-"
