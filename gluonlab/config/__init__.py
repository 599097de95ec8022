"""What a run is asked for: TrainConfig, the values that its settings take, their options."""

from gluonlab.config.train_config import TrainConfig as TrainConfig
from gluonlab.config.train_config import option_name as option_name
