from ebpl import errors
from ebpl.errors import did_you_mean


def test_near_words_are_suggested_and_far_ones_listed() -> None:
    assert did_you_mean("--epoch", ["--epochs", "--steps"]) == "Did you mean --epochs?"
    assert did_you_mean("xyz", ["b", "a"]) == "Known: a, b."


def test_every_kind_of_error_has_its_own_exit_code() -> None:
    kinds = [errors.EbplError, *errors.EbplError.__subclasses__()]
    codes = [kind.exit_code for kind in kinds]
    assert len(set(codes)) == len(codes)
    assert 0 not in codes
