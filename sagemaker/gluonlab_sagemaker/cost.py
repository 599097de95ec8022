"""What something costs by sagemaker/prices.json, a table per region that its user edits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Optional

from gluonlab_sagemaker.errors import RefusedError

PRICES = Path(__file__).resolve().parent.parent / "prices.json"


class Prices:
    """The table. A price that is null or not there is unknown, and is said to be."""

    def __init__(self, path: Path = PRICES) -> None:
        self._path = path
        try:
            self._table: Dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            self.currency, self._of = str(self._table["currency"]), f"of {self._table['date']}"
            self._regions: Dict[str, Any] = dict(self._table["regions"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RefusedError(
                f"{path}: {type(error).__name__}: {error}: mend the file, or take it from git again"
            ) from error

    def hour(self, instance: str, region: Optional[str]) -> Optional[float]:
        """The price of one instance for an hour, in ``currency``; None if unknown."""
        return self._number(
            self._region(region).get("instance_hour", {}).get(instance), f"{region} {instance}"
        )

    def notebook(self, instance: str, volume_gb: int, region: Optional[str]) -> str:
        """A sentence: what a notebook costs while it runs, and while it is stopped."""
        hour = self.hour(instance, region)
        month = self._number(
            self._region(region).get("volume_gb_month"), f"{region} volume_gb_month"
        )
        running = (
            self._unknown(instance, region)
            if hour is None
            else f"about {hour:,.2f} {self.currency} an hour while it runs"
        )
        volume = f"{volume_gb} GB of volume are paid until delete"
        volume += (
            f", about {month * volume_gb:,.2f} {self.currency} a month" if month is not None else ""
        )
        return f"cost: {running}; {volume}{self._note(hour, month)}"

    def job(self, instance: str, hosts: int, longest_s: int, region: Optional[str]) -> str:
        """A sentence: what a training job costs an hour, and at most."""
        hour = self.hour(instance, region)
        if hour is None:
            return f"cost: {self._unknown(instance, region)}"
        most = hour * hosts * longest_s / 3600
        each = f"about {hour * hosts:,.2f} {self.currency} an hour on {hosts} x {instance}"
        return (
            f"cost: {each}, at most {most:,.2f} {self.currency} in {longest_s / 3600:g} "
            f"h{self._note(hour)}"
        )

    def _region(self, region: Optional[str]) -> Dict[str, Any]:
        found = self._regions.get(region or "") or {}
        if not isinstance(found, dict):
            raise RefusedError(f"{self._path}: {region}: {found!r} is not a table of prices")
        return found

    def _number(self, price: Any, where: str) -> Optional[float]:
        if price is None:
            return None
        if (
            isinstance(price, bool)
            or not isinstance(price, (int, float))
            or not 0 <= price < float("inf")
        ):
            raise RefusedError(
                f"{self._path}: {where}: {price!r} is not a price: "
                "write a number, or null for unknown"
            )
        return float(price)

    def _unknown(self, instance: str, region: Optional[str]) -> str:
        where = f"in {region or 'this region'} in {self._path.name}"
        return f"no price of {instance} {where} (see {self._table.get('check', 'AWS')})"

    def _note(self, *prices: Optional[float]) -> str:
        if all(price is None for price in prices):
            return ""
        return (
            f" (an estimate, by the prices {self._of} in {self._path.name}, which is yours to edit)"
        )
