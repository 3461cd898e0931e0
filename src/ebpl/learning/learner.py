"""Everything that training changes: weights, their average, optimiser, replay buffer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ebpl.errors import RunError
from ebpl.learning.ranks import ALONE, Ranks
from ebpl.model.hybrid import Architecture, HybridModel
from ebpl.sampling.replay import ReplayBuffer
from ebpl.seeds import derived_seed, generator
from ebpl.settings import Settings


class Learner:
    """The mutable state of a run. It is always changed in place, so that captured GPU graphs stay valid."""

    def __init__(
        self,
        architecture: Architecture,
        shape: tuple[int, int, int],
        settings: Settings,
        device: torch.device,
        ranks: Ranks = ALONE,
    ) -> None:
        self.settings, self.device, self.ranks = settings, device, ranks
        self.model: HybridModel = architecture.build().to(device)
        # PyTorch's own type hints leave this argument out
        self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.average: HybridModel | None = _frozen_copy(self.model) if settings.weight_average else None
        self.buffer = None
        if architecture.precision is not None:
            size = ranks.share(settings.buffer_size)
            self.buffer = ReplayBuffer(size, shape, settings.restart_probability, device)
        on_gpu = device.type == "cuda"
        rate: Any = torch.zeros((), device=device) if on_gpu else 0.0
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=rate, capturable=on_gpu, fused=on_gpu)
        self._create_optimizer_state()
        self.set_learning_rate(settings.learning_rate)
        self.averaged_updates = 0

    def _create_optimizer_state(self) -> None:
        """Adam creates its moments at the first step; a step at rate 0 makes them exist from the start."""
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._clear_optimizer()

    def _clear_optimizer(self) -> None:
        for moments in self.optimizer.state.values():
            for tensor in moments.values():
                tensor.zero_()

    def set_learning_rate(self, rate: float) -> None:
        """The rate of all further updates."""
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    @property
    def predictor(self) -> HybridModel:
        """The model to predict with and to keep: the averaged weights where there are any."""
        return self.average or self.model

    @torch.no_grad()
    def initialise(self, *purpose: object) -> None:
        """Fresh weights, optimiser and average; the buffer is left as it is."""
        fresh = self.model.architecture.build().initialise(generator(self.settings.seed, "weights", *purpose))
        self.model.load_state_dict(fresh.state_dict())
        if self.average is not None:
            self.average.load_state_dict(fresh.state_dict())
        self._clear_optimizer()
        self.averaged_updates = 0

    def restart_chains(self, *purpose: object) -> None:
        """Fill the replay buffer with noise."""
        if self.buffer is not None:
            noise = torch.Generator(self.device)
            noise.manual_seed(derived_seed(self.settings.seed, "buffer", *purpose))
            self.buffer.restart(noise, self.ranks.count, self.ranks.index)

    def next_average_weight(self) -> float:
        """How much the next update counts in the average: much at first, so that a fresh network does not lag."""
        self.averaged_updates += 1
        t = self.averaged_updates
        return 1 - min(self.settings.weight_average, (1 + t) / (10 + t))

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the state by name, as it is (not a copy)."""
        named = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        if self.average is not None:
            named |= {f"average.{name}": tensor for name, tensor in self.average.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for moment, tensor in self.optimizer.state[parameter].items():
                named[f"optimizer.{name}.{moment}"] = tensor
        if self.buffer is not None:
            named["buffer"] = self.buffer.samples
        return named

    def is_finite(self) -> bool:
        """Whether every weight, and every averaged one, is a finite number."""
        weights = [*self.model.parameters(), *(self.average.parameters() if self.average else ())]
        return bool(torch.stack([weight.isfinite().all() for weight in weights]).all())

    def state(self) -> dict[str, Any]:
        """A copy of the state with this process's own chains, for the guard."""
        tensors = {name: tensor.detach().clone() for name, tensor in self.tensors().items()}
        return {"tensors": tensors, "averaged_updates": self.averaged_updates}

    @torch.no_grad()
    def restore(self, state: dict[str, Any]) -> None:
        """Back to a copied state, in place."""
        mine = self.tensors()
        if {name: t.shape for name, t in mine.items()} != {name: t.shape for name, t in state["tensors"].items()}:
            raise RunError("The checkpoint belongs to a model of another shape: were the settings of the run edited?")
        for name, tensor in mine.items():
            tensor.copy_(state["tensors"][name])
        self.averaged_updates = state["averaged_updates"]

    def with_all_chains(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state with the chains of all processes, as a checkpoint holds it."""
        return self._with_chains(state, self.ranks.gather)

    def with_own_chains(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state from a checkpoint, with the chains of this process alone."""
        return self._with_chains(state, lambda chains: chains[self.ranks.own(len(chains))])

    def _with_chains(self, state: dict[str, Any], change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        tensors = state["tensors"]
        return {**state, "tensors": {name: change(t) if name == "buffer" else t for name, t in tensors.items()}}


def _frozen_copy(model: HybridModel) -> HybridModel:
    twin = copy.deepcopy(model)
    return twin.requires_grad_(False)


def sampling_copy(model: HybridModel, dtype: torch.dtype) -> HybridModel:
    """A copy to sample from: no parameter gradients, the network in `dtype`, the heads in float32."""
    twin = _frozen_copy(model)
    twin.features.to(dtype)
    return twin


@torch.no_grad()
def refresh(twin: nn.Module, model: nn.Module) -> None:
    """Bring a copy up to date with its model, casting once."""
    torch._foreach_copy_(tuple(twin.parameters()), tuple(model.parameters()))
