"""Classify images with an exported model, without MXNet: python classify.py FOLDER IMAGE...

FOLDER is the folder export/ of a run, with model.onnx. For details, see docs/predict.md.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

if len(sys.argv) < 3:
    sys.exit("usage: python classify.py FOLDER IMAGE...")
folder, *pictures = map(Path, sys.argv[1:])
about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
_, channels, height, width = about["input"]["shape"]
scale, mean, std = (np.array(about["input"][key]) for key in ("scale", "mean", "std"))
session = onnxruntime.InferenceSession(str(folder / about["onnx"]["file"]))
for picture in pictures:
    image = ImageOps.exif_transpose(Image.open(picture)).convert("L" if channels == 1 else "RGB")
    image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(image).reshape(height, width, channels)
    images = ((pixels * scale - mean) / std).transpose(2, 0, 1)[None].astype("float32")
    [[scores]] = session.run(None, {about["input"]["name"]: images})
    chances = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
    print(picture, about["classes"][scores.argmax()], f"{chances.max():.6f}")
