"""A fake HTTP server on 127.0.0.1 that serves files from memory and injects faults."""

import re
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class FileServer:
    """A server of ``files``, which maps paths to their contents.

    `add_faults` replaces the answers to the next requests for a path. A fault is a function that
    takes the request handler, such as `send_chunked` or the result of `respond_with_status`.
    """

    def __init__(self, files, port=0, ranges=True):
        self.files = {f"/{name}": content for name, content in files.items()}
        self.faults, self.requests = {}, []
        self.ranges = ranges
        self._server = _Server(("127.0.0.1", port), _make_handler(self))
        self._server.daemon_threads = True
        self._server.block_on_close = False
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def port(self):
        return self._server.server_address[1]

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/"

    def add_faults(self, name, *faults):
        self.faults[f"/{name}"] = list(faults)

    def request_headers(self, name=None):
        """Return the headers of the requests so far, for one file or for all."""
        return [headers for path, headers in self.requests if name is None or path == f"/{name}"]

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def serve():
    """Yield ``serve({name: content}, ...)``, which starts a server until the test ends."""
    servers = []

    def start(files, **settings):
        servers.append(FileServer(files, **settings))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        """Print nothing: some tests close the connection."""


def _make_handler(server):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self):
            self.do_GET(send=lambda body: None)

        def do_GET(self, send=None):
            # a request to a proxy contains the host
            path = re.sub(r"^http://[^/]*", "", self.path)
            server.requests.append((path, dict(self.headers)))
            faults = server.faults.get(path)
            if faults:
                faults.pop(0)(self)
            elif path in server.files:
                self.send_file(server.files[path], send)
            else:
                respond_with_status(404)(self)

        def send_file(self, content, send=None):
            """Send the file, or its requested range; ``send`` may replace the write of the body."""
            begin = self.range_start()
            if begin is not None and begin >= len(content):
                return respond_with_status(416)(self)
            self.send_response(200 if begin is None else 206)
            if begin is not None:
                self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
            body = content[begin or 0 :]
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            return (send or self.wfile.write)(body)

        def range_start(self):
            match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            return int(match[1]) if match and server.ranges else None

        def content(self):
            return server.files[self.path]

        def drop(self):
            """Close the connection, like a server that is restarted."""
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

        def log_message(self, *args):
            pass

    return Handler


def respond_with_status(number, **headers):
    def answer(handler):
        handler.send_response(number)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", "5")
        handler.end_headers()
        handler.wfile.write(b"sorry")

    return answer


def redirect_to(url):
    def answer(handler):
        handler.send_response(302)
        handler.send_header("Location", url)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


def truncate_body(after):
    """Return a fault that closes the connection after some bytes of the body."""

    def answer(handler):
        def send(body):
            handler.wfile.write(body[:after])
            handler.drop()

        handler.send_file(handler.content(), send)

    return answer


HANG_S = 600


def hang_response(after=None):
    """Return a fault that sends nothing for HANG_S, at once or after some bytes of the body."""

    def answer(handler):
        def send(body):
            handler.wfile.write(body[:after])
            handler.wfile.flush()
            time.sleep(HANG_S)
            handler.drop()

        if after is None:
            time.sleep(HANG_S)
            handler.drop()
        else:
            handler.send_file(handler.content(), send)

    return answer


def trickle_body(after, tick):
    """Return a fault that sends single bytes after some bytes, and calls ``tick`` before each."""

    def answer(handler):
        def send(body):
            handler.wfile.write(body[:after])
            for i in range(after, len(body)):
                handler.wfile.flush()
                time.sleep(0.005)
                tick()
                handler.wfile.write(body[i : i + 1])
            handler.drop()

        handler.send_file(handler.content(), send)

    return answer


def send_chunked(handler):
    """Answer without the length of the body."""
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    body = handler.content()
    for begin in range(0, len(body), 10_000):
        piece = body[begin : begin + 10_000]
        handler.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
    handler.wfile.write(b"0\r\n\r\n")


def hold_response(reached, released):
    """Return a fault that sets one event, and answers when the other is set."""

    def answer(handler):
        reached.set()
        released.wait(HANG_S)
        handler.send_file(handler.content())

    return answer
