"""The metrics of a run as TensorBoard events (the extra `tensorboard`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ebpl.errors import UsageError


def writer_class() -> Any:
    """PyTorch's writer of TensorBoard events, or an error that says how to get it."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError("--tensorboard needs the extra: pip install 'ebpl[tensorboard]'") from error
    return SummaryWriter


class Board:
    """Writes each number of a metrics row as a scalar; a resumed run replaces what came after its checkpoint."""

    def __init__(self, folder: Path, epochs_done: int) -> None:
        self._writer: Any = writer_class()(str(folder), purge_step=epochs_done + 1)

    def add(self, epoch: int, row: dict[str, Any]) -> None:
        """All numbers of an epoch."""
        for name, value in row.items():
            if isinstance(value, (int, float)):
                self._writer.add_scalar(name, value, epoch)

    def close(self) -> None:
        """Write what is still waiting."""
        self._writer.close()
