import torch

from ebpl.seeds import derived_seed, generator


def test_seeds_are_the_same_everywhere() -> None:
    # half of the first eight bytes of `printf 0/split | sha256sum`; another value would change every published split
    assert derived_seed(0, "split") == 3769940940748469125


def test_each_purpose_has_its_own_numbers() -> None:
    seeds = {derived_seed(seed, *purpose) for seed in range(5) for purpose in [("a",), ("b",), ("a", 1), ("a", 2)]}
    assert len(seeds) == 20
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_generators_repeat() -> None:
    first, second = (torch.rand(3, generator=generator(1, "noise", 2)) for _ in range(2))
    assert torch.equal(first, second)
