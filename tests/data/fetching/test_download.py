"""Downloads from a real server that goes wrong: what arrives is right, and nothing else gets a
final name.
"""

import signal
import subprocess
import sys
import threading

import pytest
from support.file_server import chunked, cut, held, silence, status
from support.made_up_sources import (
    CUT,
    FILE,
    files_below,
    files_of_at_most,
    noise,
    one_file,
    sha256,
    source_of,
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
    return [headers.get("Range") for headers in server.asked()]


# --- files that are used as they come


def test_existing_files_are_not_requested_again(serve, root):
    files = {"a": FILE, "b": b"", "c": b"c"}
    server = serve(files)
    source = source_of("set", files, server.url)
    assert download(source, root) == root / "set"
    (root / "set" / "c").write_bytes(b"damaged")
    download(source, root)
    download(source, root)
    assert [len(server.asked(name)) for name in files] == [1, 1, 2]
    assert files_below(root) == {f"set/{name}": content for name, content in files.items()}
    assert all(headers["Accept-Encoding"] == "identity" for headers in server.asked())


def test_files_that_were_put_directly_into_the_folder_are_enough(root):
    root.mkdir()
    (root / "file.gz").write_bytes(FILE)
    assert download(one_file(NOWHERE), root) == root


def test_a_lost_connection_is_resumed(serve, arrives):
    server = serve({"file.gz": FILE})
    server.fail("file.gz", cut(CUT), cut(CUT))
    arrives(server)
    assert ranges(server) == [None, f"bytes={CUT}-", f"bytes={2 * CUT}-"]


def test_the_next_command_resumes_after_a_server_restart(serve, root, part, arrives):
    first = serve({"file.gz": FILE})
    first.fail("file.gz", cut(CUT), *[cut(0)] * 9)
    said = rf"/file.gz broke off .*after {CUT:,} bytes of {len(FILE):,}: the connection ended"
    with pytest.raises(DownloadError, match=said):
        download(one_file(first.url), root)
    assert part.read_bytes() == FILE[:CUT]
    first.close()
    again = serve({"file.gz": FILE}, port=first.port)
    arrives(again)
    assert ranges(again) == [f"bytes={CUT}-"]


def test_a_file_that_changes_during_the_download_is_fetched_again(serve, arrives):
    """The digest differs, so the whole file is fetched again."""
    other = noise(len(FILE), seed=1)
    server = serve({"file.gz": FILE})

    def part_of_another(handler):
        handler.send_file(other, lambda body: [handler.wfile.write(body[:CUT]), handler.drop()])

    server.fail("file.gz", part_of_another)
    arrives(server)
    assert ranges(server) == [None, f"bytes={CUT}-", None]


def test_a_server_without_ranges_sends_the_file_again(serve, arrives):
    server = serve({"file.gz": FILE}, ranges=False)
    server.fail("file.gz", cut(CUT))
    arrives(server)
    assert ranges(server)[1] == f"bytes={CUT}-"


def no_such_part(handler):
    """The answer to a Range by a server that takes no notice of its beginning."""
    handler.send_response(206)
    handler.send_header("Content-Range", f"bytes 0-{len(FILE) - 1}/{len(FILE)}")
    handler.send_header("Content-Length", str(len(FILE)))
    handler.end_headers()
    handler.wfile.write(FILE)


@pytest.mark.parametrize("range_fault", [no_such_part, status(416)])
def test_a_server_without_progress_is_abandoned(serve, root, range_fault):
    server = serve({"file.gz": FILE})
    server.fail("file.gz", *[cut(CUT), range_fault] * 10)
    with pytest.raises(DownloadError, match="broke off"):
        download(one_file(server.url), root)
    assert len(server.asked()) <= 4
    assert not (root / "set" / "file.gz").exists()


def test_the_next_mirror_resumes_where_the_first_ended(serve, arrives):
    first, second = serve({"file.gz": FILE}), serve({"file.gz": FILE})
    first.fail("file.gz", cut(CUT), *[cut(0)] * 9)
    arrives(first, second)
    assert ranges(second) == [f"bytes={CUT}-"]


PARTS = {
    "of another file": noise(CUT, seed=2),
    "another file": noise(len(FILE), seed=2),
    "too long": noise(len(FILE) + 5, seed=2),
    "longer than the first server's": FILE[: 2 * CUT],  # which answers 416, then the wrong size
}


@pytest.mark.parametrize("content", PARTS.values(), ids=list(PARTS))
def test_a_partial_file_that_does_not_fit_is_discarded(serve, part, arrives, content):
    part.parent.mkdir(parents=True)
    part.write_bytes(content)
    arrives(serve({"file.gz": FILE[:CUT]}), serve({"file.gz": FILE}))


def test_a_complete_partial_file_needs_no_server(root, part):
    part.parent.mkdir(parents=True)
    part.write_bytes(FILE)
    download(one_file(NOWHERE), root)
    assert files_below(root) == {"set/file.gz": FILE}


def test_wrong_content_names_both_digests_and_tries_the_next_mirror(serve, root, arrives):
    content = noise(len(FILE), seed=1)
    wrong, right = serve({"file.gz": content}), serve({"file.gz": FILE})
    with pytest.raises(DownloadError) as error:
        download(one_file(wrong.url), root)
    said = f"{wrong.url}file.gz sent a wrong file: file.gz.part has sha256 {sha256(content)}, "
    assert f"{said}expected {sha256(FILE)}" in str(error.value)
    assert files_below(root) == {}
    arrives(wrong, right)
    assert (len(wrong.asked()), len(right.asked())) == (2, 1)


@pytest.mark.parametrize("other", [b"", b"<html>", FILE + b"!"])
def test_a_file_of_another_size_is_refused_before_it_is_fetched(serve, root, other):
    server = serve({"file.gz": other})
    with pytest.raises(DownloadError, match=f"has {len(other):,} bytes, expected {len(FILE):,}"):
        download(one_file(server.url), root)
    assert files_below(root) == {}


def test_a_missing_content_length_is_counted(serve, root, arrives):
    files = (FILE, FILE + noise(3 * CHUNK_BYTES), FILE[:-1])
    right, long, short = servers = [serve({"file.gz": file}) for file in files]
    for server in servers:
        server.fail("file.gz", chunked)
    said = f"(?s)has {len(FILE) + 1:,} bytes, .*has {len(FILE) - 1:,} bytes, expected"
    with pytest.raises(DownloadError, match=said):
        download(one_file(long.url, short.url), root)
    assert files_below(root) == {}
    arrives(right)


def test_a_full_disk_keeps_the_partial_file(serve, root, part, arrives):
    server = serve({"file.gz": FILE})
    said = r"cannot write .*/set/file\.gz\.part: File too large; make room or choose another place"
    with files_of_at_most(CUT + 100), pytest.raises(OutputError, match=f"{said} with --data-dir"):
        download(one_file(server.url), root)
    assert part.read_bytes() == FILE[: CUT + 100]
    assert not (root / "set" / "file.gz").exists()
    arrives(server)
    assert ranges(server)[1] == f"bytes={CUT + 100}-"


@pytest.mark.parametrize("below", ["file", "file/data"])
def test_a_place_that_cannot_be_written_is_named(tmp_path, below):
    (tmp_path / "file").write_text("")
    said = f"cannot write {tmp_path}/.*choose another place with --data-dir"
    with pytest.raises(OutputError, match=said):
        download(one_file(NOWHERE), tmp_path / below)


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
    server = serve({"file.gz": FILE})
    reached, go_on = threading.Event(), threading.Event()
    server.fail("file.gz", held(reached, go_on))
    first = start(one_file(server.url))
    assert reached.wait(LIMIT_S)
    second = start(one_file(server.url))
    assert second.stderr.readline() == "waiting for another process that fetches set\n"
    go_on.set()
    for process in (first, second):
        out, _ = process.communicate(timeout=LIMIT_S)
        assert (out, process.returncode) == (f"set is complete in {root / 'set'}\n", 0)
    assert len(server.asked()) == 1
    assert files_below(root) == {"set/file.gz": FILE}


def test_ctrl_c_keeps_received_bytes_and_the_next_command_resumes(serve, start, part, arrives):
    server = serve({"file.gz": FILE})
    server.fail("file.gz", silence(after=CUT))
    process = start(one_file(server.url))
    wait_until(lambda: part.exists() and part.stat().st_size >= CUT)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (130, "")
    said = "interrupted: what has been downloaded is kept: run the same command again to resume"
    assert err.splitlines()[-1] == said
    assert part.read_bytes() == FILE[:CUT]
    arrives(server)
    assert ranges(server)[1] == f"bytes={CUT}-"
