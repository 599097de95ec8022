"""The number of examples of a property: fewer in `make test` than in `make test-all`."""

from hypothesis import settings


def examples(few, usual=100):
    """Return the settings of a property with many or expensive examples.

    Args:
        few: examples in `make test`, which takes the same ones every time.
        usual: examples with a profile that draws new ones each time, as `make test-all` does.
    """
    return settings(max_examples=few if settings.default.derandomize else usual)
