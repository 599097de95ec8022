"""Suggests the name that was probably meant for an unknown option or argument.

Names from other training scripts are also recognized: gluon-cv's train_cifar10.py and
train_imagenet.py, PyTorch's examples (main.py, torchrun), Keras and Lightning.
"""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from functools import wraps
from typing import Any, Callable, Collection, Dict, List, Mapping, Optional, TypeVar, cast

from gluonlab.errors import ConfigError, unknown

# gluonlab's option -> names of the same option in other tools, without dashes
OPTION_ALIASES = {
    "--batch-size": "batch bs per-device-batch-size train-batch-size minibatch minibatch-size mini-batch-size",
    "--model": "arch architecture net network backbone model-name",
    "--dataset": "data dataset-name train-data",
    "--data-dir": "data-path data-root root train-dir dataset-dir",
    "--image-size": "img-size imsize imgsz input-size crop-size resolution data-shape input-shape image-shape",
    "--epochs": "num-epochs num-epoch n-epochs n-epoch max-epochs max-epoch nepochs",
    "--gpus": "num-gpus num-gpu ngpus n-gpus n-gpu num-devices",
    "--devices": "ctx ctxs context contexts device device-ids gpu-ids gpu-id cuda use-cuda cpu use-cpu no-cuda",
    "--seed": "random-seed manual-seed seed-value",
    "--lr": "learning-rate base-lr lrate optimizer-params",
    "--lr-schedule": "lr-mode lr-scheduler lr-policy scheduler",
    "--lr-decay-epochs": "lr-decay-period lr-decay-epoch lr-step-epochs lr-step lr-steps milestones step-size",
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
    "--checkpoint-every": "checkpoint save-every save-freq save-frequency save-interval save-period",
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
OPTION_BY_ALIAS: Dict[str, str] = {
    f"--{alias}": option for option, aliases in OPTION_ALIASES.items() for alias in aliases.split()
}
SIMILARITY_CUTOFF = 0.7  # the smallest similarity ratio of two names for a hint


def nearest_option(given: str, names: Collection[str]) -> Optional[str]:
    """Return the option of ``names`` that was most likely meant, or None.

    These rules are tried in order:

    1. The option of which ``given`` is an alias (OPTION_BY_ALIAS).
    2. If ``given`` starts with ``--``: options that differ from it by one typo.
    3. If ``given`` starts with ``--``: the only option that starts with it.
    4. The most similar option, if the similarity is at least SIMILARITY_CUTOFF.
    """
    normalized = given.lower().replace("_", "-")
    option = OPTION_BY_ALIAS.get(normalized)
    if option in names:
        return option
    bodies = {name.lstrip("-"): name for name in names}
    body = normalized.lstrip("-")
    # Rules 2 and 3 are not for short options, which all differ from each other by one letter.
    is_long = given.startswith("--")
    typos = [name for name in bodies if is_long and _differ_by_one_typo(body, name)]
    prefixed = [name for name in bodies if is_long and len(body) > 2 and name.startswith(body)]
    likely = typos or (prefixed if len(prefixed) == 1 else [])
    matches = get_close_matches(body, likely or bodies, n=1, cutoff=0 if likely else SIMILARITY_CUTOFF)
    return bodies[matches[0]] if matches else None


def aliases_of_setting(setting: str) -> List[str]:
    """Return other tools' names of a setting, with underscores instead of dashes."""
    option = "--" + setting.replace("_", "-")
    return [alias[2:].replace("-", "_") for alias, name in OPTION_BY_ALIAS.items() if name == option]


def nearest_name(given: str, names: Collection[str]) -> Optional[str]:
    """Return the name (with underscores, not ``--``) that was most likely meant, or None.

    >>> nearest_name("learning_rate", ["lr", "wd"])
    'lr'
    """
    options = {"--" + name.replace("_", "-"): name for name in names}
    option = nearest_option("--" + given, options)
    return None if option is None else options[option]


def _differ_by_one_typo(given: str, meant: str) -> bool:
    """Return whether two names differ by at most one letter, or by two swapped neighbors."""
    if len(given) == len(meant):
        positions = [position for position, (a, b) in enumerate(zip(given, meant)) if a != b]
        is_permutation = len(positions) == 2 and sorted(given) == sorted(meant)
        return len(positions) < 2 or (is_permutation and positions[1] == positions[0] + 1)
    short, long = sorted((given, meant), key=len)
    return len(long) == len(short) + 1 and any(
        long[:position] + long[position + 1 :] == short for position in range(len(long))
    )


def unknown_option_message(given: str, names: Collection[str]) -> str:
    """Return the error message for an unknown option of a command with the options ``names``.

    >>> unknown_option_message("--learning-rate", ["--lr", "--wd"])
    "unknown option '--learning-rate': did you mean '--lr'?"
    """
    suggestion = nearest_option(given, names)
    if suggestion is not None:
        return f"unknown option {given!r}: did you mean {suggestion!r}?"
    return f"unknown option {given!r}: see --help"


F = TypeVar("F", bound=Callable[..., Any])


def check_argument_names(called: str, answers: Mapping[str, str]) -> Callable[[F], F]:
    """Decorate a function so that it raises ConfigError for an unknown keyword argument.

    The message contains a hint. ``called``: the function's name in messages. ``answers``: unknown
    name -> hint, for names that need a special hint.
    """

    def decorate(function: F) -> F:
        """Return ``function`` with a check of the names of its keyword arguments."""
        known = inspect.signature(function).parameters
        names = [name for name in known if name != "self"]

        @wraps(function)
        def call_checked(*args: Any, **given: Any) -> Any:
            """Check the names in ``given``, then call the function."""
            for name in given:
                if name not in known:
                    raise ConfigError(unknown_argument_message(name))
            return function(*args, **given)

        def unknown_argument_message(name: str) -> str:
            """Return the message, with a hint from ``answers`` or the most similar name."""
            if name in answers:
                return f"{called} has no argument {name!r}: {answers[name]}"
            meant = nearest_name(name, names)
            if meant is not None:
                return f"{called} has no argument {name!r}: did you mean {meant!r}?"
            return unknown(f"argument of {called}", name, names)

        return cast(F, call_checked)

    return decorate
