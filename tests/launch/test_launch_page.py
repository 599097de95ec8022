"""docs/launch.md shows what the program prints, and names what it looks for."""

import re
from dataclasses import replace
from pathlib import Path

from gluonlab.host.launchers import LAUNCHERS, SAGEMAKER
from gluonlab.launch.jobs import JobRequest, job_file

PAGE = Path(__file__).parents[2] / "docs" / "launch.md"


def test_the_page_shows_what_is_printed():
    words = ("--dataset", "cifar10", "--model", "resnet18", "--epochs", "10")
    four = JobRequest(words, processes=4)
    shown = re.findall(r"^```(?:bash|yaml)\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert shown == [
        job_file("slurm", replace(four, processes_per_host=2)),
        job_file("lsf", replace(four, processes_per_host=2, queue="waic-medium")),
        job_file("lsf-interactive", JobRequest(words, processes=1, gpus=2, queue="waic-medium")),
        job_file("k8s", four),
        job_file("sagemaker", four),
    ]


def test_the_page_names_the_variables_of_every_launcher():
    page = PAGE.read_text()
    for launcher in LAUNCHERS:
        named = launcher.mark if launcher is SAGEMAKER else launcher.rank
        assert f"`{named}`" in page and f"`{launcher.size[0]}`" in page, launcher.name
