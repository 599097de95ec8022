"""Recipes: explicit settings override them, they fill the rest, and their rates are those of their scripts."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import gluon, nd
from support.devices import device_spec
from support.idx_files import write_mnist
from support.image_folders import write_image_folder

from gluonlab.config import TrainConfig
from gluonlab.data import ArraySplit, Dataset, load_dataset
from gluonlab.data.sets.dataset import NORMALIZATIONS
from gluonlab.data.sets.dataset_registry import DATASETS
from gluonlab.data.sets.packed_folder import pack_dataset
from gluonlab.errors import ConfigError, DataError
from gluonlab.kvstores.process_groups import SummingGroup
from gluonlab.models import check_model
from gluonlab.training.evaluate_run import evaluate_run, plan_evaluation
from gluonlab.training.loop import train
from gluonlab.training.plan import apply_recipe, make_plan
from gluonlab.training.recipes import GLUONCV_NAMES, PHOTOGRAPHS, QUICK, RECIPES
from gluonlab.training.reporter import Reporter

pytestmark = pytest.mark.filterwarnings("ignore:no GPU on this machine:gluonlab.errors.GluonlabWarning")
SHAPES = {"cifar10": (3, 32, 32), "fashion-mnist": (1, 28, 28), PHOTOGRAPHS: (3, 64, 64)}
IMAGES = 1280
# The scripts' own options: https://github.com/dmlc/web-data, gluoncv/logs/classification, and of
# --help of Random-Erasing.
SCRIPTS = {
    ("cifar10", "cifar_resnet20"): dict(epochs=200, lr=0.1, decay=0.1, at=(100, 150), wd=1e-4, batch=128),
    ("cifar10", "gluoncv:cifar_wideresnet28_10"): dict(
        epochs=200, lr=0.1, decay=0.2, at=(60, 120, 160), wd=5e-4, batch=128
    ),
    ("cifar10", "gluoncv:cifar_resnext29_16x64d"): dict(
        epochs=300, lr=0.1, decay=0.1, at=(150, 225), wd=5e-4, batch=128
    ),
    ("fashion-mnist", "cifar_resnet20"): dict(epochs=300, lr=0.1, decay=0.1, at=(150, 225), wd=5e-4, batch=128),
}


class ImageFiles(ArraySplit):
    """Images that could be cropped as they are decoded."""

    def start_reading(self, indices, seeds=None):
        raise NotImplementedError


def make_dataset(recipe_or_name):
    """Return empty images that such a network takes."""
    name = getattr(recipe_or_name, "data", recipe_or_name)
    split = ArraySplit(np.zeros((IMAGES, *SHAPES[name]), np.uint8), np.arange(IMAGES) % 10)
    real = "imagenette2-160" if name == PHOTOGRAPHS else name
    return Dataset(real, split, split, tuple("abcdefghij"), DATASETS[real].defaults)


def names_of(model):
    """Return gluonlab's own name of a network of gluoncv."""
    return {theirs: ours for ours, theirs in GLUONCV_NAMES.items()}.get(model, model)


@pytest.fixture(scope="module")
def parameters(tmp_path_factory):
    """A file of parameters, which is only opened."""
    path = str(tmp_path_factory.mktemp("parameters") / "net.params")
    nd.save(path, {"a": nd.zeros(1)})
    return path


EVERY = [(recipe, model) for recipe in RECIPES for model in recipe.figures or ("resnet18", "gluoncv:resnet50_v2")]
IDS = [f"{recipe.data}-{recipe.name}-{model}" for recipe, model in EVERY]
NO_SETTINGS = {"data", "source", "figures", "reported", "url", "pretrained", "decay_epochs", "name", "lr_per_images"}


@pytest.mark.parametrize(("recipe", "model"), EVERY, ids=IDS)
def test_a_network_with_a_published_figure_is_trained_as_it_was_there(recipe, model, parameters):
    """By default, except networks for a first try; and gluoncv has each of them."""
    check_model(model)
    pretrained = parameters if recipe.pretrained else None
    fields = {field.name for field in dataclasses.fields(recipe)} - NO_SETTINGS
    for name in {model, names_of(model)}:
        dataset = make_dataset(recipe)
        config = TrainConfig(dataset=dataset.name, model=name, pretrained=pretrained, devices=device_spec(1))
        if name == dataset.defaults.model and not recipe.pretrained:
            assert apply_recipe(config).recipe.name == QUICK
            config = config.replace(recipe=recipe.name)
        files = ImageFiles(dataset.train.images, dataset.train.labels)
        resolved = apply_recipe(config, dataclasses.replace(dataset, train=files))
        assert resolved.recipe is recipe
        assert {field: getattr(resolved.config, field) for field in fields} == {
            field: getattr(recipe, field) for field in fields
        }
        plan = make_plan(config, dataset)
        assert plan.lr == recipe.lr * (recipe.default_batch_size / (recipe.lr_per_images or recipe.default_batch_size))
        assert plan.rates.steps == recipe.epochs * IMAGES // recipe.default_batch_size
        assert plan.dataset.normalization == (NORMALIZATIONS[recipe.normalize] if recipe.normalize else None)


@pytest.mark.parametrize(("data", "model"), SCRIPTS)
def test_the_rate_of_every_step_is_that_of_the_script(data, model):
    script = SCRIPTS[data, model]
    plan = make_plan(TrainConfig(dataset=data, model=model, devices=device_spec(1)), make_dataset(data))
    rate, expected = script["lr"], []
    for epoch in range(script["epochs"]):
        rate *= script["decay"] if epoch in script["at"] else 1
        expected += [rate] * (IMAGES // script["batch"])
    assert [plan.rates(step) for step in range(1, len(expected) + 1)] == pytest.approx(expected, rel=1e-12)
    assert (plan.optimizer_params["wd"], plan.optimizer_params["momentum"]) == (script["wd"], 0.9)
    config = plan.resolved.config
    assert (plan.global_batch_size, config.crop_padding, config.flip) == (script["batch"], 4, True)


OVERRIDES = {
    "epochs": st.integers(1, 400),
    "lr": st.floats(1e-4, 1),
    "momentum": st.floats(0, 0.99),
    "wd": st.sampled_from([0.0, 1e-3]),
    "no_bias_decay": st.booleans(),
    "optimizer": st.sampled_from(["sgd", "nag", "adam", "SGD", "adadelta"]),
    "batch_size": st.integers(1, 300),
    "global_batch_size": st.integers(1, 300),
    "lr_schedule": st.sampled_from(["constant", "step", "cosine", "linear"]),
    "warmup_epochs": st.floats(0, 0.9),
    "label_smoothing": st.sampled_from([0.0, 0.2]),
    "crop_padding": st.integers(0, 3),
    "flip": st.booleans(),
    "mixup": st.sampled_from([0.0, 0.3]),
    "normalize": st.sampled_from(["none", "0.5/0.25"]),
}
GIVEN = st.fixed_dictionaries({}, optional=OVERRIDES).filter(
    lambda given: (
        not {"batch_size", "global_batch_size"} <= set(given)
        and not (given.get("optimizer") in ("adam", "adadelta") and "momentum" in given)
        and not (given.get("no_bias_decay") and given.get("wd", 1) == 0)
    )
)
TRIED = [each for each in EVERY if not each[0].pretrained][:: len(EVERY) // 8]


@settings(max_examples=60)
@given(st.sampled_from(TRIED), GIVEN, st.integers(1, 3))
def test_given_settings_override_the_recipe(which, given, devices):
    """And no setting of a recipe contradicts them, however short or different the run is."""
    recipe, model = which
    dataset = make_dataset(recipe)
    common = {"dataset": dataset.name, "model": model, "recipe": recipe.name, "threads": 1}
    plan = make_plan(TrainConfig(**common, devices=device_spec(devices), **given), dataset)
    for name, value in given.items():
        assert getattr(plan.resolved.config, name) == getattr(plan.config, name) == value
    used = plan.settings()
    assert used["epochs"] == given.get("epochs", recipe.epochs)
    each = None if "global_batch_size" in given else given.get("batch_size", recipe.batch_size)
    batch = each * devices if each else given.get("global_batch_size", recipe.global_batch_size)
    assert used["global_batch_size"] == batch
    rate = recipe.lr * batch / recipe.lr_per_images if recipe.lr_per_images else recipe.lr
    optimizer = given.get("optimizer", recipe.optimizer).lower()
    if optimizer in ("sgd", "nag"):
        assert used["learning_rate"] == pytest.approx(given.get("lr", rate), rel=1e-12)
        assert used["momentum"] == given.get("momentum", recipe.momentum)
    else:
        # Adam: Kingma, Ba 2015. Zeiler's AdaDelta has no rate, which is one of 1, as in PyTorch;
        # MXNet's 0.01 is never looked at.
        assert used["learning_rate"] == given.get("lr", {"adam": 0.001, "adadelta": 1.0}[optimizer])
        assert "momentum" not in used
    assert used["wd"] == given.get("wd", recipe.wd)
    assert used["no_bias_decay"] == given.get("no_bias_decay", recipe.no_bias_decay and used["wd"] > 0)
    for name in ("label_smoothing", "crop_padding", "flip", "mixup"):
        assert used[name] == given.get(name, getattr(recipe, name))
    assert used["lr_schedule"] == given.get("lr_schedule", recipe.lr_schedule)
    if used["lr_schedule"] == recipe.lr_schedule == "step":
        begun, steps = used["warmup_steps"], plan.rates.steps
        shares = [(milestone - begun) / (steps - begun) for milestone in used["lr_decay_steps"]]
        assert shares == pytest.approx(
            [epoch / recipe.epochs for epoch in recipe.decay_epochs], abs=1 / (steps - begun)
        )
        assert used["lr_decay"] == recipe.lr_decay


def test_lenet_on_the_digits_keeps_the_defaults_from_before_recipes():
    defaults = dict(
        model="lenet", batch_size=32, epochs=10, optimizer="adam", lr=0.002, wd=0, flip=False,
        lr_schedule="constant", warmup_epochs=0, crop_padding=0, mixup=0, label_smoothing=0,
        no_bias_decay=False, random_resized_crop=False, normalize="none",
    )  # fmt: skip
    plain, full = (make_plan(TrainConfig(devices=device_spec(2), **settings)) for settings in ({}, defaults))
    assert plain.settings() == full.settings() and plain.optimizer_params == {"learning_rate": 0.002, "wd": 0}
    assert plain.resolved.config.replace(recipe=None, normalize="none") == full.resolved.requested


def test_the_quick_recipe_is_the_default_of_a_first_try_and_fits_all_data_sets_and_networks():
    for name, kind in DATASETS.items():
        config = TrainConfig(dataset=name.replace("PATH", "somewhere"))
        assert apply_recipe(config).recipe.name == ("published" if name == "cifar10" else QUICK)
        assert apply_recipe(config.replace(recipe=QUICK)).model == kind.defaults.model
        for model in ("cifar_resnet20", "resnet50", "mlp"):
            quick, defaults = apply_recipe(config.replace(model=model, recipe=QUICK)).config, kind.defaults
            expected = (defaults.epochs, defaults.lr, defaults.batch_size)
            assert (quick.epochs, quick.lr, quick.batch_size) == expected


@pytest.mark.parametrize("settings", [{}, {"recipe": "published"}, {"epochs": 60, "optimizer": "sgd"}], ids=str)
def test_cifar10_is_trained_by_a_published_recipe_with_its_network(settings):
    plan = make_plan(TrainConfig(dataset="cifar10", devices=device_spec(2), **settings), make_dataset("cifar10"))
    assert (plan.model, plan.epochs, plan.lr) == ("cifar_resnet20", settings.get("epochs", 200), 0.1)
    assert (plan.settings()["recipe"], plan.dataset.normalization) == ("published", NORMALIZATIONS["cifar10"])
    text = " ".join(line for _, line in plan.resolved.in_words())
    assert f"92.1 % there {plan.epochs} epochs (--recipe quick: lenet, 10)" in text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"recipe": "publised"}, ["'publised'", "finetune, imagenet, published, quick", "did you mean 'published'?"]),
        ({"recipe": "published"}, ["--recipe published", "lenet on digits", "choose quick"]),
        (
            {"recipe": "finetune", "dataset": "imagenette"},
            ["resnet18 on imagenette without --pretrained", "quick or imagenet"],
        ),
        ({"recipe": "finetune", "model": "mlp"}, ["--recipe finetune does not support mlp on digits: choose quick"]),
        ({"recipe": "imagenet", "dataset": "cifar10", "model": "resnet50"}, ["resnet50 on cifar10", "choose quick"]),
        ({"normalize": "imagent"}, ["--normalize 'imagent'", "did you mean 'imagenet'?"]),
        (
            {"normalize": "imagenet"},
            ["--normalize imagenet is for 3 channels", "digits have 1", "use M/S, or omit --normalize"],
        ),
        ({"normalize": "0.5,0.5/1,1"}, ["for 2 channels", "digits have 1"]),
    ],
    ids=str,
)
def test_a_recipe_that_does_not_fit_is_refused_with_those_that_do(given, said):
    with pytest.raises(ConfigError) as error:
        make_plan(TrainConfig(devices=device_spec(1), **given))
    assert all(each in str(error.value) for each in said) and "\n" not in str(error.value)


def test_one_mean_is_for_all_channels():
    config = TrainConfig(dataset="cifar10", devices=device_spec(1), normalize="0.5/0.25")
    assert make_plan(config, make_dataset("cifar10")).dataset.normalization == ((0.5,) * 3, (0.25,) * 3)


def test_the_list_shows_every_recipes_source_and_figures_and_the_network_of_a_data_set(run):
    out = " ".join(run("list")[1].split())
    for recipe in RECIPES:
        assert recipe.source in out and recipe.url in out and recipe.in_words() in out
        for model, figure in recipe.figures.items():
            assert f"{names_of(model)} {figure:g} %" in out
    by_default = "lenet for digits, mnist, cifar10 (cifar_resnet20 without --recipe quick), synthetic;"
    assert f"without --model: {by_default}" in out
    assert "; lenet-avg for fashion-mnist; resnet18 for photographs" in out


@pytest.fixture(scope="module")
def fashion_run(tmp_path_factory):
    """A run of a published recipe on a few images for one epoch, and its printed lines."""
    folder, reporter, lines = tmp_path_factory.mktemp("fashion"), Reporter(), []
    reporter.say = lines.append
    write_mnist(folder / "data", train=20, test=12)
    config = TrainConfig(
        dataset="fashion-mnist", data_dir=str(folder / "data"), model="cifar_resnet20", epochs=1, global_batch_size=10,
        devices=device_spec(2), export=True, out=str(folder / "run"),
    )  # fmt: skip
    return train(config, reporter=reporter), [" ".join(line.split()) for line in lines]


def test_a_run_shows_its_recipe_and_that_there_is_a_shorter_one(fashion_run):
    result, lines = fashion_run
    source = "Zhong et al., Random erasing, 2020: the baseline, 95.61 % there 1 epoch (--recipe quick: 10)"
    assert f"recipe published: {source}" in " ".join(lines)
    assert "options crop padding 4, flip, normalize mnist" in lines
    content = json.loads((result.run_dir / "config.json").read_text())
    assert (content["settings"]["recipe"], content["settings"]["normalize"]) == ("published", "0.1307/0.3081")
    assert (content["config"]["recipe"], content["config"]["flip"], content["config"]["lr"]) == (None, None, None)


def test_a_run_is_evaluated_with_its_own_normalization(fashion_run):
    last = fashion_run[0].history[-1]
    result = evaluate_run(str(fashion_run[0].run_dir), devices=device_spec(1))
    assert result.score.accuracy == last.val_accuracy
    assert result.score.loss == pytest.approx(last.val_loss, rel=1e-4)


def test_an_export_describes_the_normalization_of_its_images(fashion_run):
    result, _ = fashion_run
    folder, split = result.run_dir / "export", result.plan.dataset.test
    inputs = json.loads((folder / "model.json").read_text())["input"]
    images, labels = split.batch(np.arange(len(split)))
    x = nd.array((images / 255.0 - np.reshape(inputs["mean"], (-1, 1, 1))) / np.reshape(inputs["std"], (-1, 1, 1)))
    net = gluon.SymbolBlock.imports(str(folder / "model-symbol.json"), ["data"], str(folder / "model-0000.params"))
    scores = net(x).asnumpy().astype(np.float64)
    loss = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(labels)), labels]
    assert (scores.argmax(1) == labels).mean() == result.val_accuracy
    assert loss.mean() == pytest.approx(result.history[-1].val_loss, rel=1e-4)


def test_a_run_from_before_recipes_is_evaluated_as_it_was_trained(fashion_run, tmp_path):
    """It records neither recipe nor normalization; the recipe of its network would normalize."""
    folder = Path(shutil.copytree(fashion_run[0].run_dir, tmp_path / "run"))
    assert plan_evaluation(folder, {}).dataset.normalization == NORMALIZATIONS["mnist"]
    content = json.loads((folder / "config.json").read_text())
    for part in ("config", "settings"):
        del content[part]["recipe"], content[part]["normalize"]
    (folder / "config.json").write_text(json.dumps(content))
    assert plan_evaluation(folder, {}).dataset.normalization is None


@pytest.mark.parametrize("option", ["--no-flip", "--bias-decay", "--normalize=none", "--recipe=quick"])
def test_an_evaluation_takes_no_settings_of_training(run, fashion_run, option):
    status, _, err = run("evaluate", str(fashion_run[0].run_dir), option)
    assert status == 2 and "has no effect on an evaluation" in err


def test_switches_say_yes_and_no(run):
    """On the command line, a setting of a recipe has both words."""
    out = run("--help-all")[1]
    for pair in ("--flip / --no-flip", "--no-bias-decay / --bias-decay", "--random-resized-crop"):
        assert pair in out
    assert "--no-sync-bn" not in out
    assert "--no-flip does not accept a value: write only --no-flip" in run("--no-flip=1")[2]
    assert "did you mean '--no-flip'?" in run("--no-flop")[2]


def test_photographs_with_pretrained_or_large_networks(tmp_path, parameters):
    folder = write_image_folder(tmp_path / "pictures", size=32)
    config = TrainConfig(dataset=f"folder:{folder}", devices=device_spec(1), workers=1)
    assert make_plan(config).settings()["recipe"] == QUICK
    large, tuned = make_plan(config.replace(model="resnet50")), make_plan(config.replace(pretrained=parameters))
    assert (large.settings()["recipe"], tuned.settings()["recipe"]) == ("imagenet", "finetune")
    assert all(plan.resolved.config.random_resized_crop and plan.resolved.config.flip for plan in (large, tuned))
    rates = (large.rates.warmup_steps, large.lr, large.rates.schedule, large.rates.final_lr)
    assert rates == (5, 0.1 * 18 / 256, "cosine", 0)
    assert large.dataset.normalization == tuned.dataset.normalization == NORMALIZATIONS["imagenet"]
    assert make_plan(config.replace(model="resnet50", normalize="none")).dataset.normalization is None


def test_a_run_shows_that_packed_photographs_are_already_cropped(tmp_path):
    folder = write_image_folder(tmp_path / "pictures", size=32)
    pack_dataset(load_dataset(f"folder:{folder}", decoders=1), tmp_path / "packed")
    config = TrainConfig(dataset=f"folder:{tmp_path / 'packed'}", model="resnet50", devices=device_spec(1))
    plan = make_plan(config)
    assert (plan.settings()["recipe"], plan.settings()["random_resized_crop"]) == ("imagenet", False)
    assert ("", "without its random resized crops: the images are already cropped") in list(plan.resolved.in_words())
    with pytest.raises(DataError, match="--random-resized-crop needs image files"):
        make_plan(config.replace(random_resized_crop=True))


@settings(max_examples=25)
@given(
    st.integers(1, 300),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([None, 0.05]),
    st.sampled_from(["lenet", "cifar_resnet20"]),
)
def test_linear_scaling_goes_by_the_batch_and_not_by_the_devices(batch, few, many, lr, model):
    """Goyal et al. 2017, section 2.1; --batch-size and --lr are for one device."""
    dataset, common = make_dataset("cifar10"), {"dataset": "cifar10", "model": model, "threads": 1}

    def rate(devices, **given):
        config = TrainConfig(**common, lr=lr, scale_lr=True, devices=device_spec(devices), **given)
        return make_plan(config, dataset).lr

    base, made_for = (lr or 0.001, 64) if model == "lenet" else (lr or 0.1, 128)
    by_batch = [rate(devices, global_batch_size=batch) for devices in (few, many)]
    assert by_batch[0] == by_batch[1] == pytest.approx(base * batch / made_for, rel=1e-12)
    each = rate(many, batch_size=batch)
    if lr is None:
        assert each == pytest.approx(base * batch * many / made_for, rel=1e-12)
    else:
        assert each == pytest.approx(lr * min(batch * many, IMAGES) / batch, rel=1e-12)
    assert rate(few) == pytest.approx(base * (few if model == "lenet" else 1), rel=1e-12)


@pytest.mark.parametrize("recipe", [QUICK, "published"])
@pytest.mark.parametrize("batch", [{}, {"batch_size": 3}, {"global_batch_size": 6}], ids=str)
def test_processes_have_the_recipe_batches_and_rates_of_one_with_all_devices(recipe, batch, tmp_path):
    """Schedule, linear scaling and all that changes numbers."""
    write_mnist(tmp_path, train=20, test=2)
    config = TrainConfig(
        dataset="fashion-mnist", data_dir=str(tmp_path), model="cifar_resnet20", recipe=recipe, scale_lr=True, **batch
    )
    alone = make_plan(config.replace(devices=device_spec(2))).settings()
    several = make_plan(config.replace(devices=device_spec(1)), group=SummingGroup(0, 2)).settings()
    differ = {name for name in alone if alone[name] != several[name]}
    assert differ <= {"devices", "threads_per_device", "processes", "backend"}
