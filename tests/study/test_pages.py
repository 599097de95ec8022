"""The pages of studies and of a diagnosis in a browser: both languages, light and dark."""

from dataclasses import replace
from functools import lru_cache

import pytest
from support.browser import open_pages, require_browser, start_browser
from support.devices import device_spec
from support.drawn_pages import PageTexts, contrast_ratio

from gluonlab.bench.harness.confidence_interval import Estimate
from gluonlab.bench.harness.measurement_command import cpu_devices
from gluonlab.bench.harness.measurement_record import Series
from gluonlab.bench.measure_splits import measure_splits
from gluonlab.bench.splits import TASKS
from gluonlab.config import TrainConfig
from gluonlab.drawing.svg_chart import as_svg
from gluonlab.study.batch_size import BatchSizeOptions, SizeTrials, analyze_panel
from gluonlab.study.batch_size import build_report as of_batch_size
from gluonlab.study.learning_rate_scaling import LearningRateOptions, analyze_measurements
from gluonlab.study.learning_rate_scaling import build_report as of_learning_rate
from gluonlab.study.parallel_strategies import build_report as of_splits
from gluonlab.study.scaling import build_report as of_scaling
from gluonlab.study.scaling import list_cases
from gluonlab.study.speedup import measure_step
from gluonlab.study.speedup.diagnosis import Candidate, TriedAdvice, diagnose
from gluonlab.study.speedup.diagnosis_report import render_page as verdict_page
from gluonlab.study.study_report import render_page as study_page

require_browser()
pytestmark = pytest.mark.cpu_only("pages are the same wherever it was trained")
LANGUAGES, THEMES, WIDTHS = ("en", "ja"), ("light", "dark"), (1200, 420)
READ_PAGE = """
const style = (element, what) => getComputedStyle(element)[what];
const texts = [...document.querySelectorAll("h1, h2, p, th, td, li, footer, figcaption")];
return {
    over: document.documentElement.scrollWidth - innerWidth,
    wide: [...document.querySelectorAll("main > *")].filter((each) =>
        each.getBoundingClientRect().right > innerWidth + 1).map((each) => each.outerHTML),
    background: style(document.body, "backgroundColor"),
    colors: [...new Set(texts.map((each) => style(each, "color")))],
    empty: texts.filter((each) => each.textContent.trim() === "" && each.tagName !== "TD").length,
    pictures: [...document.images].map((each) => each.complete && each.naturalWidth > 0),
};
"""


@pytest.fixture(scope="module")
def driver():
    found = start_browser()
    yield found
    found.quit()


@pytest.fixture(scope="module")
def verdict():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(measure_step, "BLOCK_S", 0.005)
        patched.setattr(measure_step, "RECORDED_S", 0.02)
        config = TrainConfig(devices=device_spec(2), dataset="synthetic", model="mlp", batch_size=4)
        found = diagnose(config, rounds=5, try_advice=False)
    tried = [
        TriedAdvice(Candidate({"kvstore": "sharded-optimizer"}), Estimate(1.2, 1.1, 1.3)),
        TriedAdvice(Candidate({"batch_size": 16}, 16), *(Estimate(1.0, 0.9, 1.1),) * 2, 1.5),
        TriedAdvice(Candidate({"workers": 8}), reason="there are no files: " + "unbroken_" * 12),
    ]
    return replace(found, tried_advice=tried)


def learning_rate(language):
    """Made-up measurements."""
    options = LearningRateOptions([1, 2, 4], 32, [2.0**power for power in range(-10, 0)], 3, 3)
    measured = [
        [{"right": min(1.0, 0.4 + point["rate"] + seed / 50)} for seed in range(3)]
        for point in options.list_trainings()
    ]
    return of_learning_rate(analyze_measurements(options, measured), options, language)


def batch_size(language):
    """Twice the batch takes half the steps, then fewer less, then as many."""
    steps = {2: 800, 8: 200, 32: 60, 64: 50, 256: 48, 1024: 48}
    sizes = []
    for size, reached in steps.items():
        looks = [[each, each / 100, 0.95, 0.97] for each in sorted({reached, 64, 2 * 1437 // size})]
        trial = {"reached": reached, "diverged": False, "looks": looks}
        sizes.append(SizeTrials(size, 0.1, 8000, -(-1437 // size), [trial] * 3))
    options = BatchSizeOptions({"digits": {"sizes": list(steps), "target": 0.93}}, 3, 2, None)
    return of_batch_size({"digits": analyze_panel("digits", sizes)}, options, language)


def scaling(language):
    """Two devices are 1.8 times as fast, and begin a bit later; one store could not be measured."""
    options = {"network": "lenet", "devices": [1, 2], "stores": ["device", "ring"],
               "splits": ["1f1b"], "kinds": ["weak", "strong"], "rounds": 3}  # fmt: skip
    series = []
    for case in list_cases(options):
        name, count = case.name.replace(" ", "-"), case.layout.devices
        rates = tuple(1000 * load * (0.2 + 0.8 * count) for load in (1.0, 0.5, 0.8))
        gone = case.store_or_split == "ring"
        series.append(Series(name, name, "images/s", () if gone else rates, "it " * 30))
        starts = tuple(2.0 + load + 0.25 * count for load in (0.1, 0.2, 0.3))
        series.append(Series(f"start {name}", name, "s", starts, None))
    return of_scaling(series, options, language)


def split(language):
    task, options = TASKS["mlp"], {"network": "mlp", "devices": 2, "microbatches": 2, "rounds": 1}
    series = measured_splits(task)
    return of_splits(series, task, options, language)


@lru_cache(maxsize=1)
def measured_splits(task):
    return measure_splits(task, cpu_devices(2), 2, 2, rounds=1)


STUDIES = {"batch-size": batch_size, "learning-rate": learning_rate, "scaling": scaling, "splits": split}


def page_of(which, language, verdict):
    if which == "speedup":
        return verdict_page(verdict, language)
    report = STUDIES[which](language)
    return study_page(report, [as_svg(chart) for chart in report.charts.values()])


def rgb(text):
    """``#rrggbb`` of what getComputedStyle gives."""
    numbers = text[text.index("(") + 1 : -1].split(",")[:3]
    return "#" + "".join(f"{int(float(each)):02x}" for each in numbers)


def emulate(driver, theme, width):
    feature = {"name": "prefers-color-scheme", "value": theme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("which", ["speedup", *STUDIES])
def test_a_page_fits_can_be_read_and_complains_of_nothing(which, language, driver, verdict, tmp_path):
    html = page_of(which, language, verdict)
    backgrounds = {}
    with open_pages(driver, tmp_path) as show:
        for theme in THEMES:
            for width in WIDTHS:
                emulate(driver, theme, width)
                show(html)
                seen = driver.execute_script(READ_PAGE)
                assert seen["over"] <= 0 and seen["wide"] == [], (theme, width)
                assert seen["empty"] == 0 and all(seen["pictures"])
                backgrounds[theme] = rgb(seen["background"])
                for color in seen["colors"]:
                    assert contrast_ratio(rgb(color), backgrounds[theme]) >= 4.5, (theme, color)
    assert contrast_ratio(backgrounds["light"], "#000000") > 15 > 3 > contrast_ratio(backgrounds["dark"], "#000000")


@pytest.mark.parametrize("which", ["speedup", *STUDIES])
def test_a_page_is_in_its_language_and_needs_nothing_else(which, verdict):
    pages = {language: page_of(which, language, verdict) for language in LANGUAGES}
    for language, html in pages.items():
        assert f'<html lang="{language}">' in html and "{" not in "".join(PageTexts(html).texts)
        assert "://" not in html.replace("http://www.w3.org/", "")
    assert any("\u3040" <= letter <= "\u30ff" for letter in pages["ja"])
    assert not any("\u3040" <= letter <= "\u9fff" for letter in pages["en"])
