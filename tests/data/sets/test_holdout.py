"""Which images are held out: so many of each class, by their names alone."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluonlab.data.sets.image_files import held_out

SHARES = st.floats(0, 1, exclude_min=True, exclude_max=True)
NAMES = st.lists(st.text(min_size=1, max_size=8), unique=True, max_size=40)


@given(NAMES, SHARES)
def test_of_two_or_more_one_is_on_each_side_and_the_share_is_kept(names, share):
    count = sum(held_out(names, share))
    if len(names) < 2:
        assert count == 0
    else:
        assert 1 <= count <= len(names) - 1
        assert abs(count - share * len(names)) <= 1


@given(NAMES, SHARES, st.randoms())
def test_the_order_of_the_names_does_not_matter(names, share, random):
    names = [*{unicodedata.normalize("NFC", name) for name in names}]
    before = dict(zip(names, held_out(names, share)))
    random.shuffle(names)
    assert dict(zip(names, held_out(names, share))) == before


@given(NAMES.filter(bool), SHARES)
def test_an_image_more_moves_one_other_at_most(names, share):
    before = held_out(names, share)
    after = held_out([*names, "one more"], share)[:-1]
    assert sum(was != now for was, now in zip(before, after)) <= 1


def test_letters_composed_in_either_way_are_the_same():
    names = [f"caf\N{LATIN SMALL LETTER E WITH ACUTE}/{n}.jpg" for n in range(20)]
    apart = [unicodedata.normalize("NFD", name) for name in names]
    assert names != apart
    assert held_out(names, 0.3) == held_out(apart, 0.3)


@pytest.mark.parametrize(("share", "held"), [(0.2, [3, 7]), (0.5, [0, 3, 6, 7, 9])])
def test_the_choice_is_the_same_for_ever(share, held):
    """Runs that were begun with an earlier release go on with the same images."""
    found = held_out([f"ant/{n}.jpg" for n in range(10)], share)
    assert [n for n, out in enumerate(found) if out] == held
