"""idle-stop.py where something around it fails: a server that answers little, and keys that may not
stop the notebook.
"""

import json
import os
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from made_up_notebook import RESOURCE_METADATA, Quiet


class Halting(BaseHTTPRequestHandler):
    """A server that answers about ``well`` only; what else is asked it refuses, cuts short or
    answers with no list.
    """

    well = {"kernels", "terminals"}
    kernels = [{"id": "a", "name": "python3", "last_activity": "x", "execution_state": "idle"}]
    instead = "404"

    def do_GET(self):
        what = self.path.split("/")[-1]
        fault = "" if what in self.well else self.instead
        answer = json.dumps(self.kernels if what == "kernels" else []).encode()
        others = {"404": b"", "no list": b'{"message": "busy"}', "number": b"7"}
        answer = others.get(fault, answer)
        self.send_response(404 if fault == "404" else 200)
        self.send_header("Content-Length", str(len(answer) + 100 * (fault == "cut")))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def halting(idle_stop):
    """(Watch, handler) of a server that does not answer everything; without processes, GPUs,
    network and heartbeat.
    """

    class Here(Halting):
        pass

    serving = HTTPServer(("127.0.0.1", 0), Here)
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    jupyter = idle_stop.JupyterClient(f"http://127.0.0.1:{serving.server_port}")
    quiet = [Quiet(), Quiet(), Quiet()]
    yield idle_stop.IdleTimer(jupyter, *quiet, heartbeat="/nonexistent"), Here
    serving.shutdown()
    thread.join()
    serving.server_close()


@pytest.mark.parametrize("instead", ["404", "cut", "no list", "number"])
def test_a_kernel_is_seen_though_terminals_are_not(halting, instead):
    """Terminals may be switched off, and a bad answer must not end the program: it would count from
    the beginning again.
    """
    timer, server = halting
    server.well, server.instead = {"kernels"}, instead
    assert [timer.update(now)[1] for now in (0, 60)] == [None, None]
    server.kernels = [{**Halting.kernels[0], "execution_state": "busy"}]
    assert timer.update(120) == (0, "kernel python3 is busy")


def test_a_server_that_answers_now_and_then_does_not_keep_a_notebook_nor_does_its_last_word(halting):
    timer, server = halting
    server.kernels = [{**Halting.kernels[0], "execution_state": "busy"}]
    assert timer.update(0) == (0, "kernel python3 is busy")
    for now, well in ((60, set()), (120, {"kernels"}), (180, set()), (240, set())):
        server.well = well
        server.kernels = Halting.kernels
        assert timer.update(now) == (now, None)


def test_the_role_of_the_notebook_stops_it_whatever_its_user_has_set_up(idle_stop, tmp_path, monkeypatch):
    """Somebody's own key in ~/.aws may not stop this notebook; where the role's come from such a
    file, the file is read, too.
    """
    (tmp_path / "metadata.json").write_text(json.dumps(RESOURCE_METADATA), encoding="utf-8")
    monkeypatch.setattr(idle_stop, "METADATA", str(tmp_path / "metadata.json"))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.delenv(name, raising=False)
    role_only = '[ "$AWS_SHARED_CREDENTIALS_FILE$AWS_CONFIG_FILE" = /dev/null/dev/null ]'
    for allowed, calls in ((role_only, 1), (f"! {role_only}", 2)):
        (tmp_path / "aws").write_text(f'#!/bin/bash\necho "$@" >>$HOME/calls\n{allowed}\n', encoding="utf-8")
        (tmp_path / "aws").chmod(0o755)
        idle_stop.stop_notebook()
        assert len((tmp_path / "calls").read_text(encoding="utf-8").splitlines()) == calls
        (tmp_path / "calls").unlink()
    (tmp_path / "aws").write_text("#!/bin/bash\nexit 255\n", encoding="utf-8")
    with pytest.raises(subprocess.CalledProcessError):
        idle_stop.stop_notebook()
