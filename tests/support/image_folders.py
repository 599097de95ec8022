"""Folders of images made by Pillow: one folder per class, each class with a colour of its own in
noise.
"""

import io

import numpy as np
from PIL import Image

CLASSES = ("ant", "bee", "cow")


def make_image(label, width=16, height=16, seed=0, mode="RGB"):
    """Noise in which the channel ``label`` is brighter than the others, smooth enough for JPEG."""
    random = np.random.RandomState(seed)
    pixels = (
        random.randint(0, 90, (-(-height // 4), -(-width // 4), 3))
        .repeat(4, 0)
        .repeat(4, 1)[:height, :width]
    )
    pixels[:, :, label % 3] += 120
    return Image.fromarray(pixels.astype(np.uint8)).convert(mode)


def encode_image(image, format="JPEG", **options):
    """The bytes of a file with this image."""
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def write_image_folder(root, train=6, val=3, size=16, classes=CLASSES, suffix=".jpg"):
    """root/train and root/val with that many images of each class; returns root."""
    for part, count in (("train", train), ("val", val)):
        for label, name in enumerate(classes):
            folder = root / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                seed = 1000 * (part == "val") + 10 * number + label
                format = "PNG" if suffix == ".png" else "JPEG"
                (folder / f"{number:04}{suffix}").write_bytes(
                    encode_image(make_image(label, size, size, seed), format)
                )
    return root


def decode_with_pillow(path, size):
    """The whole image decoded, then its central square resized: (3, size, size)."""
    with Image.open(path) as image:
        image = image.convert("RGB")
        side = min(image.size)
        left, top = (image.width - side) / 2, (image.height - side) / 2
        image = image.resize(
            (size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side)
        )
        return np.asarray(image).transpose(2, 0, 1)
