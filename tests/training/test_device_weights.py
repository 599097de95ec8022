"""Devices that share batches in any proportion train and evaluate as one device does."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.devices import contexts, device_spec
from support.drawn_runs import (
    assert_resumes_identically,
    drawn_run_settings,
    load_few_digits,
    register_drawn_network,
    resume_run,
)
from support.examples import examples
from support.interrupted_runs import interrupt_run
from support.process_group import run_in_threads
from support.reference import parameter_arrays, relative_distance
from support.splits import (
    chains,
    make_batches,
    make_chain,
    make_parallelism,
    make_strategy_plan,
    relative_difference,
    softmax_loss,
    train_chain_on_one_device,
)

from gluonlab.bucketed_trainer.loss_scale import LossScale
from gluonlab.config import TrainConfig
from gluonlab.data import Loader
from gluonlab.data.loading.split_batch import Microbatches, make_local_batch, proportional_sizes, shard, shard_sizes
from gluonlab.errors import ConfigError, DataError, UsageError
from gluonlab.parallel.data.strategy import data_parallel
from gluonlab.study.compare_device_counts import compare
from gluonlab.training.evaluate_run import evaluate_run
from gluonlab.training.loop import train
from gluonlab.training.parallel_options import resolve_device_weights
from gluonlab.training.plan import make_plan
from gluonlab.training.reporter import Reporter

WEIGHTS = st.lists(st.sampled_from(["1", "2", "3", "0.5", "1.75", "9"]), min_size=1, max_size=4).map(",".join)


@examples(5, 300)
@given(
    chain=chains,
    weights=WEIGHTS,
    sizes=st.lists(st.integers(1, 30), min_size=3, max_size=3),
    store=st.sampled_from(["local", "device", "ring", "sharded", "sharded-optimizer"]),
    cut=st.sampled_from([Microbatches(), Microbatches(3), Microbatches(size=2)]),
    scale=st.sampled_from([None, 2.0**10]),
    optimizer=st.sampled_from(["sgd", "adam"]),
    clip_norm=st.sampled_from([None, 0.05]),
)
def test_any_shares_make_the_update_of_one_device(chain, weights, sizes, store, cut, scale, optimizer, clip_norm):
    weights = resolve_device_weights(weights)
    ctxs, batches = contexts(len(weights)), make_batches(sizes)
    plan = make_strategy_plan(
        make_parallelism("data", ctxs, 1), optimizer, cut, store, compress=None,
        clip_norm=clip_norm,
        loss_scale=None if scale is None else LossScale(scale),
    )  # fmt: skip
    strategy = data_parallel(lambda ctxs, start=None: make_chain(chain, ctxs), softmax_loss(), plan)
    for batch in batches:
        shares = shard_sizes(len(batch[0]), len(ctxs), weights)
        strategy.step(make_local_batch(*(shard(np.array(array, "float32"), ctxs, shares) for array in batch)))
    result = {name: array.asnumpy() for name, array in strategy.parameters().items()}
    case = {"optimizer": optimizer, "clip_norm": clip_norm}
    _, expected = train_chain_on_one_device(make_chain(chain, contexts(1)), batches, case)
    assert relative_difference(result, expected) < 1e-5


@examples(1, 60)
@given(
    weights=WEIGHTS,
    processes=st.integers(1, 2),
    images=st.integers(90, 150),
    batch=st.integers(8, 40),
    options=st.fixed_dictionaries(
        {
            "device_cache_bytes": st.sampled_from([0, 2**28]),
            "drop_last": st.booleans(),
            "mixup": st.sampled_from([0.0, 0.3]),
            "flip": st.booleans(),
            "crop_padding": st.sampled_from([0, 2]),
            "microbatches": st.sampled_from([None, 2]),
        }
    ),
)
def test_runs_of_any_shares_end_as_that_of_one_device(tmp_path_factory, weights, processes, images, batch, options):
    folder = tmp_path_factory.mktemp("runs")
    devices, dataset = len(resolve_device_weights(weights)), load_few_digits(images)
    fewest = min(proportional_sizes(batch, resolve_device_weights(weights, processes)))
    assume(fewest >= (2 if options["microbatches"] else 1))
    options["global_batch_size"] = batch
    with register_drawn_network(["convolution"]):
        one = TrainConfig(**drawn_run_settings(1, **options), out=str(folder / "one"))
        expected = train(one, reporter=Reporter(), dataset=dataset)
        config = TrainConfig(**drawn_run_settings(devices, device_weights=weights, **options), out=str(folder / "run"))
        results = run_in_threads(
            processes, lambda group: train(config, reporter=Reporter(), dataset=dataset, group=group)
        )
    assert relative_distance(parameter_arrays(results[0].net), parameter_arrays(expected.net)) < 1e-5
    for result in results:
        for epoch, expected_epoch in zip(result.history, expected.history):
            assert epoch.loss == pytest.approx(expected_epoch.loss, rel=1e-4)
            assert epoch.val_accuracy == pytest.approx(expected_epoch.val_accuracy, abs=1 / 40)
    assert json.loads((folder / "run" / "config.json").read_text())["settings"]["device_weights"] == weights


@settings(max_examples=25, deadline=None)
@given(weights=WEIGHTS, workers=st.integers(1, 3), batch=st.integers(1, 40), resident=st.sampled_from([0, 2**30]))
def test_every_image_is_on_one_device_once(weights, workers, batch, resident):
    """And batch by batch in the order in which one device has them."""
    weights, split = resolve_device_weights(weights), load_few_digits(60).train
    ctxs, options = contexts(len(weights)), {"weights": weights, "resident_bytes": resident}
    loaders = [Loader(split, ctxs, batch, rank=rank, world_size=workers, **options) for rank in range(workers)]
    for ([images], _), *batches in zip(Loader(split, contexts(1), batch), *loaders):
        shards = [x.asnumpy() for xs, _ in batches for x in xs]
        assert np.array_equal(np.concatenate(shards), images.asnumpy())
        assert [*map(len, shards)] == shard_sizes(len(images), len(weights) * workers, weights * workers)


def test_a_run_with_device_weights_resumes_bit_by_bit(tmp_path):
    with register_drawn_network(["convolution", "norm"]):
        options = drawn_run_settings(3, device_weights="3,1,2", kvstore="ring", epochs=1)
        assert_resumes_identically(tmp_path, 5, "3 steps", **options)


OTHERS = (
    {"device_weights": "1,3"},
    {"devices": device_spec(3)},  # for which the run's weights are not meant
    {"devices": device_spec(3), "device_weights": "1,1,4"},
)


def test_a_run_resumes_with_other_weights_unless_it_has_batchnorm(tmp_path):
    options = drawn_run_settings(2, device_weights="3,1", checkpoint_every="3", epochs=1)
    with register_drawn_network(["convolution"]):
        assert interrupt_run(5, tmp_path / "interrupted", load_few_digits(), **options)
        one = TrainConfig(**drawn_run_settings(1, epochs=1), out=str(tmp_path / "one"))
        expected = train(one, reporter=Reporter(), dataset=load_few_digits())
        for number, settings in enumerate(OTHERS):
            folder = Path(shutil.copytree(tmp_path / "interrupted", tmp_path / f"{number}"))
            result = resume_run(folder, **settings)
            assert relative_distance(parameter_arrays(result.net), parameter_arrays(expected.net)) < 1e-5
            assert "device weights" in (folder / "metrics.jsonl").read_text()
    with register_drawn_network(["norm"]):
        assert interrupt_run(5, tmp_path / "norm", load_few_digits(), **options)
        for settings in OTHERS:
            with pytest.raises(ConfigError, match="BatchNorm normalizes together"):
                resume_run(tmp_path / "norm", **settings)


def test_a_run_is_evaluated_on_any_devices(tmp_path):
    options = {"devices": device_spec(2), "device_weights": "3,1", "model": "mlp", "epochs": 1}
    train(TrainConfig(**options, out=str(tmp_path / "run")), reporter=Reporter())
    one, three = (evaluate_run(str(tmp_path / "run"), devices=device_spec(k)).score for k in (1, 3))
    assert one.correct == three.correct and one.loss == pytest.approx(three.loss, rel=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *(
            ({"device_weights": weights}, f"--device-weights {weights or repr('')}: use a number greater than 0")
            for weights in ("0,1", "-2,1", "nan,1", "inf,1", "1e9,1", "fast,slow", "2,", "", True)
        ),
        ({"device_weights": [2, 1.5, 1]}, "--device-weights 2,1.5,1 has 3 numbers, but this process has 2"),
        ({"device_weights": "2,1", "devices": device_spec(1)}, "has 2 numbers, but this process has 1 dev"),
        ({"device_weights": "99,1", "batch_size": 2}, "would get none of the 4 images of a batch"),
        (
            {"device_weights": "4,1", "batch_size": 2, "microbatches": 2},
            "--microbatches 2: in a batch of 4 images, a device has only 1 im",
        ),
        *(
            ({"device_weights": "2,1", "strategy": way}, "--device-weights 2,1 has no effect with --strategy")
            for way in ("layers", "tensor", "pipeline")
        ),
    ],
    ids=str,
)
def test_impossible_weights_are_refused_in_one_line(settings, message):
    with pytest.raises(UsageError) as raised:
        make_plan(TrainConfig(**{"devices": device_spec(2), "model": "mlp", **settings}))
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_a_comparison_of_several_numbers_of_devices_takes_no_weights():
    with pytest.raises(
        ConfigError, match="--device-weights 2,1 applies to a single number of devices, but this comparison"
    ):
        compare(TrainConfig(device_weights="2,1"), [1, 2])


def test_a_loader_takes_a_number_above_0_for_each_device():
    for weights, message in (([1], "1 weights for 2 devices"), ([1, 0], "finite numbers"), ([1, math.nan], "finite")):
        with pytest.raises(DataError, match=message):
            Loader(load_few_digits().train, contexts(2), 8, weights=weights)
