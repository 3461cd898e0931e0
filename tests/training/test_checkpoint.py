import os
import pickle
from pathlib import Path

import pytest
import torch

from ebpl.errors import RunError
from ebpl.training import checkpoint


def state(number: int) -> dict:
    return {"number": number, "tensor": torch.full((100,), float(number)), "history": [{"a": 1.5, "b": None}]}


def test_the_newest_checkpoint_is_loaded_and_two_are_kept(tmp_path: Path) -> None:
    for number in range(5):
        checkpoint.save(tmp_path, number, state(number))
    loaded = checkpoint.load(tmp_path, print)
    assert loaded is not None
    assert loaded["number"] == 4
    assert torch.equal(loaded["tensor"], state(4)["tensor"])
    assert len(list(tmp_path.glob("*.pt"))) == 2


def test_checkpoints_of_epochs_that_were_undone_do_not_come_back(tmp_path: Path) -> None:
    for number in (7, 8, 5):  # training ran away after epoch 8 and went back
        checkpoint.save(tmp_path, number, state(number))
    loaded = checkpoint.load(tmp_path, print)
    assert loaded is not None
    assert loaded["number"] == 5


def test_without_one_there_is_none(tmp_path: Path) -> None:
    assert checkpoint.load(tmp_path, print) is None


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path, damage: str) -> None:
    checkpoint.save(tmp_path, 1, state(1))
    newest = checkpoint.save(tmp_path, 2, state(2))
    content = bytearray(newest.read_bytes())
    if damage == "truncate":
        content = content[: len(content) // 2]
    elif damage == "flip":
        content[len(content) // 2] ^= 1
    else:
        content = bytearray()
    newest.write_bytes(content)
    loaded = checkpoint.load(tmp_path, print)
    assert loaded is not None
    assert loaded["number"] == 1


def test_only_damaged_checkpoints_are_an_error_that_names_them(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 1, state(1))
    path.write_bytes(b"damaged")
    with pytest.raises(RunError, match=path.name):
        checkpoint.load(tmp_path, print)


def test_a_strangers_pickle_is_not_executed(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self):
            return (os.system, (f"touch {tmp_path / 'harmed'}",))

    import zlib

    content = pickle.dumps(Harm())
    (tmp_path / f"epoch-000001-{zlib.crc32(content):08x}.pt").write_bytes(content)
    with pytest.raises(RunError, match="damaged"):
        checkpoint.load(tmp_path, print)
    assert not (tmp_path / "harmed").exists()
