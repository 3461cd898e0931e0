"""Processes that train one run together, one on each device, with `torch.distributed`.

They are started by torchrun, by SLURM or by the command itself (`ebpl.launch`). All that they exchange is here.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed

from ebpl.config import Settings
from ebpl.devices import choose_device
from ebpl.errors import EbplError, RunError, UsageError
from ebpl.launch import ProcessInfo, part, place
from ebpl.models import HybridModel
from ebpl.models.predictions import Predictions, predict, predict_with_features

if TYPE_CHECKING:
    from ebpl.training.losses import LossTerm

T = TypeVar("T")


class RankZeroFailed(RunError):
    """Ends a process because rank zero failed, which reports the reason itself."""


@dataclass(frozen=True)
class Ranks:
    """This process among `count` that train together. Its methods cost nothing where there is only one."""

    count: int = 1
    index: int = 0
    device: torch.device | None = None

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes, shows and decides by the clock."""
        return self.index == 0

    def share(self, size: int) -> int:
        """How many of `size` rows, which all processes hold together, belong to each."""
        return size // self.count

    def own(self, size: int) -> slice:
        """Which of `size` rows belong to this process."""
        share = self.share(size)
        return slice(self.index * share, (self.index + 1) * share)

    def mean_(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their mean over the processes; in a CUDA graph too."""
        if self.count == 1:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        with _telling_of_lost_processes():
            distributed.all_reduce(flat)
        parts = torch.split_with_sizes(flat.div_(self.count), [tensor.numel() for tensor in tensors])
        torch._foreach_copy_(list(tensors), [part.view_as(own) for part, own in zip(parts, tensors, strict=True)])

    def gather(self, rows: Tensor) -> Tensor:
        """The rows of all processes, which have equally many, in their order."""
        if self.count == 1:
            return rows
        everyone = [torch.empty_like(rows, memory_format=torch.contiguous_format) for _ in range(self.count)]
        with _telling_of_lost_processes():
            distributed.all_gather(everyone, rows.contiguous())
        return torch.cat(everyone)

    def everywhere(self, flag: bool) -> bool:
        """Whether the flag is set in every process."""
        return flag if self.count == 1 else bool(self.gather(torch.tensor([flag], device=self.device).int()).all())

    def first(self, work: Callable[[], T]) -> T:
        """What `work` gives in the first process, for all; where it fails, all of them end."""
        if self.count == 1:
            return work()
        answer: list[Any] = [None, None]
        failed: Exception | None = None
        if self.is_first:
            try:
                answer[0] = work()
            except Exception as error:
                failed, answer[1] = error, getattr(error, "exit_code", EbplError.exit_code)
        with _telling_of_lost_processes():
            distributed.broadcast_object_list(answer, device=self.device)
        if failed is not None:
            raise failed
        if answer[1] is not None:
            ended = RankZeroFailed("The first process ended this training.")
            ended.exit_code = answer[1]
            raise ended
        return cast(T, answer[0])


ALONE = Ranks()


@contextlib.contextmanager
def _telling_of_lost_processes() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise RunError(
            "Another process of this training has ended or cannot be reached, so this one cannot continue. Start them "
            "all again from the newest checkpoint with: ebpl resume RUN"
        ) from error


def join(settings: Settings, terms: Sequence[LossTerm], devices: int | None = None, nodes: int | None = None) -> Ranks:
    """This process among those that torchrun, SLURM or the command has started; `ALONE` if there is only one."""
    here = place()
    given = devices is not None or nodes is not None
    if given and (devices or 1) * (nodes or 1) == 1:
        if here.count > 1:
            part()
        return ALONE
    if not given and here.count == 1:
        return ALONE
    if here.count == 1:
        raise UsageError(
            f"Training with devices={devices or 1} and nodes={nodes or 1} needs as many processes. Start your script "
            f"with torchrun --nproc-per-node {devices or 1}, or use the command: ebpl train DATA --devices N"
        )
    for name, asked, there in (("devices", devices, here.devices), ("nodes", nodes, here.nodes)):
        if asked not in (None, there):
            raise UsageError(
                f"{name} is {asked}, but there are {here.nodes} x {here.devices} processes (machines x processes on "
                f"each). Leave --devices and --nodes away below torchrun and SLURM, or give the same numbers."
            )
    _check_shares(settings, terms, here.count)
    return _joined(here, choose_device(settings.runtime).type)


def _check_shares(settings: Settings, terms: Sequence[LossTerm], count: int) -> None:
    """Every process gets the same share of each of these."""
    names = ["optim.batch_size"]
    names += ["sgld.chains", "sgld.buffer_size"] if any(term.density for term in terms) else []
    drawn = [term for term in terms if term.stream == "unlabeled"]
    names += ["consistency.batch_size"] if any(not term.ratio for term in drawn) else []
    for name in names:
        value = settings[name]
        if value % count:
            below = value - value % count
            raise UsageError(
                f"{name} is {value}, but must be divisible by the number of processes ({count}). "
                f"Nearest: {' or '.join(str(near) for near in (below, below + count) if near)}."
            )


def _joined(here: ProcessInfo, kind: str) -> Ranks:
    if kind == "cuda" and torch.cuda.device_count() < here.devices:
        raise UsageError(
            f"There are {here.devices} processes on this machine, but each sees {torch.cuda.device_count()} GPUs. "
            f"Start as many processes as there are GPUs, with all GPUs visible to each, or use --device cpu."
        )
    device = torch.device("cuda", _local_index(here)) if kind == "cuda" else torch.device("cpu")
    try:
        if here.slurm:
            _meet_in_slurm()
        if kind == "cuda":
            torch.cuda.set_device(device)
        backend = "nccl" if kind == "cuda" else "gloo"
        distributed.init_process_group(backend, rank=here.index, world_size=here.count)
    except (RuntimeError, ValueError) as error:
        raise RunError(f"The {here.count} processes of this training did not find each other: {error}") from error
    atexit.register(_part)
    if here.index:
        logging.getLogger("ebpl").addHandler(logging.NullHandler())  # rank zero reports
    return Ranks(here.count, here.index, device)


def _local_index(here: ProcessInfo) -> int:
    """The number of this process among those on its machine; SLURM may deal processes out in any order."""
    told = os.environ.get("SLURM_LOCALID" if here.slurm else "LOCAL_RANK", "")
    return int(told) if told.isdecimal() else here.index % here.devices


def _part() -> None:
    """End the connection before Python ends: gloo's threads, cut off, would abort a process that has succeeded."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _meet_in_slurm() -> None:
    """Let the processes of a SLURM job meet on its first machine, at a port that follows from the job's number."""
    names = os.environ.get("SLURM_JOB_NODELIST") or os.environ.get("SLURM_NODELIST") or "localhost"
    os.environ.setdefault("MASTER_ADDR", first_host(names))
    os.environ.setdefault("MASTER_PORT", str(15000 + int(os.environ.get("SLURM_JOB_ID", "0")[-4:])))


def first_host(names: str) -> str:
    """The first machine of a list in SLURM's notation.

    >>> first_host("gpu[07-09,12],cpu3"), first_host("localhost")
    ('gpu07', 'localhost')
    """
    found = re.match(r"(?:[^\[,]|\[[^\]]*\])+", names)  # up to the first comma outside of brackets
    return re.sub(r"\[([0-9]+)[^\]]*\]", r"\1", found[0]) if found else names


def predict_together(model: HybridModel, images: Tensor, dtype: torch.dtype, ranks: Ranks) -> Predictions:
    """The same predictions in every process, each of which computes its share of them."""
    if ranks.count == 1:
        return predict(model, images, dtype)
    mine = predict(model, _share(images, ranks), dtype)
    table = _gathered(np.column_stack([mine.probabilities, mine.energies]), images, ranks)
    return Predictions(table[:, :-1], table[:, -1])


def features_together(
    model: HybridModel, images: Tensor, dtype: torch.dtype, ranks: Ranks
) -> NDArray[np.float32] | NDArray[np.float64]:
    """What the heads see of each image, (N, D), the same in every process."""
    _, mine = predict_with_features(model, _share(images, ranks), dtype)
    return mine if ranks.count == 1 else _gathered(mine, images, ranks)


def _share(images: Tensor, ranks: Ranks) -> Tensor:
    """The images of this process; the last processes may have fewer."""
    share = -(-len(images) // ranks.count)
    return images[ranks.index * share : (ranks.index + 1) * share]


def _gathered(mine: NDArray[np.floating], images: Tensor, ranks: Ranks) -> NDArray[np.float64]:
    """The rows of all processes, one for each image."""
    rows = torch.zeros(-(-len(images) // ranks.count), mine.shape[1], dtype=torch.float64)
    rows[: len(mine)] = torch.from_numpy(mine)
    table: NDArray[np.float64] = ranks.gather(rows.to(images.device))[: len(images)].cpu().numpy()
    return table
