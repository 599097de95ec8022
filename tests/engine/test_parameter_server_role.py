"""Why MXNet's scheduler, or server, could not listen: MXNet gives no reason, the system does."""

import socket

import pytest
from mxnet.base import MXNetError
from mxnet.kvstore import kvstore_server
from support.parameter_server import free_port

from gluonlab.engine.parameter_server_role import CannotListen, run_server_role

FOREIGN = "192.0.2.1"  # RFC 5737: of no host


def cannot_listen(monkeypatch, said="bind failed", **variables):
    """Return the error of `run_server_role` if MXNet fails with this message."""

    def fail():
        raise MXNetError(f"[12:00:00] src/van.cc:42: Check failed: {said}")

    monkeypatch.setattr(kvstore_server, "_init_kvstore_server_module", fail)
    monkeypatch.setattr("gluonlab.host.resources.keep_freed_memory", lambda: None)  # of all later tests
    for name, value in {"NUM_WORKER": 1, "NUM_SERVER": 1, **variables}.items():
        monkeypatch.setenv(f"DMLC_{name}", str(value))
    with pytest.raises((CannotListen, MXNetError)) as raised:
        run_server_role()
    return raised.value


def test_a_scheduler_says_whether_its_port_is_taken_or_its_address_is_another_hosts(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        for address, why, is_taken in (
            ("127.0.0.1", "Address already in use", True),
            (FOREIGN, "Cannot assign requested address", False),
        ):
            own = {"ROLE": "scheduler", "PS_ROOT_URI": address, "PS_ROOT_PORT": port}
            error = cannot_listen(monkeypatch, **own)
            assert (str(error), error.is_taken) == (f"port {port} of {address}: {why}", is_taken)


def test_a_port_that_is_free_again_was_taken(monkeypatch):
    own = {"ROLE": "scheduler", "PS_ROOT_URI": "127.0.0.1", "PS_ROOT_PORT": free_port()}
    assert cannot_listen(monkeypatch, **own).is_taken


def test_a_server_that_finds_no_port_names_its_address(monkeypatch):
    own = {"ROLE": "server", "PS_ROOT_URI": "127.0.0.1", "PS_ROOT_PORT": 1, "NODE_HOST": FOREIGN}
    error = cannot_listen(monkeypatch, **own)
    assert str(error) == f"no port of {FOREIGN} can be had: set DMLC_NODE_HOST anew"
    assert not error.is_taken


def test_what_else_mxnet_says_stays_as_it_is(monkeypatch):
    own = {"ROLE": "scheduler", "PS_ROOT_URI": "127.0.0.1", "PS_ROOT_PORT": 1}
    assert isinstance(cannot_listen(monkeypatch, "no memory", **own), MXNetError)
