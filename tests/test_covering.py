"""The covering sets of tests/support: every pair of values that any combination has is kept."""

from itertools import combinations, product

from hypothesis import given
from hypothesis import strategies as st
from support.covering import covering, pairwise


def pairs(case):
    return set(combinations(enumerate(case), 2)) or set(enumerate(case))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_every_pair_is_kept(sizes, data):
    cases = list(product(*map(range, sizes)))
    cases = data.draw(st.lists(st.sampled_from(cases), min_size=1, unique=True))
    chosen = covering(cases)
    assert set().union(*(pairs(cases[n]) for n in chosen)) == set().union(*map(pairs, cases))


def test_a_square_of_three_arguments_needs_no_more_than_a_latin_square_and_its_rest():
    cases = list(product(range(4), repeat=3))
    assert 16 <= len(covering(cases)) <= 20  # 16 pairs of the first two; 64 combinations


def test_what_is_left_out_is_marked_long_and_excluded_combinations_are_absent():
    mark = pairwise(a=[1, 2, 3], b=["x", "y", "z"], c=[0, 1, 2], where=lambda a, b, c: a != c)
    names, cases = mark.args
    assert names == "a,b,c" and len(cases) == 21
    marks = [[each.name for each in case.marks] for case in cases]
    assert marks.count([]) + marks.count(["long"]) == 21 and 9 <= marks.count([]) < 21
    assert all(case.values[0] != case.values[2] for case in cases)
