"""Downloads from a real server that goes wrong: what arrives is right, and nothing else gets a
final name.
"""

import signal
import subprocess
import sys
import threading

import pytest
from support.file_server import hang_response, hold_response, respond_with_status, send_chunked, truncate_body
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

from gluonlab.data.fetching.download import CHUNK_BYTES, download
from gluonlab.errors import DownloadError, OutputError

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


def test_files_that_were_put_directly_into_the_folder_are_enough(root):
    root.mkdir()
    (root / "file.gz").write_bytes(FILE_CONTENT)
    assert download(single_file_source(NOWHERE), root) == root


def test_a_lost_connection_is_resumed(serve, arrives):
    server = serve({"file.gz": FILE_CONTENT})
    server.add_faults("file.gz", truncate_body(CUT_BYTES), truncate_body(CUT_BYTES))
    arrives(server)
    assert ranges(server) == [None, f"bytes={CUT_BYTES}-", f"bytes={2 * CUT_BYTES}-"]


def test_the_next_command_resumes_after_a_server_restart(serve, root, part, arrives):
    first = serve({"file.gz": FILE_CONTENT})
    first.add_faults("file.gz", truncate_body(CUT_BYTES), *[truncate_body(0)] * 9)
    size = len(FILE_CONTENT)
    said = rf"/file.gz broke off .*after {CUT_BYTES:,} bytes of {size:,}: the connection ended"
    with pytest.raises(DownloadError, match=said):
        download(single_file_source(first.url), root)
    assert part.read_bytes() == FILE_CONTENT[:CUT_BYTES]
    first.close()
    again = serve({"file.gz": FILE_CONTENT}, port=first.port)
    arrives(again)
    assert ranges(again) == [f"bytes={CUT_BYTES}-"]


def test_a_file_that_changes_during_the_download_is_fetched_again(serve, arrives):
    """The digest differs, so the whole file is fetched again."""
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


def no_such_part(handler):
    """The answer to a Range by a server that takes no notice of its beginning."""
    handler.send_response(206)
    handler.send_header("Content-Range", f"bytes 0-{len(FILE_CONTENT) - 1}/{len(FILE_CONTENT)}")
    handler.send_header("Content-Length", str(len(FILE_CONTENT)))
    handler.end_headers()
    handler.wfile.write(FILE_CONTENT)


@pytest.mark.parametrize("range_fault", [no_such_part, respond_with_status(416)])
def test_a_server_without_progress_is_abandoned(serve, root, range_fault):
    server = serve({"file.gz": FILE_CONTENT})
    server.add_faults("file.gz", *[truncate_body(CUT_BYTES), range_fault] * 10)
    with pytest.raises(DownloadError, match="broke off"):
        download(single_file_source(server.url), root)
    assert len(server.request_headers()) <= 4
    assert not (root / "set" / "file.gz").exists()


def test_the_next_mirror_resumes_where_the_first_ended(serve, arrives):
    first, second = serve({"file.gz": FILE_CONTENT}), serve({"file.gz": FILE_CONTENT})
    first.add_faults("file.gz", truncate_body(CUT_BYTES), *[truncate_body(0)] * 9)
    arrives(first, second)
    assert ranges(second) == [f"bytes={CUT_BYTES}-"]


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


def test_a_complete_partial_file_needs_no_server(root, part):
    part.parent.mkdir(parents=True)
    part.write_bytes(FILE_CONTENT)
    download(single_file_source(NOWHERE), root)
    assert read_files(root) == {"set/file.gz": FILE_CONTENT}


def test_wrong_content_names_both_digests_and_tries_the_next_mirror(serve, root, arrives):
    content = random_bytes(len(FILE_CONTENT), seed=1)
    wrong, right = serve({"file.gz": content}), serve({"file.gz": FILE_CONTENT})
    with pytest.raises(DownloadError) as error:
        download(single_file_source(wrong.url), root)
    said = f"{wrong.url}file.gz sent a wrong file: file.gz.part has sha256 {sha256(content)}, "
    assert f"{said}expected {sha256(FILE_CONTENT)}" in str(error.value)
    assert read_files(root) == {}
    arrives(wrong, right)
    assert (len(wrong.request_headers()), len(right.request_headers())) == (2, 1)


@pytest.mark.parametrize("other", [b"", b"<html>", FILE_CONTENT + b"!"])
def test_a_file_of_another_size_is_refused_before_it_is_fetched(serve, root, other):
    server = serve({"file.gz": other})
    with pytest.raises(DownloadError, match=f"has {len(other):,} bytes, expected {len(FILE_CONTENT):,}"):
        download(single_file_source(server.url), root)
    assert read_files(root) == {}


def test_a_missing_content_length_is_counted(serve, root, arrives):
    files = (FILE_CONTENT, FILE_CONTENT + random_bytes(3 * CHUNK_BYTES), FILE_CONTENT[:-1])
    right, long, short = servers = [serve({"file.gz": file}) for file in files]
    for server in servers:
        server.add_faults("file.gz", send_chunked)
    said = f"(?s)has {len(FILE_CONTENT) + 1:,} bytes, .*has {len(FILE_CONTENT) - 1:,} bytes, expected"
    with pytest.raises(DownloadError, match=said):
        download(single_file_source(long.url, short.url), root)
    assert read_files(root) == {}
    arrives(right)


def test_a_full_disk_keeps_the_partial_file(serve, root, part, arrives):
    server = serve({"file.gz": FILE_CONTENT})
    said = r"cannot write .*/set/file\.gz\.part: File too large; make room or choose another place"
    with limit_file_size(CUT_BYTES + 100), pytest.raises(OutputError, match=f"{said} with --data-dir"):
        download(single_file_source(server.url), root)
    assert part.read_bytes() == FILE_CONTENT[: CUT_BYTES + 100]
    assert not (root / "set" / "file.gz").exists()
    arrives(server)
    assert ranges(server)[1] == f"bytes={CUT_BYTES + 100}-"


@pytest.mark.parametrize("below", ["file", "file/data"])
def test_a_place_that_cannot_be_written_is_named(tmp_path, below):
    (tmp_path / "file").write_text("")
    said = f"cannot write {tmp_path}/.*choose another place with --data-dir"
    with pytest.raises(OutputError, match=said):
        download(single_file_source(NOWHERE), tmp_path / below)


# --- processes


@pytest.fixture
def start(root, tmp_path):
    """``start(source)``: a process that downloads it to ``root``; it is killed in the end."""
    processes = []

    def run(source):
        table = write_table(tmp_path / "table", source)
        words = ["support.made_up_sources", str(table), "download", "set", "--data-dir", str(root)]
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")
        command = [sys.executable, "-m", *words]
        process = subprocess.Popen(command, cwd=tmp_path, env=clean_environment(), **pipes)
        processes.append(process)
        return process

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
    assert second.stderr.readline() == "waiting for another process that fetches set\n"
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
    said = "interrupted: what has been downloaded is kept: run the same command again to resume"
    assert err.splitlines()[-1] == said
    assert part.read_bytes() == FILE_CONTENT[:CUT_BYTES]
    arrives(server)
    assert ranges(server)[1] == f"bytes={CUT_BYTES}-"
