"""What a SageMaker machine's name tells, held against EC2's own lists."""

import pytest

from gluonlab.host.sagemaker import has_gpus, has_local_disk, instance_type

# GPUs, "Instance store volumes" of https://docs.aws.amazon.com/ec2/latest/instancetypes/
MACHINES = {
    "ml.p2.xlarge": (True, False), "ml.p3.2xlarge": (True, False), "ml.p3.16xlarge": (True, False),
    "ml.p3dn.24xlarge": (True, True), "ml.p4d.24xlarge": (True, True),
    "ml.p4de.24xlarge": (True, True), "ml.p5.48xlarge": (True, True), "ml.p5.4xlarge": (True, True),
    "ml.p6-b200.48xlarge": (True, True), "ml.p6e-gb200.36xlarge": (True, True),
    "ml.g4dn.xlarge": (True, True), "ml.g4ad.4xlarge": (True, True),
    "ml.g5.12xlarge": (True, True), "ml.g6e.xlarge": (True, True),
    "ml.trn1.2xlarge": (False, True), "ml.r5d.large": (False, True), "ml.r5.large": (False, False),
    "ml.m5.xlarge": (False, False), "ml.c5n.xlarge": (False, False), "ml.t3.large": (False, False),
    "ml.m7i-flex.large": (False, False),
}  # fmt: skip


@pytest.mark.parametrize("name", MACHINES)
def test_gpus_and_disks_are_told_by_the_name(name):
    assert (has_gpus(name), has_local_disk(name)) == MACHINES[name]


@pytest.mark.parametrize(
    ("type", "resources", "found"),
    [
        ("ml.g5.xlarge", "", "ml.g5.xlarge"),
        (
            None,
            '{"current_host": "algo-1", "current_instance_type": "ml.p3.2xlarge"}',
            "ml.p3.2xlarge",
        ),
        ("ml.c5.xlarge", '{"current_instance_type": "ml.p3.2xlarge"}', "ml.c5.xlarge"),
        ("local", None, None),
        ("local_gpu", None, None),
        (None, None, None),
        (None, "{", None),
        (None, "[]", None),
        (None, '{"current_instance_type": 1}', None),
    ],
)
def test_the_machine_of_a_job_is_read_from_what_the_toolkit_sets(
    type, resources, found, monkeypatch
):
    for name, value in (("SM_CURRENT_INSTANCE_TYPE", type), ("SM_RESOURCE_CONFIG", resources)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert instance_type() == found
