"""Each metric of mx.metric gets its definition's value from a network's scores."""

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
    exponentials = np.exp(scores.astype("float64") - scores.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def entropy(scores, labels):
    return log_loss(labels, softmax(scores), labels=range(scores.shape[1]))


def in_top2(scores, labels):
    return np.mean([label in row.argsort()[-2:] for row, label in zip(scores, labels)])


# Metric -> (creation, definition, largest number of classes)
OF_SCORES = {
    M.Accuracy: (M.Accuracy, lambda scores, labels: (scores.argmax(axis=1) == labels).mean(), 9),
    M.TopKAccuracy: (lambda: M.TopKAccuracy(2), in_top2, 9),
    M.F1: (M.F1, lambda scores, labels: f1_score(labels, scores.argmax(axis=1)), 2),
    M.MCC: (M.MCC, lambda scores, labels: matthews_corrcoef(labels, scores.argmax(axis=1)), 2),
    M.PCC: (M.PCC, lambda scores, labels: matthews_corrcoef(labels, scores.argmax(axis=1)), 9),
    M.Perplexity: (lambda: M.Perplexity(None), lambda *arguments: np.exp(entropy(*arguments)), 9),
    M.CrossEntropy: (M.CrossEntropy, entropy, 9),
    M.NegativeLogLikelihood: (M.NegativeLogLikelihood, entropy, 9),
    M.CustomMetric: (lambda: M.np(lambda labels, scores: float(scores.max())), lambda scores, labels: scores.max(), 9),
}
OF_VALUES = {
    M.MAE: lambda values, labels: abs(values - labels).mean(),
    M.MSE: lambda values, labels: ((values - labels) ** 2).mean(),
    M.RMSE: lambda values, labels: ((values - labels) ** 2).mean() ** 0.5,
    M.PearsonCorrelation: lambda values, labels: np.corrcoef(values, labels)[0, 1],
}


# (made, by definition, for as many classes at most)


def draw_scores(seed, count, classes):
    random = np.random.RandomState(seed)
    labels = np.r_[np.arange(classes), random.randint(0, classes, count)].astype("int32")
    return random.normal(0, 3, (len(labels), classes)).astype("float32"), labels


def compute_value(metric, scores, labels):
    [value] = compute_metrics(metrics_by_name(metric), scores, labels).values()
    return value


@settings(max_examples=10)
@given(st.integers(0, 2**31), st.integers(2, 30), st.integers(2, 9))
def test_mxnets_metrics_give_what_they_define(seed, count, classes):
    for create, definition, max_classes in OF_SCORES.values():
        scores, labels = draw_scores(seed, count, min(max_classes, classes))
        # PCC is not defined where all scores choose one class, and scikit-learn says 0
        value = compute_value(create(), scores, labels) or 0
        assert value == pytest.approx(definition(scores, labels), rel=1e-4, abs=1e-6)
    scores, _ = draw_scores(seed, count, 1)
    labels = np.random.RandomState(seed + 1).normal(0, 3, len(scores)).astype("float32")
    for kind, definition in OF_VALUES.items():
        expected = definition(scores[:, 0].astype("float64"), labels)
        assert compute_value(kind, scores, labels) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_every_metric_of_mxnet_is_in_the_tables():
    kinds = {kind for _, kind in inspect.getmembers(M, inspect.isclass) if issubclass(kind, M.EvalMetric)}
    of_losses = {M.Loss, M.Torch, M.Caffe}
    assert kinds == {*OF_SCORES, *OF_VALUES, *of_losses, M.EvalMetric, M.CompositeEvalMetric}


class Brier(M.EvalMetric):
    """Brier, "Verification of forecasts expressed in terms of probability", 1950."""

    takes = "probabilities"

    def __init__(self):
        super().__init__("brier")

    def update(self, labels, preds):
        right = np.eye(preds[0].shape[1])[labels[0].asnumpy()]
        self.sum_metric = ((preds[0].asnumpy() - right) ** 2).sum()
        self.num_inst = len(right)


def test_a_users_metric_gets_probabilities_if_it_asks_for_them():
    scores, labels = draw_scores(3, 20, 4)

    def confidence(scores, labels):
        return float(scores.max(axis=1).mean())

    assert compute_value(confidence, scores, labels) == confidence(scores, labels)
    expected = confidence(softmax(scores), labels)
    confidence.takes = "probabilities"
    custom = M.np(lambda labels, scores: confidence(scores, labels))
    custom.takes = "probabilities"
    subclass = type("Subclass", (M.CrossEntropy,), {})  # it asks for what its base asks for
    of_softmax = M.CrossEntropy()
    of_softmax.takes = "scores"  # of a network that ends in softmax
    brier = ((softmax(scores) - np.eye(4)[labels]) ** 2).sum(axis=1).mean()
    for metric, network_scores, value in (
        (confidence, scores, expected), (custom, scores, expected), (Brier, scores, brier),
        (subclass, scores, entropy(scores, labels)),
        (of_softmax, softmax(scores).astype("float32"), entropy(scores, labels)),
    ):  # fmt: skip
        assert compute_value(metric, network_scores, labels) == pytest.approx(value, rel=1e-5)


def test_each_part_of_a_composite_metric_gets_scores_or_probabilities():
    scores, labels = draw_scores(4, 20, 4)
    parts = {"accuracy": M.Accuracy, "cross-entropy": M.CrossEntropy, "pcc": M.PCC}
    expected = {name: compute_value(kind, scores, labels) for name, kind in parts.items()}
    composite = M.CompositeEvalMetric([M.Accuracy(), M.CompositeEvalMetric([M.CrossEntropy(), M.PCC()])])
    assert compute_metrics(metrics_by_name(composite), scores, labels) == expected
    named = compute_metrics(metrics_by_name({"all": composite}), scores, labels)
    assert named == {f"all {name}": value for name, value in expected.items()}


def arrays(classes):
    random = np.random.RandomState(classes)
    images = random.randint(0, 255, (60, 1, 4, 4)).astype("uint8")
    labels = np.arange(60) % classes
    return from_arrays(images[:40], labels[:40], images[40:], labels[40:])


def test_metrics_of_a_run_and_of_its_evaluation_get_probabilities(tmp_path):
    folder = tmp_path / "run"
    metrics = [M.Perplexity(ignore_label=None), M.CrossEntropy(), M.NegativeLogLikelihood()]
    settings = {"devices": device_spec(2), "threads": 1, "epochs": 1, "model": "mlp", "global_batch_size": 8}
    result = train(TrainConfig(**settings, out=str(folder)), None, Reporter(), arrays(3), metrics=metrics)
    loss = result.history[-1].val_loss
    expected = pytest.approx({"perplexity": np.exp(loss), "cross-entropy": loss, "nll-loss": loss}, rel=1e-5)
    assert result.history[-1].metrics == expected
    assert evaluate_run(str(folder), data=arrays(3), metrics=metrics).score.metrics == expected
    with pytest.raises(ConfigError, match="metric f1 failed"):
        evaluate_run(str(folder), data=arrays(3), metrics=M.F1())


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (M.F1(), "metric f1 failed: ValueError: .*only supports binary.*\\(tested before training, with random scores"),
        (M.MCC(average="micro"), "metric mcc failed: .*only supports binary"),
        (M.TopKAccuracy(4), r"metric top_k_accuracy_4 failed: .*random scores \(20, 3\)"),
        (M.PearsonCorrelation(), "metric pearsonr failed: .*one number with each label, but each image has 3 scores"),
        ({"error": M.MAE}, "metric error failed: .*one number with each label, but each image has 3 scores"),
        (M.CompositeEvalMetric([M.Accuracy(), M.RMSE()]), "metric rmse failed: .*with each label"),
        (M.Loss(), "metric loss averages losses, .* the validation loss of each epoch"),
        (M.Caffe, "metric caffe averages losses"),
        (M.TopKAccuracy, r"metric TopKAccuracy cannot be created .*: pass an instance, TopKAccuracy"),
        (M.Perplexity, r"metric Perplexity cannot be created without arguments .*ignore_label"),
        (type("Odd", (Brier,), {"takes": "logits"}), "metric brier: the attribute 'takes' is 'logits'"),
        (lambda scores, labels: scores[99], "failed: IndexError: .*\\(tested before training, with random scores"),
    ],
)
def test_a_metric_that_fails_on_the_data_is_found_before_training(tmp_path, metric, said):
    config = TrainConfig(devices=device_spec(1), model="mlp", out=str(tmp_path / "run"))
    with pytest.raises(ConfigError, match=said) as caught:
        train(config, reporter=Reporter(), dataset=arrays(3), metrics=metric)
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


def test_the_trial_before_training_has_the_labels_of_the_validation_images():
    """A metric may have a weight for each image, and be defined only for some labels."""
    labels, weights = np.array([0, 2, 2, 0, 2], "int32"), np.arange(5)

    def weighted(scores, trial_labels):
        assert np.array_equal(trial_labels, labels)
        return (scores.argmax(axis=1) == trial_labels) @ weights

    split = type("Split", (SimpleNamespace,), {"__len__": lambda self: 5})
    check_metrics(metrics_by_name([weighted, M.F1()]), split(labels=labels), 3)
    values = split(labels=labels + np.float32(0.5))
    check_metrics(metrics_by_name([M.MAE, M.PearsonCorrelation]), values, 1)
    with pytest.raises(ConfigError, match="metric mae failed"):
        check_metrics(metrics_by_name(M.MAE), values, 2)
    # the scores are probabilities, on which the area under the curve of several classes insists
    area = lambda scores, labels: roc_auc_score(labels, scores, multi_class="ovr")  # noqa: E731
    check_metrics(metrics_by_name(area), split(labels=np.arange(5) % 3), 3)


def test_a_metric_that_fails_during_training_is_named(tmp_path):
    results = [0.0]
    config = TrainConfig(devices=device_spec(1), epochs=1, model="mlp", out=str(tmp_path / "run"))
    with pytest.raises(CallbackError, match="metric seldom failed: IndexError"):
        train(config, None, Reporter(), arrays(3), metrics={"seldom": lambda scores, labels: results.pop()})
