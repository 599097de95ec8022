"""Messages name arguments in Python, and options in a command."""

import pytest

from gluonlab import errors
from gluonlab.config import TrainConfig, option_name
from gluonlab.errors import ConfigError, GluonlabWarning, format_for_python, warn

EXAMPLES = {
    "--batch-size 0: must be a whole number of at least 1": "batch_size=0: must be a whole number of at least 1",
    "--lr -0.5: must be greater than 0": "lr=-0.5: must be greater than 0",
    "--gpus 1 and --devices cpu contradict each other": "gpus=1 and devices=cpu contradict each other",
    "leave --strategy out, or give --gpus 2 or more": "leave strategy out, or give gpus=2 or more",
    "unknown --strategy 'layer': choose data": "unknown strategy 'layer': choose data",
    "try a smaller --lr; or --momentum 0.5, --wd 0": "try a smaller lr; or momentum=0.5, wd=0",
    "--sync-bn is for --strategy data": "sync_bn=True is for strategy=data",
    "write --no-random-resized-crop": "write random_resized_crop=False",
    "--no-bias-decay is set": "no_bias_decay=True is set",
    "--bias-decay is set": "no_bias_decay=False is set",
    "write gluonlab launch -n 2 --backend horovod": "write gluonlab launch -n 2 --backend horovod",
    "--batch-sizes 1: a-b--lr 2": "--batch-sizes 1: a-b--lr 2",
}


@pytest.fixture
def in_python(monkeypatch):
    """No command is running."""
    monkeypatch.setattr(errors, "_is_command_running", False)


@pytest.mark.parametrize("message", EXAMPLES)
def test_a_message_names_arguments_in_python(message):
    assert format_for_python(message) == EXAMPLES[message]


@pytest.mark.parametrize("name", [field for field in TrainConfig.__dataclass_fields__ if field != "devices"])
def test_a_wrong_setting_is_named_by_python_and_by_the_command(name, in_python):
    """An object of another type is a wrong value of every setting."""
    with pytest.raises(ConfigError) as raised:
        TrainConfig(**{name: object()})
    message = str(raised.value)
    assert message.startswith(name) and option_name(name) not in message
    with errors.name_options(), pytest.raises(ConfigError, match=f"^{option_name(name)} "):
        TrainConfig(**{name: object()})


def test_warnings_name_arguments_too(in_python):
    with pytest.warns(GluonlabWarning, match="^try lr=0.1$"):
        warn("try --lr 0.1")
    with errors.name_options(), pytest.warns(GluonlabWarning, match="^try --lr 0.1$"):
        warn("try --lr 0.1")
