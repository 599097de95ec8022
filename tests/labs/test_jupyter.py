"""make jupyter opens copies of the labs with its own kernel, whatever others there are."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from the_labs import REPOSITORY

OPTIONS = "--no-browser --ServerApp.port=0 --ServerApp.allow_root=True --ServerApp.ip=127.0.0.1"


@pytest.fixture
def home(tmp_path):
    """A home whose owner has a python3 kernel, of another Python."""
    kernel = tmp_path / "home" / ".local" / "share" / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    spec = {"argv": ["/nowhere/python"], "display_name": "another", "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(spec))
    return tmp_path / "home"


def wait_for_port(port):
    """The server prints its address, and may listen there a moment later."""
    until = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 5).close()
        except ConnectionRefusedError:
            assert time.monotonic() < until
            time.sleep(0.1)


@pytest.fixture
def server(tmp_path, home):
    """``server(path, **data)``: an answer of the server that make jupyter starts."""
    words = ["make", "jupyter", f"VENV={sys.prefix}", f"WORK={tmp_path / 'work'}"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JUPYTER")}
    process = subprocess.Popen(
        [*words, f"ARGS={OPTIONS}"],
        cwd=REPOSITORY,
        env={**kept, "HOME": str(home), "GLUONLAB_LANGUAGE": "ja"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        start_new_session=True,
    )
    end = threading.Timer(200, os.killpg, (process.pid, signal.SIGKILL))
    end.start()
    try:
        said = []
        for line in process.stdout:
            said.append(line)
            found = re.search(r"(http://127\.0\.0\.1:\d+)/lab\?token=(\w+)", line)
            if found:
                break
        else:
            pytest.fail("".join(said))
        threading.Thread(target=process.stdout.read, daemon=True).start()

        def ask(path, **data):
            body = json.dumps(data).encode() if data else None
            asked = urllib.request.Request(f"{found[1]}/api/{path}", body)
            asked.add_header("Authorization", f"token {found[2]}")
            with urllib.request.urlopen(asked, timeout=30) as answer:
                return json.load(answer)

        wait_for_port(int(found[1].rpartition(":")[2]))
        yield ask
    finally:
        end.cancel()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                os.killpg(process.pid, number)
                time.sleep(0.5)
        process.wait()


def kernels(id):
    """The command lines of the processes of a kernel."""
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = place.read_bytes().decode().split("\0")
        except OSError:
            continue
        if any(id in word for word in words):
            yield words


def test_the_labs_open_with_a_kernel_that_has_gluonlab(server):
    names = {each["name"] for each in server("contents")["content"]}
    assert {path.name for path in (REPOSITORY / "labs" / "ja").glob("*.ipynb")} <= names
    assert server("kernelspecs")["default"] == "python3"
    started = server("kernels", name="python3")
    until = time.monotonic() + 60
    while not (running := list(kernels(started["id"]))):
        assert time.monotonic() < until
        time.sleep(0.1)
    assert [words[:3] for words in running] == [[sys.executable, "-m", "ipykernel_launcher"]]
