"""Remembers which gluon.Trainer a store updates for: one at a time.

Another Trainer takes the store over, and the first may take it back.
"""

from __future__ import annotations

from typing import Any, Optional
from weakref import ReferenceType, WeakKeyDictionary, ref

from mxnet import gluon


class Owner:
    """The Trainer that gave ``store`` its optimizer last, if it was a Trainer."""

    def __init__(self, store: Any) -> None:
        self._store = ref(store)
        self._present: "Optional[ReferenceType[gluon.Trainer]]" = None
        self._trainers: "WeakKeyDictionary[Any, ReferenceType[gluon.Trainer]]" = WeakKeyDictionary()

    @property
    def known(self) -> bool:
        """Whether a Trainer gave the optimizer last; it may be gone."""
        return self._present is not None

    @property
    def trainer(self) -> Optional[gluon.Trainer]:
        """The Trainer, if it still exists and still uses the store."""
        trainer = self._present() if self._present is not None else None
        used = trainer is not None and trainer._kvstore in (None, self._store())
        return trainer if used else None

    def take(self, optimizer: Any) -> Optional[gluon.Trainer]:
        """Make the Trainer of ``optimizer`` the owner.

        Returns it, or None for an optimizer without one.
        """
        trainer = self._of(optimizer)
        if trainer is None or trainer is not self.trainer:
            self.release()
        self._present = ref(trainer) if trainer is not None else None
        return trainer

    def release(self) -> None:
        """Have the owner give its weights and optimizer to the store anew in its next step.

        gluon.Parameter.set_data has the same effect.
        """
        trainer = self.trainer
        if trainer is not None and trainer._kvstore is not None:
            trainer._reset_kvstore()
        self._present = None

    def _of(self, optimizer: Any) -> Optional[gluon.Trainer]:
        for param in optimizer.param_dict.values():
            trainer = getattr(param, "_trainer", None)
            if trainer is not None and trainer._optimizer is optimizer:
                self._trainers[optimizer] = ref(trainer)
        trainer_ref = self._trainers.get(optimizer)
        return trainer_ref() if trainer_ref is not None else None
