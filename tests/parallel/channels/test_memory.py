"""What split channels take, planned, is what MXNet allocates for them."""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mxnet import nd
from support.devices import contexts
from support.splits import IMAGE, chains, make_chain, plan_for, softmax, split_of
from support.storage import counted, most_counted

from gluonlab.data.loading.batch import whole
from gluonlab.errors import ModelError
from gluonlab.kvstores.groups import ALONE
from gluonlab.parallel.channels.strategy import channel_parallel
from gluonlab.parallel.data.microbatches import Microbatches
from gluonlab.parallel.planned import Shards

WITHIN = 0.05  # of what MXNet has allocated
NOTED = 4096  # bytes: sums of losses, rates, and gaps between the parameters of a bucket

cases = st.fixed_dictionaries(
    {
        # none with frozen layers: MXNet plans gradients in vain there
        "chain": chains.map(lambda drawn: (*drawn[:2], False, drawn[3])),
        "ways": st.integers(2, most_counted(3)), "microbatches": st.sampled_from([None, 3]),
        "channels": st.sampled_from(["both", "column", "row"]), "share": st.integers(100, 200),
        "last": st.integers(1, 100),
    }
)  # fmt: skip


def of_bytes(F, images):
    return F.cast(images, "float32") / 255


@pytest.mark.cpu_only("MXNet counts what CPUs have allocated")
@given(cases)
@settings(max_examples=12, deadline=None)
@pytest.mark.long
def test_what_channels_take_is_what_mxnet_allocates_for_them(case):
    if mx.runtime.Features().is_enabled("CUDA"):
        return  # with that build, tests/gpus/test_stage_memory.py counts what GPUs have
    ctxs = contexts(4)[1:][: case["ways"]]  # cpu(0) has the scratch memory of all
    layout = split_of("channels", ctxs, len(ctxs), channels=case["channels"], share=case["share"])
    plan = plan_for(layout, microbatches=Microbatches(case["microbatches"]), preprocess=of_bytes)
    batches = [
        whole(
            [nd.array(np.zeros((images, *IMAGE)), ctx=ctxs[0], dtype="uint8")],
            [nd.zeros((images,), ctx=ctxs[0], dtype="int32")],
        )
        for images in (case["share"], case["last"])
    ]

    def make(of, start=None):
        return make_chain(case["chain"], start or of)

    made = []
    try:
        with counted(ctxs) as allocated:
            made.append(channel_parallel(make, softmax(), plan, ALONE))
            for batch in [*batches, batches[0]]:
                made[0].step(batch)
    except ModelError as error:
        assert "no layer has channels for" in str(error)
        assume(False)
    # of the images, whose gradient nobody wants, MXNet plans one
    in_vain = 4 * plan.microbatches.largest(case["share"]) * int(np.prod(IMAGE))
    for taken, bytes_of_device in zip(
        made[0].taken(Shards((case["share"], case["last"]))), allocated
    ):
        told = sum(taken)
        assert told - in_vain - NOTED < (1 + WITHIN) * bytes_of_device
        assert told + NOTED > (1 - WITHIN) * bytes_of_device
