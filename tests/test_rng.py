import pytest
import torch

from ebpl.errors import UsageError
from ebpl.rng import checked_seeds, derived_seed, generator, parse_seeds, seeds_in_words


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


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", [3]), ("0-4", [0, 1, 2, 3, 4]), ("0, 2,5", [0, 2, 5]), ("7,0-2,4-4", [7, 0, 1, 2, 4])]
)
def test_seeds_are_written_as_ranges_and_lists(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no seed"),
        ("a", "'a' in --seeds a is no seed"),
        ("1,,2", "no seed"),
        ("-1", "no seed"),
        ("1.5", "no seed"),
        ("0-", "no seed"),
        ("1-2-3", "no seed"),
        ("\u0663", "no seed"),
        ("4-0", "Write 0-4"),
        ("0-3,2", "Seed 2 is named more than once"),
        ("0-999999999999", "more than 1000"),
    ],
)
def test_what_is_no_list_of_seeds_is_said_so(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_seeds(text)


def test_no_seed_at_all_is_an_error() -> None:
    with pytest.raises(UsageError, match="at least one"):
        checked_seeds([])


def test_seeds_in_a_folders_name_are_short() -> None:
    assert [seeds_in_words(seeds) for seeds in ([4], range(5), [0, 2, 5], [0, 1, 2, 7])] == [
        "4",
        "0-4",
        "0_2_5",
        "0-2_7",
    ]
    assert seeds_in_words(range(0, 200, 2)) == "0-and-others"
