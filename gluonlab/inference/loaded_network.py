"""A finished run's network, which says what is on pictures, on any devices."""

from __future__ import annotations

import dataclasses
import os
from collections import deque
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Deque,
    Dict,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import numpy as np

from gluonlab.config import TrainConfig, option_name
from gluonlab.data.sets.convert_arrays import CHANNELS_FIRST, to_host, to_pixels
from gluonlab.data.sets.dataset import ArraySplit, Dataset, Defaults, Split
from gluonlab.data.sets.gluon_datasets import resolve_dataset
from gluonlab.engine.np_compatibility import convert_network_for_user, nd_semantics
from gluonlab.errors import ConfigError, DataError, RunError, warn
from gluonlab.host.signals import exit_if_stuck
from gluonlab.inference.input_images import Picture, by_their_names, find_pictures, split_of
from gluonlab.inference.predictions import Mistake, Mistakes, PredictedBatch, Predictions
from gluonlab.kvstores.process_groups import ALONE
from gluonlab.parallel.strategy import Strategy
from gluonlab.runs.data_frame import EPOCHS, frame_of_run
from gluonlab.runs.run_reader import Description, read_finished
from gluonlab.training.evaluate import AHEAD, evaluation_loader
from gluonlab.training.evaluate_run import (
    GONE_WRONG,
    check_finite,
    check_same_images,
    config_of,
    image_shape,
    plan_of,
    strategy_of,
)
from gluonlab.training.parallel_options import make_split
from gluonlab.training.plan import Plan, fill_gaps, find_devices, load_data
from gluonlab.training.user_components import UserComponents, check_same_own, make_own
from gluonlab.training.user_metrics import GatheredScores, Part

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pandas import DataFrame

# The settings that a prediction takes from the command line.
GIVEN = ("gpus", "devices", "threads", "batch_size", "data_dir", "decoders", "skip_bad")
HOW = "to gluonlab.load_run"
Images = Union[str, "os.PathLike[str]", Sequence[Any], "NDArray[Any]"]


def nobody(seen: PredictedBatch) -> None:
    """For those who do not look at batches."""


class LoadedRun:
    """The network of a finished run; `load_run` makes one.

    ``classes``: their names, in the order of the scores. ``image_shape``: (channels, height, width)
    of what it sees. ``model``: the network's name.
    """

    def __init__(
        self,
        found: Description,
        plan: Plan,
        strategy: Strategy,
        test_images: Callable[[], Dataset],
        files: Mapping[str, Any],
    ) -> None:
        self.folder, self.model = found.folder, plan.model
        self.classes, self.image_shape = plan.dataset.classes, plan.dataset.image_shape
        self._plan, self._strategy, self._test_images = plan, strategy, test_images
        self._files = files  # how they are decoded: ``decoders``, ``skip_bad``, ``resizer``

    @nd_semantics()
    @exit_if_stuck()
    def predict(self, images: Images, saw: Callable[[PredictedBatch], Any] = nobody) -> Predictions:
        """The classes of these images, with probabilities.

        ``images``: a file or folder of pictures, or a list of them, which become squares of the
        run's size as in training; or an array of numpy or MXNet, (n, C, H, W) or (n, H, W) in grey,
        of bytes or of the floats that a network gets. ``saw``: told of each batch. Pictures that
        ``skip_bad`` leaves out are named in a warning. Raises DataError for what is no image, and
        RunError for scores that are no numbers.
        """
        given = _listed(images)
        if isinstance(given, np.ndarray):
            split: Split = self._of_array(given)
            names, pictures = [f"image {place}" for place in range(len(split))], []
        else:
            pictures = _found(given)
            if not pictures:
                raise DataError("there are no images: give files, folders, or an array of bytes")
            split, pictures, wrong = split_of(pictures, self.image_shape, **self._files)
            if wrong:
                left = f"{len(wrong)} of {len(pictures) + len(wrong)} pictures are left out"
                warn(f"{left}: {wrong[0]}")
            names = [picture.name for picture in pictures]
        scores = []
        with by_their_names(pictures):
            for seen in self._batches(split, names):
                scores.append(seen.said.scores)
                saw(seen)
        return Predictions(self.classes, tuple(names), np.concatenate(scores))

    @nd_semantics()
    @exit_if_stuck()
    def mistakes(self, saw: Callable[[PredictedBatch], Any] = nobody) -> Mistakes:
        """The test images that it takes for another class. ``saw``: told of each batch.

        Raises a UsageError where the run's data are not there, or are others now, and RunError.
        """
        data = self._test_images()
        paths = getattr(data.test, "paths", None)
        names = paths or [f"test image {place}" for place in range(len(data.test))]
        wrong: List[Mistake] = []
        begin = 0
        for said, pixels, true in self._batches(data.test, names):
            for place in np.flatnonzero(said.labels != true):
                own = Predictions(self.classes, (), said.scores[place : place + 1])
                [[guess]] = own.top(1)
                index, label = begin + int(place), self.classes[true[place]]
                file = paths[index] if paths else None
                wrong.append(Mistake(index, file, label, *guess, pixels[place].copy()))
            begin += len(said)
            saw(PredictedBatch(said, pixels, true))
        return Mistakes(data.name, len(data.test), wrong)

    def frame(self, of: str = EPOCHS) -> "DataFrame":
        """Its epochs or steps (``of``), a row each, as a pandas frame, see `gluonlab.frame`."""
        return frame_of_run(self.folder, of)

    def _batches(self, split: Split, names: Sequence[str]) -> Iterator[PredictedBatch]:
        """What it says of a split's images, in order, in batches as an evaluation makes them."""
        images = dataclasses.replace(self._plan.dataset, test=split)
        plan = dataclasses.replace(self._plan, dataset=images)
        queued: Deque[Tuple[Sequence[str], GatheredScores, List[Part], Any, Any]] = deque()
        begin = 0
        for batch in evaluation_loader(plan, self._strategy.inputs):
            pixels, true = (np.concatenate([part.asnumpy() for part in parts]) for parts in batch)
            parts = [
                (device, scores.copy(), labels.copy())  # ready when this part is
                for device, _, scores, labels in self._strategy.score(batch)
            ]
            queued.append(
                (names[begin : begin + batch.size], GatheredScores(), parts, pixels, true)
            )
            begin += batch.size
            if len(queued) > AHEAD:
                yield self._read(*queued.popleft())
        for each in queued:
            yield self._read(*each)

    def _read(
        self,
        names: Sequence[str],
        gathered: GatheredScores,
        parts: List[Part],
        pixels: Any,
        true: Any,
    ) -> PredictedBatch:
        """Wait for the scores of a batch's parts."""
        gathered.add(parts)
        scores, _ = gathered.whole(ALONE)
        # as an evaluation has it: such a row has no best class
        decided = (scores < np.inf).all(axis=1) & (scores > -np.inf).any(axis=1)
        if not decided.all():
            which = names[int(np.flatnonzero(~decided)[0])]
            raise RunError(f"the scores of {self.folder} for {which} are no numbers: {GONE_WRONG}")
        return PredictedBatch(Predictions(self.classes, tuple(names), scores), pixels, true)

    def _of_array(self, images: Any) -> ArraySplit:
        shape = images.shape
        if images.ndim == 3 and shape[1:] == self.image_shape[1:] and self.image_shape[0] == 1:
            images = images[:, np.newaxis]
        if images.shape[1:] != self.image_shape or not len(images):
            wanted = ", ".join(map(str, self.image_shape))
            raise DataError(
                f"images are {images.dtype} of shape {shape}: give bytes (uint8) or floats "
                f"of shape (n, {wanted}), n from 1 up{self._how_to_fit(shape)}"
            )
        labels = np.zeros(len(images), np.int32)
        return ArraySplit(to_pixels(images, "images"), labels, CHANNELS_FIRST)

    def _how_to_fit(self, shape: Tuple[int, ...]) -> str:
        """Return how to convert images of this shape to the shape of the run, or an empty text."""
        channels, height, width = self.image_shape
        cures = {
            (channels, height, width): "images[None]",
            (height, width): "images[None, None]" if channels == 1 else None,
            (height, width, channels): "images.transpose(2, 0, 1)[None]",
        }
        if len(shape) == 4 and shape[1:] == (height, width, channels):
            return ", by images.transpose(0, 3, 1, 2)"
        return f", by {cures[shape]}" if cures.get(shape) else ""


def load_run(
    path: "str | os.PathLike[str]", *, net: Any = None, data: Any = None, **given: Any
) -> LoadedRun:
    """The network of the finished run in the folder ``path``, with its parameters.

    ``net``, ``data``: what `train` got of the user's own, of a run that had its own; data are only
    read for `LoadedRun.mistakes`. ``given``: settings named in GIVEN, such as ``devices``. Raises
    ConfigError for a folder that is no finished run's, and for other settings; ModelError for
    parameters of another network; RunError for parameters that are not finite.
    """
    dataset = resolve_dataset(data)
    with nd_semantics():
        return _load(path, net, dataset, given)


def _load(
    path: "str | os.PathLike[str]", net: Any, data: Optional[Dataset], given: Dict[str, Any]
) -> LoadedRun:
    for name in given:
        if name not in GIVEN:
            possible = ", ".join(map(option_name, GIVEN))
            raise ConfigError(f"{option_name(name)} has no effect on predictions: give {possible}")
    found, own = _described(path), make_own(net)
    had = found.used.get("own")
    own_net = {"own": {"net": had["net"]}} if isinstance(had, dict) and "net" in had else {}
    check_same_own(str(found.folder), HOW, own_net, own.settings(None))
    config = config_of(found, given)

    def test_images() -> Dataset:
        check_same_own(str(found.folder), HOW, found.used, _same(found, own, data))
        # files that are decoded as they are needed keep their names
        asked = config.replace(resident_bytes=0)
        asked = asked if own.net is None else asked.replace(model=None)
        read = data
        if read is None:
            resolved = fill_gaps(asked, own=own)
            copies = make_split(resolved.config, find_devices(asked)).copies
            read = load_data(resolved, len(copies))
        check_same_images(found, read)
        return read

    stand_in = _without_data(found)
    if stand_in is None:  # an older run, or one of very many classes: its data know them
        plan = plan_of(found, config, test_images(), own)
    else:
        files = dict.fromkeys(("data_dir", "image_size", "decoders", "resizer", "val_share"))
        files["skip_bad"] = False
        unread = config.replace(dataset=TrainConfig().dataset, **files)
        plan = plan_of(found, unread, stand_in, own)
    strategy = strategy_of(found, plan)
    check_finite(found, strategy)
    convert_network_for_user(strategy.net)
    asked = TrainConfig(**given)
    decoding = {
        "decoders": asked.decoders,
        "skip_bad": asked.skip_bad,
        "resizer": config.resizer,
    }
    return LoadedRun(found, plan, strategy, test_images, decoding)


def _same(found: Description, own: UserComponents, data: Optional[Dataset]) -> Any:
    """The settings of what is the user's own now; a loss is none that predictions need."""
    settings = dict(own.settings(data).get("own", {}))
    named = found.used.get("own")
    if isinstance(named, dict) and "loss" in named:
        settings["loss"] = named["loss"]
    return {"own": settings}


def _described(path: "str | os.PathLike[str]") -> Description:
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigError(
            f"the folder of a run is a {type(path).__name__}: give its path, as result.run_dir is"
        )
    try:
        return read_finished(Path(path))
    except DataError as error:
        raise ConfigError(str(error)) from None


def _without_data(found: Description) -> Optional[Dataset]:
    """What the run has noted of its data, as a data set of one black image; None if not enough."""
    noted, shape = found.classes, image_shape(found)
    names = noted.get("names") if isinstance(noted, dict) else None
    if not isinstance(names, list) or not names or shape is None:
        return None
    if not all(isinstance(name, str) for name in names) or found.used.get("normalise") is None:
        return None
    black = ArraySplit(np.zeros((1, *shape), np.uint8), np.zeros(1, np.int32), CHANNELS_FIRST)
    name = str(found.used.get("dataset"))
    return Dataset(name, black, black, tuple(names), Defaults(model=found.used["model"]))


def _listed(images: Any) -> "List[Any] | NDArray[Any]":
    """The names of files and folders, or pictures; or arrays as one. Raises DataError."""
    if isinstance(images, (str, bytes, bytearray, os.PathLike)):
        return [images]
    if hasattr(images, "shape"):
        return to_host(images, "images")
    try:
        given = list(images)
    except TypeError:
        given = [images]
    arrays = given and all(hasattr(each, "shape") for each in given)
    return to_host(given, "images") if arrays else given


def _found(given: Sequence[Any]) -> List[Picture]:
    """The pictures of files and folders, which may have been looked for already."""
    if given and all(isinstance(each, Picture) for each in given):
        return list(given)
    return find_pictures(list(map(_path, given)))


def _path(name: Any) -> str:
    if not isinstance(name, (str, os.PathLike)):
        if type(name).__module__.startswith("PIL."):
            raise DataError(
                "an image is one of Pillow: give its file, or save it to one, which is decoded as "
                "those of the run"
            )
        if isinstance(name, (bytes, bytearray)):
            raise DataError("an image is bytes of a file: give the file itself")
        kind = type(name).__name__
        raise DataError(
            f"an image is {'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}: "
            "give files, folders, or an array of bytes (uint8) or floats"
        )
    return os.fspath(name)
