"""A notebook that reaches the world through a proxy and an index of its own: git, pip, aws and
conda are told, by the lifecycle configuration or by a file on the volume.

The proxy is real, and so are git, pip and aws; the names behind it exist nowhere else. What goes
over https is only seen to ask the proxy for its way: it ends there.
"""

import os
import subprocess
import sys
import threading
import urllib.parse
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.waiting import LIMIT_S


class Proxy(BaseHTTPRequestHandler):
    """Answers as git.example and pypi.example, and notes who was asked for."""

    asked, git, index = [], None, None

    def do_CONNECT(self):
        self.asked.append(self.path)
        self.send_error(403)

    def do_GET(self):
        about = urllib.parse.urlsplit(self.path)
        self.asked.append(about.hostname)
        if about.hostname == "git.example":
            return self.repository(about)
        path = self.index / about.path.strip("/")
        if path.is_dir():
            links = "".join(f'<a href="{item.name}">{item.name}</a>' for item in path.iterdir())
            return self.answer(200, "text/html", f"<!DOCTYPE html><html>{links}</html>".encode())
        if path.is_file():
            return self.answer(200, "application/zip", path.read_bytes())
        return self.answer(404, "text/plain", b"")

    def do_POST(self):
        self.do_GET()

    def repository(self, about):
        """git's own server, which is a program of CGI."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        environment = {
            "PATH": os.environ["PATH"], "GIT_PROJECT_ROOT": str(self.git), "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": about.path, "QUERY_STRING": about.query, "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""), "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*",
        }  # fmt: skip
        command = ["git", "http-backend"]
        output = subprocess.run(
            command, input=body, env=environment, stdout=subprocess.PIPE, timeout=LIMIT_S, check=False
        ).stdout
        head, _, content = output.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode("ascii").split("\r\n"))
        self.answer(int(fields.get("Status", "200")[:3]), fields["Content-Type"], content)

    def answer(self, status, kind, content):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def proxy(notebook, tmp_path):
    """(address, handler) of a proxy before a repository and an index with one package."""

    class Here(Proxy):
        asked, git, index = [], notebook.checkout.parent, tmp_path / "index"

    package = Here.index / "simple/made-up"
    package.mkdir(parents=True)
    with zipfile.ZipFile(str(package / "made_up-1.0-py3-none-any.whl"), "w") as wheel:
        about = "made_up-1.0.dist-info"
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: made-up\nVersion: 1.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    serving = ThreadingHTTPServer(("127.0.0.1", 0), Here)
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    pip = f"{sys.executable} -m pip download --no-deps --dest {notebook.root}/got made-up"
    notebook.add_shim("python", f'case "$*" in *make_venv.py*) exec {pip}; esac', notebook.root / "python")
    yield f"http://127.0.0.1:{serving.server_port}", Here
    serving.shutdown()
    thread.join()
    serving.server_close()


# All addresses of a real notebook are https, for which HTTPS_PROXY is enough; curl, which git uses,
# takes that for http by its small name alone.
THROUGH = "http_proxy={} PIP_INDEX_URL=http://pypi.example/simple PIP_TRUSTED_HOST=pypi.example"
REPOSITORY = "http://git.example/origin/.git"


def test_git_and_pip_go_the_way_that_the_lifecycle_configuration_says(notebook, proxy):
    address, handler = proxy
    notebook.create_and_wait(GLUONLAB_REPOSITORY=REPOSITORY, GLUONLAB_ENVIRONMENT=THROUGH.format(address))
    assert set(handler.asked) == {"git.example", "pypi.example"}
    assert [path.name for path in (notebook.root / "got").iterdir()] == ["made_up-1.0-py3-none-any.whl"]


def test_a_file_on_the_volume_says_so_too_and_goes_before(notebook, proxy):
    """The file is for a build that failed, and for values with passwords."""
    address, handler = proxy
    notebook.create(GLUONLAB_REPOSITORY=REPOSITORY, GLUONLAB_ENVIRONMENT="http_proxy=http://127.0.0.1:9")
    assert "fetching the checkout of gluonlab failed" in notebook.wait_for_marker("FAILED")
    lines = THROUGH.format(address).replace(" ", "\n")
    (notebook.shown / ".gluonlab/environment").write_text(
        "# ours\n" + lines + "\nGLUONLAB_CONDA_CHANNEL=https://conda.example/forge\n", encoding="utf-8"
    )
    notebook.build_or_fail()
    assert set(handler.asked) == {"git.example", "pypi.example"}
    assert " --channel https://conda.example/forge " in notebook.recorded_calls("conda")[0]


def test_an_update_goes_through_the_proxy_too(notebook, proxy):
    address, handler = proxy
    notebook.create_and_wait(GLUONLAB_REPOSITORY=REPOSITORY, GLUONLAB_ENVIRONMENT=THROUGH.format(address))
    del handler.asked[:]
    (notebook.checkout / "setup.py").write_text("# newer", encoding="utf-8")
    notebook.commit()
    notebook.build_or_fail("--update")
    assert set(handler.asked) == {"git.example", "pypi.example"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"GLUONLAB_REPOSITORY": "https://git.example/g.git"}, "git.example:443"),
        ({"GLUONLAB_REPOSITORY": "", "GLUONLAB_BUCKET": "my-bucket"}, "my-bucket.s3.eu-west-1.amazonaws.com:443"),
    ],
    ids=["git", "aws"],
)
def test_https_asks_the_proxy_for_its_way(notebook, proxy, given, expected):
    address, handler = proxy
    (notebook.shims / "aws").unlink()
    (notebook.shims / "aws").symlink_to(Path(sys.executable).parent / "aws")
    keys = "AWS_ACCESS_KEY_ID=x AWS_SECRET_ACCESS_KEY=x AWS_DEFAULT_REGION=eu-west-1"
    output = f"HTTPS_PROXY={address} AWS_MAX_ATTEMPTS=1 {keys}"
    notebook.create(GLUONLAB_ENVIRONMENT=output, **given)
    notebook.wait_for_marker("FAILED")
    assert set(handler.asked) == {expected}


def test_the_idle_stop_has_the_proxy_and_no_proxy_before_the_metadata(notebook):
    notebook.create_and_wait(GLUONLAB_ENVIRONMENT="HTTPS_PROXY=http://proxy.example:3128 A=b$(id)")
    (notebook.shown / ".gluonlab/environment").write_text("HTTPS_PROXY=http://other.example:3128\n", encoding="utf-8")
    notebook.add_shim("python3", "env")
    started = subprocess.run(
        ["bash", str(notebook.root / "opt/gluonlab/idle-stop.sh")],
        env={"PATH": f"{notebook.shims}:{os.defpath}"},
        stdout=subprocess.PIPE,
        encoding="utf-8",
        timeout=LIMIT_S,
        check=True,
    ).stdout.splitlines()
    assert "HTTPS_PROXY=http://other.example:3128" in started
    assert "NO_PROXY=169.254.169.254,localhost,127.0.0.1" in started
    assert "A=b$(id)" in started  # a value, and nothing that is carried out


def test_what_is_no_variable_is_left_out(notebook):
    notebook.start("on-create")
    notebook.start(GLUONLAB_ENVIRONMENT="-rf A.B=1 OK=1")
    kept = (notebook.root / "opt/gluonlab/environment").read_text(encoding="utf-8").splitlines()
    assert kept[-1] == "OK=1"
    assert not any("rf" in line or "A.B" in line for line in kept)
    notebook.wait_for_marker("READY")


def test_a_file_that_bash_does_not_understand_is_named(notebook):
    notebook.create_and_wait()
    file = notebook.shown / ".gluonlab/environment"
    file.write_text("HTTPS_PROXY='http://proxy\n", encoding="utf-8")
    assert notebook.build()[0] == 1
    assert f"reading {file} failed" in notebook.wait_for_marker("FAILED")
