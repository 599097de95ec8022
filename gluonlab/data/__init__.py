"""From the name of a data set to shards of its batches on the devices."""

from gluonlab.data.dataset import ArraySplit, Dataset, Defaults, Split
from gluonlab.data.loader import Loader
from gluonlab.data.registry import DATASETS, load_dataset

__all__ = ["DATASETS", "ArraySplit", "Dataset", "Defaults", "Loader", "Split", "load_dataset"]
