"""CTCLoss on simulated GPUs, beside MXNet's on the CPU and the sum over all paths."""

import itertools

import numpy as np
from gpus.compared import assert_same, draw_array
from hypothesis import assume, given
from hypothesis import strategies as st
from mxnet import gpu, nd
from mxnet.gluon.loss import CTCLoss

sizes = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 4),
        "times": st.integers(1, 12),
        "letters": st.integers(2, 6),
        "longest": st.integers(1, 5),
    }
)


def draw_labels(sizes, seed):
    """Letters of the alphabet, and -1 behind the last of a label."""
    random = np.random.RandomState(seed)
    labels = random.randint(0, sizes["letters"] - 1, (sizes["batch"], sizes["longest"]))
    counts = random.randint(1, sizes["longest"] + 1, sizes["batch"])
    labels[np.arange(sizes["longest"]) >= counts[:, None]] = -1
    return labels, counts


def has_enough_time(labels, lengths):
    """Whether there is time for all letters, and for a blank between equal ones."""
    pairs = ((labels[:, 1:] == labels[:, :-1]) & (labels[:, 1:] >= 0)).sum(axis=1)
    return ((labels >= 0).sum(axis=1) + pairs <= lengths).all()


@given(sizes=sizes, seed=st.integers(0, 99), layout=st.sampled_from(["NTC", "TNC"]), lengths_known=st.booleans())
def test_the_loss_and_its_gradient_are_those_of_the_cpu(sizes, seed, layout, lengths_known):
    labels, counts = draw_labels(sizes, seed)
    lengths = (
        np.random.RandomState(seed).randint(1, sizes["times"] + 1, sizes["batch"]) if lengths_known else sizes["times"]
    )
    assume(labels.shape[1] <= sizes["times"] and has_enough_time(labels, lengths))
    scores = draw_array(sizes["batch"], sizes["times"], sizes["letters"], seed=seed)

    def loss(scores):
        on = {"ctx": scores.context}
        others = [nd.array(lengths, **on), nd.array(counts, **on)] if lengths_known else []
        return CTCLoss(layout=layout)(scores, nd.array(labels, **on), *others)

    assert_same(loss, scores if layout == "NTC" else scores.transpose(1, 0, 2))


@given(seed=st.integers(0, 99), label=st.lists(st.integers(0, 1), min_size=1, max_size=3), times=st.integers(1, 5))
def test_the_loss_is_that_of_all_paths_which_spell_the_label(seed, label, times):
    """The last of the three letters is the blank."""
    assume(len(label) <= times and has_enough_time(np.array([label]), times))
    scores = draw_array(1, times, 3, seed=seed)
    probabilities = np.exp(scores[0]) / np.exp(scores[0]).sum(axis=1, keepdims=True)
    whole = 0
    for path in itertools.product(range(3), repeat=times):
        spelled = [letter for letter, _ in itertools.groupby(path) if letter != 2]
        whole += probabilities[range(times), path].prod() * (spelled == label)
    result = CTCLoss()(nd.array(scores, ctx=gpu(0)), nd.array([label], ctx=gpu(0))).asscalar()
    np.testing.assert_allclose(result, -np.log(whole), rtol=1e-4, atol=1e-5)
