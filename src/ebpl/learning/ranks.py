"""Processes that train together, one on each device.

Lightning Fabric brings them together, whoever started them. All that they then exchange is here. It is not left to
Fabric's own collectives because those begin with a barrier, which a captured CUDA graph cannot hold.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, distributed

from ebpl.devices import choose_device
from ebpl.errors import EbplError, RunError, UsageError
from ebpl.methods import METHODS
from ebpl.processes import Place, part, place
from ebpl.settings import Settings

T = TypeVar("T")


class ToldByFirst(RunError):
    """The end of a process because the first one could not do its part, which that one tells."""


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
            ended = ToldByFirst("The first process ended this training.")
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
            "Another process of this training has ended or cannot be reached, so this one cannot go on. Start them all "
            "again from the newest checkpoint with: ebpl resume RUN"
        ) from error


def join(settings: Settings, devices: int | None = None, nodes: int | None = None) -> Ranks:
    """This process among those that torchrun, SLURM or the command has started; alone if there is only one."""
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
    _check_shares(settings, here.count)
    return _joined(here, choose_device(settings).type)


def _check_shares(settings: Settings, count: int) -> None:
    """Every process gets the same share of each of these."""
    names = ["batch_size"]
    names += ["chains", "buffer_size"] if METHODS[settings.method].density else []
    names += ["consistency_batch"] if settings.consistency else []
    for name in names:
        value = getattr(settings, name)
        if value % count:
            below = value - value % count
            raise UsageError(
                f"{name} is {value}, but must be divisible by the number of processes ({count}). "
                f"Nearest: {' or '.join(str(near) for near in (below, below + count) if near)}."
            )


def _joined(here: Place, kind: str) -> Ranks:
    if kind == "cuda" and torch.cuda.device_count() < here.devices:
        raise UsageError(
            f"There are {here.devices} processes on this machine, but each sees {torch.cuda.device_count()} GPUs. "
            f"Start as many processes as there are GPUs, with all GPUs visible to each, or use --device cpu."
        )
    fabric_package = _fabric_package()
    logging.getLogger(fabric_package.__name__).setLevel(logging.WARNING)  # it greets at length
    environments = importlib.import_module(f"{fabric_package.__name__}.plugins.environments")
    try:
        environment = environments.SLURMEnvironment() if here.slurm else environments.TorchElasticEnvironment()
        fabric = fabric_package.Fabric(
            accelerator=kind, devices=here.devices, num_nodes=here.nodes, strategy="ddp", plugins=[environment]
        )
        fabric.launch()
    except (RuntimeError, ValueError) as error:
        raise RunError(f"The {here.count} processes of this training did not find each other: {error}") from error
    atexit.register(_part)
    if here.index:
        logging.getLogger("ebpl").addHandler(logging.NullHandler())  # the first process tells
    return Ranks(here.count, here.index, fabric.device)


def _part() -> None:
    """End the connection before Python ends: gloo's threads, cut off, would abort a process that has succeeded."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _fabric_package() -> Any:
    """Lightning Fabric under either of its names."""
    for name in ("lightning_fabric", "lightning.fabric"):
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(name)
    raise UsageError(
        "Training in several processes needs Lightning Fabric. Install it with: pip install 'ebpl[distributed]'"
    )
