"""Whether MXNet has the parameter server, and the reason why its scheduler or server cannot listen."""

import socket

import mxnet as mx
import pytest
from mxnet.base import MXNetError
from mxnet.kvstore import kvstore_server
from support.parameter_server import free_port

from gluonlab.engine.parameter_server_role import CannotListen, has_parameter_server, run_server_role

FOREIGN = "192.0.2.1"  # RFC 5737: of no host


def test_mxnet_was_compiled_with_the_parameter_server_where_gluonlab_expects_it():
    assert mx.runtime.Features().is_enabled("DIST_KVSTORE") == has_parameter_server()


def run_and_fail(monkeypatch, message="bind failed", **variables):
    """Return the error of `run_server_role` if MXNet fails with this message."""

    def fail():
        raise MXNetError(f"[12:00:00] src/van.cc:42: Check failed: {message}")

    monkeypatch.setattr(kvstore_server, "_init_kvstore_server_module", fail)
    monkeypatch.setattr("gluonlab.host.resources.keep_freed_memory", lambda: None)  # of all later tests
    for name, value in {"NUM_WORKER": 1, "NUM_SERVER": 1, **variables}.items():
        monkeypatch.setenv(f"DMLC_{name}", str(value))
    with pytest.raises((CannotListen, MXNetError)) as raised:
        run_server_role()
    return raised.value


def test_a_scheduler_reports_that_its_port_is_taken_or_its_address_is_of_another_host(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        for address, reason in (("127.0.0.1", "Address already in use"), (FOREIGN, "Cannot assign requested address")):
            error = run_and_fail(monkeypatch, ROLE="scheduler", PS_ROOT_URI=address, PS_ROOT_PORT=port)
            assert (str(error), error.is_taken) == (
                f"port {port} of {address} cannot be used: {reason}",
                address != FOREIGN,
            )


def test_a_port_that_is_free_again_was_taken(monkeypatch):
    error = run_and_fail(monkeypatch, ROLE="scheduler", PS_ROOT_URI="127.0.0.1", PS_ROOT_PORT=free_port())
    assert error.is_taken


def test_a_server_that_finds_no_port_names_its_address(monkeypatch):
    error = run_and_fail(monkeypatch, ROLE="server", PS_ROOT_URI="127.0.0.1", PS_ROOT_PORT=1, NODE_HOST=FOREIGN)
    assert (
        str(error) == f"no port of {FOREIGN} is available: set DMLC_NODE_HOST to another address" and not error.is_taken
    )


def test_other_errors_of_mxnet_are_unchanged(monkeypatch):
    error = run_and_fail(monkeypatch, "no memory", ROLE="scheduler", PS_ROOT_URI="127.0.0.1", PS_ROOT_PORT=1)
    assert isinstance(error, MXNetError)
