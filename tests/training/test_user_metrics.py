"""Each metric of mx.metric gives what its definition says of a network's scores, in numpy."""

import inspect
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score, log_loss, matthews_corrcoef, roc_auc_score
from support.devices import device_spec

from gluonlab.config import TrainConfig
from gluonlab.data import from_arrays
from gluonlab.errors import CallbackError, ConfigError
from gluonlab.training.evaluate_run import evaluate_run
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter
from gluonlab.training.user_metrics import check_metrics, compute_metrics, metrics_by_name

M = mx.metric


def softmax(scores):
    parts = np.exp(scores.astype("float64") - scores.max(axis=1, keepdims=True))
    return parts / parts.sum(axis=1, keepdims=True)


def entropy(scores, labels):
    return log_loss(labels, softmax(scores), labels=range(scores.shape[1]))


def accuracy(scores, labels):
    return (scores.argmax(axis=1) == labels).mean()


def in_top2(scores, labels):
    return np.mean([label in row.argsort()[-2:] for row, label in zip(scores, labels)])


def highest(labels, scores):
    return float(scores.max())


# (made, by definition, for as many classes at most)
OF_SCORES = {
    M.Accuracy: (M.Accuracy, accuracy, 9),
    M.TopKAccuracy: (lambda: M.TopKAccuracy(2), in_top2, 9),
    M.F1: (M.F1, lambda scores, labels: f1_score(labels, scores.argmax(axis=1)), 2),
    M.MCC: (M.MCC, lambda scores, labels: matthews_corrcoef(labels, scores.argmax(axis=1)), 2),
    M.PCC: (M.PCC, lambda scores, labels: matthews_corrcoef(labels, scores.argmax(axis=1)), 9),
    M.Perplexity: (lambda: M.Perplexity(None), lambda *given: np.exp(entropy(*given)), 9),
    M.CrossEntropy: (M.CrossEntropy, entropy, 9),
    M.NegativeLogLikelihood: (M.NegativeLogLikelihood, entropy, 9),
    M.CustomMetric: (lambda: M.np(highest), lambda scores, labels: highest(labels, scores), 9),
}
OF_VALUES = {
    M.MAE: lambda given, labels: abs(given - labels).mean(),
    M.MSE: lambda given, labels: ((given - labels) ** 2).mean(),
    M.RMSE: lambda given, labels: ((given - labels) ** 2).mean() ** 0.5,
    M.PearsonCorrelation: lambda given, labels: np.corrcoef(given, labels)[0, 1],
}
OF_LOSSES = (M.Loss, M.Torch, M.Caffe)


def draw_scores(seed, count, classes):
    random = np.random.RandomState(seed)
    labels = np.r_[np.arange(classes), random.randint(0, classes, count)].astype("int32")
    return random.normal(0, 3, (len(labels), classes)).astype("float32"), labels


def value_of(metric, scores, labels):
    [found] = compute_metrics(metrics_by_name(metric), scores, labels).values()
    return found


@settings(max_examples=10)
@given(st.integers(0, 2**31), st.integers(2, 30), st.integers(2, 9))
def test_mxnets_metrics_give_what_they_define(seed, count, classes):
    for made, definition, most in OF_SCORES.values():
        scores, labels = draw_scores(seed, count, min(most, classes))
        expected = definition(scores, labels)
        # PCC is not defined where all scores choose one class, and scikit-learn says 0
        found = value_of(made(), scores, labels)
        assert (found or 0) == pytest.approx(expected, rel=1e-4, abs=1e-6)
    scores, _ = draw_scores(seed, count, 1)
    labels = np.random.RandomState(seed + 1).normal(0, 3, len(scores)).astype("float32")
    for kind, definition in OF_VALUES.items():
        expected = definition(scores[:, 0].astype("float64"), labels)
        assert value_of(kind, scores, labels) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_no_metric_of_mxnet_is_forgotten():
    there = {
        each for _, each in inspect.getmembers(M, inspect.isclass)
        if issubclass(each, M.EvalMetric) and each not in (M.EvalMetric, M.CompositeEvalMetric)
    }  # fmt: skip
    assert there == {*OF_SCORES, *OF_VALUES, *OF_LOSSES}


class Brier(M.EvalMetric):
    """Brier, "Verification of forecasts expressed in terms of probability", 1950."""

    takes = "probabilities"

    def __init__(self):
        super().__init__("brier")

    def update(self, labels, preds):
        right = np.eye(preds[0].shape[1])[labels[0].asnumpy()]
        self.sum_metric = ((preds[0].asnumpy() - right) ** 2).sum()
        self.num_inst = len(right)


class Smoothed(M.CrossEntropy):
    """A subclass asks for what its base asks for."""


def test_a_metric_of_the_users_own_says_what_it_takes():
    scores, labels = draw_scores(3, 20, 4)

    def sure(given, labels):
        return given.max(axis=1).mean()

    expected = sure(softmax(scores), labels)
    assert value_of(sure, scores, labels) == sure(scores, labels)
    sure.takes = "probabilities"
    assert value_of(sure, scores, labels) == pytest.approx(expected, rel=1e-5)
    custom = M.np(lambda labels, given: float(given.max(axis=1).mean()))
    custom.takes = "probabilities"
    assert value_of(custom, scores, labels) == pytest.approx(expected, rel=1e-5)
    brier = ((softmax(scores) - np.eye(4)[labels]) ** 2).sum(axis=1).mean()
    assert value_of(Brier, scores, labels) == pytest.approx(brier, rel=1e-5)
    assert value_of(Smoothed, scores, labels) == pytest.approx(entropy(scores, labels), rel=1e-5)
    of_softmax = M.CrossEntropy()
    of_softmax.takes = "scores"  # of a network that ends in softmax
    found = value_of(of_softmax, softmax(scores).astype("float32"), labels)
    assert found == pytest.approx(entropy(scores, labels), rel=1e-5)


def test_each_part_of_a_composite_metric_gets_its_own():
    scores, labels = draw_scores(4, 20, 4)
    parts = [M.Accuracy(), M.CompositeEvalMetric([M.CrossEntropy(), M.PCC()])]
    expected = {
        name: value_of(kind, scores, labels)
        for name, kind in (("accuracy", M.Accuracy), ("cross-entropy", M.CrossEntropy), ("pcc", M.PCC))
    }
    whole = M.CompositeEvalMetric(parts)
    assert compute_metrics(metrics_by_name(whole), scores, labels) == expected
    named_too = compute_metrics(metrics_by_name({"all": whole}), scores, labels)
    assert named_too == {f"all {name}": value for name, value in expected.items()}


def arrays(classes):
    random = np.random.RandomState(classes)
    images = random.randint(0, 255, (60, 1, 4, 4)).astype("uint8")
    labels = np.arange(60) % classes
    return from_arrays(images[:40], labels[:40], images[40:], labels[40:])


def test_a_run_and_its_evaluation_give_probabilities_to_those_that_want_them(tmp_path):
    config = TrainConfig(
        devices=device_spec(2), threads=1, epochs=1, model="mlp", global_batch_size=8, out=str(tmp_path / "run")
    )
    metrics = [M.Perplexity(ignore_label=None), M.CrossEntropy(), M.NegativeLogLikelihood()]
    result = train(config, reporter=Reporter(), dataset=arrays(3), metrics=metrics)
    loss = result.history[-1].validation_loss
    expected = {"perplexity": np.exp(loss), "cross-entropy": loss, "nll-loss": loss}
    assert result.history[-1].metrics == pytest.approx(expected, rel=1e-5)
    again = evaluate_run(str(tmp_path / "run"), data=arrays(3), metrics=metrics)
    assert again.score.metrics == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ConfigError, match="metric f1 failed"):
        evaluate_run(str(tmp_path / "run"), data=arrays(3), metrics=M.F1())


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (M.F1(), "metric f1 failed: ValueError: .*only supports binary.*; tried on random scores"),
        (M.MCC(average="micro"), "metric mcc failed: .*only supports binary"),
        (M.TopKAccuracy(4), r"metric top_k_accuracy_4 failed: .*scores \(20, 3\) before training"),
        (M.PearsonCorrelation(), "metric pearsonr failed: .*one number with each label, not 3 sc"),
        ({"error": M.MAE}, "metric error failed: .*one number with each label, not 3 scores"),
        (M.CompositeEvalMetric([M.Accuracy(), M.RMSE()]), "metric rmse failed: .*with each label"),
        (M.Loss(), "metric loss averages losses, .* the test loss of each epoch"),
        (M.Caffe, "metric caffe averages losses"),
        (M.TopKAccuracy, r"metric TopKAccuracy cannot be created .*: give an object, TopKAccuracy"),
        (M.Perplexity, r"metric Perplexity cannot be created without arguments .*ignore_label"),
        (type("Odd", (Brier,), {"takes": "logits"}), "metric brier: its attribute takes is 'logits'"),
        (lambda scores, labels: scores[99], "failed: IndexError: .*; tried on random scores"),
    ],
)
def test_a_metric_that_fails_on_the_data_is_found_before_training(tmp_path, metric, said):
    config = TrainConfig(devices=device_spec(1), model="mlp", out=str(tmp_path / "run"))
    with pytest.raises(ConfigError, match=said) as caught:
        train(config, reporter=Reporter(), dataset=arrays(3), metrics=metric)
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


def test_the_trial_has_the_size_and_labels_of_the_test_images_also_of_values():
    """A metric may hold something of each image, and be defined for the labels that occur only."""
    labels = np.array([0, 2, 2, 0, 2], "int32")
    weights = np.arange(5)

    def weighted(scores, given):
        assert np.array_equal(given, labels)
        return (scores.argmax(axis=1) == given) @ weights

    split = type("Split", (SimpleNamespace,), {"__len__": lambda self: 5})
    check_metrics(metrics_by_name([weighted, M.F1()]), split(labels=labels), 3)
    values = split(labels=labels + np.float32(0.5))
    check_metrics(metrics_by_name([M.MAE, M.PearsonCorrelation]), values, 1)
    with pytest.raises(ConfigError, match="metric mae failed"):
        check_metrics(metrics_by_name(M.MAE), values, 2)


def test_a_metric_may_insist_on_the_probabilities_that_a_network_gives():
    """As sklearn's area under the curve does of several classes."""

    def area(scores, labels):
        return roc_auc_score(labels, scores, multi_class="ovr")

    images = np.zeros((30, 2, 2), "uint8")
    data = from_arrays(images, np.arange(30) % 3, images, np.arange(30) % 3)
    check_metrics(metrics_by_name(area), data.test, 3)


def test_a_metric_that_fails_later_names_itself(tmp_path):
    calls = []

    def seldom(scores, labels):
        calls.append(1)
        return 1 / (2 - len(calls))

    config = TrainConfig(devices=device_spec(1), epochs=1, model="mlp", out=str(tmp_path / "run"))
    with pytest.raises(CallbackError, match="metric seldom failed: ZeroDivisionError"):
        train(config, reporter=Reporter(), dataset=arrays(3), metrics=seldom)
