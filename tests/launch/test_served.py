"""Servers that update: by the same numbers as workers do, and what staleness they tell.

The workers are real, and make the steps of `support.served`; the reference makes them alone.
"""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import served
from support.parameter_server import end, servers
from support.reference import distance

from gluonlab.optimizers.registry import OPTIMIZERS

pytestmark = pytest.mark.cpu_only("the processes compute on CPU devices, whoever started them")
LONG = pytest.mark.long
BOUND = "MXNET_KVSTORE_BIGARRAY_BOUND"  # elements from which an array is cut over all servers


def asked(**given):
    return {
        "backend": "dist_sync", "optimizer": "sgd", "devices": 1, "on_servers": True,
        "steps": 12, "lr": 0.1, "more": {}, "bucket_bytes": 400, **given,
    }  # fmt: skip


def ended(folder, workers, server_count, how, bound=100):
    """The weights of each worker at the end, and the staleness that rank 0 was told."""
    with servers(workers, servers=server_count, **{BOUND: str(bound)}) as (environments, _):
        started = [
            subprocess.Popen(
                [sys.executable, served.__file__, str(folder), json.dumps(how)], env=environment
            )
            for environment in environments
        ]
        try:
            assert [process.wait(240) for process in started] == [0] * workers
        finally:
            end(started)
    found = [np.load(str(folder / f"{rank}.npy")) for rank in range(workers)]
    return found, json.loads((folder / "staleness.json").read_text())


@pytest.mark.parametrize(
    "optimizer",
    [pytest.param(name, marks=[] if name == "adam" else LONG) for name in OPTIMIZERS],
)
@pytest.mark.long
def test_servers_update_as_workers_do(optimizer, tmp_path):
    """A warm-up and a cosine, weight decay for some parameters, ragged batches, workers without
    images, arrays that are cut over three servers and others that are not.
    """
    more = {"momentum": 0.9} if OPTIMIZERS[optimizer].momentum else {}
    how = asked(optimizer=optimizer, more=more, lr=0.01)
    found, told = ended(tmp_path, 2, 3, how)
    expected = served.alone(2, how)
    assert told is None
    for weights in found:
        assert (weights == found[0]).all()
        assert distance([weights], [expected]) <= 1e-5


@LONG
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    workers=st.integers(1, 4),
    server_count=st.integers(1, 3),
    devices=st.integers(1, 2),
    bound=st.sampled_from([10, 100, 10**6]),
    bucket_bytes=st.sampled_from([0, 400, 10**6]),
    optimizer=st.sampled_from(["sgd", "nadam", "lamb"]),
    on_servers=st.booleans(),
    backend=st.sampled_from(["dist_sync", "dist_device_sync"]),
)
def test_any_number_of_workers_and_servers_makes_the_same_update(
    tmp_path_factory, workers, server_count, devices, bound, bucket_bytes, optimizer, on_servers,
    backend,
):  # fmt: skip
    how = asked(
        optimizer=optimizer, devices=devices, bucket_bytes=bucket_bytes, on_servers=on_servers,
        backend=backend, steps=6,
    )  # fmt: skip
    found, _ = ended(tmp_path_factory.mktemp("run"), workers, server_count, how, bound)
    expected = served.alone(workers, how)
    for weights in found:
        assert (weights == found[0]).all()
        assert distance([weights], [expected]) <= 1e-5


@pytest.mark.long
def test_workers_that_do_not_wait_end_with_the_same_weights_and_every_push_is_told(tmp_path):
    """The bits of one are those of all after they have met; each push has met some others'."""
    how = asked(backend="dist_async", more={"momentum": 0.9})
    found, told = ended(tmp_path, 3, 2, how)
    assert all((weights == found[0]).all() for weights in found)
    assert np.isfinite(found[0]).all()
    pushes = how["steps"] * 3
    assert sum(told) % pushes == 0  # of each array at each server that has some of it
    parts = sum(told) // pushes
    # others can have made no more updates in between than they make at all
    assert parts >= 1 and len(told) - 1 <= pushes * 2 // 3


def test_rank_0_is_told_the_staleness_whatever_number_mxnet_gives_it(tmp_path):
    """A launcher tells the workers their ranks; MXNet's scheduler counts them as they come."""
    how = asked(backend="dist_async", steps=4, turned_round=True)
    found, told = ended(tmp_path, 2, 2, how)
    assert (found[0] == found[1]).all()
    assert told is not None and sum(told) % (how["steps"] * 2) == 0


@LONG
@pytest.mark.parametrize("server_count", [1, 3])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "lamb"])
def test_a_worker_that_does_not_wait_for_others_and_has_none_updates_as_if_alone(
    optimizer, server_count, tmp_path
):
    how = asked(backend="dist_async", optimizer=optimizer, lr=0.01)
    [found], told = ended(tmp_path, 1, server_count, how)
    assert distance([found], [served.alone(1, how)]) <= 1e-5
    assert len(told) == 1  # nobody else has updated anything


@pytest.mark.parametrize("server_count", [1, 2])
def test_staleness_is_the_number_of_others_updates_since_the_last_pull(server_count):
    """The rule of a server is called as MXNet's server calls it; what is expected is counted by
    hand.
    """
    from mxnet import nd

    from gluonlab.optimizers import make_optimizer
    from gluonlab.optimizers.served import Flat, Piece, ServerRule, first_note, server_of

    first = 2**16 + 7
    flat = Flat(4, server_count, (Piece(0, 0, 4),))
    copies = {first + 10 + rank: (first, rank) for rank in range(3)}
    notes = {
        key: server_of(key, server_count) for key in range(first + 20, first + 20 + server_count)
    }
    rule = ServerRule(make_optimizer("sgd", {"learning_rate": 1.0}), {first: flat}, copies, notes)
    kept = {key: nd.zeros(4) for key in (first, *copies)}
    told = {key: nd.array(first_note(server_count)).reshape((-1,)) for key in notes}

    def push(key, value):
        place = kept[key] if key in kept else told[key]
        rule.update_multi_precision(key, place, nd.full(place.shape, value), None)

    def note():
        key = next(key for key, place in notes.items() if place == 0)
        push(key, 0)
        return told[key].asnumpy().reshape((server_count, -1))[0, 2:].astype(int).tolist()

    note()
    push(first, 0)  # which shows the rule the weights
    order = [0, 1, 0, 2, 1, 1, 2]  # 0: 0; 1: 1; 0: 1; 2: 3; 1: 2; 1: 0; 2: 2
    for number, rank in enumerate(order, start=1):
        push(first + 10 + rank, 1)
        expected = [-number] * 4
        assert kept[first + 10 + rank].asnumpy().tolist() == expected
        assert kept[first].asnumpy().tolist() == expected
    assert note()[:5] == [2, 2, 2, 1, 0]
    push(first + 10, 1)  # the note was a meeting: rank 0 has the weights as they are
    assert note()[:2] == [1, 0]
