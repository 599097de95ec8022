"""Programs of docs/faq.md that call train."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from support.devices import contexts, device_spec
from support.plain_loop import max_difference
from support.reference import parameter_arrays

from gluonlab import TrainConfig, train
from gluonlab.data import from_arrays
from gluonlab.errors import ConfigError, DivergedError, ModelError
from gluonlab.training.reporter import Reporter

CLASSES, SIDE = 3, 8
random = np.random.RandomState(0)
LABELS = random.randint(0, CLASSES, 60)
IMAGES = random.randint(0, 150, (60, SIDE, SIDE)) + 30 * LABELS[:, None, None]
IMAGES = IMAGES.astype("uint8")


def data():
    return from_arrays(IMAGES[:40], LABELS[:40], IMAGES[40:], LABELS[40:])


def run(folder, net=None, loss=None, dataset=None, **settings):
    """Train on batches of 13 images, the last of 1, on three devices unless ``settings`` differ."""
    defaults = {"devices": device_spec(3), "epochs": 1, "global_batch_size": 13, "optimizer": "sgd"}
    config = TrainConfig(**{**defaults, "lr": 0.05, "momentum": 0.9, **settings}, out=str(folder))
    return train(config, net=net or make_net, loss=loss, dataset=dataset or data(), reporter=Reporter())


def make_net(classes):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3, activation="relu"), nn.Flatten(), nn.Dense(classes))
    return net


def distance_of_runs(tmp_path, *runs):
    """Return the distance between the parameters after two runs with these settings."""
    nets = [run(tmp_path / str(number), **settings).net for number, settings in enumerate(runs)]
    return max_difference(*map(parameter_arrays, nets))


class Adds(nn.HybridSequential):
    def __init__(self, classes):
        super().__init__()
        self.add(nn.Dense(classes))
        self.collect_params().setattr("grad_req", "add")


def test_gradients_of_a_run_are_not_added_up_over_its_steps(tmp_path):
    """https://github.com/apache/mxnet/issues/10589

    The right answer is a refusal that has the setting for it.
    """
    with pytest.raises(ModelError, match=r"grad_req 'add', .*: use grad_req 'write', and add --microbatches N"):
        run(tmp_path / "run", net=Adds)


class Entropy(gluon.HybridBlock):
    def hybrid_forward(self, F, scores, labels):
        return -F.pick(F.log_softmax(scores), labels)


class Made(Entropy):
    def hybrid_forward(self, F, scores, labels):
        return F.make_loss(super().hybrid_forward(F, scores, labels))


def test_make_loss_would_hide_the_shares_of_mixed_images(tmp_path):
    """https://github.com/apache/mxnet/issues/19657

    The right answer is a refusal: with mixup the gradient of both labels would count in full.
    """
    with pytest.raises(ConfigError, match=r"loss Made contains make_loss, .*: remove make_loss and"):
        run(tmp_path / "run", loss=Made(), mixup=0.4)


@pytest.mark.long
def test_mixup_with_a_loss_of_ones_own(tmp_path):
    """https://github.com/huggingface/pytorch-image-models/issues/46"""
    mixed = {"loss": Entropy(), "mixup": 0.4}
    assert distance_of_runs(tmp_path, {"devices": device_spec(1), **mixed}, mixed) < 2e-7


def with_output_operator():
    scores = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=CLASSES, name="of_reports")
    return scores, mx.sym.SoftmaxOutput(scores, name="softmax")


def test_a_symbol_of_modules_time_ends_in_its_scores(tmp_path):
    """https://github.com/apache/mxnet/issues/11334

    Its biases, which have no initializer, get what Gluon gives: uniform up to 0.07.
    """
    scores, probabilities = with_output_operator()
    with pytest.raises(ModelError, match=r"SoftmaxOutput, .*: remove SoftmaxOutput and return its input"):
        run(tmp_path / "run", net=gluon.SymbolBlock(probabilities, mx.sym.var("data")))

    def make():
        return gluon.SymbolBlock(scores, mx.sym.var("data"))

    begun = run(tmp_path / "begun", net=make, lr=1e-12).net.collect_params()
    bias = begun["of_reports_bias"].data(begun["of_reports_bias"].list_ctx()[0]).asnumpy()
    assert 0 < np.abs(bias).max() <= 0.07


@pytest.mark.long
def test_the_head_learns_ten_times_as_fast_as_pretrained_features(tmp_path):
    """https://github.com/apache/mxnet/issues/8623

    The right value is that of a plain loop with gluon.Trainer and one batch of all images.
    """

    def make():
        net = make_net(CLASSES)
        net[2].collect_params().setattr("lr_mult", 10)
        net.load_parameters(str(tmp_path / "pretrained"), ctx=mx.cpu())
        return net

    begin = make_net(CLASSES)
    begin.initialize(mx.init.Xavier())
    begin(nd.zeros((1, 1, SIDE, SIDE)))
    begin.save_parameters(str(tmp_path / "pretrained"))
    x, y = nd.array(IMAGES[:40, None]) / 255, nd.array(LABELS[:40])
    plain = make()
    settings = {"learning_rate": 0.02, "wd": 0.1}
    trainer = gluon.Trainer(plain.collect_params(), "sgd", settings)
    for _ in range(3):
        with autograd.record():
            loss = gluon.loss.SoftmaxCrossEntropyLoss()(plain(x), y)
        loss.backward()
        trainer.step(40)
    found = run(tmp_path / "run", net=make(), epochs=3, global_batch_size=40, lr=0.02, wd=0.1, momentum=0)
    assert max_difference(parameter_arrays(found.net), parameter_arrays(plain)) < 2e-7


def test_new_layers_on_initialized_features(tmp_path):
    """https://github.com/dmlc/gluon-cv/issues/572

    Features keep their values, here ones, whatever device they were made on.
    """
    net = make_net(CLASSES)
    net[0].initialize(mx.init.One(), ctx=mx.cpu(5))
    found = run(tmp_path / "run", net=net, lr=1e-12).net
    assert (found[0].weight.data(contexts(3)[2]).asnumpy() == 1).all()
    assert np.abs(found[2].weight.data(contexts(3)[2]).asnumpy()).max() > 0


@pytest.mark.long
def test_runs_with_dropout_repeat_their_bits(tmp_path):
    """https://github.com/apache/mxnet/issues/10831"""

    def make(classes):
        net = make_net(9)
        net.add(nn.Dropout(0.5), nn.Dense(classes))
        return net

    assert distance_of_runs(tmp_path, {"net": make}, {"net": make}) == 0.0


class Cube(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        cubes = nd.array(in_data[0].asnumpy() ** 3, ctx=in_data[0].context)
        self.assign(out_data[0], req[0], cubes)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], 3 * in_data[0] ** 2 * out_grad[0])


@mx.operator.register("cube_of_reports")
class CubeProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Cube()


class WithCube(gluon.HybridBlock):
    def __init__(self, classes):
        super().__init__()
        self.first, self.last = nn.Dense(5), nn.Dense(classes)

    def hybrid_forward(self, F, x):
        return self.last(F.Custom(self.first(x), op_type="cube_of_reports"))


@pytest.mark.long
def test_an_operator_in_python_trains_on_three_devices(tmp_path):
    """https://discuss.mxnet.apache.org/t/custom-operator-cause-stuck-in-multicard-train/1452"""
    assert distance_of_runs(tmp_path, {"net": WithCube, "devices": device_spec(1)}, {"net": WithCube}) < 5e-7


class Smooth(gluon.HybridBlock):
    def hybrid_forward(self, F, scores, labels):
        shares = 0.9 * F.one_hot(labels, CLASSES) + 0.1 / CLASSES
        return -(shares * F.log_softmax(scores)).sum(axis=1)


@pytest.mark.long
def test_label_smoothing_is_that_of_the_definition(tmp_path):
    """https://github.com/dmlc/gluon-cv/pull/241"""
    assert distance_of_runs(tmp_path, {"label_smoothing": 0.1}, {"loss": Smooth()}) < 2e-7


class Saturated(gluon.HybridBlock):
    def hybrid_forward(self, F, scores, labels):
        return -F.log(F.pick(F.softmax(1e6 * scores), labels))


def test_a_loss_that_is_infinite_from_the_first_step_on(tmp_path):
    """https://github.com/dmlc/gluon-cv/issues/942

    The right answer looks for the cause in the loss, and not in the learning rate.
    """
    with pytest.raises(DivergedError, match=r"at step 1, before any update: .* log.0."):
        run(tmp_path / "run", loss=Saturated())


def test_a_list_of_contexts_names_the_devices(tmp_path):
    """https://github.com/awslabs/gluonts/issues/1164"""
    found = run(tmp_path / "run", devices=contexts(2))
    assert found.net[0].weight.list_ctx() == contexts(2)


@pytest.mark.long
def test_an_exported_batch_norm_without_scale_computes_the_same(tmp_path):
    """https://github.com/apache/mxnet/issues/5632

    The right scores are those of the network that was trained.
    """

    def make(classes):
        net = nn.HybridSequential()
        net.add(nn.Conv2D(4, 3, use_bias=False), nn.BatchNorm(scale=False), nn.Dense(classes))
        return net

    found = run(tmp_path / "run", net=make, export="mxnet")
    folder = tmp_path / "run" / "export"
    names = str(folder / "model-symbol.json"), ["data"], str(folder / "model-0000.params")
    x = nd.array(IMAGES[:5, None]) / 255
    assert max_difference([gluon.SymbolBlock.imports(*names)(x).asnumpy()], [found.net(x).asnumpy()]) < 1e-6


class Fixed(gluon.HybridBlock):
    def __init__(self, classes):
        super().__init__()
        self.scores = nn.Dense(classes)

    def hybrid_forward(self, F, x):
        return self.scores(F.concat(F.flatten(x), F.zeros((1, 2)), dim=1))


def test_a_number_of_images_in_a_network_is_found_before_the_run(tmp_path):
    """https://github.com/apache/mxnet/issues/10875

    The right answer is a refusal; the shards of a run are not equal.
    """
    with pytest.raises(ModelError, match=r"for 3 images .*, and accept any number of images$"):
        run(tmp_path / "run", net=Fixed)


class Shapes(Fixed):
    def hybrid_forward(self, F, x):
        return self.scores(x.reshape((x.shape[0], -1)))


def test_a_shape_that_a_symbol_has_not(tmp_path):
    """https://github.com/apache/mxnet/issues/9288

    The right answer is a refusal.
    """
    with pytest.raises(ModelError, match=r"has no attribute 'shape': in hybrid_forward, use only F"):
        run(tmp_path / "run", net=Shapes)


def test_float16_is_a_setting_of_the_run(tmp_path):
    """https://github.com/apache/mxnet/pull/10391

    The right answer is a refusal that has the setting for it.
    """

    def make(classes):
        net = make_net(classes)
        net.cast("float16")
        return net

    with pytest.raises(ModelError, match=r"is float16, .*: remove cast.'float16'., .*--dtype f"):
        run(tmp_path / "run", net=make)


def test_statistics_of_constant_images_on_uneven_shards(tmp_path):
    """https://github.com/apache/mxnet/issues/14357

    The right values: after s steps the mean is (1 - 0.9^s) of the pixels', the variance 0.9^s.
    """

    def make(classes):
        net = nn.HybridSequential()
        net.add(nn.BatchNorm(), nn.Dense(classes))
        return net

    gray = np.full((40, SIDE, SIDE), 51, "uint8")
    found = run(tmp_path / "run", net=make, sync_bn=True, dataset=from_arrays(gray, LABELS[:40], gray, LABELS[:40]))
    left = 0.9**4  # 40 images in batches of 13, 13, 13 and 1
    norm = found.net[0]
    for ctx in norm.running_mean.list_ctx():
        assert norm.running_mean.data(ctx).asscalar() == pytest.approx(0.2 * (1 - left), rel=1e-5)
        assert norm.running_var.data(ctx).asscalar() == pytest.approx(left, rel=1e-5)
