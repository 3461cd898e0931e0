import sys
from pathlib import Path

import pytest

from ebpl.errors import UsageError
from ebpl.training.callbacks import Board


def test_a_resumed_board_replaces_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = Board(tmp_path, 0)
    for epoch in (1, 2, 3):
        board.add(epoch, {"loss": float(epoch), "phase": "initial", "pseudo_label_accuracy": None})
    board.close()
    again = Board(tmp_path, 1)
    again.add(2, {"loss": 20.0})
    again.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(1, 1.0), (2, 20.0)]
    assert events.Tags()["scalars"] == ["loss"]


def test_without_the_extra_the_error_says_how_to_get_it(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UsageError, match=r"pip install 'ebpl\[tensorboard\]'"):
        Board(tmp_path, 0)
