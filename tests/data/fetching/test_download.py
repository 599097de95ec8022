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


@pytest.fixture
def root(tmp_path):
    return tmp_path / "data"


def part_below(folder):
    return (folder / "set" / "file.gz.part").read_bytes()


# --- files that are used as they come


def test_all_files_arrive_and_nothing_else(serve, root):
    files = {"a": FILE, "b": b"", "c": b"c"}
    server = serve(files)
    assert download(source_of("set", files, server.url), root) == root / "set"
    assert files_below(root) == {f"set/{name}": content for name, content in files.items()}
    assert all(headers["Accept-Encoding"] == "identity" for headers in server.asked())


def test_what_is_there_is_not_asked_for_again(serve, root):
    files = {"a": FILE, "b": b"b"}
    server = serve(files)
    source = source_of("set", files, server.url)
    download(source, root)
    (root / "set" / "b").write_bytes(b"damaged")
    download(source, root)
    download(source, root)
    assert (len(server.asked("a")), len(server.asked("b"))) == (1, 2)
    assert files_below(root) == {"set/a": FILE, "set/b": b"b"}


def test_files_that_were_put_directly_into_the_folder_are_enough(root):
    root.mkdir()
    (root / "file.gz").write_bytes(FILE)
    assert download(one_file("http://127.0.0.1:9/"), root) == root


def test_a_connection_that_is_cut_is_gone_on_with(serve, root):
    server = serve({"file.gz": FILE})
    server.fail("file.gz", cut(CUT), cut(CUT))
    download(one_file(server.url), root)
    assert files_below(root) == {"set/file.gz": FILE}
    asked = [headers.get("Range") for headers in server.asked()]
    assert asked == [None, f"bytes={CUT}-", f"bytes={2 * CUT}-"]


def test_a_server_that_is_restarted_is_gone_on_with_by_the_next_command(serve, root):
    first = serve({"file.gz": FILE})
    first.fail("file.gz", cut(CUT), *[cut(0)] * 9)
    source = one_file(first.url)
    with pytest.raises(
        DownloadError,
        match=rf"/file.gz broke off .*after {CUT:,} bytes of {len(FILE):,}: the connection ended",
    ):
        download(source, root)
    assert part_below(root) == FILE[:CUT]
    first.close()
    again = serve({"file.gz": FILE}, port=first.port)
    download(source, root)
    assert [headers["Range"] for headers in again.asked()] == [f"bytes={CUT}-"]
    assert files_below(root) == {"set/file.gz": FILE}


def test_a_file_that_changes_meanwhile_is_fetched_from_its_beginning(serve, root):
    """Its digest is another one, so all of it is fetched once more."""
    other = noise(len(FILE), seed=1)
    server = serve({"file.gz": FILE})

    def part_of_another(handler):
        handler.send_file(other, lambda body: [handler.wfile.write(body[:CUT]), handler.drop()])

    server.fail("file.gz", part_of_another)
    download(one_file(server.url), root)
    assert [headers.get("Range") for headers in server.asked()] == [None, f"bytes={CUT}-", None]
    assert files_below(root) == {"set/file.gz": FILE}


def test_a_server_without_ranges_is_gone_on_with_too(serve, root):
    server = serve({"file.gz": FILE}, ranges=False)
    server.fail("file.gz", cut(CUT))
    download(one_file(server.url), root)
    assert files_below(root) == {"set/file.gz": FILE}
    assert server.asked()[1]["Range"] == f"bytes={CUT}-"


def no_such_part(handler):
    """The answer to a Range by a server that takes no notice of its beginning."""
    handler.send_response(206)
    handler.send_header("Content-Range", f"bytes 0-{len(FILE) - 1}/{len(FILE)}")
    handler.send_header("Content-Length", str(len(FILE)))
    handler.end_headers()
    handler.wfile.write(FILE)


@pytest.mark.parametrize("range_fault", [no_such_part, status(416)])
def test_a_server_that_never_gets_further_is_given_up(serve, root, range_fault):
    server = serve({"file.gz": FILE})
    server.fail("file.gz", *[cut(CUT), range_fault] * 10)
    with pytest.raises(DownloadError, match="broke off"):
        download(one_file(server.url), root)
    assert len(server.asked()) <= 4
    assert not (root / "set" / "file.gz").exists()


def test_another_mirror_goes_on_where_the_first_ended(serve, root):
    first, second = serve({"file.gz": FILE}), serve({"file.gz": FILE})
    first.fail("file.gz", cut(CUT), *[cut(0)] * 9)
    download(one_file(first.url, second.url), root)
    assert [headers["Range"] for headers in second.asked()] == [f"bytes={CUT}-"]
    assert files_below(root) == {"set/file.gz": FILE}


@pytest.mark.parametrize("length", [CUT, len(FILE), len(FILE) + 5])
def test_the_beginning_of_another_file_is_thrown_away(serve, root, length):
    server = serve({"file.gz": FILE})
    (root / "set").mkdir(parents=True)
    (root / "set" / "file.gz.part").write_bytes(noise(length, seed=2))
    download(one_file(server.url), root)
    assert files_below(root) == {"set/file.gz": FILE}


def test_a_part_that_is_longer_than_what_the_server_has_is_thrown_away(serve, root):
    short, server = serve({"file.gz": FILE[:CUT]}), serve({"file.gz": FILE})
    (root / "set").mkdir(parents=True)
    (root / "set" / "file.gz.part").write_bytes(FILE[: 2 * CUT])
    download(one_file(short.url, server.url), root)  # 416, then the wrong size
    assert files_below(root) == {"set/file.gz": FILE}


def test_a_whole_part_needs_no_server(root):
    (root / "set").mkdir(parents=True)
    (root / "set" / "file.gz.part").write_bytes(FILE)
    download(one_file("http://127.0.0.1:9/"), root)
    assert files_below(root) == {"set/file.gz": FILE}


def test_wrong_bytes_make_the_next_mirror_be_tried(serve, root):
    wrong, right = serve({"file.gz": noise(len(FILE), seed=1)}), serve({"file.gz": FILE})
    download(one_file(wrong.url, right.url), root)
    assert (len(wrong.asked()), len(right.asked())) == (1, 1)
    assert files_below(root) == {"set/file.gz": FILE}


def test_wrong_bytes_everywhere_name_both_digests(serve, root):
    wrong = noise(len(FILE), seed=1)
    server = serve({"file.gz": wrong})
    with pytest.raises(DownloadError) as error:
        download(one_file(server.url), root)
    said = (
        f"{server.url}file.gz sent a wrong file: file.gz.part has sha256 {sha256(wrong)}, "
        f"expected {sha256(FILE)}"
    )
    assert said in str(error.value)
    assert files_below(root) == {}


@pytest.mark.parametrize("other", [b"", b"<html>", FILE + b"!"])
def test_a_file_of_another_size_is_refused_before_it_is_fetched(serve, root, other):
    server = serve({"file.gz": other})
    with pytest.raises(DownloadError, match=f"has {len(other):,} bytes, expected {len(FILE):,}"):
        download(one_file(server.url), root)
    assert files_below(root) == {}


def test_a_length_that_is_not_told_is_counted(serve, root):
    right, long, short = (
        serve({"file.gz": file}) for file in (FILE, FILE + noise(3 * CHUNK_BYTES), FILE[:-1])
    )
    for server in (right, long, short):
        server.fail("file.gz", chunked)
    with pytest.raises(
        DownloadError,
        match=f"(?s)has {len(FILE) + 1:,} bytes, .*has {len(FILE) - 1:,} bytes, expected",
    ):
        download(one_file(long.url, short.url), root)
    assert files_below(root) == {}
    download(one_file(right.url), root)
    assert files_below(root) == {"set/file.gz": FILE}


def test_a_full_disk_keeps_what_can_be_gone_on_with(serve, root):
    server = serve({"file.gz": FILE})
    source = one_file(server.url)
    said = (
        r"cannot write .*/set/file\.gz\.part: File too large; "
        r"make room or choose another place with --data-dir"
    )
    with files_of_at_most(CUT + 100), pytest.raises(OutputError, match=said):
        download(source, root)
    assert part_below(root) == FILE[: CUT + 100]
    assert not (root / "set" / "file.gz").exists()
    download(source, root)
    assert server.asked()[1]["Range"] == f"bytes={CUT + 100}-"
    assert files_below(root) == {"set/file.gz": FILE}


@pytest.mark.parametrize("below", ["file", "file/data"])
def test_a_place_that_cannot_be_written_is_named(tmp_path, below):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        OutputError, match=f"cannot write {tmp_path}/.*choose another place with --data-dir"
    ):
        download(one_file("http://127.0.0.1:9/"), tmp_path / below)


# --- processes


def start(table, *arguments, cwd):
    command = [sys.executable, "-m", "support.made_up_sources", str(table), *arguments]
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=clean_environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )


def test_two_processes_download_once(serve, root, tmp_path):
    server = serve({"file.gz": FILE})
    reached, go_on = threading.Event(), threading.Event()
    server.fail("file.gz", held(reached, go_on))
    table = write_table(tmp_path / "table", one_file(server.url))
    processes = [start(table, "download", "set", "--data-dir", str(root), cwd=tmp_path)]
    try:
        assert reached.wait(LIMIT_S)
        processes.append(start(table, "download", "set", "--data-dir", str(root), cwd=tmp_path))
        assert processes[1].stderr.readline() == "waiting for another process that fetches set\n"
        go_on.set()
        outcomes = [
            (process.communicate(timeout=LIMIT_S)[0], process.returncode) for process in processes
        ]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert outcomes == [(f"set is complete in {root / 'set'}\n", 0)] * 2
    assert len(server.asked()) == 1
    assert files_below(root) == {"set/file.gz": FILE}


def test_ctrl_c_keeps_what_has_come_and_the_next_command_goes_on(serve, root, tmp_path):
    server = serve({"file.gz": FILE})
    server.fail("file.gz", silence(after=CUT))
    source = one_file(server.url)
    process = start(
        write_table(tmp_path / "table", source),
        "download",
        "set",
        "--data-dir",
        str(root),
        cwd=tmp_path,
    )
    try:
        part = root / "set" / "file.gz.part"
        wait_until(lambda: part.exists() and part.stat().st_size >= CUT)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out) == (130, "")
    assert (
        err.splitlines()[-1]
        == "interrupted: what has been downloaded is kept: run the same command again to resume"
    )
    assert part_below(root) == FILE[:CUT]
    download(source, root)
    assert server.asked()[1]["Range"] == f"bytes={CUT}-"
    assert files_below(root) == {"set/file.gz": FILE}
