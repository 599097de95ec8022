"""NVLinks and peer-to-peer access between GPUs that are not here, beside those of known
machines.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_nvml import A100, CUBE, H100, RTX, T4, V100, machine, statuses

from gluonlab.collectives.topology import ONE_NVLINK, TWO_NVLINKS, make_topology
from gluonlab.doctor import links
from gluonlab.doctor.findings import OK, WARNING

AMAZON = ""  # one of theirs, of an unknown type


def test_the_cube_mesh_is_that_of_the_topology():
    assert {**dict.fromkeys(TWO_NVLINKS, 2), **dict.fromkeys(ONE_NVLINK, 1)} == CUBE


@pytest.mark.parametrize(
    ("told", "files", "instance"),
    [
        ("ml.p3.16xlarge", {}, "p3.16xlarge"),
        ("", {"product_name": b"p3dn.24xlarge\n", "sys_vendor": b"Amazon EC2\n"}, "p3dn.24xlarge"),
        (
            "",
            {
                "product_name": b"HVM domU\n",
                "sys_vendor": b"Xen\n",
                "bios_version": b"4.11.amazon\n",
            },
            AMAZON,
        ),
        (
            "",
            {"product_name": b"HVM domU\n", "sys_vendor": b"Xen\n", "bios_version": b"4.11\n"},
            None,
        ),
        ("", {}, None),
        ("local_gpu", {"product_name": b"g5.12xlarge"}, "g5.12xlarge"),
        ("", {"product_name": b"g4dn.metal"}, "g4dn.metal"),
        ("", {"product_name": b"\xff\xfe"}, None),
    ],
)
def test_the_instance_is_what_sagemaker_or_the_machine_says(tmp_path, told, files, instance):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    assert links.instance_type({"SM_CURRENT_INSTANCE_TYPE": told}, tmp_path) == instance


def test_the_expected_links_are_those_of_the_topology():
    assert links.nvlinks_of(make_topology("p3.16xlarge")) == CUBE
    assert links.nvlinks_of(make_topology("g4dn.12xlarge")) == {}


@pytest.mark.parametrize("instance", ["p3.16xlarge", AMAZON])
def test_a_whole_cube_mesh_is_as_it_should_be(instance):
    nvlink, peers = links.links(machine(*[V100] * 8, nvlinks=CUBE), instance)
    assert (nvlink.status, peers.status) == (OK, OK)
    assert nvlink.what.endswith("as p3.16xlarge has")
    assert "0-3: 2" in nvlink.what


def test_a_link_that_is_down_is_named():
    nvlink = links.links(
        machine(*[V100] * 8, nvlinks={**CUBE, (0, 3): 1, (5, 6): 0}), "p3.16xlarge"
    )[0]
    assert nvlink.status == WARNING
    assert nvlink.what == (
        "NVLinks differ from those of p3.16xlarge: 0-3 has 1 instead of 2, 5-6 has 0 instead of 2"
    )
    assert nvlink.cause == "links are down"
    assert "stop and start the instance" in nvlink.cure


@given(st.permutations(range(8)))
def test_a_whole_cube_mesh_is_one_however_its_gpus_are_counted(order):
    """NVML counts along the PCI bus, and the table was made on another machine."""
    here = {tuple(sorted((order[a], order[b]))): count for (a, b), count in CUBE.items()}
    nvlink = links.links(machine(*[V100] * 8, nvlinks=here), "p3.16xlarge")[0]
    assert nvlink.status == OK
    found = links.renumbering(here, CUBE, 8)
    assert {tuple(sorted((found[a], found[b]))): count for (a, b), count in CUBE.items()} == here
    assert ("whose GPUs" in nvlink.what) == (here != CUBE)


@given(st.permutations(range(8)), st.sampled_from(sorted(CUBE)))
def test_a_cube_mesh_with_a_link_less_is_none_however_its_gpus_are_counted(order, weak):
    here = {
        tuple(sorted((order[a], order[b]))): count - ((a, b) == weak)
        for (a, b), count in CUBE.items()
    }
    assert links.renumbering(here, CUBE, 8) is None


def test_eight_v100s_elsewhere_are_not_taken_for_an_instance():
    """On PCIe cards, or linked in another way, they lack nothing."""
    for there in ({}, {(0, 1): 6}):
        assert statuses(links.links(machine(*[V100] * 8, nvlinks=there), None)) == [OK, OK]


def test_gpus_without_nvlinks_that_should_have_none():
    nvlink, _ = links.links(machine(*[T4] * 4), "g4dn.12xlarge")
    assert (nvlink.status, nvlink.what) == (
        OK,
        "no NVLinks between the GPUs, all traffic goes over PCIe, as g4dn.12xlarge has",
    )


def test_machines_that_nobody_knows_are_told_as_they_are():
    for instance in (AMAZON, None):
        assert (
            links.links(machine(RTX, RTX, nvlinks={(0, 1): 4}), instance)[0].what
            == "NVLinks 0-1: 4"
        )
        assert (
            links.links(machine(*[H100] * 4, switched=True), instance)[0].what
            == "NVLinks to switches on GPUs 0, 1, 2, 3"
        )
        assert links.links(machine(T4), instance) == []


def test_a_machine_whose_nvlinks_go_to_switches_must_have_them():
    (whole, _), (bare, _) = (
        links.links(machine(*[A100] * 8, switched=switched), "p4d.24xlarge")
        for switched in (True, False)
    )
    assert (whole.status, whole.what) == (OK, "NVLinks to switches on GPUs 0, 1, 2, 3, 4, 5, 6, 7")
    assert (bare.status, bare.what) == (
        WARNING,
        "NVLinks to switches on no GPU, and p4d.24xlarge has them on all 8",
    )


def test_missing_peer_access_is_a_warning_where_there_are_nvlinks():
    far = links.links(machine(*[V100] * 8, nvlinks=CUBE, no_peers=[(0, 7)]), AMAZON)[1]
    assert (far.status, far.what) == (
        OK,
        "no peer-to-peer access between 0-7: their copies go through the host",
    )
    near = links.links(machine(*[V100] * 8, nvlinks=CUBE, no_peers=[(0, 3)]), AMAZON)[1]
    assert near.status == WARNING
    assert "0-3" in near.what


@pytest.mark.parametrize(("count", "pairs"), [(2, 1), (4, 6), (8, 28)])
def test_pairs_with_peer_access_are_counted(count, pairs):
    found = links.links(machine(*[T4] * count), None)[-1]
    assert (found.status, found.what) == (OK, f"peer-to-peer access between all {pairs} pairs")
