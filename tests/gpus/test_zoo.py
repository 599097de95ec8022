"""A step of training of a network of each of gluoncv's families: no kernel is unknown.

Nothing is computed.
"""

import json

import pytest
from gpus.commands import run_python
from gpus.machines import v100s

FAMILIES = (
    "cifar_resnet20_v1", "cifar_wideresnet16_10", "cifar_resnext29_32x4d", "mobilenet0.25",
    "mobilenetv2_0.25", "mobilenetv3_small", "resnet18_v1", "resnet18_v1b", "resnet50_v1d",
    "resnet18_v2", "resnext50_32x4d", "se_resnext50_32x4d", "se_resnet18_v1", "senet_154",
    "densenet121", "squeezenet1.1", "alexnet", "vgg11_bn", "inceptionv3", "xception", "resnest14",
    "googlenet", "nasnet_4_1056", "darknet53", "residualattentionnet56", "hrnet_w18_small_v1_c",
)  # fmt: skip

STEP = """
import json, sys
import gluonlab
from mxnet import autograd, gluon, gpu, nd
from gluonlab.models import get_model
from gpus.simulated import faults, forget_faults

def step(name, dtype):
    net = get_model("gluoncv:" + name, 10)
    net.initialize(ctx=gpu(0))
    net.cast(dtype)
    net.hybridize()
    size = 32 if "cifar" in name else 299 if name in ("inceptionv3", "xception") else 224
    with autograd.record():
        scores = net(nd.zeros((2, 3, size, size), ctx=gpu(0), dtype=dtype))
        scores = scores[0] if isinstance(scores, (list, tuple)) else scores
        loss = gluon.loss.SoftmaxCELoss()(scores, nd.zeros((2,), ctx=gpu(0)))
    loss.backward()
    gluon.Trainer(net.collect_params(), "sgd", {"momentum": 0.9, "multi_precision": True}).step(2)
    nd.waitall()

found = {}
for name in sys.argv[1:]:
    for dtype in ("float32", "float16"):
        step(name, dtype)
        found[name + " " + dtype] = faults()
        forget_faults()
print(json.dumps(found))
"""


@pytest.mark.long
def test_a_step_of_every_family_meets_kernels_that_are_known(tmp_path):
    process = run_python(v100s(1, computes=False), tmp_path, "-c", STEP, *FAMILIES, timeout=900)
    assert process.returncode == 0, process.stderr
    result = json.loads(process.stdout)
    assert len(result) == 2 * len(FAMILIES)
    assert {name: faults for name, faults in result.items() if faults} == {}
