"""What might help against a cause: settings to try. Nothing is advised before it has been tried."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence

from gluonlab.config import option_name
from gluonlab.study.speedup.judge import (
    CORES,
    FEW,
    HOST,
    INPUT,
    STRAGGLER,
    SUM,
    UPDATE,
    WAITING,
    Cause,
)

MORE = 4  # times as many images as now
AHEAD = 8  # batches prepared ahead
MOST = 3  # settings that are tried
SHARDED = "sharded-optimizer"


class Facts(NamedTuple):
    """What a training is like now.

    ``each``: images per copy of the network, of which there are ``copies``, one on each device or
    on several together; ``most``: how many the data set has for each. ``option``: the one that sets
    the batch's size. ``data_bytes``: of all training images, None for files that are decoded anew;
    ``devices``: their names, as --devices takes them; ``shares``: each one's images of a step.
    """

    devices: Sequence[str]
    each: int
    copies: int
    most: int
    option: str
    kvstore: str
    microbatches: Optional[int]
    prefetch: int
    resident_bytes: int
    data_bytes: Optional[int]
    decoders: Optional[int]
    free_bytes: int
    cores: int
    is_cpu: bool
    shares: Sequence[int] = ()


class Candidate(NamedTuple):
    """Settings to try. ``each``: images per copy of the network, where they change these."""

    settings: Dict[str, Any]
    each: Optional[int] = None

    @property
    def words(self) -> str:
        """``--kvstore ring``."""
        return " ".join(
            f"{option_name(name)} {value}"
            for name, value in self.settings.items()
            if value is not None
        )


def candidates(causes: Sequence[Cause], facts: Facts) -> List[Candidate]:
    """Up to MOST, those against the first cause first; none where nothing could help."""
    against = [list(_against(cause, facts)) for cause in causes]
    found: List[Candidate] = []
    for place in range(max(map(len, against), default=0)):
        for one in against:
            if place < len(one) and one[place] not in found:
                found.append(one[place])
    return found[:MOST]


def _against(cause: Cause, facts: Facts) -> Iterator[Candidate]:
    if cause.name == INPUT:
        yield from _of_input(facts)
        return
    if cause.name in (SUM, UPDATE) and facts.kvstore != SHARDED:
        yield Candidate({"kvstore": SHARDED})
    if cause.name in (SUM, WAITING) and facts.kvstore != "device":
        yield Candidate({"kvstore": "device"})
    if cause.name in (HOST, FEW) and facts.microbatches:
        yield Candidate({"microbatches": None if facts.microbatches <= MORE else
                         facts.microbatches // MORE, "microbatch_size": None})  # fmt: skip
    if cause.name == STRAGGLER and cause.device is not None:
        if len(cause.singles) == len(facts.shares):
            yield Candidate({"device_weights": weights(facts.shares, cause.singles)})
        left = [name for place, name in enumerate(facts.devices) if place != cause.device]
        yield _on(left)
    if cause.name == CORES and facts.is_cpu and len(facts.devices) > facts.cores:
        yield _on(list(facts.devices)[: facts.cores])
    if cause.name in (HOST, SUM, UPDATE, FEW, WAITING):
        yield from _larger(facts)
    if cause.name == SUM and facts.kvstore != "sharded":
        yield Candidate({"kvstore": "sharded"})


def _on(devices: Sequence[str]) -> Candidate:
    return Candidate({"devices": ",".join(devices), "gpus": None, "device_weights": None})


def weights(images: Sequence[int], seconds: Sequence[float]) -> str:
    """--device-weights for devices that compute so many images each in so long: their speeds."""
    speeds = [count / each for count, each in zip(images, seconds)]
    return ",".join(f"{speed / min(speeds):.1f}".replace(".0", "") for speed in speeds)


def _larger(facts: Facts) -> Iterator[Candidate]:
    """A batch with more images, if the data set has them."""
    each = min(MORE * facts.each, facts.most)
    if each > facts.each:
        images = each * facts.copies if facts.option == "global_batch_size" else each
        yield Candidate({facts.option: images}, each)


def _of_input(facts: Facts) -> Iterator[Candidate]:
    data = facts.data_bytes
    if data is not None and facts.resident_bytes < data <= facts.free_bytes // 4:
        yield Candidate({"resident_bytes": data})
    if facts.decoders is not None:
        yield Candidate({"decoders": 2 * facts.decoders})
    if facts.prefetch < AHEAD:
        yield Candidate({"prefetch": AHEAD})
