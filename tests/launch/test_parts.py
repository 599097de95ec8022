"""What each process of a group finds in its environment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluonlab.launch.backends import BACKENDS
from gluonlab.launch.parts import BY_BACKEND, RANK, Site, parts

placements = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(
    lambda sizes: [host for host, size in enumerate(sizes) for _ in range(size)] or [0]
)
SITES = [Site(f"h{n}", f"10.0.0.{n}", f"eth{n}") for n in range(4)]


def test_every_backend_can_be_started():
    assert set(BY_BACKEND) == set(BACKENDS)


@given(st.sampled_from(sorted(BY_BACKEND)), placements, st.lists(st.integers(0, 3), max_size=3))
def test_ranks_are_numbered_in_order_on_their_hosts(backend, placed, servers):
    made = parts(backend, ["--epochs", "3"], placed, servers, SITES, 9000)
    workers = [part for part in made if part.is_worker]
    assert [part.host for part in workers] == placed
    assert [part.environment[RANK] for part in workers] == [str(n) for n in range(len(placed))]
    assert all(part.words[-2:] == ["--epochs", "3"] for part in workers)
    assert len({part.name for part in made}) == len(made)
    assert made[0].name == "scheduler" and made[0].host == 0
    others = [part.host for part in made[1:] if not part.is_worker]
    assert others == ([] if backend == "horovod" else servers)


@given(placements)
def test_horovod_is_told_what_its_own_launcher_tells(placed):
    """Its table: a rank's place on its host, and its host's place among those that have one."""
    made = parts("horovod", [], placed, [], SITES, 9000)[1:]
    counts = [placed.count(host) for host in placed]
    for part, host, count in zip(made, placed, counts):
        told = {name[8:]: value for name, value in part.environment.items() if "HOROVOD" in name}
        local, cross = int(told["LOCAL_RANK"]), int(told["CROSS_RANK"])
        assert 0 <= local < count == int(told["LOCAL_SIZE"])
        alike = [other for other in made if other.environment["HOROVOD_LOCAL_RANK"] == str(local)]
        assert alike[cross] is part and len(alike) == int(told["CROSS_SIZE"])
        assert told["HOSTNAME"] == f"h{host}" and told["GLOO_IFACE"] == f"eth{host}"


@pytest.mark.horovod
@given(placements)
def test_horovod_would_assign_the_same(placed):
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts

    made = parts("horovod", [], placed, [], SITES, 9000)
    theirs = get_host_assignments(parse_hosts(made[0].words[-1]), len(placed))
    for part, slot in zip(made[1:], theirs):
        told = part.environment
        names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
        assert [told[f"HOROVOD_{name.upper()}"] for name in names] == [
            str(getattr(slot, name)) for name in names
        ]
        assert told["HOROVOD_HOSTNAME"] == slot.hostname
