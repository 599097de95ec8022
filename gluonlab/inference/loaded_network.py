"""Loads the network of a finished run, and predicts the classes of images with it."""

from __future__ import annotations

import dataclasses
import os
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from gluonlab.config import TrainConfig, option_name
from gluonlab.data.sets.convert_user_arrays import CHANNELS_FIRST, to_numpy, to_pixels
from gluonlab.data.sets.dataset import ArraySplit, Dataset, Defaults, Split
from gluonlab.data.sets.from_gluon_datasets import resolve_dataset
from gluonlab.engine.nd_and_np_arrays import convert_network_for_user, nd_semantics
from gluonlab.errors import ConfigError, DataError, RunError, warn
from gluonlab.host.signals import exit_if_stuck
from gluonlab.inference.input_images import Picture, find_pictures, make_picture_split, name_pictures_in_errors
from gluonlab.inference.predictions import Mistake, Mistakes, PredictedBatch, Predictions
from gluonlab.kvstores.process_groups import SINGLE_PROCESS
from gluonlab.parallel.strategy import Strategy
from gluonlab.renamed import rename_argument
from gluonlab.runs.data_frame import EPOCHS, run_frame
from gluonlab.runs.run_reader import RunDescription, read_finished_run
from gluonlab.training.evaluate import BATCHES_AHEAD, evaluation_loader
from gluonlab.training.evaluate_run import (
    DIVERGED_HINT,
    check_finite_parameters,
    check_same_images,
    evaluation_config,
    load_trained,
    make_evaluation_plan,
    recorded_image_shape,
)
from gluonlab.training.parallel_options import make_split
from gluonlab.training.plan import Plan, apply_recipe, find_devices, load_data
from gluonlab.training.user_components import UserComponents, check_same_user_components, make_user_components
from gluonlab.training.user_metrics import DeviceScores, GatheredScores

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pandas import DataFrame

# The settings that affect a prediction.
PREDICTION_SETTINGS = ("gpus", "devices", "threads", "batch_size", "data_dir", "workers", "skip_corrupt")
CALL_HINT = "to gluonlab.load_run"
Images = Union[str, "os.PathLike[str]", Sequence[Any], "NDArray[Any]"]


def ignore_batch(batch: PredictedBatch) -> None:
    """Do nothing. This is the default for ``on_batch``."""


class LoadedRun:
    """Network of a finished run, which `load_run` returns.

    Attributes:
        folder: Folder of the run.
        model: Name of the network.
        classes: Class names, in the order of the scores.
        image_shape: Shape of the network's input images: (channels, height, width).
    """

    def __init__(
        self,
        run: RunDescription,
        plan: Plan,
        strategy: Strategy,
        validation_images: Callable[[], Dataset],
        decoding: Mapping[str, Any],
    ) -> None:
        self.folder, self.model = run.folder, plan.model
        self.classes, self.image_shape = plan.dataset.classes, plan.dataset.image_shape
        self._plan, self._strategy, self._validation_images = plan, strategy, validation_images
        self._decoding = decoding  # ``decoders``, ``skip_bad`` and ``resizer``

    @nd_semantics()
    @exit_if_stuck()
    @rename_argument("saw", "on_batch")
    def predict(self, images: Images, on_batch: Callable[[PredictedBatch], Any] = ignore_batch) -> Predictions:
        """Predict the classes of images, with probabilities.

        Args:
            images: An image file, a folder, a list of files and folders, or an array. Files are
                resized to squares as in training. An array is a NumPy or MXNet array of shape (n,
                C, H, W) or, for gray images, (n, H, W). It contains bytes, or floats, which are not
                scaled.
            on_batch: Called with each `PredictedBatch`.

        Returns:
            The predictions, in the order of the images. If ``skip_bad`` leaves out files, a warning
            shows how many.

        Raises:
            DataError: There are no images, or an input is not an image that the network accepts.
            RunError: Scores are not finite.
        """
        inputs = _list_images(images)
        if isinstance(inputs, np.ndarray):
            split: Split = self._split_from_array(inputs)
            names, pictures = [f"image {number}" for number in range(len(split))], []
        else:
            pictures = _resolve_pictures(inputs)
            if not pictures:
                raise DataError("no images were passed: pass files, folders, or an array of bytes (uint8) or floats")
            split, pictures, errors = make_picture_split(pictures, self.image_shape, **self._decoding)
            if errors:
                message = f"{len(errors)} of {len(pictures) + len(errors)} images are skipped"
                warn(f"{message}: {errors[0]}")
            names = [picture.name for picture in pictures]
        scores = []
        with name_pictures_in_errors(pictures):
            for batch in self._predict_batches(split, names):
                scores.append(batch.predictions.scores)
                on_batch(batch)
        return Predictions(self.classes, tuple(names), np.concatenate(scores))

    @nd_semantics()
    @exit_if_stuck()
    @rename_argument("saw", "on_batch")
    def mistakes(self, on_batch: Callable[[PredictedBatch], Any] = ignore_batch) -> Mistakes:
        """Find the validation images that the network misclassifies.

        Args:
            on_batch: Called with each `PredictedBatch`.

        Returns:
            The mistakes, in the order of the validation images.

        Raises:
            UsageError: The run's data is missing or has changed.
            RunError: Scores are not finite.
        """
        data = self._validation_images()
        paths = getattr(data.test, "paths", None)
        names = paths or [f"validation image {position}" for position in range(len(data.test))]
        mistakes: List[Mistake] = []
        begin = 0
        for predictions, pixels, true_labels in self._predict_batches(data.test, names):
            for position in np.flatnonzero(predictions.labels != true_labels):
                prediction = Predictions(self.classes, (), predictions.scores[position : position + 1])
                [[guess]] = prediction.top(1)
                index, label = begin + int(position), self.classes[true_labels[position]]
                file = paths[index] if paths else None
                mistakes.append(Mistake(index, file, label, *guess, pixels[position].copy()))
            begin += len(predictions)
            on_batch(PredictedBatch(predictions, pixels, true_labels))
        return Mistakes(data.name, len(data.test), mistakes)

    def frame(self, of: str = EPOCHS) -> "DataFrame":
        """Return the epochs or steps of the run as a pandas data frame (see `gluonlab.frame`).

        Args:
            of: ``epochs`` or ``steps``.

        Returns:
            A data frame with one row per epoch or step.
        """
        return run_frame(self.folder, of)

    def _predict_batches(self, split: Split, names: Sequence[str]) -> Iterator[PredictedBatch]:
        """Yield the predictions for the images of a split, batch by batch.

        ``names``: a name for each image. Several batches are queued before the scores of the first
        batch are read.
        """
        images = dataclasses.replace(self._plan.dataset, test=split)
        plan = dataclasses.replace(self._plan, dataset=images)
        queued: Deque[Tuple[Sequence[str], GatheredScores, List[DeviceScores], Any, Any]] = deque()
        begin = 0
        for batch in evaluation_loader(plan, self._strategy.inputs):
            pixels, true_labels = (np.concatenate([part.asnumpy() for part in parts]) for parts in batch)
            parts = [
                # Copies, which can be read as soon as this part is computed.
                (device, scores.copy(), labels.copy())
                for device, _, scores, labels in self._strategy.score(batch)
            ]
            queued.append((names[begin : begin + batch.size], GatheredScores(), parts, pixels, true_labels))
            begin += batch.size
            if len(queued) > BATCHES_AHEAD:
                yield self._gather_predictions(*queued.popleft())
        for pending in queued:
            yield self._gather_predictions(*pending)

    def _gather_predictions(
        self, names: Sequence[str], gathered: GatheredScores, parts: List[DeviceScores], pixels: Any, true_labels: Any
    ) -> PredictedBatch:
        """Wait for the scores of a batch, and return the batch with its predictions.

        ``parts``: the scores and labels of each device. Raises RunError for scores without a best
        class, such as NaN.
        """
        gathered.add(parts)
        scores, _ = gathered.gather(SINGLE_PROCESS)
        # NaN and infinity are refused; -infinity is allowed unless all scores of an image have it.
        has_best_class = (scores < np.inf).all(axis=1) & (scores > -np.inf).any(axis=1)
        if not has_best_class.all():
            name = names[int(np.flatnonzero(~has_best_class)[0])]
            raise RunError(f"the scores of the model in {self.folder} for {name} are not finite: {DIVERGED_HINT}")
        return PredictedBatch(Predictions(self.classes, tuple(names), scores), pixels, true_labels)

    def _split_from_array(self, images: Any) -> ArraySplit:
        """Make a split from an array of images. Raises DataError if its shape is not the run's."""
        shape = images.shape
        if images.ndim == 3 and shape[1:] == self.image_shape[1:] and self.image_shape[0] == 1:
            images = images[:, np.newaxis]
        if images.shape[1:] != self.image_shape or not len(images):
            expected = ", ".join(map(str, self.image_shape))
            raise DataError(
                f"the images have type {images.dtype} and shape {shape}: use bytes (uint8) or floats of shape "
                f"(n, {expected}), where n is at least 1{self._shape_conversion_hint(shape)}"
            )
        labels = np.zeros(len(images), np.int32)
        return ArraySplit(to_pixels(images, "images"), labels, CHANNELS_FIRST)

    def _shape_conversion_hint(self, shape: Tuple[int, ...]) -> str:
        """Return a hint with code that converts images of ``shape`` to the run's shape, or ""."""
        channels, height, width = self.image_shape
        conversions = {
            (channels, height, width): "images[None]",
            (height, width): "images[None, None]" if channels == 1 else None,
            (height, width, channels): "images.transpose(2, 0, 1)[None]",
        }
        if len(shape) == 4 and shape[1:] == (height, width, channels):
            return ", for example images.transpose(0, 3, 1, 2)"
        return f", for example {conversions[shape]}" if conversions.get(shape) else ""


def load_run(path: "str | os.PathLike[str]", *, net: Any = None, data: Any = None, **settings: Any) -> LoadedRun:
    """Load the model of a finished run, with its trained parameters.

    Args:
        path: The run directory.
        net: The model, if you passed ``net`` to `train`.
        data: The data set, if you passed ``dataset`` to `train`. Only `LoadedRun.mistakes` needs
            it.
        settings: Settings that affect predictions: ``gpus``, ``devices``, ``threads``,
            ``batch_size``, ``data_dir`` and the settings for reading images.

    Returns:
        The model, ready for predictions.

    Raises:
        ConfigError: The directory does not contain a finished run, or a setting does not affect
            predictions.
        ModelError: The parameters do not match the model.
        RunError: The parameters are not finite.
    """
    dataset = resolve_dataset(data)
    with nd_semantics():
        return _load_run(path, net, dataset, settings)


def _load_run(path: "str | os.PathLike[str]", net: Any, data: Optional[Dataset], settings: Dict[str, Any]) -> LoadedRun:
    """Load the network of a run (see `load_run`). ``data``: the user's data set, if any."""
    for name in settings:
        if name not in PREDICTION_SETTINGS:
            allowed = ", ".join(map(option_name, PREDICTION_SETTINGS))
            raise ConfigError(f"{option_name(name)} has no effect on predictions: use only {allowed}")
    run, components = _read_description(path), make_user_components(net)
    recorded = run.used.get("own")
    recorded_net = {"own": {"net": recorded["net"]}} if isinstance(recorded, dict) and "net" in recorded else {}
    check_same_user_components(str(run.folder), CALL_HINT, recorded_net, components.settings(None))
    config = evaluation_config(run, settings)

    def validation_images() -> Dataset:
        """Check that the data set has the run's validation images, and return the data set."""
        check_same_user_components(str(run.folder), CALL_HINT, run.used, _comparable_settings(run, components, data))
        # With 0 resident bytes, image files are decoded batch by batch, and their paths are known.
        prediction_config = config.replace(device_cache_bytes=0)
        prediction_config = prediction_config if components.net is None else prediction_config.replace(model=None)
        data_set = data
        if data_set is None:
            resolved = apply_recipe(prediction_config, components=components)
            copies = make_split(resolved.config, find_devices(prediction_config)).copies
            data_set = load_data(resolved, len(copies))
        check_same_images(run, data_set)
        return data_set

    stand_in = _make_placeholder_dataset(run)
    # An older run, or a run with very many classes, has not recorded the class names. They are then
    # read from the data.
    if stand_in is None:
        plan = make_evaluation_plan(run, config, validation_images(), components)
    else:
        data_options = dict.fromkeys(("data_dir", "image_size", "workers", "resizer", "val_split"))
        data_options["skip_corrupt"] = False
        config_without_data = config.replace(dataset=TrainConfig().dataset, **data_options)
        plan = make_evaluation_plan(run, config_without_data, stand_in, components)
    strategy = load_trained(run, plan)
    check_finite_parameters(run, strategy)
    convert_network_for_user(strategy.net)
    prediction_config = TrainConfig(**settings)
    decoding = {
        "decoders": prediction_config.workers,
        "skip_bad": prediction_config.skip_corrupt,
        "resizer": config.resizer,
    }
    return LoadedRun(run, plan, strategy, validation_images, decoding)


def _comparable_settings(run: RunDescription, components: UserComponents, data: Optional[Dataset]) -> Any:
    """Return the settings of the user's network and data, and the recorded setting of the loss.

    Predictions do not use the loss, so the user need not pass it again.
    """
    settings = dict(components.settings(data).get("own", {}))
    recorded = run.used.get("own")
    if isinstance(recorded, dict) and "loss" in recorded:
        settings["loss"] = recorded["loss"]
    return {"own": settings}


def _read_description(path: "str | os.PathLike[str]") -> RunDescription:
    """Read the description of a finished run. Raises ConfigError."""
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigError(f"the run directory has type {type(path).__name__}: pass its path, such as result.run_dir")
    try:
        return read_finished_run(Path(path))
    except DataError as error:
        raise ConfigError(str(error)) from None


def _make_placeholder_dataset(run: RunDescription) -> Optional[Dataset]:
    """Return a data set of one black image with the recorded classes, for predictions without data.

    Returns None if the run has not recorded the class names, the image shape or the normalization.
    """
    recorded_classes, shape = run.classes, recorded_image_shape(run)
    names = recorded_classes.get("names") if isinstance(recorded_classes, dict) else None
    if not isinstance(names, list) or not names or shape is None:
        return None
    if not all(isinstance(name, str) for name in names) or run.used.get("normalize") is None:
        return None
    black = ArraySplit(np.zeros((1, *shape), np.uint8), np.zeros(1, np.int32), CHANNELS_FIRST)
    name = str(run.used.get("dataset"))
    return Dataset(name, black, black, tuple(names), Defaults(model=run.used["model"]))


def _list_images(images: Any) -> "List[Any] | NDArray[Any]":
    """Convert the argument of `predict` to a list of files, or to one array. Raises DataError."""
    if isinstance(images, (str, bytes, bytearray, os.PathLike)):
        return [images]
    if hasattr(images, "shape"):
        return to_numpy(images, "images")
    try:
        inputs = list(images)
    except TypeError:
        inputs = [images]
    arrays = inputs and all(hasattr(item, "shape") for item in inputs)
    return to_numpy(inputs, "images") if arrays else inputs


def _resolve_pictures(inputs: Sequence[Any]) -> List[Picture]:
    """Return the image files of paths and folders. A list of `Picture` is returned unchanged."""
    if inputs and all(isinstance(item, Picture) for item in inputs):
        return list(inputs)
    return find_pictures(list(map(_check_path, inputs)))


def _check_path(name: Any) -> str:
    """Return the path of a file or folder. Raises DataError for other values."""
    if not isinstance(name, (str, os.PathLike)):
        if type(name).__module__.startswith("PIL."):
            raise DataError(
                "the image was passed as a Pillow image: pass the path of an image file instead, which is "
                "decoded like the images of the run"
            )
        if isinstance(name, (bytes, bytearray)):
            raise DataError("the image was passed as bytes: pass the path of the image file instead")
        kind = type(name).__name__
        raise DataError(
            f"the image was passed as {'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}: pass files, folders, or "
            "an array of bytes (uint8) or floats"
        )
    return os.fspath(name)
