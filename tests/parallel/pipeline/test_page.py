"""The page that plays pipelines, in a real Chromium without a window: what it shows is compared
with the price, and with the programs.
"""

import re

import pytest
from support.browser import open_pages, require_browser, start_browser
from support.drawn_pages import english_words
from support.legible import find_hidden_controls

from gluonlab.parallel.pipeline.pipeline_cost import COMPUTE_OPS, Costs, equal_shares, predict_timeline
from gluonlab.parallel.pipeline.pipeline_schedule import make_pipeline
from gluonlab.parallel.pipeline.render import as_page, draw
from gluonlab.parallel.pipeline.render.pipeline_pictures import (
    idle_gaps,
    max_stashed_microbatches,
    page_times,
    time_unit,
)
from gluonlab.parallel.pipeline.verify_pipeline_schedule import execution_order

pytestmark = pytest.mark.browser
require_browser()

READ = """const all = (which, read) => [...document.querySelectorAll(which)].map(read);
    const read = () => ({
        boxes: all('[data-op]', ({dataset: d}) => [d.op, Number(d.stage), Number(d.microbatch),
            Number(d.begin), Number(d.end), d.done === 'true']),
        messages: all('[data-message]', (line) => line.dataset.message),
        idle: all('[data-place^=idle]', (box) => box.ariaLabel),
        most: all('[data-most]', (label) => Number(label.dataset.most)),
        tall: all('g[data-op]', (box) => [box.querySelector('rect').y.baseVal.value,
            Number(box.dataset.stage)]),
        counter: document.getElementById('counter').innerText,
        told: all('#told li', (line) => line.innerText),
    });"""
READ_STEPS = f"""{READ} const steps = [], next = document.getElementById('next');
    const slider = document.getElementById('slider');
    slider.value = 0;
    slider.dispatchEvent(new Event('input', {{bubbles: true}}));
    steps.push(read());
    while (!next.disabled) {{ next.click(); steps.push(read()); }}
    return steps;"""
FIELDS = ("schedule", "devices", "microbatches", "stages-per-device")
READ_WORDS = """const all = (which, read) => [...document.querySelectorAll(which)].map(read);
    const words = () => [document.title, document.body.innerText,
        ...all('[aria-label]', (e) => e.ariaLabel),
        ...all('svg title, svg text', (e) => e.textContent),
        document.getElementById('slider').ariaValueText].join(' ');
    const texts = [words()], next = document.getElementById('next');
    while (!next.disabled) { next.click(); texts.push(words()); }
    return texts;"""


@pytest.fixture(scope="module")
def browser():
    driver = start_browser()
    yield driver
    driver.quit()


@pytest.fixture
def opened(browser, tmp_path):
    with open_pages(browser, tmp_path) as show:
        yield show


@pytest.fixture(scope="module")
def everything():
    return draw(make_pipeline("1f1b", 4, 8))


def read(page):
    return page.driver.execute_script(f"{READ} return read();")


def shown_events(timeline, ops):
    unit = time_unit(timeline)
    return {
        (*event.instruction, unit.convert(event.begin_s), unit.convert(event.end_s))
        for event in timeline.events
        if event.instruction.op in ops and (ops != COMPUTE_OPS or event.end_s > event.begin_s)
    }


def assert_shows(page, schedule, timeline):
    """The whole schedule, and every step on the way to it."""
    unit, work = time_unit(timeline), shown_events(timeline, COMPUTE_OPS)
    sends = shown_events(timeline, ("send_forward", "send_backward"))
    order = [i for _, i in execution_order(schedule) if i.op in ("forward", "backward")]
    times = [unit.convert(time) for time in page_times(timeline)]
    steps = page.driver.execute_script(READ_STEPS)
    assert len(steps) == len(times)
    on_their_way = set()
    for before, now, step in zip([-1, *times], times, steps):
        assert {tuple(box[:5]) for box in step["boxes"]} == work
        assert len(step["boxes"]) == len(work)
        done = {tuple(box[:3]) for box in step["boxes"] if box[5]}
        assert done == {event[:3] for event in work if event[4] <= now}
        for device in range(schedule.devices):  # in the order of its program
            own = [tuple(i) in done for i in order if i.stage % schedule.devices == device]
            assert own == sorted(own, reverse=True)
        if 0 < now < times[-1]:
            moving = {f"{e[0]},{e[1]},{e[2]}" for e in sends if e[3] <= now and e[4] > before}
            assert set(step["messages"]) == moving
            on_their_way |= moving
    assert on_their_way == {f"{e[0]},{e[1]},{e[2]}" for e in sends}
    last = steps[-1]
    assert all(box[5] for box in last["boxes"])
    assert last["most"] == [max_stashed_microbatches(timeline, device) for device in range(schedule.devices)]
    rows = [(top, stage % schedule.devices) for top, stage in last["tall"]]
    assert len(set(rows)) == schedule.devices and sorted(set(rows)) == sorted(set(rows), key=lambda row: row[1])
    count = sum(len(list(idle_gaps(timeline, device))) for device in range(schedule.devices))
    assert len(last["idle"]) == count


@pytest.mark.parametrize(
    "place", [("1f1b", 4, 8, 1), ("gpipe", 2, 4, 1), ("interleaved", 4, 4, 2), ("sequential", 2, 4, 1)]
)
def test_every_step_shows_what_every_device_has_done(opened, everything, place):
    page, schedule = opened(everything), make_pipeline(*place)
    for field, value in zip(FIELDS, place):
        page.choose(field, value)
    assert page.read_text("name") == place[0]
    assert_shows(page, schedule, predict_timeline(schedule, equal_shares(schedule)))


@pytest.mark.parametrize("transfer", [0.0, 0.4, 7.0])
def test_uneven_stages_and_slow_messages_are_shown(opened, transfer):
    schedule = make_pipeline("1f1b", 3, 4)
    costs = Costs((1, 2.5, 1), (2, 5, 1.7), ((transfer, 2 * transfer),) * 2, (0.5, 1, 0))
    timeline = predict_timeline(schedule, costs)
    assert_shows(opened(as_page([(schedule, timeline)])), schedule, timeline)


def test_it_opens_with_the_whole_schedule_and_plays_from_the_start(opened, everything):
    page = opened(everything)
    assert page.read_text("size") == "4 devices, 4 stages, 8 microbatches, 33 ms, bubble 27%"
    assert page.read_text("counter") == "33 of 33 ms"
    page.choose("speed", "fast")
    page.watch("counter")
    page.find_element("play").click()
    page.wait(lambda: "3 of 33 ms" in page.watched_texts())
    assert page.watched_texts()[:3] == ["33 of 33 ms", "0 of 33 ms", "1 of 33 ms"]
    page.find_element("play").click()
    assert page.read_text("play") == "Play"


def test_keys_step_through_the_schedule(opened, everything):
    from selenium.webdriver.common.keys import Keys

    page = opened(everything)
    at = {Keys.HOME: 0, Keys.ARROW_RIGHT: 1, Keys.END: 33, Keys.ARROW_LEFT: 32}
    for key, step in at.items():
        page.press(key)
        assert page.read_text("counter") == f"{step} of 33 ms"


def test_other_sizes_stay_when_the_schedule_changes(opened, everything):
    page = opened(everything)
    page.choose("devices", 8)
    page.choose("microbatches", 16)
    page.choose("schedule", "interleaved")
    assert page.read_text("size").startswith("8 devices, 16 stages, 16 microbatches, 58.5 ms")
    assert not page.find_element("stages-per-device").is_enabled()  # there is one choice


def test_the_page_announces_the_step(opened, everything):
    page = opened(everything)
    page.slide(11)
    assert page.read_text("told-title") == "From 10 to 11 ms"
    assert read(page)["told"] == [
        "device 0: backward 0",
        "device 1: forward 3",
        "device 2: backward 1",
        "device 3: backward 2",
        "1 → 2: activation 3",
        "2 → 1: gradient 1",
    ]
    page.find_element("as-table").find_element("tag name", "summary").click()
    page.wait(lambda: "4 forward, 0 backward" in page.read_text("as-table"))
    rows = page.driver.execute_script(
        "return [...document.querySelectorAll('table tr')].map((row) => [...row.cells].map((cell) => cell.innerText))"
    )
    assert rows[0] == ["device", "stages", "done", "kept now", "kept at most", "bubble"]
    assert rows[1] == ["0", "0", "4 forward, 0 backward", "4", "4", "27%"]
    assert rows[4] == ["3", "3", "3 forward, 2 backward", "1", "1", "27%"]


def test_a_pointed_at_pass_is_described(opened, everything):
    from selenium.webdriver.common.action_chains import ActionChains

    page = opened(everything)
    box = page.driver.find_element("css selector", "[data-place='backward,1,2'] rect")
    ActionChains(page.driver).move_to_element(box).perform()
    words = "device 1, stage 1: backward of microbatch 2, from 14 to 16 ms"
    assert page.read_text("pointed") == words
    page.slide(3)
    assert page.read_text("pointed") == words


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_on_a_phone_and_a_desktop(opened, width):
    page = opened(draw(make_pipeline("interleaved", 8, 16, 3)))
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}

    def stage_widths():
        """Of the picture, and of its frame, and how far it is scrolled; the window fits."""
        (inside, window, _), stage = page.driver.execute_script(
            "const of = (e) => [e.scrollWidth, e.clientWidth, e.scrollLeft]; "
            "return [of(document.documentElement), of(arguments[0])]",
            page.find_element("stage"),
        )
        assert inside <= window == width
        return stage

    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        picture, frame, _ = stage_widths()
        assert picture > frame  # it scrolls within its frame
        page.slide(100)
        _, frame, left = stage_widths()
        now = page.driver.execute_script("return document.querySelector('[data-now]').getBBox().x")
        assert left < now < left + frame  # and shows what happens now
        for field, value in zip(FIELDS, ("1f1b", 4, 8)):
            page.choose(field, value)
        picture, frame, _ = stage_widths()
        assert picture <= frame
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("language", ["en", "ja"])
def test_controls_are_within_the_window_at_every_width(opened, language):
    """This page has five fields in a row, whose names are longest here."""
    page = opened(draw(make_pipeline("interleaved", 8, 16, 3), language=language))
    page.slide(100)  # the counter is longest then
    assert find_hidden_controls(page.driver) == {}


def test_numbers_of_microbatches_fit_into_their_boxes(opened, everything):
    page = opened(everything)
    page.choose("devices", 8)
    page.choose("microbatches", 16)
    too_wide = page.driver.execute_script(
        "return [...document.querySelectorAll('g[data-op] text')].filter((text) => "
        "text.getBBox().width > text.parentNode.querySelector('rect').getBBox().width + 1)"
        ".length"
    )
    count = page.driver.execute_script("return document.querySelectorAll('g[data-op] text').length")
    assert (too_wide, count) == (0, 2 * 8 * 16)


def test_the_japanese_page_is_japanese_at_every_step(opened):
    page = opened(draw(make_pipeline("interleaved", 2, 4, 2), language="ja"))
    page.find_element("as-table").find_element("tag name", "summary").click()
    page.wait(lambda: "最大の保持数" in page.read_text("as-table"))
    page.slide(0)
    texts = page.driver.execute_script(READ_WORDS)
    assert "最初の状態" in texts[0]
    assert "デバイス 0: 順伝播 0、ステージ 0" in texts[1]
    assert "0 → 1: 活性値 0" in texts[1]
    assert english_words(" ".join(texts)) == set()
    assert re.findall("undefined|null|NaN|[{}]", " ".join(texts)) == []
