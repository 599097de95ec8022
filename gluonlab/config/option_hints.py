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

# gluonlab's option -> names of the same option in other tools, without dashes. Commands accept these
# names, because their values have the same meaning.
ACCEPTED_ALIASES = {
    "--batch-size": "batch bs per-device-batch-size per-device-train-batch-size minibatch-size mini-batch-size",
    "--model": "arch architecture net network model-name",
    "--dataset": "dataset-name",
    "--data-dir": "data-path data-root dataset-dir",
    "--image-size": "img-size imsize imgsz",
    "--epochs": "num-epochs num-epoch n-epochs n-epoch max-epochs max-epoch nepochs num-train-epochs",
    "--gpus": "num-gpus num-gpu ngpus n-gpus n-gpu num-devices",
    "--seed": "random-seed manual-seed seed-value",
    "--lr": "learning-rate lrate",
    "--lr-decay-epochs": "lr-decay-epoch lr-step-epochs milestones",
    "--lr-decay": "lr-factor",
    "--optimizer": "opt optim optimiser",  # codespell:ignore optimiser
    "--wd": "weight-decay",
    "--no-bias-decay": "no-wd",
    "--microbatches": "accumulate-grad-batches gradient-accumulation-steps grad-accum-steps",
    "--clip-norm": "clip-grad-norm max-grad-norm gradient-clip-val grad-clip-norm clipnorm max-norm",
    "--class-weights": "class-weight",
    "--kvstore": "kv-store",
    "--sync-bn": "sync-batchnorm syncbn",
    "--workers": "num-workers num-data-workers dataloader-num-workers",
    "--out": "output-dir out-dir save-dir log-dir logdir",
    "--val-split": "validation-split val-ratio valid-pct",
    "--patience": "early-stopping-patience",
    "--config": "config-file cfg",
    "-n": "np num-proc world-size",
}
# gluonlab's option -> names in other tools whose values differ, or which are only similar. The error
# message for such a name suggests the option.
SUGGESTED_ALIASES = {
    "--batch-size": "train-batch-size minibatch",
    "--model": "backbone",
    "--dataset": "data train-data",
    "--data-dir": "root train-dir",
    "--image-size": "input-size crop-size resolution data-shape input-shape image-shape",
    "--devices": "ctx ctxs context contexts device device-ids gpu-ids gpu-id cuda use-cuda cpu use-cpu no-cuda",
    "--lr": "base-lr optimizer-params",
    "--lr-schedule": "lr-mode lr-scheduler lr-policy scheduler",
    "--lr-decay-epochs": "lr-decay-period lr-step lr-steps step-size",
    "--lr-decay": "gamma",
    "--optimizer": "solver nesterov",
    "--wd": "l2",
    "--warmup-epochs": "warmup warmup-steps",
    "--microbatches": "accumulate gradient-accumulation accum accum-iter grad-accum iter-size batches-per-allreduce",
    "--clip-norm": "gradient-clip gradient-clipping clip-grad clip-gradient grad-clip clip",
    "--class-weights": "weight pos-weight",
    "--compress": "gc-type gc-threshold compression fp16-allreduce",
    "--dtype": "amp use-amp fp16 bf16 half precision mixed-precision",
    "--crop-padding": "crop-pad",
    "--out": "output save save-path checkpoint-dir ckpt-dir model-dir logging-dir",
    "--checkpoint-every": "checkpoint save-every save-freq save-frequency save-interval save-period",
    "--pretrained": "pretrained-model use-pretrained weights",
    "--val-split": "test-size",
    "--patience": "early-stopping early-stop",
    "-n": "nproc-per-node",
    "--hosts": "hostnames nodes nnodes",
    "--momentum": "mom",
    "--config": "yaml",
    "--debug": "verbose",
}


def _option_by_alias(table: Mapping[str, str]) -> Dict[str, str]:
    return {f"--{alias}": option for option, aliases in table.items() for alias in aliases.split()}


SYNONYMS = {**_option_by_alias(ACCEPTED_ALIASES), "-np": "-n"}
OPTION_BY_ALIAS = {**_option_by_alias(ACCEPTED_ALIASES), **_option_by_alias(SUGGESTED_ALIASES)}
# names in other tools -> the command that does the same
COMMAND_BY_ALIAS = _option_by_alias(
    {
        "gluonlab resume RUN_DIR": "resume-from resume-from-checkpoint resume-epoch load load-epoch ckpt",
        "gluonlab evaluate RUN_DIR": "eval eval-only test test-only val validate",
    }
)
SIMILARITY_CUTOFF = 0.7  # the smallest similarity ratio of two names for a hint


def nearest_option(given: str, names: Collection[str]) -> Optional[str]:
    """Return the option of ``names`` that was most likely meant, or None.

    These rules are tried in order:

    1. The option for which ``given`` is an alias (OPTION_BY_ALIAS).
    2. If ``given`` starts with ``--``: the most similar option that differs by only one typo.
    3. If ``given`` starts with ``--``: the option that starts with ``given``, if only one does.
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
    """Return other tools' names for a setting, with underscores instead of dashes."""
    option = "--" + setting.replace("_", "-")
    return [alias[2:].replace("-", "_") for alias, name in OPTION_BY_ALIAS.items() if name == option]


def nearest_name(given: str, names: Collection[str]) -> Optional[str]:
    """Return the Python name, such as ``batch_size``, that was most likely meant, or None.

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
    command = None if "--resume" in names else COMMAND_BY_ALIAS.get(given.lower().replace("_", "-"))
    suggestion = command or nearest_option(given, names)
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
        """Wrap ``function``, so that the names of its keyword arguments are checked."""
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
            """Return the error message, with a hint from ``answers`` or the most similar name."""
            if name in answers:
                return f"{called} has no argument {name!r}: {answers[name]}"
            meant = nearest_name(name, names)
            if meant is not None:
                return f"{called} has no argument {name!r}: did you mean {meant!r}?"
            return unknown(f"argument of {called}", name, names)

        return cast(F, call_checked)

    return decorate
