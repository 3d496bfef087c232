"""Which rows share a forward pass."""

from hypothesis import given
from hypothesis import strategies as st

from workers.engines.batching import balanced, plan

LENGTHS = st.lists(st.integers(1, 40), max_size=30)


def test_without_a_token_budget_micro_batches_are_consecutive_rows():
    assert plan([5, 1, 4, 1, 3], rows=2) == [[[0, 1], [2, 3], [4]]]


def test_a_token_budget_sorts_by_length_and_counts_padding():
    # ascending 1, 1, 3, 4, 5: two of width 1; a third would make 3 x 3 > 8; 3 and 4 are 2 x 4 = 8; then 5 alone
    assert plan([5, 1, 4, 1, 3], rows=9, tokens=8) == [[[1, 3], [4, 2], [0]]]


def test_a_row_longer_than_the_budget_goes_alone():
    assert plan([2, 9, 2], rows=9, tokens=4) == [[[0, 2], [1]]]


def test_replicas_get_about_the_same_number_of_tokens():
    assert balanced([7, 1, 1, 5, 2], 2) == [[0, 1], [2, 3, 4]]


@given(LENGTHS, st.integers(1, 4), st.integers(1, 8), st.none() | st.integers(1, 60))
def test_every_row_is_in_exactly_one_micro_batch_within_its_bounds(lengths, replicas, rows, tokens):
    shares = plan(lengths, replicas, rows=rows, tokens=tokens)
    parts = [part for share in shares for part in share]
    assert sorted(row for part in parts for row in part) == list(range(len(lengths)))
    assert len(shares) == replicas and all(1 <= len(part) <= rows for part in parts)
    if tokens is not None:
        assert all(len(part) == 1 or len(part) * max(lengths[row] for row in part) <= tokens for part in parts)


@given(LENGTHS, st.integers(1, 4))
def test_shares_differ_by_the_longest_row_at_most(lengths, replicas):
    tokens = [sum(lengths[row] for row in share) for share in balanced(lengths, replicas)]
    assert max(tokens) - min(tokens) <= max(lengths, default=0)


@given(LENGTHS, st.integers(1, 3), st.integers(1, 8), st.none() | st.integers(1, 60))
def test_planning_a_share_again_cuts_it_where_it_was_cut(lengths, replicas, rows, tokens):
    for share in plan(lengths, replicas, rows=rows, tokens=tokens):
        order = [row for part in share for row in part]
        [again] = plan([lengths[row] for row in order], rows=rows, tokens=tokens)
        assert [[order[at] for at in part] for part in again] == share
