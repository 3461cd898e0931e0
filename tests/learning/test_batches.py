import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ebpl.learning.batches import batches


@given(st.integers(1, 60), st.integers(1, 8), st.integers(1, 20), st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_batches_are_whole_passes_one_after_the_other(count: int, updates: int, size: int, seed: int) -> None:
    table = batches(count, updates, size, torch.Generator().manual_seed(seed))
    assert table.shape == (updates, size)
    flat = table.flatten().tolist()
    for start in range(0, len(flat), count):
        chunk = flat[start : start + count]
        assert len(set(chunk)) == len(chunk)
        assert set(chunk) <= set(range(count))


def test_the_order_is_the_generators() -> None:
    first, again, other = (batches(50, 3, 10, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
