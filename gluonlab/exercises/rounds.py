"""Whether a plan of microbatches over devices uses every image once, evenly, and no device twice in
a round.
"""

from __future__ import annotations

from typing import Callable, List, Tuple

import numpy as np

from gluonlab.data.loading.shards import shard_bounds
from gluonlab.exercises.exercise import Wrong, returned

Rounds = List[List[Tuple[int, int, int]]]


def check_rounds(
    answer: Callable[[int, int, int], Rounds], images: int, devices: int, microbatches: int
) -> None:
    """Raise Wrong for the first fault of ``answer(images, devices, microbatches)``: each part is
    (device, begin, end).
    """
    call, given = (
        f"rounds({images}, {devices}, {microbatches})",
        answer(images, devices, microbatches),
    )
    try:
        got = [
            [(int(device), int(begin), int(end)) for device, begin, end in each] for each in given
        ]
    except (TypeError, ValueError):
        raise returned(
            given,
            call,
            en="a list of rounds, each a list of (device, begin, end)",
            ja="(デバイス, 始め, 終わり) のリストのリスト",
        ) from None
    parts = [part for each in got for part in each]

    def wrong(en: str, ja: str) -> Wrong:
        return Wrong(en=f"{call}: {en}", ja=f"{call}: {ja}")

    for number, each in enumerate(got):
        if any(end <= begin for _, begin, end in each):
            raise wrong(
                f"a part of round {number} has no image: {each}",
                f"ラウンド {number} に空の部分があります: {each}",
            )
        busy = [device for device, _, _ in each]
        if len(set(busy)) < len(busy):
            raise wrong(
                f"a device has two parts in round {number}, {each}: its memory holds both",
                f"ラウンド {number} で 1 台のデバイスに 2 個の部分があります: {each}。"
                "メモリには両方が載ります",
            )
    times = np.zeros(images, int)
    for _, begin, end in parts:
        times[max(begin, 0) : end] += 1
    outside = [part for part in parts if part[1] < 0 or part[2] > images]
    if outside:
        raise wrong(
            f"{outside[0]} goes beyond the batch of {images} images",
            f"{outside[0]} は {images} 枚のバッチからはみ出しています",
        )
    if not (times == 1).all():
        place = int(np.argmax(times != 1))
        raise wrong(
            f"image {place} is used {times[place]} times, expected once",
            f"画像 {place} が {times[place]} 回使われています。ちょうど 1 回のはずです",
        )
    shards = dict(enumerate(shard_bounds(images, devices)))
    for device in sorted({device for device, _, _ in parts} | set(shards)):
        own = [(begin, end) for number, begin, end in parts if number == device]
        begin, end = shards.get(device, (0, 0))
        if sum(b - a for a, b in own) != end - begin or (
            own and (own[0][0], own[-1][1]) != (begin, end)
        ):
            raise wrong(
                f"device {device} gets {own}, expected images {begin} to {end}: "
                "the shares of the devices are as even as can be",
                f"デバイス {device} の担当分が {own} です。"
                f"{begin} から {end} までのはずです (できるだけ均等に分けます)",
            )
        want = [(begin + a, begin + b) for a, b in shard_bounds(end - begin, microbatches)]
        if own != want:
            raise wrong(
                f"device {device} has its {end - begin} images in the parts {own}, "
                f"expected {want}: {min(microbatches, end - begin)} of them, as even as can be",
                f"デバイス {device} の {end - begin} 枚が {own} に分けられています。"
                f"{want} のはずです ({min(microbatches, end - begin)} 個に、できるだけ均等に)",
            )
    if len(got) != min(microbatches, len(range(*shards[0]))):
        raise wrong(
            f"there are {len(got)} rounds: {got}", f"ラウンドが {len(got)} 回あります: {got}"
        )
    for number, each in enumerate(got):
        if len(each) < sum(
            len(shard_bounds(end - begin, microbatches)) > number for begin, end in shards.values()
        ):
            raise wrong(
                f"in round {number} only {each} work, while another device has parts left: "
                "they should work side by side",
                f"ラウンド {number} で動くのが {each} だけです。"
                "画像の残っているデバイスは同時に動かします",
            )
