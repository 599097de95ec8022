"""Fuzzing with random inputs: few in make test, thousands in make fuzz."""

from collections import Counter
from contextlib import contextmanager

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from gluonlab.errors import GluonlabError
from gluonlab.plain_text import one_line
from support.damage import JSON_VALUES

SHARE = 12  # each kind of input gets this fraction of a profile's examples
INPUT_COUNTS = Counter()  # kind -> inputs

# Texts in the place of a name, a number or a path.
WORDS = (
    st.text(max_size=12)
    | st.text("0123456789.,:*-+e()[]{}|\\/ acgpu", max_size=16)
    | st.sampled_from(["", " ", "-", "--", "nan", "inf", "-inf", "1e999", "0x10", "1_0", "\u0663"])
    | st.sampled_from(["cpu", "gpu", "cpu*", "cpu:[", "gpu:(", "../..", "/dev/null", "none", "2bit:"])
    | st.integers(1, 6000).flatmap(lambda n: st.sampled_from("a9[(,*:/").map(lambda c: c * n))
)
VALUES = WORDS | JSON_VALUES | st.binary(max_size=6) | st.complex_numbers() | st.lists(WORDS, max_size=3)


def fuzz_property(function):
    """Decorate a property with its share of the profile's examples."""
    examples = max(1, settings().max_examples // SHARE)
    quiet = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
    return settings(max_examples=examples, suppress_health_check=quiet)(function)


@contextmanager
def allow_gluonlab_errors(kind):
    """Allow GluonlabError only, and check that its message is one printable line."""
    INPUT_COUNTS[kind] += 1
    try:
        yield
    except GluonlabError as error:
        assert one_line(str(error)).isprintable() and str(error).strip()
