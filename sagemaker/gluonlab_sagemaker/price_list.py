"""Prices from AWS's price list: the products of SageMaker in one region, from GetProducts.

The usage type of a product, such as ``USE1-Notebk:ml.g5.xlarge``, identifies the product. Other
attributes lack the instance type for some products.
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
from gluonlab_sagemaker.cost import JOB_PRICES, NOTEBOOK_PRICES, PRICES_FILE, PRICING_PAGE
from gluonlab_sagemaker.errors import AWSError

SERVICE = "AmazonSageMaker"
# An optional prefix names the region; us-east-1 has had none.
USAGE_PATTERN = re.compile(r"(?:[A-Z0-9]+-)?(Notebk|Train):(ml\.[a-z0-9-]+\.[a-z0-9]+|VolumeUsage\.gp\d)")
TABLE_KEYS = {"Notebk": NOTEBOOK_PRICES, "Train": JOB_PRICES}
UNITS = {"hour": ("hrs", "hours", "hour"), "month": ("gb-mo", "gb-month")}


class Price(NamedTuple):
    """An on-demand price of an instance for an hour, or of a GB of volume for a month."""

    kind: str  # Notebk or Train
    item: str  # ml.g5.xlarge, or VolumeUsage.gp2
    amount: float
    currency: str


def fetch_products(caller: Caller) -> List[Dict[str, Any]]:
    """Return all products of SageMaker in the caller's region."""
    filters = [{"Type": "TERM_MATCH", "Field": "regionCode", "Value": caller.region}]
    products = caller.list_all("pricing", "GetProducts", "PriceList", ServiceCode=SERVICE, Filters=filters)
    return [json.loads(item) if isinstance(item, str) else dict(item) for item in products]


def build_price_table(products: Iterable[Dict[str, Any]], region: Optional[str], today: str) -> Dict[str, Any]:
    """Build a region's table of prices.json; if an item has two prices, keep the higher.

    Raises AWSError if there are no prices, as in a region without SageMaker.
    """
    region_products = [product for product in products if _is_in_region(product, region)]
    prices = [price for product in region_products for price in _product_prices(product, today)]
    currency = _main_currency(prices)
    table: Dict[str, Any] = {NOTEBOOK_PRICES: {}, JOB_PRICES: {}, "volume_gb_month": None}
    for price in sorted(prices, key=lambda price: price.amount):
        if price.currency != currency:
            continue
        if not price.item.startswith("VolumeUsage"):
            table[TABLE_KEYS[price.kind]][price.item] = price.amount
        elif price.kind == "Notebk":
            table["volume_gb_month"] = price.amount
    if not table[NOTEBOOK_PRICES] and not table[JOB_PRICES]:
        raise AWSError(
            f"AWS's price list does not contain SageMaker instances in {region}: see {PRICING_PAGE}; prices.json is "
            "unchanged"
        )
    table.update({kind: dict(sorted(table[kind].items())) for kind in TABLE_KEYS.values()})
    dates = [str(product.get("publicationDate", "")) for product in region_products]
    date = max(dates, default="")[:10] or "at an unknown date"
    source = f"AWS's price list, GetProducts of {SERVICE}, published {date}"
    return {"date": today, "source": source, "currency": currency, **table}


def write_prices(region: Optional[str], table: Dict[str, Any], path: Path = PRICES_FILE) -> None:
    """Replace the prices of one region in the file."""
    prices = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    prices.setdefault("regions", {})[region] = table
    new_path = path.with_name(f"{path.name}.new")
    new_path.write_text(json.dumps(prices, indent=2) + "\n", encoding="utf-8")
    os.replace(new_path, path)


def utc_today() -> str:
    """Return the current date in UTC, such as 2026-11-27."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%d")


def _is_in_region(product: Dict[str, Any], region: Optional[str]) -> bool:
    # Some products have the name of their region, and no code.
    attributes = (product.get("product") or {}).get("attributes") or {}
    code = attributes.get("regionCode")
    return code == region if code else attributes.get("location") in _region_names(region)


def _region_names(region: Optional[str]) -> Tuple[str, ...]:
    """Return a region's names: ``Europe (Ireland)`` is ``EU (Ireland)`` in the price list."""
    partitions = botocore.session.get_session().get_data("endpoints")["partitions"]
    for partition in partitions:
        if region in partition["regions"]:
            name = partition["regions"][region]["description"]
            return name, name.replace("Europe (", "EU (")
    return ()


def _product_prices(product: Dict[str, Any], today: str) -> Iterator[Price]:
    """Yield the on-demand prices of a product, if it is an instance or a volume."""
    attributes = (product.get("product") or {}).get("attributes") or {}
    usage = USAGE_PATTERN.fullmatch(str(attributes.get("usagetype", "")))
    if not usage:
        return
    kind, item = usage.groups()
    units = UNITS["month" if item.startswith("VolumeUsage") else "hour"]
    for dimension in _price_dimensions(product, today):
        if str(dimension.get("unit", "")).lower() in units:
            for currency, text in (dimension.get("pricePerUnit") or {}).items():
                amount = _parse_amount(text)
                if amount:  # conditional free tiers are listed as 0
                    yield Price(kind, item, amount, currency)


def _price_dimensions(product: Dict[str, Any], today: str) -> List[Dict[str, Any]]:
    """Return the prices from the first unit on, in the newest on-demand terms in effect."""
    terms = ((product.get("terms") or {}).get("OnDemand") or {}).values()
    effective = [term for term in terms if str(term.get("effectiveDate", ""))[:10] <= today]
    if not effective:
        return []
    newest = max(effective, key=lambda term: str(term.get("effectiveDate", "")))
    dimensions = (newest.get("priceDimensions") or {}).values()
    return [item for item in dimensions if str(item.get("beginRange", "0")) == "0"]


def _main_currency(prices: List[Price]) -> str:
    """Return USD if any price is in USD, otherwise the first other currency by name."""
    currencies = sorted({price.currency for price in prices})
    return "USD" if "USD" in currencies or not currencies else currencies[0]


def _parse_amount(text: Any) -> Optional[float]:
    try:
        amount = float(text)
    except (TypeError, ValueError):
        return None
    return amount if 0 < amount < float("inf") else None
