"""Devices that share batches in any proportion train and evaluate as one device does."""

import json
import shutil

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
from gluonlab.data.loading.split_batch import make_local_batch, proportional_sizes, shard, shard_sizes
from gluonlab.errors import ConfigError, DataError, UsageError
from gluonlab.parallel.data.microbatches import Microbatches
from gluonlab.parallel.data.strategy import data_parallel
from gluonlab.study.compare_devices import compare
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
    for images, labels in batches:
        of_each = shard_sizes(len(images), len(ctxs), weights)
        xs, ys = (shard(np.array(each, "float32"), ctxs, of_each) for each in (images, labels))
        strategy.step(make_local_batch(xs, ys))
    found = {name: array.asnumpy() for name, array in strategy.parameters().items()}
    case = {"optimizer": optimizer, "clip_norm": clip_norm}
    _, expected = train_chain_on_one_device(make_chain(chain, contexts(1)), batches, case)
    assert relative_difference(found, expected) < 1e-5


@examples(1, 60)
@given(
    weights=WEIGHTS,
    processes=st.integers(1, 2),
    images=st.integers(90, 150),
    batch=st.integers(8, 40),
    options=st.fixed_dictionaries(
        {
            "resident_bytes": st.sampled_from([0, 2**28]),
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
    devices, read = len(resolve_device_weights(weights)), load_few_digits(images)
    fewest = min(proportional_sizes(batch, resolve_device_weights(weights, processes)))
    assume(fewest >= (2 if options["microbatches"] else 1))
    same = {**options, "global_batch_size": batch}
    with register_drawn_network(["convolution"]):
        one = TrainConfig(**drawn_run_settings(1, **same), out=str(folder / "one"))
        alone = train(one, reporter=Reporter(), dataset=read)
        shared = TrainConfig(**drawn_run_settings(devices, device_weights=weights, **same), out=str(folder / "run"))

        def work(group):
            return train(shared, reporter=Reporter(), dataset=read, group=group)

        results = run_in_threads(processes, work)
        assert relative_distance(parameter_arrays(results[0].net), parameter_arrays(alone.net)) < 1e-5
        for result in results:
            for ours, theirs in zip(result.history, alone.history):
                assert ours.loss == pytest.approx(theirs.loss, rel=1e-4)
                assert ours.accuracy == pytest.approx(theirs.accuracy, abs=1 / 40)
        noted = json.loads((folder / "run" / "config.json").read_text())["settings"]
        assert noted["device_weights"] == weights


@settings(max_examples=25, deadline=None)
@given(
    weights=WEIGHTS, workers=st.integers(1, 3), batch=st.integers(1, 40), mixed=st.booleans(),
    resident=st.sampled_from([0, 2**30]),
)  # fmt: skip
def test_every_image_is_on_one_device_once(weights, workers, batch, mixed, resident):
    """And batch by batch in the order in which one device has them."""
    each, split = resolve_device_weights(weights), load_few_digits(60).train
    ctxs = contexts(len(each))
    parts = [
        [
            ([len(x) for x in xs], [pixels for x in xs for pixels in x.asnumpy()])
            for xs, _ in Loader(
                split, ctxs, batch, rank=rank, world_size=workers, weights=each,
                resident_bytes=resident,
            )
        ]
        for rank in range(workers)
    ]  # fmt: skip
    for whole_batch, *shares in zip(Loader(split, contexts(1), batch), *parts):
        [images], _ = whole_batch
        found = [pixels for _, of_worker in shares for pixels in of_worker]
        assert np.array_equal(np.array(found), images.asnumpy())
        sizes = [size for of_worker, _ in shares for size in of_worker]
        assert sizes == shard_sizes(len(images), len(each) * workers, each * workers)


def test_a_run_goes_on_with_its_weights_bit_by_bit(tmp_path):
    with register_drawn_network(["convolution", "norm"]):
        options = drawn_run_settings(3, device_weights="3,1,2", kvstore="ring", epochs=1)
        assert_resumes_identically(tmp_path, 5, "3 steps", **options)


OTHERS = (
    {"device_weights": "1,3"},
    {"devices": device_spec(3)},  # for which the run's weights are not meant
    {"devices": device_spec(3), "device_weights": "1,1,4"},
)


def test_with_other_weights_it_goes_on_as_with_other_devices(tmp_path):
    options = drawn_run_settings(2, device_weights="3,1", checkpoint_every="3", epochs=1)
    with register_drawn_network(["convolution"]):
        assert interrupt_run(5, tmp_path / "begun", load_few_digits(), **options)
        alone = TrainConfig(**drawn_run_settings(1, epochs=1), out=str(tmp_path / "alone"))
        expected = train(alone, reporter=Reporter(), dataset=load_few_digits())
        for number, given in enumerate(OTHERS):
            folder = tmp_path / f"{number}"
            shutil.copytree(tmp_path / "begun", folder)
            found = resume_run(folder, **given)
            assert relative_distance(parameter_arrays(found.net), parameter_arrays(expected.net)) < 1e-5
            assert "device weights" in (folder / "metrics.jsonl").read_text()


def test_with_batchnorm_it_goes_on_with_its_own_weights_alone(tmp_path):
    options = drawn_run_settings(2, device_weights="3,1", checkpoint_every="3", epochs=1)
    with register_drawn_network(["norm"]):
        assert interrupt_run(5, tmp_path / "run", load_few_digits(), **options)
        for given in OTHERS:
            with pytest.raises(ConfigError, match="BatchNorm looks at each part of a batch"):
                resume_run(tmp_path / "run", **given)


def test_a_run_is_evaluated_on_any_devices(tmp_path):
    options = {"devices": device_spec(2), "device_weights": "3,1", "model": "mlp", "epochs": 1}
    train(TrainConfig(**options, out=str(tmp_path / "run")), reporter=Reporter())
    one, three = (evaluate_run(str(tmp_path / "run"), devices=device_spec(k)).score for k in (1, 3))
    assert one.correct == three.correct and one.loss == pytest.approx(three.loss, rel=1e-6)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"device_weights": "0,1"}, "--device-weights 0,1: give a number above 0 for each device"),
        ({"device_weights": "-2,1"}, "--device-weights -2,1: give a number above 0"),
        ({"device_weights": "nan,1"}, "--device-weights nan,1: give a number above 0"),
        ({"device_weights": "inf,1"}, "--device-weights inf,1: give a number above 0"),
        ({"device_weights": "1e9,1"}, "--device-weights 1e9,1: give a number above 0"),
        ({"device_weights": "fast,slow"}, "--device-weights fast,slow: give a number above 0"),
        ({"device_weights": "2,"}, "--device-weights 2,: give a number above 0"),
        ({"device_weights": ""}, "--device-weights '': give a number above 0"),
        ({"device_weights": True}, "--device-weights True: give a number above 0"),
        ({"device_weights": "2,1,1"}, "--device-weights 2,1,1 has 3 numbers, and this process 2"),
        ({"device_weights": [2, 1.5, 1]}, "--device-weights 2,1.5,1 has 3 numbers, and"),
        ({"device_weights": "2,1", "devices": device_spec(1)}, "has 2 numbers, and this process 1 dev"),
        ({"device_weights": "99,1", "batch_size": 2}, "would get none of the 4 images of a batch"),
        ({"device_weights": "4,1", "batch_size": 2, "microbatches": 2}, "--microbatches 2: 1 im"),
        *(
            ({"device_weights": "2,1", "split": way}, "--device-weights 2,1 is for --split data")
            for way in ("layers", "channels", "pipeline")
        ),
    ],
    ids=str,
)
def test_impossible_weights_are_refused_in_one_line(settings, said):
    with pytest.raises(UsageError) as raised:
        make_plan(TrainConfig(**{"devices": device_spec(2), "model": "mlp", **settings}))
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_a_comparison_of_several_numbers_of_devices_takes_no_weights():
    with pytest.raises(ConfigError, match="--compare 1,2 and --device-weights 2,1 contradict"):
        compare(TrainConfig(device_weights="2,1"), [1, 2])


@pytest.mark.parametrize(
    ("weights", "said"),
    [([1], "1 weights for 2 devices"), ([1, 0], "finite numbers"), ([1, float("nan")], "finite")],
    ids=str,
)
def test_a_loader_takes_a_number_above_0_for_each_device(weights, said):
    with pytest.raises(DataError, match=said):
        Loader(load_few_digits().train, contexts(2), 8, weights=weights)
