"""Configuration of a run: TrainConfig, the checks of its settings, and its command-line options."""

from gluonlab.config.train_config import TrainConfig as TrainConfig
from gluonlab.config.train_config import option_name as option_name
