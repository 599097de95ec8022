"""Costs of notebooks and jobs by sagemaker/prices.json, which has a table for each region.

`prices --update` writes the file from AWS's price list. Users may edit the file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, NamedTuple, Optional

from gluonlab_sagemaker.errors import RefusedError

PRICES_FILE = Path(__file__).resolve().parent.parent / "prices.json"
PRICING_PAGE = "https://aws.amazon.com/sagemaker/pricing/"
UPDATE_COMMAND = "python sagemaker/launch.py prices --update"
NOTEBOOK_PRICES, JOB_PRICES = "instance_hour", "training_hour"
UNKNOWN_REGIONS = (None, "<region>")  # the latter in a dry run without --region


class NotebookCost(NamedTuple):
    """Prices of a notebook in ``currency``; None if unknown."""

    hour_price: Optional[float]
    volume_month_price: Optional[float]
    currency: str

    @property
    def day_price(self) -> Optional[float]:
        """Return the price of 24 hours of the machine."""
        return None if self.hour_price is None else 24 * self.hour_price


class Prices:
    """The prices of `prices.json`; a price that is null or missing is unknown."""

    def __init__(self, path: Path = PRICES_FILE) -> None:
        self._path = path
        try:
            table: Dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            self._regions: Dict[str, Any] = dict(table["regions"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RefusedError(
                f"{path}: {type(error).__name__}: {error}: fix the file, or restore it from git"
            ) from error

    def hour_price(self, instance: str, region: Optional[str], kind: str = NOTEBOOK_PRICES) -> Optional[float]:
        """Return the price of one instance for an hour, in the region's currency."""
        hours = self._region_prices(region).get(kind) or {}
        return self._check_price(hours.get(instance), f"{region} {kind} {instance}")

    def notebook_cost(self, instance: str, volume_gb: int, region: Optional[str]) -> NotebookCost:
        """Return the cost of a notebook with a volume of ``volume_gb``."""
        gb_month_price = self._gb_month_price(region)
        volume_price = None if gb_month_price is None else gb_month_price * volume_gb
        return NotebookCost(self.hour_price(instance, region), volume_price, self.currency(region))

    def currency(self, region: Optional[str]) -> str:
        """Return the currency of a region's prices."""
        return str(self._region_prices(region).get("currency", "USD"))

    def describe_notebook_cost(self, instance: str, volume_gb: int, region: Optional[str]) -> str:
        """Describe in a sentence the cost of a notebook, both running and stopped."""
        cost = self.notebook_cost(instance, volume_gb, region)
        volume = f"{volume_gb} GB of volume cost money until you delete the notebook, even if it is stopped"
        if cost.volume_month_price is not None:
            volume += f", about {cost.volume_month_price:,.2f} {cost.currency} per month"
        if cost.hour_price is None:
            note = self._estimate_note(region) if cost.volume_month_price is not None else ""
            return f"cost: {self._describe_unknown_price(instance, region)}; {volume}{note}"
        running = (
            f"about {cost.hour_price:,.2f} {cost.currency} per hour while it runs, {cost.day_price:,.2f} per day if "
            "nothing stops it"
        )
        return f"cost: {running}; {volume}{self._estimate_note(region)}"

    def describe_job_cost(self, instance: str, hosts: int, max_runtime_s: int, region: Optional[str]) -> str:
        """Describe in a sentence the cost of a training job for an hour, and its upper bound."""
        hour = self.hour_price(instance, region, JOB_PRICES)
        if hour is None:
            return f"cost: {self._describe_unknown_price(instance, region, 'training on ')}"
        max_cost, currency = hour * hosts * max_runtime_s / 3600, self.currency(region)
        return (
            f"cost: about {hour * hosts:,.2f} {currency} per hour on {hosts} x {instance}, at most {max_cost:,.2f} "
            f"{currency} in {max_runtime_s / 3600:g} h{self._estimate_note(region)}"
        )

    def format_row(self, instance: str, region: Optional[str]) -> str:
        """Format a row of `prices`: an hour and a day of a notebook, an hour of training."""
        hour = self.hour_price(instance, region)
        training = self.hour_price(instance, region, JOB_PRICES)
        prices = (hour, None if hour is None else 24 * hour, training)
        texts = ("unknown" if price is None else f"{price:,.2f}" for price in prices)
        return f"{instance:<18}" + "".join(f"{text:>12}" for text in texts)

    def describe_hour_price(self, instance: str, region: Optional[str]) -> str:
        """Format the price of a notebook for an hour."""
        if region in UNKNOWN_REGIONS:
            return "price: add --region"
        hour = self.hour_price(instance, region)
        return "price unknown" if hour is None else f"{hour:,.2f} {self.currency(region)} per hour"

    def format_gb_month_price(self, region: Optional[str]) -> str:
        """Format the price of a GB of a notebook's volume for a month."""
        price = self._gb_month_price(region)
        return "unknown" if price is None else f"{price:,.3f}"

    def _gb_month_price(self, region: Optional[str]) -> Optional[float]:
        prices = self._region_prices(region)
        return self._check_price(prices.get("volume_gb_month"), f"{region} volume_gb_month")

    def describe_source(self, region: Optional[str]) -> str:
        """Describe the currency, date and source of a region's prices."""
        prices = self._region_prices(region)
        if region in UNKNOWN_REGIONS:
            return f"{self._path.name} lists prices by region: add --region REGION, such as us-east-1"
        if not prices:
            return f"{self._path.name} does not contain prices for {region}: {self._update_hint(region)}"
        currency = self.currency(region)
        return f"{currency}, as of {prices.get('date')}: {prices.get('source')}"

    def _region_prices(self, region: Optional[str]) -> Dict[str, Any]:
        prices = self._regions.get(region or "") or {}
        if not isinstance(prices, dict):
            raise RefusedError(
                f"{self._path}: {region}: {prices!r} is not a table of prices: fix the file, or restore it from git"
            )
        return prices

    def _check_price(self, price: Any, location: str) -> Optional[float]:
        if price is None:
            return None
        if isinstance(price, bool) or not isinstance(price, (int, float)) or not 0 <= price < float("inf"):
            raise RefusedError(
                f"{self._path}: {location}: {price!r} is not a price: write a number, or null for unknown"
            )
        return float(price)

    def _describe_unknown_price(self, instance: str, region: Optional[str], purpose: str = "") -> str:
        if region in UNKNOWN_REGIONS:
            return "the price depends on the region: add --region REGION, such as us-east-1"
        kind = JOB_PRICES if purpose else NOTEBOOK_PRICES
        # An entry of null means that sources were compared and contradict each other.
        is_null = instance in (self._region_prices(region).get(kind) or {})
        reason = " (null: the sources disagree)" if is_null else ""
        return (
            f"{self._path.name} does not contain a price for {purpose}{instance} in {region}{reason}: "
            f"{self._update_hint(region)}"
        )

    def _update_hint(self, region: Optional[str]) -> str:
        return f"run {UPDATE_COMMAND} --region {region} to ask AWS, or see {PRICING_PAGE}"

    def _estimate_note(self, region: Optional[str]) -> str:
        date = self._region_prices(region).get("date")
        return f" (estimated from the prices of {date} in {self._path.name})"
