"""Predicted efficiency over hosts: numbers, table, JSON and picture."""

import functools
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.commands import read_error_line
from support.processes import clean_environment

from gluonlab.collectives.named_topologies import NETWORKS
from prediction.efficiency import GRADIENTS, HOSTS, MACHINES, MULTI_HOST_SUMS, main, predict_scaling, select_way

SVG = "{http://www.w3.org/2000/svg}"
PICTURE = Path(__file__).resolve().parents[2] / "docs" / "pictures" / "efficiency.svg"


@pytest.fixture
def efficiency(ended):
    """``efficiency("--hosts", ...)`` -> (exit status, standard output, standard error)."""
    return functools.partial(ended, main)


def read_rows(out):
    return {(row["machine"], row["way"], row["hosts"]): row for row in json.loads(out)["rows"]}


@pytest.fixture(scope="module")
def as_json():
    """Return what the command prints without MXNet, once for all tests."""
    command = (
        "import sys; from gluonlab.bench.__main__ import main\ntry: main(sys.argv[1:])\n"
        "finally: assert 'mxnet' not in sys.modules"
    )
    result = subprocess.run(
        [sys.executable, "-c", command, "efficiency", "--json"], env=clean_environment(),
        stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_predictions_need_no_mxnet_and_name_every_machine_way_and_host(as_json):
    assert set(read_rows(as_json)) == set(product(MACHINES.split(","), MULTI_HOST_SUMS, range(1, HOSTS + 1)))
    assert json.loads(as_json)["assumptions"][0].startswith("Predicted, not measured.")


def test_the_parameter_servers_by_hand():
    """Two p3.2xlarge, 100 MB: out of each NIC (10 Gb/s) 50 MB to the other server, and 50 MB that
    its own sends back, 50 µs each; 100 MB down and up PCIe at 10 GB/s; the server adds 50 MB.
    """
    rows = select_way(predict_scaling("p3.2xlarge", 2, 0.1, 100e6), "parameter server")
    assert rows[0].sum_s == 0  # one GPU
    assert rows[1].sum_s == pytest.approx(2 * (50e-6 + 0.04) + 2 * 0.01 + 0.005)
    assert rows[1].efficiency_after == pytest.approx(0.1 / (0.1 + rows[1].sum_s))
    assert rows[1].efficiency_behind == pytest.approx(0.1 / (0.1 + rows[1].sum_s - 0.2 / 3))


def test_two_hosts_of_one_gpu_by_hand():
    """Each sends half of 100 MB twice, through PCIe and NIC at once; 300 GB/s add half of it."""
    for way in ("hierarchical", "flat ring"):
        row = select_way(predict_scaling("p3.2xlarge", 2, 0.1, 100e6), way)[1]
        assert row.sum_s == pytest.approx(2 * (50e-6 + 0.04) + 50e6 / 300e9)


@settings(max_examples=30)
@given(st.sampled_from([*NETWORKS]), st.integers(1, 3), st.floats(1e-3, 10), st.integers(10**5, 10**9))
def test_efficiency_lies_between_nothing_hidden_and_all(machine, hosts, step_s, size):
    """And no way to sum beats what must pass the NICs."""
    network = NETWORKS[machine]
    for row in predict_scaling(machine, hosts, step_s, size):
        assert 0 < row.efficiency_after <= row.efficiency_behind <= 1
        least = 2 * (row.hosts - 1) / row.hosts * size / (network.nics * network.bytes_per_s)
        assert row.sum_s >= least * (1 - 1e-9)


@pytest.mark.cpu_only("only shapes are counted")
def test_the_gradients_are_those_of_resnet_50():
    from mxnet import nd

    from gluonlab.models import get_model

    net = get_model("resnet50", 1000)
    net.initialize()
    net(nd.zeros((1, 3, 32, 32)))
    trained = [p for p in net.collect_params().values() if p.grad_req != "null"]
    assert sum(p.data().size * 4 for p in trained) == GRADIENTS


def test_on_one_host_it_agrees_with_what_was_published():
    """NVIDIA's ResNet-50 for MXNet on a DGX-1, float32: 384 images/s on one V100, 3005 on eight.

    The rest, less than a hundredth, is what the prediction does not count.
    """
    (one,) = select_way(predict_scaling("p3.16xlarge", 1, 96 / 384, GRADIENTS), "hierarchical")
    assert one.efficiency_after - 0.01 < 3005 / 384 / 8 < one.efficiency_behind


def test_the_table_fits_the_terminal_and_shows_the_numbers(efficiency, as_json):
    status, out, _ = efficiency()
    assert status == 0 and max(map(len, out.split("\n"))) <= 80
    assert out.startswith("p3.16xlarge: 8 x V100 per host, 25 Gb/s, a step of one GPU takes 186.5 ms\n")
    for words in ("Predicted, not measured", "102.3 MB", "inferred", "Not included"):
        assert words in out
    rows = read_rows(as_json)
    lines = re.findall(r"^ +(\d+) +(\d+)((?: +[\d.,]+){9})$", out, re.M)
    assert len(lines) == 3 * HOSTS
    cells = [float(cell) for cell in lines[HOSTS - 1][2].split()]
    assert lines[HOSTS - 1][:2] == ("8", "64")
    assert cells == [
        round(value, digits)
        for way in MULTI_HOST_SUMS
        for row in [rows["p3.16xlarge", way, 8]]
        for value, digits in ((row["sum_s"] * 1e3, 1), (row["efficiency_after"], 2), (row["efficiency_behind"], 2))
    ]


def test_the_picture_shows_every_point_and_every_assumption(efficiency, empty_cwd):
    arguments = ("--machines", "p3.16xlarge,p2.16xlarge", "--hosts", "3")
    assert efficiency(*arguments, "--out-file", "e.svg")[0] == 0
    root = ElementTree.fromstring((empty_cwd / "e.svg").read_text(encoding="utf-8"))
    assumed = json.loads(efficiency(*arguments, "--json")[1])["assumptions"]
    shown = " ".join(element.text or "" for element in root.iter(f"{SVG}text"))
    assert all(sentence in shown for sentence in assumed)
    assert "p2.16xlarge 16 x K80 per host, 20 Gb/s" in shown
    marks = [e for e in root.iter(f"{SVG}path") if e.get("class", "").startswith("mark")]
    assert len(marks) == 2 * 3 * 3 + 3  # and those of the legend
    assert "prefers-color-scheme: dark" in root.find(f"{SVG}style").text
    height = float(root.get("height"))
    assert all(0 < float(e.get("y")) < height + 400 for e in root.iter(f"{SVG}text"))


def test_the_readmes_picture_is_what_the_command_draws(efficiency, empty_cwd):
    assert efficiency("--out-file", "e.svg")[0] == 0
    assert (empty_cwd / "e.svg").read_bytes() == PICTURE.read_bytes()


def test_another_network_has_its_own_gradients_and_step(efficiency):
    arguments = ("--machines", "g5.48xlarge", "--gradients", "46MB", "--step", "90", "--hosts", "2")
    status, out, _ = efficiency(*arguments)
    assert status == 0 and "46.0 MB of gradients" in out and "ResNet-50" not in out
    assert "A10G 90.0 ms (--step)" in " ".join(out.split())


@pytest.mark.cpu_only("mistakes are found before anything is computed")
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--machines", "p5"], "unknown machine 'p5': choose g4dn.12xlarge, "),
        (["--machines", "nvswitch"], "unknown machine 'nvswitch'"),
        (["--machines", "m.json"], "--machines m.json: a topology file only describes one machine"),
        (["--machines", "g5.48xlarge"], "the step time on A10G is unknown, only on K80, V100, A100: add --s"),
        (["--hosts", "0"], "--hosts 0: must be a whole number from 1 to 128"),
        (["--hosts", "129"], "--hosts 129: must be a whole number from 1 to 128"),
        (["--hosts", "1.5"], "--hosts 1.5: must be a whole number from 1 to 128"),
        (["--gradients", "46MB"], "--gradients 46MB is for another model, whose step time is unknown: add --step MS"),
        (["--gradients", "1KiB,2KiB", "--step", "9"], "pass a single size, such as 102MB"),
        (["--gradients", "x", "--step", "9"], "--gradients x: use a size such as 46MB"),
        (["--step", "0"], "--step 0: must be a number greater than 0"),
        (["--out-file", "e.png"], "--out-file e.png: must end in .svg"),
        (["--out-file", "nowhere/e.svg"], "the folder nowhere does not exist"),
        (["--out-file", "e.svg", "--json"], "--json has no effect with --out-file"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(args, message, efficiency, empty_cwd):
    assert message in read_error_line(efficiency(*args), empty_cwd)
