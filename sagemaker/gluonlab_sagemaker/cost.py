"""What something costs by sagemaker/prices.json, a table per region.

`prices --update` writes it from AWS's price list; its user may edit it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, NamedTuple, Optional

from gluonlab_sagemaker.errors import RefusedError

PRICES = Path(__file__).resolve().parent.parent / "prices.json"
PAGE = "https://aws.amazon.com/sagemaker/pricing/"
UPDATE = "python sagemaker/launch.py prices --update"
NOTEBOOKS, JOBS = "instance_hour", "training_hour"
NO_REGION = (None, "<region>")  # the latter in a rehearsal without one


class Cost(NamedTuple):
    """What a notebook costs, in ``currency``; None: unknown."""

    hour: Optional[float]
    volume_month: Optional[float]
    currency: str

    @property
    def day(self) -> Optional[float]:
        """24 hours of the machine, when nothing stops it."""
        return None if self.hour is None else 24 * self.hour


class Prices:
    """The table. A price that is null or not there is unknown, and is said to be."""

    def __init__(self, path: Path = PRICES) -> None:
        self._path = path
        try:
            table: Dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            self._regions: Dict[str, Any] = dict(table["regions"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RefusedError(
                f"{path}: {type(error).__name__}: {error}: mend the file, or take it from git again"
            ) from error

    def hour(self, instance: str, region: Optional[str], kind: str = NOTEBOOKS) -> Optional[float]:
        """The price of one instance for an hour, in the region's currency; None if unknown."""
        hours = self._region(region).get(kind) or {}
        return self._number(hours.get(instance), f"{region} {kind} {instance}")

    def cost(self, instance: str, volume_gb: int, region: Optional[str]) -> Cost:
        """What a notebook with such a volume costs."""
        month = self._volume(region)
        volume = None if month is None else month * volume_gb
        return Cost(self.hour(instance, region), volume, self.currency(region))

    def currency(self, region: Optional[str]) -> str:
        """Of the prices of a region."""
        return str(self._region(region).get("currency", "USD"))

    def notebook(self, instance: str, volume_gb: int, region: Optional[str]) -> str:
        """A sentence: what a notebook costs while it runs, and while it is stopped."""
        cost = self.cost(instance, volume_gb, region)
        volume = f"{volume_gb} GB of volume are paid until delete, also while it is stopped"
        if cost.volume_month is not None:
            volume += f", about {cost.volume_month:,.2f} {cost.currency} a month"
        if cost.hour is None:
            known = self._source(region) if cost.volume_month is not None else ""
            return f"cost: {self._unknown(instance, region)}; {volume}{known}"
        running = (
            f"about {cost.hour:,.2f} {cost.currency} an hour while it runs, "
            f"{cost.day:,.2f} a day if nothing stops it"
        )
        return f"cost: {running}; {volume}{self._source(region)}"

    def job(self, instance: str, hosts: int, longest_s: int, region: Optional[str]) -> str:
        """A sentence: what a training job costs an hour, and at most."""
        hour = self.hour(instance, region, JOBS)
        if hour is None:
            return f"cost: {self._unknown(instance, region, 'training on ')}"
        most, currency = hour * hosts * longest_s / 3600, self.currency(region)
        each = f"about {hour * hosts:,.2f} {currency} an hour on {hosts} x {instance}"
        return (
            f"cost: {each}, at most {most:,.2f} {currency} in {longest_s / 3600:g} "
            f"h{self._source(region)}"
        )

    def line(self, instance: str, region: Optional[str]) -> str:
        """A row of `prices`: an hour and a day of a notebook, an hour of training."""
        hour, training = self.hour(instance, region), self.hour(instance, region, JOBS)
        each = (hour, None if hour is None else 24 * hour, training)
        texts = ("unknown" if one is None else f"{one:,.2f}" for one in each)
        return f"{instance:<18}" + "".join(f"{text:>12}" for text in texts)

    def each(self, instance: str, region: Optional[str]) -> str:
        """An hour of a notebook in a few words."""
        hour = self.hour(instance, region)
        return "price unknown" if hour is None else f"{hour:,.2f} {self.currency(region)} an hour"

    def volume(self, region: Optional[str]) -> str:
        """The price of a GB of a notebook's volume for a month, as text."""
        price = self._volume(region)
        return "unknown" if price is None else f"{price:,.3f}"

    def _volume(self, region: Optional[str]) -> Optional[float]:
        here = self._region(region)
        return self._number(here.get("volume_gb_month"), f"{region} volume_gb_month")

    def about(self, region: Optional[str]) -> str:
        """Where the prices of a region come from, and of when they are."""
        here = self._region(region)
        if region in NO_REGION:
            return f"{self._path.name} has them by region: add --region REGION, such as us-east-1"
        if not here:
            return f"no prices of {region} in {self._path.name}: {self._ask(region)}"
        return f"{here.get('currency', 'USD')}, as of {here.get('date')}: {here.get('source')}"

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

    def _unknown(self, instance: str, region: Optional[str], of: str = "") -> str:
        if region in NO_REGION:
            return "it depends on the region: add --region REGION, such as us-east-1"
        # null: somebody has looked, and what was found is no price to plan with
        kind = JOBS if of else NOTEBOOKS
        doubtful = instance in (self._region(region).get(kind) or {})
        why = " (null: its sources do not agree)" if doubtful else ""
        where = f"in {region} in {self._path.name}{why}"
        return f"no price of {of}{instance} {where}: {self._ask(region)}"

    def _ask(self, region: Optional[str]) -> str:
        return f"{UPDATE} --region {region} asks AWS; see also {PAGE}"

    def _source(self, region: Optional[str]) -> str:
        date = self._region(region).get("date")
        return f" (an estimate, by the prices of {date} in {self._path.name})"
