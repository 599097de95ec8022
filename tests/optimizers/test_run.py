"""--optimizer and --momentum-rule in a run."""

import mxnet as mx
import numpy as np
import pytest
from support.devices import device_spec
from support.reference import parameter_arrays

from gluonlab.config import TrainConfig
from gluonlab.optimizers import NAG, OPTIMIZERS, SGD
from gluonlab.training.loop import train
from gluonlab.training.plan import apply_recipe, make_plan
from gluonlab.training.reporter import Reporter


@pytest.mark.parametrize(
    "optimizer", ["adamax", *(pytest.param(name, marks=pytest.mark.long) for name in OPTIMIZERS if name != "adamax")]
)
def test_weights_without_gradients_stay_finite_with_every_optimizer(tmp_path, optimizer):
    # The edges of all digits are black: their weights in the MLP have no gradients.
    settings = {"model": "mlp", "epochs": 1, "global_batch_size": 500, "warmup_epochs": 0.5}
    config = TrainConfig(devices=device_spec(2), optimizer=optimizer, out=str(tmp_path / "run"), **settings)
    arrays = parameter_arrays(train(config, reporter=Reporter()).net)
    assert all(np.isfinite(array).all() for array in arrays)


@pytest.mark.parametrize(
    ("asked", "cls"),
    [
        ({"optimizer": "sgd", "momentum": 0.9}, SGD),
        ({"optimizer": "SGD", "momentum": 0.9, "momentum_rule": "mxnet"}, mx.optimizer.SGD),
        ({"optimizer": "nag", "momentum": 0.9, "momentum_rule": "corrected"}, NAG),
        ({"optimizer": "sgd"}, SGD),
    ],
    ids=str,
)
def test_the_momentum_rule_decides_on_the_class(asked, cls):
    plan = make_plan(TrainConfig(devices=device_spec(1), **asked))
    assert type(plan.make_optimizer()) is cls
    rule = asked.get("momentum_rule", "corrected") if "momentum" in asked else None
    assert plan.settings().get("momentum_rule") == plan.momentum_rule == rule


@pytest.mark.parametrize(
    ("dataset", "asked", "rule"),
    [
        ("cifar10", {}, "mxnet"),
        ("cifar10", {"momentum_rule": "corrected"}, "corrected"),
        ("cifar10", {"optimizer": "sgd"}, "mxnet"),
        ("cifar10", {"optimizer": "adam"}, None),
        ("cifar10", {"recipe": "quick"}, None),
        ("fashion-mnist", {}, None),  # tuned with PyTorch
    ],
    ids=str,
)
def test_recipes_that_were_tuned_with_mxnets_rule_use_it(dataset, asked, rule):
    config = TrainConfig(dataset=dataset, model="cifar_resnet20", **asked)
    assert apply_recipe(config).config.momentum_rule == rule


def test_the_sharded_optimizer_refuses_optimizers_that_are_not_element_wise():
    for name, kind in OPTIMIZERS.items():
        config = TrainConfig(devices=device_spec(2), optimizer=name, kvstore="sharded-optimizer")
        if kind.element_wise:
            make_plan(config)
        else:
            with pytest.raises(ValueError, match="or one of these optimizers"):
                make_plan(config)
