"""Lists of hosts as Slurm and LSF write them, and machines of SageMaker by their names."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from gluonlab.errors import ConfigError
from gluonlab.host.launcher_environment import (
    HOST_PATTERN,
    HostSlots,
    instance_has_gpus,
    instance_has_local_disk,
    merge_host_slots,
    parse_slurm_counts,
    parse_slurm_hosts,
    read_lsf_hosts,
    sagemaker_instance_type,
)


def expand_hosts(text):
    """Expand Slurm's notation by replacing the first bracket by each of its numbers, until none is left."""
    waiting, hosts = re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text), []
    while waiting:
        first = waiting.pop(0)
        bracket = re.search(r"\[(.*?)\]", first)
        if bracket is None:
            hosts.append(first)
            continue
        numbers = []
        for part in bracket[1].split(","):
            low, _, high = part.partition("-")
            numbers += [f"{number:0{len(low)}d}" for number in range(int(low), int(high or low) + 1)]
        waiting[:0] = [first[: bracket.start()] + number + first[bracket.end() :] for number in numbers]
    return hosts


NAMES = st.text("abcn-9.", min_size=1, max_size=4).map(lambda text: f"h{text}")
NUMBERS = st.builds(
    lambda low, more, width, single: f"{low:0{width}d}" + ("" if single else f"-{low + more:0{width}d}"),
    st.integers(0, 120), st.integers(0, 4), st.integers(0, 3), st.booleans(),
)  # fmt: skip
BRACKET = st.lists(NUMBERS, min_size=1, max_size=3).map(lambda ranges: f"[{','.join(ranges)}]")
PART = st.tuples(NAMES, st.lists(st.tuples(BRACKET, st.sampled_from(["", "-ib", "r"])), max_size=2))
LIST = st.lists(
    PART.map(lambda part: part[0] + "".join(bracket + after for bracket, after in part[1])), min_size=1, max_size=3
).map(",".join)


@examples(40)
@given(LIST)
def test_slurms_notation_is_the_list_of_its_hosts(text):
    assert parse_slurm_hosts(text, "SLURM_NODELIST") == expand_hosts(text)


def test_slurms_examples():
    examples = {
        "n[001-003,07],gpu-5": ["n001", "n002", "n003", "n07", "gpu-5"],
        "r[0-1]n[1-2]-ib": ["r0n1-ib", "r0n2-ib", "r1n1-ib", "r1n2-ib"],
        "10.0.0.[1-2]": ["10.0.0.1", "10.0.0.2"],
    }
    assert {text: parse_slurm_hosts(text, "SLURM_NODELIST") for text in examples} == examples


@pytest.mark.parametrize(
    "text",
    [
        "", ",", "n1,", "n[", "n]", "n[1", "n[[1]]", "n[1-]", "n[-1]", "n[3-1]", "n[a-b]", "n[]",
        "n[1-999999999]", "n[0-999][0-999]", "n[\u0661-\u0663]", "-oProxyCommand=x", "n1 n2",
        "n;rm", "n\n", "[1-2],$(x)", "n" * 300, "n[1-2", "n[0-9][0-9][0-9][0-9][0-9]",
    ],
)  # fmt: skip
def test_an_invalid_list_is_one_line_that_names_the_variable(text):
    with pytest.raises(ConfigError, match=r"^SLURM_NODELIST") as caught:
        parse_slurm_hosts(text, "SLURM_NODELIST")
    assert len(str(caught.value).splitlines()) == 1


@given(st.text("n0129[]-,x ", max_size=14) | st.text(max_size=14))
def test_any_text_is_hosts_or_an_error(text):
    try:
        hosts = parse_slurm_hosts(text, "SLURM_NODELIST")
    except ConfigError:
        return
    assert hosts == expand_hosts(text)
    assert all(HOST_PATTERN.fullmatch(host) for host in hosts)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4)), min_size=1))
def test_slurms_counts_are_those_of_each_node(runs):
    text = ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)
    assert parse_slurm_counts(text) == [count for count, times in runs for _ in range(times)]


@pytest.mark.parametrize("text", ["", "0", "2(x3", "a", "2(x)", ",".join(["1(x99999)"] * 99)])
def test_counts_of_another_form_are_none(text):
    assert parse_slurm_counts(text) == []


def test_lsf_tells_its_hosts_in_three_ways(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("b\nb\na\n", encoding="utf-8-sig")
    for environ in ({"LSB_MCPU_HOSTS": "b 2 a 1 "}, {"LSB_DJOB_HOSTFILE": str(file)}, {"LSB_HOSTS": "b b a"}):
        variable, hosts = read_lsf_hosts(environ)
        assert variable in environ
        assert merge_host_slots(hosts) == [HostSlots("b", 2), HostSlots("a", 1)]
    assert read_lsf_hosts({}) == ("", [])


@pytest.mark.parametrize(
    "environ",
    [
        {"LSB_MCPU_HOSTS": "a"}, {"LSB_MCPU_HOSTS": "a 0"}, {"LSB_MCPU_HOSTS": "a x"},
        {"LSB_MCPU_HOSTS": "-a 1"}, {"LSB_DJOB_HOSTFILE": "/nowhere/at/all"},
        {"LSB_HOSTS": "a;b"}, {"LSB_MCPU_HOSTS": " ".join(["a 4096"] * 400)},
    ],
)  # fmt: skip
def test_an_invalid_list_of_lsf_is_one_line(environ):
    [variable] = environ
    with pytest.raises(ConfigError, match=f"^{variable}"):
        read_lsf_hosts(environ)


# "Instance store volumes" of https://docs.aws.amazon.com/ec2/latest/instancetypes/
MACHINES = {  # (has GPUs, has a local disk)
    (True, False): "p2.xlarge p3.2xlarge p3.16xlarge",
    (True, True): "p3dn.24xlarge p4d.24xlarge p4de.24xlarge p5.48xlarge p5.4xlarge p6-b200.48xlarge p6e-gb200.36xlarge "
    "g4dn.xlarge g4ad.4xlarge g5.12xlarge g6e.xlarge",
    (False, True): "trn1.2xlarge r5d.large",
    (False, False): "r5.large m5.xlarge c5n.xlarge t3.large m7i-flex.large",
}


def test_gpus_and_disks_follow_from_the_name_of_the_machine():
    for expected, names in MACHINES.items():
        for name in names.split():
            assert (instance_has_gpus(f"ml.{name}"), instance_has_local_disk(f"ml.{name}")) == expected, name


@pytest.mark.parametrize(
    ("type", "resources", "expected"),
    [
        ("ml.g5.xlarge", "", "ml.g5.xlarge"),
        (None, '{"current_host": "algo-1", "current_instance_type": "ml.p3.2xlarge"}', "ml.p3.2xlarge"),
        ("ml.c5.xlarge", '{"current_instance_type": "ml.p3.2xlarge"}', "ml.c5.xlarge"),
        *((type, None, None) for type in ("local", "local_gpu", None)),
        *((None, resources, None) for resources in ("{", "[]", '{"current_instance_type": 1}')),
    ],
)
def test_the_machine_of_a_job_is_read_from_what_the_toolkit_sets(type, resources, expected, monkeypatch):
    for name, value in (("SM_CURRENT_INSTANCE_TYPE", type), ("SM_RESOURCE_CONFIG", resources)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert sagemaker_instance_type() == expected
