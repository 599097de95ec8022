"""make jupyter opens copies of the labs with its own kernel, whatever others there are."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest
from support.waiting import LIMIT_S, wait_until
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

    def listens():
        with contextlib.suppress(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), LIMIT_S).close()
            return True

    wait_until(listens)


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
    end = threading.Timer(LIMIT_S, os.killpg, (process.pid, signal.SIGKILL))
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
            with urllib.request.urlopen(asked, timeout=LIMIT_S) as answer:
                return json.load(answer)

        wait_for_port(int(found[1].rpartition(":")[2]))
        yield ask
    finally:
        end.cancel()
        try:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)  # which ends its kernels, too
            process.wait(LIMIT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


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
    wait_until(lambda: list(kernels(started["id"])))
    running = list(kernels(started["id"]))
    assert [words[:3] for words in running] == [[sys.executable, "-m", "ipykernel_launcher"]]
