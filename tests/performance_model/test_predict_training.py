"""Predictions: properties of all machines, the text, and where they are not to be trusted."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet.gluon.model_zoo import vision

from gluonlab.collectives.named_topologies import NETWORKS, make_topology
from gluonlab.collectives.topology_file import write_topology
from gluonlab.data.loading.split_batch import Microbatches
from gluonlab.errors import ConfigError
from gluonlab.kvstores import KVSTORES
from gluonlab.launch.group_processes import PROCESSES_BY_BACKEND
from gluonlab.optimizers.optimizer_registry import OPTIMIZERS
from gluonlab.performance_model import published_speeds
from gluonlab.performance_model.count_work import count_model_work, count_network_work
from gluonlab.performance_model.gpu_specifications import GPUS, MACHINES, find_machine
from gluonlab.performance_model.gradient_sum_time import EQUIVALENT_STORES, all_stores
from gluonlab.performance_model.predict_training import count_states, predict
from gluonlab.performance_model.published_speeds import WIDTH, estimate_memory_bytes
from prediction.fit import EXPECTED_CONSTANTS
from prediction.validate import FittedModel, published_work, validate

RESNET, LENET = published_work("ResNet-50"), published_work("LeNet")
MOBILENET = count_network_work(vision.mobilenet1_0(), (3, 224, 224), "mobilenet")


@settings(max_examples=6, deadline=None)
@given(
    machine=st.sampled_from(sorted(MACHINES)),
    batch_size=st.sampled_from([1, 16, 64]),
    store=st.sampled_from(["device", "local", "nccl", "ring"]),
)
def test_the_parts_of_a_prediction_are_consistent_on_every_machine(machine, batch_size, store):
    result = predict(RESNET, machine, batch_size, store=store)
    first, whole = result.rows[0], result.all_gpus_row
    assert (first.gpus, first.sum_s, first.speedup) == (1, 0, pytest.approx(1))
    assert whole.gpus == find_machine(machine).topology.world_size
    for row in result.rows:
        assert row.efficiency <= 1 + 1e-12
        assert row.images_per_s == pytest.approx(row.gpus * batch_size / row.step_s)
        parts = row.input_s + row.compute_s + row.exposed_s + row.update_s
        assert row.step_s == pytest.approx(max(parts, row.host_s))
    larger = predict(RESNET, machine, 2 * batch_size, store=store)
    assert larger.all_gpus_row.images_per_s > whole.images_per_s
    assert larger.all_gpus_row.efficiency >= whole.efficiency - 1e-12


@settings(max_examples=4, deadline=None)
@given(
    machine=st.sampled_from(sorted(MACHINES)),
    store=st.sampled_from(["device", "ring", "nccl"]),
    batch_size=st.sampled_from([1, 32]),
)
def test_a_file_predicts_what_the_machine_does_that_it_was_made_of(tmp_path_factory, machine, store, batch_size):
    file = str(tmp_path_factory.getbasetemp() / "m.json")
    write_topology(replace(make_topology(machine), gpu=MACHINES[machine], note="mine"), file)
    by_file, by_name = (predict(RESNET, m, batch_size, store=store) for m in (file, machine))
    assert by_file.rows == by_name.rows and by_file.gpu == by_name.gpu
    (added,) = set(by_file.assumptions) - set(by_name.assumptions)
    assert added == f"The time of the gradient reduction is estimated for {by_file.store} on the links of {file}: mine."


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, r"m.json does not name the type of its GPUs.*: add \"gpu\": \"V100\" or another of these types: K80, "),
        ({"gpu": "V10"}, r"m.json: unknown gpu 'V10': choose .*V100"),
        ({"gpu": "V100", "hosts": ((0, 1), (2, 3))}, "m.json describes 2 hosts, but predictions support only"),
    ],
)
def test_a_file_that_does_not_say_enough_is_refused_in_one_line(changes, words, tmp_path):
    write_topology(replace(make_topology("p3.8xlarge"), **changes), tmp_path / "m.json")
    with pytest.raises(ConfigError, match=words):
        find_machine(str(tmp_path / "m.json"))
    with pytest.raises(ConfigError, match="cannot be read"):
        find_machine(str(tmp_path / "no.json"))


def test_a_store_over_hosts_on_a_machine_from_a_file_names_machines_of_hosts(tmp_path):
    file = str(tmp_path / "m.json")
    write_topology(replace(make_topology("p3.8xlarge"), gpu="V100"), file)
    result = predict(RESNET, file, 32, store="horovod")
    assert any("for several hosts use p3.16xlarge*2" in caution for caution in result.cautions)


def test_every_machine_has_a_network_and_a_known_gpu():
    assert set(MACHINES) == set(NETWORKS)
    assert set(MACHINES.values()) <= set(GPUS)


def test_a_newer_machine_is_faster():
    order = ["p2.16xlarge", "g4dn.12xlarge", "p3.2xlarge", "p4d.24xlarge"]
    ones = [predict(RESNET, machine, 64).rows[0].images_per_s for machine in order]
    assert ones == sorted(ones)


def test_several_hosts_have_a_row_for_each_power_of_two_and_are_no_better_than_linear():
    result = predict(RESNET, "p3.16xlarge*4", 64)
    assert [row.gpus for row in result.rows] == [1, 2, 4, 8, 16, 32]
    assert [row.hosts for row in result.rows] == [1, 1, 1, 1, 2, 4]
    assert result.store == "horovod"
    efficiencies = [row.efficiency for row in result.rows[3:]]
    assert efficiencies == sorted(efficiencies, reverse=True)
    faster = predict(RESNET, "p3dn.24xlarge*4", 64)
    assert faster.all_gpus_row.images_per_s > result.all_gpus_row.images_per_s  # the same GPUs, 100 Gb/s


def test_three_single_gpu_hosts_and_a_part_of_a_machine():
    assert [row.gpus for row in predict(RESNET, "p3.2xlarge*3", 64).rows] == [1, 2, 3]
    assert [row.gpus for row in predict(RESNET, "p3.16xlarge", 64, gpus=3).rows] == [1, 2, 3]
    assert [row.gpus for row in predict(RESNET, "p3.16xlarge*2", 64, gpus=4).rows] == [1, 2, 4]


def test_sums_hide_behind_backward_as_far_as_its_pieces_allow():
    rows = [predict(RESNET, "p3.16xlarge", 64, overlap=pieces).all_gpus_row for pieces in ("off", 1000, 15, 1)]
    assert rows[0].exposed_s == pytest.approx(rows[0].sum_s)
    assert all(more.exposed_s >= less.exposed_s - 1e-9 for more, less in zip(rows, rows[1:]))
    assert rows[0].exposed_s > 3 * rows[-1].exposed_s
    assert rows[2].images_per_s > rows[0].images_per_s
    assert len({row.sum_s for row in rows}) == 1


def test_a_tiny_network_is_bound_by_the_host_and_a_large_one_by_computing():
    assert predict(LENET, "p3.16xlarge", 16, store="nccl").all_gpus_row.bound_by == "host"
    assert predict(RESNET, "p3.16xlarge", 96, store="nccl").all_gpus_row.bound_by == "compute"
    assert predict(published_work("AlexNet"), "p2.16xlarge", 16).all_gpus_row.bound_by == "sum"


def test_float16_is_faster_on_tensor_cores_and_says_what_it_was_compared_with():
    single, half = (predict(RESNET, "p3.2xlarge", 64, dtype=t) for t in ("float32", "float16"))
    assert half.all_gpus_row.images_per_s > 1.5 * single.all_gpus_row.images_per_s
    assert any("float16" in caution for caution in half.cautions) and not single.cautions


def test_tf32_is_faster_where_a_gpu_has_it_and_without_it_was_never_compared():
    plain, rounded = (predict(RESNET, "p4d.24xlarge", 64, tf32=tf32) for tf32 in (False, True))
    assert (plain.arithmetic, rounded.arithmetic) == ("float32", "TF32")
    assert rounded.all_gpus_row.images_per_s > plain.all_gpus_row.images_per_s
    assert any("without TF32" in caution for caution in plain.cautions)
    older = [predict(RESNET, "p3.16xlarge", 64, tf32=tf32).rows for tf32 in (False, True)]
    assert older[0] == older[1]


def test_the_text_is_labeled_and_fits_a_terminal():
    for machine in ("p3.16xlarge*2", "g5.48xlarge"):
        text = predict(published_work("VGG-16"), machine, 64).text
        assert text.startswith("Predicted, not measured") and "Assumed:" in text
        assert max(map(len, text.splitlines())) <= WIDTH
        assert all("  " in line[:6] or line[:5].strip() for line in text.splitlines() if line)


def test_json_has_what_the_text_has():
    result = predict(RESNET, "p3.16xlarge", 64)
    content = json.loads(json.dumps(result.to_dict()))
    assert (content["kind"], content["measured"]) == ("prediction", False)
    assert content["rows"][-1]["speedup"] == result.all_gpus_row.speedup
    assert content["rows"][-1]["bound_by"] == "compute"
    assert content["assumptions"] and content["not_trusted"] == []


def test_predictions_similar_to_published_speeds_are_trusted():
    for machine, batch_size in (("p3.16xlarge", 64), ("p2.16xlarge", 32), ("p4d.24xlarge", 256)):
        result = predict(RESNET, machine, batch_size, tf32=True)
        assert result.not_trusted == () == result.cautions


@pytest.mark.parametrize(
    ("work", "machine", "batch_size", "words"),
    [
        (RESNET, "p3.2xlarge", 1024, "GB, but V100 has 16"),
        (LENET, "p3.2xlarge", 8192, "8,192 images per GPU: published trainings have"),
        (count_model_work("mlp", 10, (1, 28, 28)), "p3.2xlarge", 64, "multiply-adds per image"),
        (count_model_work("mlp", 10, (3, 64, 64)), "p3.2xlarge", 64, "dense layers"),
        (MOBILENET, "p3.2xlarge", 64, "depthwise convolutions"),
    ],
)
def test_a_prediction_far_from_published_speeds_is_not_trusted_and_says_why(work, machine, batch_size, words):
    result = predict(work, machine, batch_size)
    assert any(words in reason for reason in result.not_trusted)
    assert "Not reliable in this case:" in result.text


def test_gpus_without_published_figures_are_named():
    for machine, gpu in (("g4dn.12xlarge", "T4"), ("g5.48xlarge", "A10G")):
        (caution,) = predict(RESNET, machine, 64).cautions
        assert gpu in caution


def test_a_region_where_a_published_figure_is_missed_by_far_is_not_trusted(monkeypatch):
    """With constants that are far off, the network itself is named, and its ratio."""
    wrong = validate(FittedModel(EXPECTED_CONSTANTS._replace(convolution=0.3, memory=0.3)))
    monkeypatch.setattr(published_speeds, "read_validation", lambda: wrong)
    reasons = predict(RESNET, "p3.2xlarge", 64).not_trusted
    assert any("ResNet-50 on V100 at 64 images, which is similar" in reason for reason in reasons)
    assert predict(LENET, "p3.2xlarge", 64).not_trusted == ()  # nothing of its size was missed


def test_the_published_figure_that_is_missed_most_is_not_trusted():
    """TensorFlow's microbatches of one image, from 2 GPUs on."""
    network = published_work("ResNet-18")
    (reason,) = predict(network, "p3.16xlarge", 32, gpus=2, microbatches=Microbatches(32)).not_trusted
    assert "ResNet-18 on 2 x an unnamed GPU" in reason and "0.58 times" in reason
    assert predict(network, "p3.16xlarge", 32, gpus=2).not_trusted == ()


def test_published_batches_fit_into_memory_and_those_that_did_not_do_not():
    """MXNet's page has 128 images of ResNet-50 on a V100; NVIDIA's 256 on 80 GB."""
    assert estimate_memory_bytes(RESNET, 128, "float32") < GPUS["V100"].memory_bytes
    assert estimate_memory_bytes(RESNET, 256, "float32") < GPUS["A100-80GB"].memory_bytes
    assert estimate_memory_bytes(published_work("Inception-v3"), 128, "float32") < 16e9
    assert estimate_memory_bytes(RESNET, 512, "float32") > GPUS["V100"].memory_bytes


@pytest.mark.parametrize(
    ("machine", "options", "message"),
    [
        ("p3.17xlarge", {}, r"unknown machine 'p3.17xlarge'.*did you mean 'p3.16xl"),
        ("p3.16xlarge*999", {}, "use 1 to 128"),
        ("p3.16xlarge*x", {}, "not a valid number of hosts"),
        ("p3.16xlarge", {"batch_size": 0}, "batch size 0 per GPU"),
        ("p3.16xlarge", {"dtype": "int8"}, "choose float32 or float16"),
        ("p3.16xlarge", {"gpus": 9}, "must be a whole number from 1 to 8"),
        ("p3.16xlarge", {"overlap": 0}, "must be 'off' or a number of operators of at least 1"),
        ("p3.16xlarge", {"store": "rign"}, "unknown kvstore.*ring"),
        ("p3.16xlarge*2", {"gpus": 12}, r"hosts of p3.16xlarge\*2 need a multiple of 8 GPUs, not 12: use 8"),
        ("p3.16xlarge", {"batch_size": None, "global_batch_size": 7}, "use at least 8 images, or at most 7 GPUs"),
    ],
)
def test_mistakes_are_one_line(machine, options, message):
    with pytest.raises(ConfigError, match=message) as error:
        predict(RESNET, machine, **{"batch_size": 64, **options})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("machine", ["p3.16xlarge", "p3.16xlarge*2"])
@pytest.mark.parametrize("store", all_stores())
def test_every_store_has_a_price_and_another_one_that_stands_for_it_is_named(machine, store):
    result = predict(LENET, machine, 64, store=store)
    assert result.all_gpus_row.sum_s > 0
    stands_in = result.store != EQUIVALENT_STORES.get(store, store) and store != "device"
    assert stands_in == any(caution.startswith(f"kvstore {store} is for ") for caution in result.cautions)


def test_every_kvstore_of_the_product_has_a_price_or_is_refused_by_name():
    for store in {*KVSTORES, *PROCESSES_BY_BACKEND} - set(all_stores()):
        with pytest.raises(ConfigError, match="steps do not wait for a reduction"):
            predict(LENET, "p3.16xlarge*2", 64, store=store)


def test_microbatches_cost_kernels_and_save_memory():
    whole = predict(RESNET, "p3.2xlarge", 64)
    cut = predict(RESNET, "p3.2xlarge", 64, microbatches=Microbatches(4))
    assert (whole.passes, cut.passes) == (1, 4)
    assert cut.all_gpus_row.step_s > whole.all_gpus_row.step_s and "in 4 microbatches" in cut.text
    large = predict(RESNET, "p3.2xlarge", 512)
    assert any("GB, but V100 has 16" in reason for reason in large.not_trusted)
    assert predict(RESNET, "p3.2xlarge", 512, microbatches=Microbatches(8)).not_trusted == ()


# From the optimizers' papers: first and second moments, or one of them.
STATE_COUNTS = {
    "sgd": 1, "nag": 1, "signum": 1, "lars": 1, "adam": 2, "adamax": 2, "nadam": 2, "adadelta": 2,
    "adagrad": 1, "rmsprop": 1, "ftml": 1, "lamb": 2,
}  # fmt: skip
WITHOUT_MOMENTUM = {"sgd": 0, "nag": 0, "lars": 0, "signum": 1}


def test_the_states_of_every_optimizer_are_counted():
    assert {name: count_states(name, True) for name in OPTIMIZERS} == STATE_COUNTS
    assert {name: count_states(name, False) for name in OPTIMIZERS} == {**STATE_COUNTS, **WITHOUT_MOMENTUM}
    with pytest.raises(ConfigError, match="sgdd"):
        count_states("sgdd", True)
