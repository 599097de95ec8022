"""Hints for unknown options and arguments: the name that was probably meant.

Among them are options as other training scripts call them: gluon-cv's train_cifar10.py and
train_imagenet.py, PyTorch's examples (main.py, torchrun), Keras and Lightning.
"""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from functools import wraps
from typing import Any, Callable, Collection, Dict, List, Mapping, Optional, TypeVar, cast

from gluonlab.errors import ConfigError, unknown

# what it is called here -> there, without dashes
_THERE = {
    "--batch-size": "batch bs per-device-batch-size train-batch-size minibatch minibatch-size "
    "mini-batch-size",
    "--model": "arch architecture net network backbone model-name",
    "--dataset": "data dataset-name train-data",
    "--data-dir": "data-path data-root root train-dir dataset-dir",
    "--image-size": "img-size imsize imgsz input-size crop-size resolution data-shape input-shape "
    "image-shape",
    "--epochs": "num-epochs num-epoch n-epochs n-epoch max-epochs max-epoch nepochs",
    "--gpus": "num-gpus num-gpu ngpus n-gpus n-gpu num-devices",
    "--devices": "ctx ctxs context contexts device device-ids gpu-ids gpu-id cuda use-cuda cpu "
    "use-cpu no-cuda",
    "--seed": "random-seed manual-seed seed-value",
    "--lr": "learning-rate base-lr lrate optimizer-params",
    "--lr-schedule": "lr-mode lr-scheduler lr-policy scheduler",
    "--lr-decay-epochs": "lr-decay-period lr-decay-epoch lr-step-epochs lr-step lr-steps "
    "milestones step-size",
    "--lr-decay": "gamma lr-factor",
    "--optimizer": "opt optim optimiser solver nesterov",
    "--wd": "weight-decay l2",
    "--no-bias-decay": "no-wd",
    "--warmup-epochs": "warmup warmup-steps",
    "--microbatches": "accumulate accumulate-grad-batches gradient-accumulation-steps "
    "gradient-accumulation accum accum-iter grad-accum iter-size batches-per-allreduce",
    "--clip-norm": "gradient-clip-val gradient-clip gradient-clipping clip-grad clip-grad-norm "
    "clip-gradient grad-clip clip clipnorm max-grad-norm max-norm",
    "--class-weights": "class-weight weight pos-weight",
    "--kvstore": "kv-store",
    "--compress": "gc-type gc-threshold compression fp16-allreduce",
    "--dtype": "amp use-amp fp16 bf16 half precision mixed-precision",
    "--sync-bn": "sync-batchnorm syncbn",
    "--crop-padding": "crop-pad",
    "--decoders": "workers num-workers num-data-workers",
    "--out": "output output-dir out-dir logdir save-dir save save-path checkpoint-dir ckpt-dir "
    "model-dir logging-dir log-dir",
    "--checkpoint-every": "checkpoint save-every save-freq save-frequency save-interval "
    "save-period",
    "--resume": "resume-from resume-from-checkpoint resume-epoch load load-epoch ckpt",
    "--pretrained": "pretrained-model use-pretrained weights",
    "--val-share": "val-split validation-split valid-pct val-ratio test-size",
    "--patience": "early-stopping early-stop",
    "--evaluate": "eval eval-only test test-only val validate",
    "-n": "world-size nproc-per-node num-proc np",
    "--hosts": "hostnames nodes nnodes",
    "--momentum": "mom",
    "--config": "config-file cfg yaml",
    "--debug": "verbose",
}
HERE: Dict[str, str] = {
    f"--{theirs}": ours for ours, each in _THERE.items() for theirs in each.split()
}
ALIKE = 0.7  # the ratio of two names from which on one may be meant for the other


def nearest(given: str, names: Collection[str]) -> Optional[str]:
    """The option of ``names`` that is most likely meant, or None.

    One slip, such as a letter left out, is forgiven in any name, more of them in long ones; and
    the beginning of a name stands for it, if of no other.
    """
    usual = given.lower().replace("_", "-")
    here = HERE.get(usual)
    if here in names:
        return here
    bodies = {name.lstrip("-"): name for name in names}
    body = usual.lstrip("-")
    is_long = given.startswith("--")  # of one letter, any other one would be a slip
    slips = [name for name in bodies if is_long and _one_slip(body, name)]
    begun = [name for name in bodies if is_long and len(body) > 2 and name.startswith(body)]
    likely = slips or (begun if len(begun) == 1 else [])
    alike = get_close_matches(body, likely or bodies, n=1, cutoff=0 if likely else ALIKE)
    return bodies[alike[0]] if alike else None


def theirs_for(setting: str) -> List[str]:
    """Return other libraries' names of a setting, in Python's spelling."""
    option = "--" + setting.replace("_", "-")
    return [theirs[2:].replace("-", "_") for theirs, ours in HERE.items() if ours == option]


def nearest_name(given: str, names: Collection[str]) -> Optional[str]:
    """Find the nearest name, as `nearest` does, for names in Python's spelling.

    >>> nearest_name("learning_rate", ["lr", "wd"])
    'lr'
    """
    options = {"--" + name.replace("_", "-"): name for name in names}
    found = nearest("--" + given, options)
    return None if found is None else options[found]


def _one_slip(given: str, meant: str) -> bool:
    """Whether one letter is lacking, too many or another one, or two have changed places."""
    if len(given) == len(meant):
        differ = [at for at, (a, b) in enumerate(zip(given, meant)) if a != b]
        swapped = len(differ) == 2 and sorted(given) == sorted(meant)
        return len(differ) < 2 or (swapped and differ[1] == differ[0] + 1)
    short, long = sorted((given, meant), key=len)
    return len(long) == len(short) + 1 and any(
        long[:at] + long[at + 1 :] == short for at in range(len(long))
    )


def unknown_option(given: str, names: Collection[str]) -> str:
    """The message for an option that a command with the options ``names`` has not.

    >>> unknown_option("--learning-rate", ["--lr", "--wd"])
    "unknown option '--learning-rate': did you mean '--lr'?"
    """
    here = nearest(given, names)
    if here is not None:
        return f"unknown option {given!r}: did you mean {here!r}?"
    return f"unknown option {given!r}: see --help"


F = TypeVar("F", bound=Callable[..., Any])


def named_arguments(called: str, answers: Mapping[str, str]) -> Callable[[F], F]:
    """Make a function raise ConfigError with a hint for an unknown keyword argument.

    ``called``: the function's name in messages. ``answers``: hints for some unknown names.
    """

    def decorate(function: F) -> F:
        known = inspect.signature(function).parameters
        names = [name for name in known if name != "self"]

        @wraps(function)
        def checked(*args: Any, **given: Any) -> Any:
            for name in given:
                if name not in known:
                    raise ConfigError(_said(name))
            return function(*args, **given)

        def _said(name: str) -> str:
            if name in answers:
                return f"{called} has no argument {name!r}: {answers[name]}"
            meant = nearest_name(name, names)
            if meant is not None:
                return f"{called} has no argument {name!r}: did you mean {meant!r}?"
            return unknown(f"argument of {called}", name, names)

        return cast(F, checked)

    return decorate
