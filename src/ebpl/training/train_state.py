"""Everything that training changes, in one object: what a checkpoint holds, and what divergence goes back to."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ebpl.calibration import CalibrationCheck, apply_temperature, scale_classifier
from ebpl.calibration.class_mix import ClassMix, estimate_mix, reweight
from ebpl.config import Settings
from ebpl.errors import RunError
from ebpl.models import Architecture, HybridModel
from ebpl.models.weights import LOG_MIX, load_weights
from ebpl.rng import derived_seed, generator
from ebpl.sampling import FittedGaussian, ReplayBuffer, affordable
from ebpl.training.distributed import ALONE, Ranks
from ebpl.training.divergence import Divergence

MOMENTUM = 0.9
"""Of SGD."""


@dataclass
class Progress:
    """Where training stands, as plain values."""

    phase: int = 0
    epoch: int = 0
    selected: list[int] = field(default_factory=list)
    """Positions among the unlabelled images that have a pseudo-label now."""
    rejected: list[int] = field(default_factory=list)
    """Positions among them that are outliers and not learned from."""
    pseudo_label_accuracy: float | None = None
    check: CalibrationCheck | None = None
    """What the held-out labels have shown of the confidence."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """A row for each epoch."""
    best: dict[str, Any] = field(default_factory=dict)
    """The weights to keep, with their score, phase and epoch."""
    spreading: float = 0.0
    """How far pseudo-labels are spread among similar images; checkpoints of older versions do not have it."""
    class_mix: ClassMix | None = None
    """Of the unlabelled images, where it was estimated or given; neither do they have this."""


class TrainState:
    """Weights, their average, optimiser, replay buffer, targets and progress.

    Tensors are always changed in place, so that captured GPU graphs stay valid.
    """

    def __init__(
        self,
        architecture: Architecture,
        settings: Settings,
        device: torch.device,
        ranks: Ranks = ALONE,
        model: HybridModel | None = None,
    ) -> None:
        self.settings, self.device, self.ranks = settings, device, ranks
        self.model: HybridModel = (model or architecture.build()).to(device)
        # PyTorch's own type hints leave this argument out
        self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.average: HybridModel | None = _frozen_copy(self.model) if settings.optim.ema_decay else None
        self.buffer: ReplayBuffer | None = None
        self.memory: dict[str, Tensor] = {}
        self._memory_start: dict[str, Tensor] = {}
        on_gpu = device.type == "cuda"
        groups = [{**group, "lr": torch.zeros((), device=device) if on_gpu else 0.0} for group in self._groups()]
        if settings.optim.optimizer == "adam":
            self.optimizer: torch.optim.Optimizer = torch.optim.Adam(groups, capturable=on_gpu, fused=on_gpu)
        else:
            self.optimizer = torch.optim.SGD(groups, momentum=MOMENTUM, nesterov=True, fused=on_gpu)
        self._create_optimizer_state()
        self.set_learning_rate(settings.optim.learning_rate)
        self.ema_updates = 0
        self.targets = torch.zeros(0)
        self.progress = Progress()
        self.divergence = Divergence.of(settings)
        self.seconds = 0.0

    def create_buffer(self, shape: tuple[int, ...], start: FittedGaussian | None = None) -> None:
        """A replay buffer for samples of this shape, whose chains start from uniform noise or from this Gaussian."""
        sgld = self.settings.sgld
        size = self.ranks.share(affordable(sgld.buffer_size, shape, sgld.chains))
        self.buffer = ReplayBuffer(size, shape, sgld.restart_probability, self.device, start)

    def create_memory(self, starts: Sequence[dict[str, Tensor]]) -> None:
        """What loss terms keep from update to update, each by its own names, and begin with."""
        self._memory_start = {name: tensor.to(self.device) for start in starts for name, tensor in start.items()}
        self.memory.update({name: tensor.clone() for name, tensor in self._memory_start.items()})

    def _groups(self) -> list[dict[str, Any]]:
        """The parameters to learn, with the factor of their rate; a pretrained network has one of its own."""
        learned = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        pretrained = set(self.model.features.parameters()) if self.model.features.starts_from_probe else set()
        heads = [parameter for parameter in learned if parameter not in pretrained]
        network = [parameter for parameter in learned if parameter in pretrained]
        factors = ((heads, 1.0), (network, self.settings.optim.encoder_lr_factor))
        return [{"params": part, "factor": factor} for part, factor in factors if part]

    def _create_optimizer_state(self) -> None:
        """Moments are created at the first step; a step at rate 0 makes them exist from the start."""
        for parameter in (each for group in self.optimizer.param_groups for each in group["params"]):
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
            own = rate * group["factor"]
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(own)
            else:
                group["lr"] = own

    @property
    def predictor(self) -> HybridModel:
        """The model to predict with and to keep: the averaged weights where there are any."""
        return self.average or self.model

    @property
    def temperature(self) -> float:
        """By which class scores are divided in what is kept."""
        return self.progress.check.temperature if self.progress.check else 1.0

    def kept_weights(self) -> dict[str, Tensor]:
        """The weights to keep, with the temperature in them, and a class mix where it is not that of the labels."""
        weights = scale_classifier(self.progress.best["weights"], self.temperature)
        mix = self.progress.class_mix
        return {**weights, LOG_MIX: torch.tensor(mix.log_ratio)} if mix and mix.differs else weights

    def keeps_last_weights(self) -> bool:
        """Whether the weights to keep are the last ones."""
        kept = self.progress.best["weights"]
        last = self.predictor.state_dict()  # kept weights that were read from a checkpoint are on the CPU
        return all(torch.equal(kept[name].to(tensor.device), tensor) for name, tensor in last.items())

    def kept_model(self) -> HybridModel:
        """A model with the weights to keep."""
        model = _frozen_copy(self.model)
        load_weights(model, self.kept_weights())
        return model.eval()

    def set_class_mix(self, mix: ClassMix | None) -> None:
        """Let unlabelled images have this class mix; None is that of the labels."""
        self.progress.class_mix = mix
        for model in (self.model, self.average):
            if model is not None:
                model.set_mix(mix.log_ratio if mix else torch.zeros_like(model.log_mix))

    def estimate_mix(
        self, probabilities: NDArray[np.float64], labels: NDArray[np.int64], classes: Sequence[str]
    ) -> str:
        """Find the class mix of the unlabelled images, once: what is learned with it would confirm it. Says what it is.

        `probabilities` are what is said of them, `labels` how many labels each class has.
        """
        mix = estimate_mix(apply_temperature(probabilities, self.temperature), labels)
        self.set_class_mix(mix)
        return mix.in_words(classes)

    def tempered(self, probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probabilities with the temperature, which the scores are divided by before the class mix is added."""
        ratio = np.array(self.progress.class_mix.log_ratio if self.progress.class_mix else 0.0)
        return reweight(apply_temperature(reweight(probabilities, -ratio), self.temperature), ratio)

    @torch.no_grad()
    def initialise(self, *purpose: object) -> None:
        """Fresh weights, optimiser, average and memory; the buffer is left as it is."""
        fresh = self.model.architecture.build().initialise(generator(self.settings.seed, "weights", *purpose))
        weights = {**self.model.state_dict(), **dict(fresh.named_parameters())}  # what was fitted to the data stays
        self.model.load_state_dict(weights)
        if self.average is not None:
            self.average.load_state_dict(weights)
        self._clear_optimizer()
        self.ema_updates = 0
        for name, tensor in self.memory.items():
            tensor.copy_(self._memory_start[name])

    def restart_chains(self, *purpose: object) -> None:
        """Fill the replay buffer with noise."""
        if self.buffer is not None:
            noise = torch.Generator(self.device)
            noise.manual_seed(derived_seed(self.settings.seed, "buffer", *purpose))
            self.buffer.restart(noise, self.ranks.count, self.ranks.index)

    def next_ema_weight(self) -> float:
        """How much the next update counts in the average: much at first, so that a fresh network does not lag."""
        self.ema_updates += 1
        t = self.ema_updates
        return 1 - min(self.settings.optim.ema_decay, (1 + t) / (10 + t))

    def is_finite(self) -> bool:
        """Whether every weight, and every averaged one, is a finite number."""
        weights = [*self.model.parameters(), *(self.average.parameters() if self.average else ())]
        return bool(torch.stack([weight.isfinite().all() for weight in weights]).all())

    # --- copies ------------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the network's state by name, as it is (not a copy)."""
        named = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        if self.average is not None:
            named |= {f"average.{name}": tensor for name, tensor in self.average.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for moment, tensor in self.optimizer.state.get(parameter, {}).items():
                named[f"optimizer.{name}.{moment}"] = tensor
        if self.buffer is not None:
            named["buffer"] = self.buffer.samples
        return named | {f"memory.{name}": tensor for name, tensor in self.memory.items()}

    def tensors_copy(self) -> dict[str, Any]:
        """A copy of those tensors, and how many updates are in the average."""
        tensors = {name: tensor.detach().clone() for name, tensor in self.tensors().items()}
        return {"tensors": tensors, "ema_updates": self.ema_updates}

    @torch.no_grad()
    def load_tensors(self, stored: dict[str, Any]) -> None:
        """Back to copied tensors, in place."""
        mine, tensors = self.tensors(), stored["tensors"]
        if {name: tensor.shape for name, tensor in mine.items()} != {name: t.shape for name, t in tensors.items()}:
            raise RunError("The checkpoint belongs to a model of another shape: were the settings of the run edited?")
        for name, tensor in mine.items():
            tensor.copy_(tensors[name])
        self.ema_updates = stored["ema_updates"]

    def snapshot(self) -> dict[str, Any]:
        """A copy of all that training changes, but for what was learned from divergences and the time spent."""
        progress = vars(self.progress) | {"history": list(self.progress.history)}
        progress["check"] = asdict(self.progress.check) if self.progress.check else None
        progress["class_mix"] = asdict(self.progress.class_mix) if self.progress.class_mix else None
        return {**self.tensors_copy(), "targets": self.targets.clone(), **progress}

    def restore(self, stored: dict[str, Any]) -> None:
        """Back to a snapshot, in place."""
        self.load_tensors(stored)
        self.targets.copy_(stored["targets"])
        names = set(vars(self.progress)) - {"check", "history", "spreading", "class_mix"}
        self.progress = Progress(
            **{name: stored[name] for name in names},
            check=CalibrationCheck.stored(stored.get("check")),
            history=list(stored["history"]),
            spreading=stored.get("spreading", 0.0),
        )
        self.set_class_mix(ClassMix.stored(stored.get("class_mix")))

    def with_all_chains(self, snapshot: dict[str, Any]) -> dict[str, Any]:
        """A snapshot with the chains of all processes, as a checkpoint holds it."""
        return self._with_chains(snapshot, self.ranks.gather)

    def with_own_chains(self, stored: dict[str, Any]) -> dict[str, Any]:
        """What a checkpoint holds, with only the chains of this process; older versions kept more of large images."""
        most = None if self.buffer is None else self.ranks.count * len(self.buffer.samples)
        return self._with_chains(stored, lambda chains: chains[:most][self.ranks.own(len(chains[:most]))])

    def _with_chains(self, stored: dict[str, Any], change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        tensors = {name: change(t) if name == "buffer" else t for name, t in stored["tensors"].items()}
        changed = {**stored, "tensors": tensors}
        if "last_good" in stored:
            changed["last_good"] = self._with_chains(stored["last_good"], change)
        return changed


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
