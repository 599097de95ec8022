"""Image folders made by Pillow, with one folder and one dominant color per class."""

import io

import numpy as np
from PIL import Image

CLASSES = ("ant", "bee", "cow")


def make_image(label, width=16, height=16, seed=0, mode="RGB"):
    """Return smooth noise in which the color channel ``label`` is the brightest."""
    random = np.random.RandomState(seed)
    pixels = random.randint(0, 90, (-(-height // 4), -(-width // 4), 3)).repeat(4, 0).repeat(4, 1)[:height, :width]
    pixels[:, :, label % 3] += 120
    return Image.fromarray(pixels.astype(np.uint8)).convert(mode)


def encode_image(image, format="JPEG", **options):
    """Return the content of an image file."""
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def write_image_folder(root, train=6, val=3, size=16, classes=CLASSES, suffix=".jpg"):
    """Write images of each class into root/train and root/val; return root."""
    for part, count in (("train", train), ("val", val)):
        for label, name in enumerate(classes):
            folder = root / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                seed = 1000 * (part == "val") + 10 * number + label
                format = "PNG" if suffix == ".png" else "JPEG"
                (folder / f"{number:04}{suffix}").write_bytes(encode_image(make_image(label, size, size, seed), format))
    return root


def decode_with_pillow(path, size):
    """Decode an image and resize its central square; return an array (3, size, size)."""
    with Image.open(path) as image:
        image = image.convert("RGB")
        side = min(image.size)
        left, top = (image.width - side) / 2, (image.height - side) / 2
        image = image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
        return np.asarray(image).transpose(2, 0, 1)
