"""A real Jupyter server on the loopback, with kernels and terminals that do what a test wants."""

import json
import os
import subprocess
import sys
import urllib.request

import websocket
from jupyter_client import BlockingKernelClient
from support.waiting import LIMIT_S, wait_until

TOKEN = "of-the-tests"


class Server:
    def __init__(self, folder):
        for name in ("home", "runtime", "work"):
            (folder / name).mkdir()
        self.runtime = folder / "runtime"
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        places = {
            "HOME": folder / "home",
            "JUPYTER_RUNTIME_DIR": self.runtime,
            "JUPYTER_CONFIG_DIR": folder / "home",
            "SHELL": "/bin/bash",
        }
        options = [
            f"--IdentityProvider.token={TOKEN}",
            "--ServerApp.ip=127.0.0.1",
            "--ServerApp.port=0",
            "--no-browser",
            "--allow-root",
        ]
        with open(folder / "log", "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jupyter_server", *options, f"--ServerApp.root_dir={folder / 'work'}"],
                env={**kept, **{name: str(place) for name, place in places.items()}, "JUPYTER_PLATFORM_DIRS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_for_start(self):
        """Wait until the server answers. In a method, so that the caller can stop a server that does not."""
        wait_until(lambda: self.process.poll() is not None or list(self.runtime.glob("jpserver-*.json")))
        [about] = self.runtime.glob("jpserver-*.json")
        wait_until(lambda: about.read_text(encoding="utf-8"))
        self.url = f"http://127.0.0.1:{json.loads(about.read_text(encoding='utf-8'))['port']}"
        wait_until(self.is_ready)

    def is_ready(self):
        try:
            return self.request("GET", "status")
        except OSError:
            return False

    def request(self, method, name, data=None):
        headers = {"Authorization": f"token {TOKEN}", "Content-Type": "application/json"}
        body = None if data is None else json.dumps(data).encode()
        request = urllib.request.Request(f"{self.url}/api/{name}", data=body, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return json.loads(answer.read() or b"null")

    def start_kernel(self):
        """(id, client) of a new kernel, once it is idle."""
        name = self.request("POST", "kernels", {"name": "python3"})["id"]
        client = BlockingKernelClient(connection_file=str(self.runtime / f"kernel-{name}.json"))
        client.load_connection_file()
        client.start_channels()

        def ready():
            try:
                client.wait_for_ready(timeout=LIMIT_S)
            # a kernel whose heart is late by a second is taken for dead, and this machine may be
            # busy
            except RuntimeError:
                return False
            return True

        wait_until(ready)

        def idle():
            # the server may have begun to listen after the kernel's first words
            client.kernel_info()
            return self.request("GET", f"kernels/{name}")["execution_state"] == "idle"

        wait_until(idle)
        return name, client

    def wait_for_kernel(self, name, state):
        wait_until(lambda: self.request("GET", f"kernels/{name}")["execution_state"] == state)

    def start_terminal(self):
        """(name, socket) of a new terminal, once its shell has greeted."""
        name = self.request("POST", "terminals", {})["name"]
        address = self.url.replace("http", "ws") + f"/terminals/websocket/{name}"
        socket = websocket.create_connection(address, header=[f"Authorization: token {TOKEN}"], timeout=LIMIT_S)
        while json.loads(socket.recv())[0] != "stdout":
            pass
        return name, socket

    def process_ids(self):
        """The numbers of the server's process and of all that it has started."""
        parents = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
            try:
                with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
                    parents[int(pid)] = int(stat.read().rpartition(")")[2].split()[1])
            except OSError:
                pass
        result = {self.process.pid}
        while True:
            more = {pid for pid, parent in parents.items() if parent in result} - result
            if not more:
                return result
            result |= more

    def stop(self):
        """Asks it to end, with all its kernels and terminals."""
        self.process.terminate()
        try:
            self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(LIMIT_S)
