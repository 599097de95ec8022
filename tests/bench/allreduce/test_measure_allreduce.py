"""The allreduce benchmark: exact sums, the memory limit, and the numbers of its table."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from mxnet import nd
from support.bench_command import ALLREDUCE_ROW, AVAILABLE_ALGORITHMS, ring_without_last_transfer
from support.devices import device_spec, devices, runs_on_gpus

from gluonlab.bench.allreduce import measure_allreduce, memory_bandwidth
from gluonlab.bench.allreduce import result_table as allreduce_text
from gluonlab.bench.allreduce.candidate_schedules import make_plans
from gluonlab.bench.allreduce.measure_allreduce import PEERS, Variant, make_variants
from gluonlab.bench.allreduce.memory_bandwidth import MIN_PASS_BYTES, MemoryLimit, probe_speeds
from gluonlab.bench.harness.interleaved_rounds import time_interleaved
from gluonlab.bench.harness.machine_info import require_memory
from gluonlab.collectives.algorithms import ALGORITHMS, make_schedule
from gluonlab.collectives.cost_model import estimate_cost
from gluonlab.collectives.named_topologies import make_topology
from gluonlab.errors import ConfigError

pytestmark = pytest.mark.usefixtures("short")
ONCE = "--rounds 1 --iters 1"


def test_warm_up_calls_are_not_timed():
    called = []
    time_interleaved({"a": lambda: called.append(1)}, rounds=2, iters=3, warmup=4)
    assert len(called) == 4 + 2 * 3
    time_interleaved({"a": lambda: called.append(1)}, rounds=1, iters=1, warmup=0)
    assert len(called) == 4 + 2 * 3 + 1


def test_calls_take_turns_and_each_round_begins_with_another():
    called, rounds = [], []
    calls = {name: lambda name=name: called.append(name) for name in "abc"}
    seconds = time_interleaved(calls, rounds=3, iters=2, on_round=lambda: rounds.append(len(called)))
    assert "".join(called[-18:]) == "aabbcc" + "bbccaa" + "ccaabb" and len(rounds) == 3
    assert all(len(seconds[name]) == 3 and min(seconds[name]) > 0 for name in "abc")


@pytest.mark.parametrize("dtype", measure_allreduce.DTYPES)
def test_every_variant_sums_exactly_and_one_that_does_nothing_is_noticed(dtype):
    ctxs = devices(3)
    lazy = Variant("lazy", lambda arrays: lambda: None)
    variants = [*make_variants(None, make_plans(None, 3), ctxs, 2), lazy]
    assert {variant.label for variant in variants} == {*AVAILABLE_ALGORITHMS, "lazy"}
    report = measure_allreduce.measure([1000], variants, ctxs, dtype, arrays=2, rounds=1, iters=1)
    errors = {row.algorithm: row.error for row in report.rows}
    assert errors.pop("lazy") > 0 and set(errors.values()) == {0.0}
    assert measure_allreduce.inexact_algorithms(report.rows) == ["lazy"]
    sizes = {(row.count, row.size_bytes, row.arrays) for row in report.rows}
    assert sizes == {(1000 // np.dtype(dtype).itemsize, 1000, 2)}


def test_whole_arrays_are_not_cut():
    ctxs = devices(2)
    arrays = [[nd.zeros((size,), ctx=ctx) for size in (10, 10, 10)] for ctx in ctxs]
    [whole] = make_variants(["sharded-whole"], [], ctxs, 3)
    [cut] = make_variants([], make_plans(["sharded"], 2), ctxs, 3)
    for variant, transfers in ((whole, 3 * 2), (cut, 4 * 2)):  # both ways; the middle array is cut in two
        call = variant.make(arrays)
        call()
        assert call.__self__.transfers_run == transfers


def test_not_a_number_is_a_wrong_sum():
    ctxs = devices(2)

    def make(arrays):
        return lambda: [array.__setitem__(slice(None), value) for (array,), value in zip(arrays, (0, np.nan))]

    [row] = measure_allreduce.measure([400], [Variant("nan", make)], ctxs, rounds=1, iters=1).rows
    assert np.isnan(row.error) and row.as_json()["error"] is None
    assert measure_allreduce.inexact_algorithms([row]) == ["nan"] and " nan " in allreduce_text.rows_table([row])


def test_the_arrays_stay_finite_however_often_they_are_summed():
    measured = []

    def make(arrays):
        measured.extend(arrays)
        return make_variants(["star"], make_plans(["star"], 2), devices(2), 1)[0].make(arrays)

    measure_allreduce.measure([400], [Variant("star", make)], devices(2), rounds=1, iters=200)  # float32 has no 2**200
    assert all(np.array_equal(array.asnumpy(), np.zeros(100)) for row in measured for array in row)


def test_a_wrong_schedule_shows_in_the_table_and_in_the_exit_status(allreduce, monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "ring", ring_without_last_transfer)
    args = f"bench --devices {device_spec(3)} --bytes 900B --algorithms ring,star {ONCE}".split()
    status, out, err = allreduce(*args)
    errors = {name: float(error) for name, error in re.findall(r"^  (ring|star) +\S+ +\S+ +\S+ +(\S+)", out, re.M)}
    assert (status, err) == (1, "error: wrong results from ring: see column error\n")
    assert errors["star"] == 0 < errors["ring"]
    status, out, _ = allreduce(*args, "--json")
    wrong = {row["algorithm"]: row["error"] > 0 for row in json.loads(out)["rows"]}
    assert (status, wrong) == (1, {"ring": True, "star": False})


def test_the_memory_limit_is_that_of_every_replica_read_and_written_once():
    ctxs = devices(2)
    limit = MemoryLimit(ctxs, 3 * MIN_PASS_BYTES, "float32")
    copying, in_place = "limit by copying", "limit in place"
    measured = {copying: [4.0, 2.0], in_place: [3.0, 5.0], "ring": [0.1, 0.1]}
    assert limit.seconds(measured) == (3.0, 2.0)
    # measured with buffers that are larger, and so counted in part
    small = MemoryLimit(ctxs, MIN_PASS_BYTES // 8, "float16")
    assert small.seconds({copying: [4.0], in_place: [8.0]}) == (0.5,)
    for size in (MIN_PASS_BYTES // 8, 3 * MIN_PASS_BYTES):
        limit = MemoryLimit(ctxs, size, "float32")
        for source, target, value in zip(limit.sources, limit.targets, (1.5, 2.5)):
            source[:] = value
            assert source.size * 4 == max(size, MIN_PASS_BYTES) == target.size * 4
        for call in limit.calls.values():
            call()
        for arrays in (limit.sources, limit.targets):
            assert all((a.asnumpy() == value).all() for a, value in zip(arrays, (1.5, 2.5)))


@pytest.mark.cpu_only("memory of the host, of which /proc/meminfo tells")
def test_memory_that_is_not_there_is_refused_before_it_is_used(allreduce):
    require_memory(2**20, "little", "")
    with pytest.raises(ConfigError, match="much requires about 1152921504"):
        require_memory(2**60, "much", "choose less")
    status, out, err = allreduce("bench", "--bytes", "900000GiB")
    assert (status, out) == (2, "") and "use smaller sizes (--bytes)" in err


def test_speeds_are_payload_by_the_time_beyond_latency(monkeypatch):
    assert all(0 < speed < float("inf") for speed in vars(probe_speeds(devices(2), 1)).values())
    seconds = {"copy": 0.5, "add": 1.0, "device copy": 2.0, "device add": 4.0, "latency": 0.6}
    times = lambda runs, rounds: {name: [9.0, seconds[name]] for name in runs}  # noqa: E731
    monkeypatch.setattr(memory_bandwidth, "time_interleaved", times)
    speeds = probe_speeds(devices(3), 3 * 2**20)
    chunk, latency_s = 2**20, 0.1  # six transfers take 0.6 s; at least half of the time is for the bytes
    assert vars(speeds) == pytest.approx({
        "latency_s": latency_s, "copy_bytes_per_s": 6 * chunk / 0.25, "add_bytes_per_s": 6 * chunk / 0.5,
        "device_copy_bytes_per_s": 2 * 3 * chunk / (2 - 2 * latency_s),
        "device_add_bytes_per_s": 3 * chunk / (4 - latency_s),
    })  # fmt: skip


def test_a_row_has_the_numbers_of_nccl_tests():
    assert ALLREDUCE_ROW.as_json() == {
        "algorithm": "ring", "size_bytes": 4096, "count": 1024, "dtype": "float32", "arrays": 1,
        "time_us": 2000.0, "lowest_us": 1000.0, "highest_us": 4000.0, "algbw": 0.002048,
        "busbw": 0.003072, "error": 0.0, "predicted_us": 500.0, "floor_us": 250.0,
        "limit_us": 500.0, "of_limit": 0.5,
    }  # fmt: skip


def test_the_table_has_the_numbers_of_the_rows_and_fits_the_terminal():
    ctxs = devices(2)
    variants = make_variants(None, make_plans(None, 2), ctxs, 1)
    report = measure_allreduce.measure([4096, 70_000], variants, ctxs, rounds=2, iters=1)
    large = {"size_bytes": 2**36, "count": 2**34, "seconds": (99.9,) * 3, "error": 1e-7}
    huge = replace(ALLREDUCE_ROW, algorithm="bidirectional_ring placed", **large)
    rows = [*report.rows, huge, replace(huge, algorithm="none", limit_s=None)]
    text = allreduce_text.format_report(replace(report, rows=rows))
    assert max(map(len, text.split("\n"))) <= 80
    lines = [line.split() for line in text.split("\n")]
    # both in the order of measuring
    for row, line in zip(report.rows, [line for line in lines if line and line[0] in AVAILABLE_ALGORITHMS]):
        values = row.as_json()
        assert line[:2] == [row.algorithm, format_time(values["time_us"])]
        numbers = [round(values["algbw"], 2), round(values["busbw"], 2), 0]
        assert [float(cell) for cell in line[2:5]] == numbers
        priced = not (runs_on_gpus() or row.algorithm in PEERS)
        assert line[5] == (format_time(values["predicted_us"]) if priced else "-")
        assert line[6] == ("-" if runs_on_gpus() else f"{values['of_limit']:.0%}")
    assert sum(line[:3] == ["4,096", "1,024", "float32"] for line in lines) == 1
    # one is of the row above
    assert sum(line[:2] == ["(memory", "limit)"] for line in lines) == (1 if runs_on_gpus() else 3)


def format_time(microseconds):
    return f"{microseconds:,.0f}" if microseconds >= 1000 else f"{microseconds:.1f}"


def test_rings_are_measured_in_the_topologys_order_too_and_priced_on_it(allreduce, empty_cwd):
    cube = make_topology("p3.16xlarge")
    rings = "--algorithms ring,bidirectional_ring --topology p3.16xlarge --json --plot speed.png"
    status, out, _ = allreduce(*f"bench --devices {device_spec(8)} --bytes 1KiB {ONCE} {rings}".split())
    report = json.loads(out)
    placed = dict.fromkeys(["ring placed", "bidirectional_ring placed"], cube.ring_order())
    assert (status, report["orders"], len(report["rows"])) == (0, placed, 4)
    for row in report["rows"]:
        name, _, placed = row["algorithm"].partition(" ")
        schedule = make_schedule(name, 8).placed(cube.ring_order() if placed else range(8))
        seconds = estimate_cost(schedule, cube, 1024).seconds
        assert row["error"] == 0 and row["predicted_us"] == pytest.approx(seconds * 1e6)
    assert (empty_cwd / "speed.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in empty_cwd.iterdir()] == ["speed.png"]


def test_one_device_has_nothing_to_do_and_no_limit(allreduce):
    status, out, _ = allreduce("bench", *f"--devices {device_spec(1)} --bytes 1KiB {ONCE}".split())
    assert status == 0 and "memory limit" not in out
    assert re.search(r"^  ring .* 0 +- +-$", out, re.M)
