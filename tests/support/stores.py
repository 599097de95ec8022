"""The kvstores of parametrized tests."""

import pytest

from gluonlab.kvstores import KVSTORES

STORES = [name for name, kind in KVSTORES.items() if not kind.gpus_only]
FROM_SCRATCH = [name for name in STORES if name not in ("device", "local")]
FAST_STORES = ("device", "local", "double_tree", "ring", "sharded-optimizer")
# For slow tests: FAST_STORES in make test, all stores in make test-all.
STORE_CASES = [name if name in FAST_STORES else pytest.param(name, marks=pytest.mark.long) for name in STORES]
