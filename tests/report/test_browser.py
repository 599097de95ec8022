"""The page in Chromium: columns sort, the filter hides other runs, and all text is legible."""

import pytest
from support.browser import open_pages, require_browser, start_browser
from support.legible import PAGE_WIDTH, TEXTS, emulate_screen, find_low_contrast_texts
from support.made_up_runs import make_run

from gluonlab.report.report_page import MANY_RUNS, make_page
from gluonlab.runs.run_reader import read_runs

require_browser()
pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def driver():
    started = start_browser()
    yield started
    started.quit()


@pytest.fixture
def page(driver, tmp_path):
    """A page of many runs with 1, 2, ... devices, of which the third has not started."""
    runs = [
        make_run(tmp_path / f"runs/run-{number}", [] if number == 2 else None, devices=["cpu(0)"] * (number + 1))
        for number in range(MANY_RUNS)
    ]
    with open_pages(driver, tmp_path) as show:
        yield show(make_page(read_runs(runs)))


def column(page, number):
    script = """const rows = [...document.querySelectorAll('#results tbody tr')], n = arguments[0];
        return rows.filter((row) => !row.hidden).map((row) => row.cells[n].innerText.trim())"""
    return page.driver.execute_script(script, number)


def click(page, heading):
    page.driver.find_element("xpath", f"//table[@id='results']//button[.='{heading}']").click()


def test_columns_sort_numerically_both_ways_with_missing_values_last(page):
    assert column(page, 1) == [str(n + 1) for n in range(MANY_RUNS)]
    click(page, "devices")
    assert column(page, 1) == [str(n + 1) for n in reversed(range(MANY_RUNS))]
    click(page, "run")
    assert column(page, 0) == [f"run-{n}" for n in range(MANY_RUNS)]
    for _ in range(2):
        click(page, "val acc.")
        assert column(page, 2) == ["0.8000"] * (MANY_RUNS - 1) + ["-"]
    script = "return document.querySelectorAll('#results th[aria-sort]').length"
    assert page.driver.execute_script(script) == 1


def test_the_filter_shows_only_the_runs_that_it_names(page):
    page.find_element("filter").send_keys("RUN-3")
    assert column(page, 0) == ["run-3"]
    script = """const all = [...document.querySelectorAll('[data-run]')];
        const curves = [...document.querySelectorAll('figure g[id*="-run-"]')];
        const seen = (each) => each.getClientRects().length > 0;
        return [[...new Set(all.filter(seen).map((each) => each.dataset.run))],
                [...new Set(curves.filter(seen).map((each) => each.id.split('-').pop()))]];"""
    assert page.driver.execute_script(script) == [["3"], ["3"]]
    page.find_element("filter").clear()
    page.find_element("filter").send_keys("r")
    assert len(column(page, 0)) == MANY_RUNS


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_it_can_be_read_on_a_telephone_and_in_the_dark(page, scheme, width):
    """No text is fainter than WCAG's 4.5 to 1, and nothing but tables moves sideways."""
    with emulate_screen(page.driver, width, scheme):
        assert page.driver.execute_script(PAGE_WIDTH) <= width
        assert len(page.driver.execute_script(TEXTS)) > 100 and find_low_contrast_texts(page.driver) == []
