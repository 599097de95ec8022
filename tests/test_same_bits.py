"""tools/same_bits.py checks whether two checkouts train to the same bits."""

import shutil
import subprocess
import sys

import pytest
from support.processes import REPOSITORY, clean_environment

import same_bits
from gluonlab import TrainConfig


def test_the_combinations_are_valid_and_the_same_each_time():
    first, again = list(same_bits.draw_combinations()), list(same_bits.draw_combinations())
    assert first == again
    assert len({str(TrainConfig(**settings)) for settings in first}) == 30


@pytest.mark.long
@pytest.mark.cpu_only("compares bits of CPU devices")
@pytest.mark.parametrize("planted, status", [(False, 0), (True, 1)])
def test_a_checkout_that_trains_otherwise_is_found(tmp_path, planted, status):
    shutil.copytree(REPOSITORY / "gluonlab", tmp_path / "gluonlab")
    if planted:
        file = tmp_path / "gluonlab" / "training" / "learning_rate_schedule.py"
        text = file.read_text(encoding="utf-8")
        assert "return rates.base_lr\n" in text
        file.write_text(text.replace("rates.base_lr\n", "1.001 * rates.base_lr\n"), "utf-8")
    result = subprocess.run(
        [sys.executable, REPOSITORY / "tools" / "same_bits.py", tmp_path, "--count", "2"],
        env=clean_environment(),
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )
    assert result.returncode == status, result.stderr
    assert result.stdout.count("OTHER") == 2 * planted
