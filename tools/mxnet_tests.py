"""Program that runs the Trainer and kvstore tests of a checkout of MXNet 1.9.1 with gluonlab.

    git clone --branch 1.9.1 --depth 1 https://github.com/apache/mxnet
    .venv/bin/python tools/mxnet_tests.py mxnet store:ring store:device bucketed:ring

``store:NAME``: gluon.Trainer uses ``make_kvstore(NAME)`` if a test names one of MXNet's kvstores
for several devices. ``bucketed:NAME``: BucketedTrainer with that kvstore replaces gluon.Trainer.
docs/allreduce.md explains why the other tests cannot pass.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import types
import warnings
from pathlib import Path
from typing import Any, List, Tuple

from gluonlab import BucketedTrainer, make_kvstore  # before MXNet

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip

MODULES = ("test_gluon_trainer", "test_kvstore_custom")
MXNET_ORIGINALS = mx.kv.create, gluon.Trainer


def raises(kind: Any) -> Any:
    """Replace nose's decorator: the test passes if it raises ``kind``."""

    def decorate(test: Any) -> Any:
        return lambda: assert_raises(kind, test)

    return decorate


def assert_raises(kind: Any, call: Any, *arguments: Any, **options: Any) -> None:
    """Fail unless the call raises ``kind``."""
    try:
        call(*arguments, **options)
    except kind:
        return
    raise AssertionError(f"it does not raise {kind}")


def with_seed() -> Any:
    """Replace MXNet's decorator, which draws a seed: these tests need no random numbers."""
    return lambda test: test


def install_fake_module(name: str, **contents: Any) -> None:
    """Create a module in place of a module that the tests import."""
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(contents)


def make_trainer_class(way: str, name: str) -> Any:
    """Return the class that replaces gluon.Trainer while the tests run."""
    base = BucketedTrainer if way == "bucketed" else MXNET_ORIGINALS[1]

    class Trainer(base):  # type: ignore[misc, valid-type]
        def __init__(self, params: Any, optimizer: Any, optimizer_params: Any = None,
                     kvstore: Any = "device", *more: Any, **options: Any) -> None:  # fmt: skip
            first = next(iter(params.values() if hasattr(params, "values") else params))
            if isinstance(kvstore, str) and (way == "bucketed" or len(first.list_ctx()) > 1):
                kvstore = make_kvstore(name)
            super().__init__(params, optimizer, optimizer_params, kvstore, *more, **options)

    return Trainer


def run_tests(ways: str) -> Tuple[int, List[str]]:
    """Run the tests; return how many passed, and a line for each other test."""
    way, _, name = ways.partition(":")
    modules = [importlib.import_module(module) for module in MODULES]
    modules[1].init_kv = lambda given="device": (  # type: ignore[attr-defined]
        MXNET_ORIGINALS[0](given) if given == "teststore" else make_kvstore(name)
    )
    gluon.Trainer = make_trainer_class(way, name)
    tests = [(each, name) for each in modules for name in vars(each) if name.startswith("test_")]
    failed = []
    for module, test in tests:
        try:
            getattr(module, test)()
        except Exception as error:
            failed.append(f"  {test}: {type(error).__name__} {' '.join(str(error).split())[:90]}")
    return len(tests) - len(failed), failed


def main(checkout: str, *ways: str) -> None:
    """Print a line for each of ``ways``, and one for each failed test."""
    sys.path.insert(0, str(Path(checkout).resolve() / "tests/python/unittest"))
    no_setup = {name: lambda: None for name in ("setup_module", "teardown", "teardown_module")}
    install_fake_module("common", assertRaises=assert_raises, with_seed=with_seed, **no_setup)
    install_fake_module("nose")
    install_fake_module("nose.tools", raises=raises, assert_raises=assert_raises)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # the tests write files here
        for way in ways:
            passed, failed = run_tests(way)
            print(f"{way}: {passed} of {passed + len(failed)}", *failed, sep="\n", flush=True)
        os.chdir("/")


if __name__ == "__main__":
    main(*sys.argv[1:])
