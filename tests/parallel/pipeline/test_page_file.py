"""The page that animates pipelines, as a file: complete, small, with the requested schedules."""

from dataclasses import replace

import pytest
from support.drawn_pages import check_self_contained, embedded_data

from gluonlab.errors import ScheduleError
from gluonlab.parallel.pipeline.pipeline_cost import Costs, equal_shares, predict_timeline
from gluonlab.parallel.pipeline.pipeline_schedule import SCHEDULES, make_pipeline
from gluonlab.parallel.pipeline.render import as_page, draw

OFFERED = {
    (name, devices, microbatches, 2 if name == "interleaved" else 1)
    for name in SCHEDULES
    for devices in (2, 4, 8)
    for microbatches in (4, 8, 16)
}


def shown_sizes(data):
    return [(s["name"], s["devices"], s["microbatches"], s["stages_per_device"]) for s in data["schedules"]]


def test_the_page_is_one_small_file_that_loads_nothing_and_offers_every_schedule_in_order():
    page = draw(make_pipeline("1f1b", 4, 8))
    check_self_contained(page)
    shown = shown_sizes(embedded_data(page))
    assert set(shown) == OFFERED and len(shown) == len(OFFERED)
    assert list(dict.fromkeys(name for name, *_ in shown)) == list(SCHEDULES)


@pytest.mark.parametrize(
    ("requested", "more"),
    [
        (("gpipe", 3, 5, 1), {(name, 3, 5, 1 + (name == "interleaved")) for name in SCHEDULES}),
        (("interleaved", 4, 8, 3), {("interleaved", 4, 8, 3)}),
        (("sequential", 2, 4, 2), {("sequential", 2, 4, 2)}),
        (("1f1b", 8, 16, 1), set()),
    ],
)
def test_the_requested_schedule_is_shown_first(requested, more):
    data = embedded_data(draw(make_pipeline(*requested)))
    assert shown_sizes(data)[data["start"]] == requested
    assert set(shown_sizes(data)) == OFFERED | more


def test_schedules_without_costs_are_left_out():
    def costs(schedule):
        known = (schedule.name, schedule.devices, schedule.microbatches) in {("gpipe", 3, 4), ("1f1b", 3, 4)}
        return Costs((1, 2, 3), (2, 4, 6), ((0, 0),) * 2, (0, 0, 0)) if known else None

    data = embedded_data(draw(make_pipeline("1f1b", 3, 4), costs))
    assert shown_sizes(data) == [("gpipe", 3, 4, 1), ("1f1b", 3, 4, 1)]
    assert data["start"] == 1 and data["schedules"][1]["unit"] == "s"


def test_a_custom_schedule_can_be_shown():
    data = embedded_data(draw(replace(make_pipeline("1f1b", 2, 3), name="mine")))
    assert shown_sizes(data)[data["start"]] == ("mine", 2, 3, 1)
    assert data["schedules"][data["start"]]["description"] == ""


GPIPE = make_pipeline("gpipe", 2, 2)
ONE = (GPIPE, predict_timeline(GPIPE, equal_shares(GPIPE)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: draw(make_pipeline("1f1b", 20, 2)), "1f1b with 20 devices, 20 stages and 2 micro"),
        (lambda: as_page([]), "start=0: must be the index of a schedule"),
        (lambda: as_page([ONE], start=1), "start=1: must be the index of a schedule"),
    ],
)
def test_schedules_that_cannot_be_shown_are_refused(make, message):
    with pytest.raises(ScheduleError, match=message):
        make()
