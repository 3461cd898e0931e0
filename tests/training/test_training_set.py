import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ebpl.training.distributed import ALONE, Ranks
from ebpl.training.training_set import Order, batches, epoch_order
from tests.helpers import quick


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


LABELED, TOTAL = 6, 40


def ordered(
    ranks: Ranks = ALONE, chosen: range = range(20), rejected: range = range(30, 34), **changes: object
) -> Order:
    settings = quick(**{"batch_size": 8, "consistency_batch": 12, **changes})
    generator = torch.Generator().manual_seed(0)
    return epoch_order(LABELED, TOTAL, chosen, rejected, 50, settings, ranks, generator)


def drawn(table: torch.Tensor) -> set[int]:
    return set(table.flatten().tolist())


def test_each_batch_draws_from_the_images_that_are_meant_for_it() -> None:
    order = ordered(consistency=1.0)
    assert drawn(order.classified) == set(range(LABELED + 20))
    assert drawn(order.everything) == set(range(TOTAL)) - set(range(LABELED + 30, LABELED + 34))
    assert order.compared is not None
    assert order.compared.shape == (50, 12)
    assert drawn(order.compared) == drawn(order.everything) - set(range(LABELED))
    assert ordered().compared is None


def test_without_unlabelled_images_strong_views_are_those_of_labelled_ones() -> None:
    order = ordered(consistency=1.0, chosen=range(0), rejected=range(TOTAL - LABELED))
    assert order.compared is not None
    assert drawn(order.compared) == set(range(LABELED))


def test_a_share_of_true_labels_is_kept_in_every_batch_and_mixed_among_the_others() -> None:
    true = ordered(labeled_share=0.25).classified < LABELED
    assert (true.sum(1) == 2).all()
    assert len(true.float().unique(dim=0)) == 1  # where they stand is drawn once an epoch
    assert not true[0, :2].all()
    assert (ordered(labeled_share=0.25, chosen=range(0)).classified < LABELED).all()


def test_processes_share_the_same_order() -> None:
    whole = ordered(consistency=1.0, labeled_share=0.5)
    halves = [ordered(Ranks(2, index), consistency=1.0, labeled_share=0.5) for index in range(2)]
    for name in ("classified", "everything", "compared"):
        assert torch.equal(torch.cat([getattr(half, name) for half in halves], 1), getattr(whole, name))


def test_labels_that_wait_are_compared_like_images_without_and_not_classified() -> None:
    chosen = quick(consistency__weight=1.0, batch_size=8, consistency__batch_size=8)
    order = epoch_order(6, 20, [], [], 40, chosen, ALONE, torch.Generator().manual_seed(0), waiting=2)
    assert set(order.classified.flatten().tolist()) == set(range(4))
    assert set(order.everything.flatten().tolist()) == set(range(20))
    assert order.compared is not None
    assert set(order.compared.flatten().tolist()) == set(range(4, 20))
    unjudged = epoch_order(6, 20, [], range(14), 40, chosen, ALONE, torch.Generator().manual_seed(0), waiting=2)
    assert unjudged.compared is not None
    assert set(unjudged.compared.flatten().tolist()) == set(range(6))
