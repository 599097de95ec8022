"""python tools/fit_prediction.py: the constants of predictions, fitted to published speeds anew.

Prints what gluonlab/prediction/constants.py should hold; tests/prediction/test_fit.py compares.
"""

import gluonlab  # noqa: F401  before MXNet
from gluonlab.prediction.fit import fit


def main():
    models = fit()
    for name, fitted in (("FITTED", models.constants), ("FITTED_THEN", models.then)):
        values = ", ".join(
            "%s=%.4g" % (field, value) for field, value in zip(fitted._fields, fitted)
        )
        print("%s = %s(%s)" % (name, type(fitted).__name__, values))


if __name__ == "__main__":
    main()
