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

    def fail(self, name, *faults):
        self.faults[f"/{name}"] = list(faults)

    def asked(self, name=None):
        """The headers of the requests that came, for one file or for all."""
        return [headers for path, headers in self.requests if name is None or path == f"/{name}"]

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def serve():
    """``serve({name: content}, ...)``: a server that is closed when the test ends."""
    servers = []

    def start(files, **settings):
        servers.append(FileServer(files, **settings))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        """Clients that hang up are a part of the tests."""


def _make_handler(server):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self):
            self.do_GET(send=lambda body: None)

        def do_GET(self, send=None):
            # what a proxy is asked has the host in it
            path = re.sub(r"^http://[^/]*", "", self.path)
            server.requests.append((path, dict(self.headers)))
            waiting = server.faults.get(path)
            if waiting:
                waiting.pop(0)(self)
            elif path in server.files:
                self.send_file(server.files[path], send)
            else:
                respond_with_status(404)(self)

        def send_file(self, content, send=None):
            """The file, or the range of it that was asked for; ``send`` writes the body in another
            way.
            """
            begin = self.asked_range(content)
            if begin is not None and begin >= len(content):
                return respond_with_status(416)(self)
            self.send_response(200 if begin is None else 206)
            if begin is not None:
                self.send_header(
                    "Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}"
                )
            body = content[begin or 0 :]
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            return (send or self.wfile.write)(body)

        def asked_range(self, content):
            asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            return int(asked[1]) if asked and server.ranges else None

        def content(self):
            return server.files[self.path]

        def drop(self):
            """Close the connection as a server does that is restarted."""
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
    """All headers, and a body that ends after so many bytes of what was asked for."""

    def answer(handler):
        def send(body):
            handler.wfile.write(body[:after])
            handler.drop()

        handler.send_file(handler.content(), send)

    return answer


HANG_S = 600


def hang_response(after=None):
    """Says nothing for longer than anybody waits; from the beginning, or after so many bytes."""

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
    """So many bytes at once, and then one at a time, with a call of ``tick`` before each."""

    def answer(handler):
        def send(body):
            handler.wfile.write(body[:after])
            for place in range(after, len(body)):
                handler.wfile.flush()
                time.sleep(0.005)
                tick()
                handler.wfile.write(body[place : place + 1])
            handler.drop()

        handler.send_file(handler.content(), send)

    return answer


def send_chunked(handler):
    """Without telling how long it is."""
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    body = handler.content()
    for begin in range(0, len(body), 10_000):
        piece = body[begin : begin + 10_000]
        handler.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
    handler.wfile.write(b"0\r\n\r\n")


def hold_response(reached, go_on):
    """Sets one event, and answers when the other is set."""

    def answer(handler):
        reached.set()
        go_on.wait(HANG_S)
        handler.send_file(handler.content())

    return answer
