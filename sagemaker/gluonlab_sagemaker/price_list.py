"""Prices from AWS itself: the products of SageMaker in one region, as GetProducts lists them.

What a product is, is read from its usage type, such as ``USE1-Notebk:ml.g5.xlarge``: the names of
instances stand in several attributes, and are missing from some.
"""

from __future__ import annotations

import json
import os
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

import botocore.session

from gluonlab_sagemaker.calls import Caller
from gluonlab_sagemaker.cost import JOBS, NOTEBOOKS, PAGE, PRICES
from gluonlab_sagemaker.errors import AWSError

SERVICE = "AmazonSageMaker"
# before it, the region's prefix in bills; us-east-1 has had none
USAGE = re.compile(r"(?:[A-Z0-9]+-)?(Notebk|Train):(ml\.[a-z0-9-]+\.[a-z0-9]+|VolumeUsage\.gp\d)")
TABLES = {"Notebk": NOTEBOOKS, "Train": JOBS}
UNITS = {"hour": ("hrs", "hours", "hour"), "month": ("gb-mo", "gb-month")}


class Price(NamedTuple):
    """One price on demand: of an instance for an hour, or of a GB of volume for a month."""

    kind: str  # Notebk or Train
    what: str  # ml.g5.xlarge, or VolumeUsage.gp2
    amount: float
    currency: str


def ask(caller: Caller) -> List[Dict[str, Any]]:
    """All products of SageMaker in the caller's region."""
    here = [{"Type": "TERM_MATCH", "Field": "regionCode", "Value": caller.region}]
    found = caller.all("pricing", "GetProducts", "PriceList", ServiceCode=SERVICE, Filters=here)
    return [json.loads(one) if isinstance(one, str) else dict(one) for one in found]


def table(products: Iterable[Dict[str, Any]], region: Optional[str], today: str) -> Dict[str, Any]:
    """What prices.json holds of a region; of two prices of one thing, the higher.

    AWSError where there are none, as for a region without SageMaker.
    """
    listed = [one for one in products if _is_in(one, region)]
    prices = [price for one in listed for price in _prices(one, today)]
    currency = _main_currency(prices)
    made: Dict[str, Any] = {NOTEBOOKS: {}, JOBS: {}, "volume_gb_month": None}
    for price in sorted(prices, key=lambda price: price.amount):
        if price.currency != currency:
            continue
        if not price.what.startswith("VolumeUsage"):
            made[TABLES[price.kind]][price.what] = price.amount
        elif price.kind == "Notebk":
            made["volume_gb_month"] = price.amount
    if not made[NOTEBOOKS] and not made[JOBS]:
        raise AWSError(
            f"AWS's price list has no instances of SageMaker in {region}: see {PAGE}; "
            "prices.json is as it was"
        )
    made.update({kind: dict(sorted(made[kind].items())) for kind in TABLES.values()})
    published = max((str(one.get("publicationDate", "")) for one in listed), default="")[:10]
    source = f"AWS's price list, GetProducts of {SERVICE}, published {published or 'at no date'}"
    return {"date": today, "source": source, "currency": currency, **made}


def write(region: Optional[str], made: Dict[str, Any], path: Path = PRICES) -> None:
    """Put the prices of a region into the file; those of others stay."""
    whole = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    whole.setdefault("regions", {})[region] = made
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    os.replace(beside, path)


def utc_today() -> str:
    """The date as it is in UTC, such as 2026-11-27."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%d")


def _is_in(product: Dict[str, Any], region: Optional[str]) -> bool:
    """By its region's code; where that is missing, by its region's name."""
    attributes = (product.get("product") or {}).get("attributes") or {}
    code = attributes.get("regionCode")
    return code == region if code else attributes.get("location") in _names(region)


def _names(region: Optional[str]) -> Tuple[str, ...]:
    """``Europe (Ireland)``, which the price list calls ``EU (Ireland)``."""
    partitions = botocore.session.get_session().get_data("endpoints")["partitions"]
    for one in partitions:
        if region in one["regions"]:
            name = one["regions"][region]["description"]
            return name, name.replace("Europe (", "EU (")
    return ()


def _prices(product: Dict[str, Any], today: str) -> Iterator[Price]:
    """The prices on demand of one product; none of a product that is something else."""
    attributes = (product.get("product") or {}).get("attributes") or {}
    usage = USAGE.fullmatch(str(attributes.get("usagetype", "")))
    if not usage:
        return
    kind, what = usage.groups()
    units = UNITS["month" if what.startswith("VolumeUsage") else "hour"]
    for dimension in _dimensions(product, today):
        if str(dimension.get("unit", "")).lower() in units:
            for currency, text in (dimension.get("pricePerUnit") or {}).items():
                amount = _number(text)
                if amount:  # what is free on some condition is listed as 0
                    yield Price(kind, what, amount, currency)


def _dimensions(product: Dict[str, Any], today: str) -> List[Dict[str, Any]]:
    """Of the newest terms on demand that hold by now, the prices from the first unit on."""
    terms = ((product.get("terms") or {}).get("OnDemand") or {}).values()
    holding = [one for one in terms if str(one.get("effectiveDate", ""))[:10] <= today]
    if not holding:
        return []
    newest = max(holding, key=lambda one: str(one.get("effectiveDate", "")))
    found = (newest.get("priceDimensions") or {}).values()
    return [one for one in found if str(one.get("beginRange", "0")) == "0"]


def _main_currency(prices: List[Price]) -> str:
    """USD if there is any price in it, else the only other, the first by name if several."""
    found = sorted({price.currency for price in prices})
    return "USD" if "USD" in found or not found else found[0]


def _number(text: Any) -> Optional[float]:
    try:
        amount = float(text)
    except (TypeError, ValueError):
        return None
    return amount if 0 < amount < float("inf") else None
