"""Whether MXNet has the parameter server, and the reason why its scheduler or server cannot listen."""

import socket

import mxnet as mx
import pytest
from mxnet.base import MXNetError
from mxnet.kvstore import kvstore_server
from support.parameter_server import free_port

from gluonlab.bench.allreduce.measure_allreduce import start_process_groups
from gluonlab.config import TrainConfig
from gluonlab.engine.parameter_server_role import (
    NO_PARAMETER_SERVER,
    CannotListen,
    has_parameter_server,
    run_server_role,
)
from gluonlab.errors import EngineError, GluonlabError
from gluonlab.kvstores import make_kvstore
from gluonlab.kvstores.process_groups import SINGLE_PROCESS
from gluonlab.launch.horovod_settings import explain_missing_horovod
from gluonlab.training.config_checks import check_server_update_options

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


def test_a_server_says_that_mxnet_has_no_parameter_server(monkeypatch):
    """MXNet itself returns, as if the process were a worker."""
    monkeypatch.setattr(kvstore_server, "_init_kvstore_server_module", lambda: None)
    monkeypatch.setattr("gluonlab.host.resources.keep_freed_memory", lambda: None)  # of all later tests
    monkeypatch.setenv("DMLC_ROLE", "server")
    with pytest.raises(EngineError) as raised:
        run_server_role()
    expected = f"the parameter server (DMLC_ROLE=server) cannot be used, because {NO_PARAMETER_SERVER}: "
    assert str(raised.value).startswith(expected)


def start_processes():
    with start_process_groups(["dist_sync"], 2):
        pass


@pytest.mark.parametrize(
    ("module", "use", "given", "instead"),
    [
        ("kvstores", lambda: make_kvstore("dist_async"), "kvstore 'dist_async'", "choose kvstore 'device'"),
        (
            "training.config_checks",
            lambda: check_server_update_options(TrainConfig(update_on_servers=True), SINGLE_PROCESS),
            "--update-on-servers",
            "remove --update-on-servers",
        ),
        ("bench.allreduce.measure_allreduce", start_processes, "--processes dist_sync", "choose --processes horovod"),
    ],
)
def test_without_the_parameter_server_an_error_names_what_was_given_and_what_is_possible(
    monkeypatch, module, use, given, instead
):
    monkeypatch.setattr(f"gluonlab.{module}.has_parameter_server", lambda: False)
    with pytest.raises(GluonlabError) as raised:
        use()
    message = str(raised.value)
    assert message.startswith(f"{given} cannot be used, because {NO_PARAMETER_SERVER}: {instead}, ")
    assert message.endswith("use Linux on x86-64, such as a container with --platform linux/amd64")


@pytest.mark.parametrize(("has_servers", "instead"), [(True, "choose --backend dist_sync"), (False, "train in one")])
def test_a_missing_horovod_is_not_replaced_by_a_missing_parameter_server(monkeypatch, has_servers, instead):
    monkeypatch.setattr("gluonlab.launch.horovod_settings.has_parameter_server", lambda: has_servers)
    assert f"docs/launch.md, or {instead}" in explain_missing_horovod(ImportError("no horovod"))
