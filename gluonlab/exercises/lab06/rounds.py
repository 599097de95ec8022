"""06-5: which images go through which device in which round."""

from __future__ import annotations

from typing import Any, Callable, List, Tuple

import numpy as np

from gluonlab.data.loading.shards import shard_bounds
from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.shared.counterexamples import Case, returned

Rounds = List[List[Tuple[int, int, int]]]


@exercise("06-5")
def rounds(answer: Callable[[int, int, int], Rounds]) -> None:
    """Which images go through which device in which round."""
    cases = [(4, 1, 1), (4, 2, 1), (8, 2, 2), (6, 2, 3), (7, 2, 1), (7, 2, 2), (10, 3, 2)]
    cases += [(3, 2, 2), (1, 2, 2), (5, 4, 3)]
    randint = draws(5).randint
    for _ in range(12):
        cases.append((int(randint(1, 200)), int(randint(1, 9)), int(randint(1, 9))))
    for images, devices, microbatches in cases:
        call = f"rounds({images}, {devices}, {microbatches})"
        got = _rounds_of(answer(images, devices, microbatches), call)
        case = Case(call, call)
        _check_each(case, got)
        _check_images(case, got, images)
        _check_shares(case, got, images, devices, microbatches)


def _rounds_of(given: Any, call: str) -> Rounds:
    try:
        return [
            [(int(device), int(begin), int(end)) for device, begin, end in each] for each in given
        ]
    except (TypeError, ValueError):
        en = "a list of rounds, each a list of (device, begin, end)"
        raise returned(given, call, en, "(デバイス, 始め, 終わり) のリストのリスト") from None


def _check_each(case: Case, got: Rounds) -> None:
    """No part of a round is empty, and no device has two."""
    for number, each in enumerate(got):
        case.check(
            (any(end <= begin for _, begin, end in each),
             f"a part of round {number} has no image: {each}",
             f"ラウンド {number} に空の部分があります: {each}"),
            (len({device for device, _, _ in each}) < len(each),
             f"a device has two parts in round {number}, {each}: its memory holds both",
             f"ラウンド {number} で 1 台のデバイスに 2 個の部分があります: {each}。"
             "これでは両方がメモリに載ってしまいます"),
        )  # fmt: skip


def _check_images(case: Case, got: Rounds, images: int) -> None:
    """Every image is used once, and there are no others."""
    times = np.zeros(images, int)
    for _, begin, end in (part for each in got for part in each):
        times[max(begin, 0) : end] += 1
    outside = [part for each in got for part in each if part[1] < 0 or part[2] > images]
    first, place = next(iter(outside), None), int(np.argmax(times != 1))
    case.check(
        (outside, f"{first} goes beyond the batch of {images} images",
         f"{first} は {images} 枚のバッチからはみ出しています"),
        (times[place] != 1, f"image {place} is used {times[place]} times, expected once",
         f"画像 {place} が使われた回数は {times[place]} 回です。ちょうど 1 回のはずです"),
    )  # fmt: skip


def _check_shares(case: Case, got: Rounds, images: int, devices: int, microbatches: int) -> None:
    """The shares of the devices and their parts are as even as can be, and work side by side."""
    parts = [part for each in got for part in each]
    shards = dict(enumerate(shard_bounds(images, devices)))
    for device in sorted({device for device, _, _ in parts} | set(shards)):
        own = [(begin, end) for number, begin, end in parts if number == device]
        begin, end = shards.get(device, (0, 0))
        size = end - begin
        want = [(begin + a, begin + b) for a, b in shard_bounds(size, microbatches)]
        case.check(
            (sum(b - a for a, b in own) != size
             or (own and (own[0][0], own[-1][1]) != (begin, end)),
             f"device {device} gets {own}, expected images {begin} to {end}: "
             "the shares of the devices are as even as can be",
             f"デバイス {device} の担当分が {own} です。"
             f"{begin} から {end} までのはずです (できるだけ均等に分けます)"),
            (own != want,
             f"device {device} has its {size} images in the parts {own}, "
             f"expected {want}: {min(microbatches, size)} of them, as even as can be",
             f"デバイス {device} の {size} 枚が {own} に分けられています。"
             f"{want} のはずです ({min(microbatches, size)} 個に、できるだけ均等に)"),
        )  # fmt: skip
    if len(got) != min(microbatches, len(range(*shards[0]))):
        raise case.wrong(
            f"there are {len(got)} rounds: {got}", f"ラウンドが {len(got)} 回あります: {got}"
        )
    counts = [min(microbatches, end - begin) for begin, end in shards.values()]
    for number, each in enumerate(got):
        if len(each) < sum(count > number for count in counts):
            raise case.wrong(
                f"in round {number} only {each} work, while another device has parts left: "
                "they should work side by side",
                f"ラウンド {number} で動くのが {each} だけです。"
                "画像の残っているデバイスは同時に動かします",
            )
