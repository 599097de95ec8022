"""Configuration of a run: TrainConfig, and the values and command-line options of its settings."""

from gluonlab.config.train_config import TrainConfig as TrainConfig
from gluonlab.config.train_config import option_name as option_name
