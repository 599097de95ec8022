"""Horovod's own settings: options of the launcher become variables of all workers."""

import os

import pytest

from gluonlab.errors import ConfigError
from gluonlab.launch.__main__ import main
from gluonlab.launch.group_processes import Site, parts
from gluonlab.launch.horovod_settings import horovod_arguments, horovod_variables, set_horovod_defaults

NONE = dict.fromkeys(["fusion_threshold_mb", "cycle_time_ms", "timeline_filename", "timeline_mark_cycles"])
# what horovodrun's own function makes of the same words (runner/common/util/config_parser.py)
GIVEN = {
    "--fusion-threshold-mb 32": {"HOROVOD_FUSION_THRESHOLD": "33554432"},
    "--fusion-threshold-mb 0": {"HOROVOD_FUSION_THRESHOLD": "0"}, "--cycle-time-ms 3.5": {"HOROVOD_CYCLE_TIME": "3.5"},
    "--timeline-filename t.json": {"HOROVOD_TIMELINE": "t.json"},
    "--timeline-filename t.json --timeline-mark-cycles": {
        "HOROVOD_TIMELINE": "t.json", "HOROVOD_TIMELINE_MARK_CYCLES": "1",
    },
}  # fmt: skip
SITES = [Site("h0", "10.0.0.1", "eth0"), Site("h1", "10.0.0.2", "eth0")]


def as_given(words):
    """Return the launcher's settings of Horovod for these options."""
    context = main.make_context("launch", ["--backend", "horovod", *words, "--"])
    return {name: context.params[name] for name in NONE}


@pytest.mark.parametrize("words", GIVEN)
def test_all_workers_get_what_horovod_reads(words):
    settings = as_given(words.split())
    assert horovod_arguments(settings) == words.split()
    variables = horovod_variables("horovod", settings)
    assert variables == GIVEN[words]
    scheduler, *workers = parts("horovod", [], [0, 0, 1], [], SITES, 9000, variables)
    assert len(workers) == 3
    assert all(variables.items() <= worker.environment.items() for worker in workers)
    assert not variables.keys() & scheduler.environment.keys()


@pytest.mark.horovod
@pytest.mark.parametrize("words", GIVEN)
def test_horovodrun_says_the_same(words):
    from horovod.runner.common.util import config_parser
    from horovod.runner.launch import parse_args

    theirs = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["horovodrun", "-np", "2", *words.split(), "true"])
        config_parser.set_env_from_args(theirs, parse_args())
    own = {name: value for name, value in theirs.items() if name in GIVEN[words]}
    assert own == GIVEN[words]


@pytest.mark.parametrize("words", GIVEN)
def test_settings_of_horovod_are_refused_without_horovod(words):
    with pytest.raises(ConfigError, match=f"^{words.split()[0]} only applies to --backend horovod, but"):
        horovod_variables("dist_sync", as_given(words.split()))
    assert horovod_variables("dist_sync", NONE) == {}


@pytest.mark.parametrize(("before", "after"), [(None, "0"), ("1024", "1024")])
def test_what_somebody_has_set_stays(before, after, monkeypatch):
    """As in HOROVOD_FUSION_THRESHOLD=1024 python -m gluonlab.launch, or by horovodrun."""
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", before or "")  # so that monkeypatch removes it again
    if before is None:
        monkeypatch.delenv("HOROVOD_FUSION_THRESHOLD")
    set_horovod_defaults()
    assert os.environ["HOROVOD_FUSION_THRESHOLD"] == after


@pytest.mark.parametrize(("rank", "refused"), [("0", True), ("1", False), (None, False)], ids=["0", "1", "by mpirun"])
def test_rank_0_sees_that_its_timeline_can_be_written(rank, refused, tmp_path, monkeypatch):
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "0")
    monkeypatch.setenv("HOROVOD_TIMELINE", str(tmp_path / "none" / "t.json"))
    if rank is not None:
        monkeypatch.setenv("HOROVOD_RANK", rank)
    if not refused:
        set_horovod_defaults()
        return
    with pytest.raises(ConfigError, match=r"^the timeline .*t\.json cannot be written \(No such"):
        set_horovod_defaults()


@pytest.mark.parametrize("kind", ["slurm", "lsf", "lsf-interactive", "k8s", "sagemaker"])
def test_a_job_file_has_them_for_each_of_its_processes(kind, ended):
    words = ["--cycle-time-ms", "2", "--timeline-filename", "t.json", "--timeline-mark-cycles"]
    status, said, _ = ended(main, "-n", "2", "--backend", "horovod", *words, "--print", kind, "--", "--epochs", "3")
    assert status == 0
    if kind == "sagemaker":
        for pair in ('cycle-time-ms: "\\"2\\""', 'timeline-mark-cycles: "true"'):
            assert pair in said
    elif kind == "k8s":
        lines = [line.split('"')[1] for line in said.splitlines() if line.strip()[:3] == '- "']
        begin = lines.index("--cycle-time-ms")
        assert lines[begin : begin + 8] == [*words, "--", "--epochs", "3"]
    else:
        assert f"--backend horovod {' '.join(words)} -- --epochs 3" in said
