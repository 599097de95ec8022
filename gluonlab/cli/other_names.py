"""Options as other training scripts call them, and what they are called here.

Those of gluon-cv's train_cifar10.py and train_imagenet.py, of PyTorch's examples (main.py,
torchrun), and of Keras' and Lightning's arguments: what somebody who comes from there types first.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Collection, Dict, Optional

HERE: Dict[str, str] = {
    "--batch": "--batch-size",
    "--bs": "--batch-size",
    "--per-device-batch-size": "--batch-size",
    "--arch": "--model",
    "--net": "--model",
    "--network": "--model",
    "--data": "--dataset",
    "--data-path": "--data-dir",
    "--data-root": "--data-dir",
    "--root": "--data-dir",
    "--num-epochs": "--epochs",
    "--n-epochs": "--epochs",
    "--max-epochs": "--epochs",
    "--num-gpus": "--gpus",
    "--ngpus": "--gpus",
    "--n-gpus": "--gpus",
    "--num-devices": "--gpus",
    "--ctx": "--devices",
    "--context": "--devices",
    "--device": "--devices",
    "--learning-rate": "--lr",
    "--base-lr": "--lr",
    "--lr-mode": "--lr-schedule",
    "--lr-scheduler": "--lr-schedule",
    "--lr-decay-period": "--lr-decay-epochs",
    "--lr-decay-epoch": "--lr-decay-epochs",
    "--milestones": "--lr-decay-epochs",
    "--gamma": "--lr-decay",
    "--weight-decay": "--wd",
    "--no-wd": "--no-bias-decay",
    "--warmup": "--warmup-epochs",
    "--accumulate": "--microbatches",
    "--accumulate-grad-batches": "--microbatches",
    "--gradient-accumulation-steps": "--microbatches",
    "--gradient-clip-val": "--clip-norm",
    "--clip-grad": "--clip-norm",
    "--max-grad-norm": "--clip-norm",
    "--kv-store": "--kvstore",
    "--amp": "--dtype",
    "--fp16": "--dtype",
    "--precision": "--dtype",
    "--sync-batchnorm": "--sync-bn",
    "--syncbn": "--sync-bn",
    "--crop-pad": "--crop-padding",
    "--workers": "--decoders",
    "--num-workers": "--decoders",
    "--num-data-workers": "--decoders",
    "--output": "--out",
    "--output-dir": "--out",
    "--save-dir": "--out",
    "--logging-dir": "--out",
    "--log-dir": "--out",
    "--resume-from": "--resume",
    "--eval": "--evaluate",
    "--test": "--evaluate",
    "--world-size": "-n",
    "--nproc-per-node": "-n",
    "--num-proc": "-n",
    "--verbose": "--debug",
}


def nearest(given: str, names: Collection[str]) -> Optional[str]:
    """The option of ``names`` that is most likely meant, or None."""
    usual = given.lower().replace("_", "-")
    here = HERE.get(usual)
    return here if here in names else next(iter(get_close_matches(usual, names, n=1)), None)


def unknown_option(given: str, names: Collection[str]) -> str:
    """The message for an option that a command with the options ``names`` has not.

    >>> unknown_option("--learning-rate", ["--lr", "--wd"])
    "unknown option '--learning-rate': did you mean '--lr'?"
    """
    here = nearest(given, names)
    if here is not None:
        return f"unknown option {given!r}: did you mean {here!r}?"
    return f"unknown option {given!r}: see --help"
