"""prices --update: AWS's price list, as its API has it, becomes prices.json.

No answer of AWS was recorded: the products are built after its documented shape (the price list's
example of GetProducts and usage types of bills), and botocore's Stubber holds each page against
the model of the service. All amounts are made up.
"""

import json
import re

import pytest
from launch_world import SAGEMAKER

from gluonlab_sagemaker import cost, price_list
from gluonlab_sagemaker.calls import service_region
from gluonlab_sagemaker.cost import Prices

TODAY = "2026-11-27"
HERE = {"regionCode": "us-east-1", "location": "US East (N. Virginia)"}


def term(amounts, since="2026-11-01T00:00:00Z", unit="Hrs", first="0"):
    dimension = dict(unit=unit, beginRange=first, endRange="Inf", description="made up", pricePerUnit=amounts)
    return {"effectiveDate": since, "priceDimensions": {"X.T.D": dimension}, "termAttributes": {}}


def product(usage, *terms, published="2026-11-20T00:00:00Z", reserved=None, **attributes):
    offers = {"OnDemand": {f"X.T{number}": item for number, item in enumerate(terms)}}
    if reserved:
        offers["Reserved"] = {"X.R": reserved}
    attributes = {**HERE, "usagetype": usage, **attributes}
    return {
        "product": {"productFamily": "ML Instance", "sku": "X", "attributes": attributes},
        "serviceCode": "AmazonSageMaker", "terms": offers, "version": "1", "publicationDate": published,
    }  # fmt: skip


def usd(amount, **more):
    return term({"USD": f"{amount:.10f}"}, **more)


LISTED = [
    product("USE1-Notebk:ml.g5.xlarge", usd(1.5)),
    product("USE1-Train:ml.g5.xlarge", usd(1.6)),
    product("Notebk:ml.t3.xlarge", usd(0.2)),  # as us-east-1 is written in old bills
    product("USE1-Notebk:VolumeUsage.gp2", usd(0.15, unit="GB-Mo")),
    product("USE1-Train:VolumeUsage.gp2", usd(0.99, unit="GB-Mo")),
    product("USE1-TrSpt:ml.g5.xlarge", usd(0.01)),
    product("USE1-Host:ml.g5.xlarge", usd(9)),
    product("USE1-Studio:JupyterLab-ml.g5.xlarge", usd(9)),
]


def build_table(*products, region="us-east-1"):
    return price_list.build_price_table(products, region, TODAY)


@pytest.fixture
def file(tmp_path, monkeypatch):
    """prices.json, of this test, with another region in it."""
    path = tmp_path / "prices.json"
    other = {"date": "2020-02-02", "source": "x", "currency": "EUR", "instance_hour": {"ml.x": 1}}
    path.write_text(json.dumps({"regions": {"eu-west-1": other}}))
    monkeypatch.setattr(price_list.write_prices, "__defaults__", (path,))
    monkeypatch.setattr(cost.Prices.__init__, "__defaults__", (path,))
    return path


def test_all_pages_become_the_table_with_date_and_source(launch_stubbed, aws, log, file):
    pages = LISTED[:3], LISTED[3:5], LISTED[5:]
    for number, page in enumerate(pages):
        more = {"NextToken": f"page {number + 1}"} if number < 2 else {}
        aws.answer("get_products", {"PriceList": [*map(json.dumps, page)], **more}, "pricing")
    status, out, _ = launch_stubbed("prices", "--update")
    assert status == 0
    assert [given.get("NextToken") for _, _, given in log.calls] == [None, "page 1", "page 2"]
    assert log.calls[0][2] == {
        "ServiceCode": "AmazonSageMaker",
        "Filters": [{"Type": "TERM_MATCH", "Field": "regionCode", "Value": "us-east-1"}],
    }
    regions = json.loads(file.read_text())["regions"]
    assert sorted(regions) == ["eu-west-1", "us-east-1"]
    here = regions["us-east-1"]
    assert here.pop("date") == price_list.utc_today()
    assert here == {
        "source": "AWS's price list, GetProducts of AmazonSageMaker, published 2026-11-20",
        "currency": "USD",
        "instance_hour": {"ml.g5.xlarge": 1.5, "ml.t3.xlarge": 0.2},
        "training_hour": {"ml.g5.xlarge": 1.6},
        "volume_gb_month": 0.15,
    }
    assert "received the prices of 2 instance types for notebooks in us-east-1" in out
    assert "ml.g5.xlarge              1.50       36.00        1.60" in out
    assert Prices(file).hour_price("ml.g5.xlarge", "us-east-1") == 1.5
    assert sorted(file.parent.iterdir()) == [file]


def test_what_aws_does_not_say_leaves_the_file_as_it_was(launch_stubbed, aws, file):
    before = file.read_bytes()
    aws.answer("get_products", {"PriceList": []}, "pricing")
    status, _, err = launch_stubbed("prices", "--update")
    assert (status, file.read_bytes()) == (1, before)
    assert "AWS's price list does not contain SageMaker instances in us-east-1" in err
    aws.answer("get_products", {"PriceList": [json.dumps(LISTED[0])], "NextToken": "x"}, "pricing")
    denied = "User: ada is not authorized to perform: pricing:GetProducts"
    aws.refuse("get_products", "AccessDeniedException", denied, "pricing")
    status, _, err = launch_stubbed("prices", "--update")
    assert (status, file.read_bytes()) == (1, before)
    assert "these credentials do not allow pricing:GetProducts" in err


def test_reserved_terms_are_no_prices_on_demand():
    reserved = {**usd(0.5), "termAttributes": {"LeaseContractLength": "1yr"}}
    only_reserved = product("USE1-Notebk:ml.g5.2xlarge", reserved=reserved)
    both = product("USE1-Notebk:ml.g5.xlarge", usd(1.5), reserved=reserved)
    assert build_table(both, only_reserved)["instance_hour"] == {"ml.g5.xlarge": 1.5}


def test_the_newest_term_that_holds_by_now_counts():
    terms = usd(3, since="2025-01-01T00:00:00Z"), usd(2, since="2026-06-01T00:00:00Z")
    coming = usd(1, since="2026-12-01T00:00:00Z")
    listed = product("USE1-Notebk:ml.g5.xlarge", terms[1], coming, terms[0])
    assert build_table(listed)["instance_hour"] == {"ml.g5.xlarge": 2}


def test_of_several_currencies_dollars_count_and_yuan_where_there_are_no_others():
    both = product("USE1-Notebk:ml.g5.xlarge", term({"CNY": "10.0", "USD": "1.5"}))
    yuan = product("USE1-Notebk:ml.g5.2xlarge", term({"CNY": "20.0"}))
    assert build_table(both, yuan)["instance_hour"] == {"ml.g5.xlarge": 1.5}
    china = {"regionCode": "cn-north-1", "location": "China (Beijing)"}
    there = product("CNN1-Notebk:ml.g4dn.xlarge", term({"CNY": "7.5"}), **china)
    table = build_table(there, region="cn-north-1")
    assert (table["currency"], table["instance_hour"]) == ("CNY", {"ml.g4dn.xlarge": 7.5})
    assert service_region("pricing", "cn-north-1") == "cn-northwest-1"
    assert service_region("pricing", "eu-west-1") == "us-east-1"
    assert service_region("sagemaker", "eu-west-1") == "eu-west-1"


@pytest.mark.parametrize(
    ("code", "location", "counts"),
    [
        ("eu-west-1", "EU (Ireland)", True),
        (None, "EU (Ireland)", True),
        (None, "Europe (Ireland)", True),
        (None, "EU (London)", False),
        (None, None, False),
        ("us-east-1", "EU (Ireland)", False),
    ],
)
def test_a_region_is_known_by_its_code_or_else_by_its_name(code, location, counts):
    kept = product("EU-Notebk:ml.g4dn.xlarge", usd(1), regionCode="eu-west-1")
    other = product("EU-Notebk:ml.g5.xlarge", usd(1.7), regionCode=code, location=location)
    result = build_table(kept, other, region="eu-west-1")["instance_hour"]
    assert ("ml.g5.xlarge" in result) == counts


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"product": None, "terms": None},
        {"product": {"attributes": {**HERE, "usagetype": "USE1-Notebk:ml.x.y"}}},
        product("USE1-Notebk:ml.x.y"),
        product("USE1-Notebk:ml.x.y", {}),
        product("USE1-Notebk:ml.x.y", {"effectiveDate": "2026-01-01", "priceDimensions": {}}),
        product("USE1-Notebk:ml.x.y", term({})),
        product("USE1-Notebk:ml.x.y", term({"USD": "free"})),
        product("USE1-Notebk:ml.x.y", usd(0)),
        product("USE1-Notebk:ml.x.y", usd(1, unit="Quantity")),
        product("USE1-Notebk:ml.x.y", usd(1, first="1000")),
    ],
    ids=range(11),
)
def test_a_product_with_gaps_is_passed_over(broken):
    assert build_table(LISTED[0], broken)["instance_hour"] == {"ml.g5.xlarge": 1.5}


def test_two_prices_of_one_thing_are_the_higher_whatever_their_order():
    item, two = (product("USE1-Notebk:ml.g5.xlarge", usd(amount)) for amount in (1.5, 1.8))
    for listed in ((item, two), (two, item)):
        assert build_table(*listed)["instance_hour"] == {"ml.g5.xlarge": 1.8}


def test_the_readme_says_what_the_shipped_table_says():
    """The rows contain the price of an hour, of a day, and of 50 GB for a month."""
    text = (SAGEMAKER / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(ml\.\S+)`[^|]* \| ([\d.]+) USD \| ([\d.]+) USD \| \|$", text, re.M)
    assert len(rows) == 7
    for instance, hour, day in rows:
        known = Prices().notebook_cost(instance, 50, "us-east-1")
        assert (hour, day) == (f"{known.hour_price:.2f}", f"{known.day_price:.2f}")
        assert f"{known.volume_month_price:.2f} USD a month" in text
    unknown = re.search(r"^\| `(\S+)` and `(\S+)` \| \?", text, re.M)
    assert [Prices().hour_price(item, "us-east-1") for item in unknown.groups()] == [None, None]
    hour = Prices().hour_price("ml.g5.12xlarge", "us-east-1")
    prose = " ".join(text.split())
    assert f"3 x {hour} = {3 * hour:.2f} USD, plus {hour} USD for the idle hour" in prose
    assert f"{hour} USD per hour for the" in prose
    shipped = json.loads((SAGEMAKER / "prices.json").read_text())["regions"]["us-east-1"]
    assert f"for us-east-1, as of {shipped['date']}, and do **not come from AWS**" in prose


def test_prices_shows_what_is_known_and_how_to_get_the_rest(launch_stubbed, file):
    status, out, _ = launch_stubbed("prices", "--region", "eu-west-2")
    assert status == 0
    assert "ml.g5.xlarge           unknown     unknown     unknown" in out
    assert (
        "prices.json does not contain prices for eu-west-2: run python sagemaker/launch.py prices --update --region "
        "eu-west-2 to ask AWS"
    ) in out
    assert max(map(len, out.splitlines()[:-1])) <= 79


def test_without_a_region_there_are_no_prices(launch_stubbed, monkeypatch):
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    status, _, err = launch_stubbed("prices")
    assert status == 2
    assert "prices needs a region: add --region REGION" in err
