"""One training step, and the ways to run it.

The step exists once, as `TrainStep.__call__`, which reads its batch from fixed tensors. On the CPU it is called; on a
GPU it is captured once as a CUDA graph and replayed, which spares the launch of thousands of small kernels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ebpl.config import Settings
from ebpl.data.transforms import augment, randaugment, strongly_augment
from ebpl.kernels import fast_network
from ebpl.sampling import Langevin
from ebpl.training.distributed import ALONE, Ranks
from ebpl.training.losses import Loss, LossTerm, Outputs
from ebpl.training.train_state import TrainState, refresh, sampling_copy
from ebpl.training.training_set import ALL, LABELED, UNLABELED, TrainingSet

TIMED = 8
"""Images that are predicted to learn how long an update will take."""
COSTS = {LABELED: 3, ALL: 1, UNLABELED: 4}
"""What learning from an image costs, in predictions: gradients cost two more, and a teacher predicts too."""
Reading = Callable[[], list[float]]
"""Numbers on their way from the device: calling it waits for them."""


class TrainStep:
    """Gather the terms' views, pass them through the network at once, differentiate, step, average.

    Sums of what the terms log stay on the device until asked for. Terms draw their views with the methods `weak`,
    `strong`, `noisy`, `beside_samples`, `random`, `sample` and `teacher_scores`. What they keep is in `memory`.
    """

    def __init__(
        self,
        state: TrainState,
        training_set: TrainingSet,
        terms: Sequence[LossTerm],
        settings: Settings,
        augmentation: str,
        dtype: torch.dtype,
        ranks: Ranks = ALONE,
    ) -> None:
        self.state, self.training_set, self.terms, self.settings = state, training_set, terms, settings
        self.augmentation = augmentation if state.model.features.takes_images else "none"
        self.dtype, self.ranks = dtype, ranks
        device = state.device
        streams = dict.fromkeys(term.stream for term in terms if term.stream)
        self.batch_sizes = {stream: ranks.share(stream_size(stream, settings, terms)) for stream in streams}
        self.positions = {
            stream: torch.zeros(size, dtype=torch.long, device=device) for stream, size in self.batch_sizes.items()
        }
        """Where the images of this step are in the training set, by stream; written before every step."""
        self.names = ("loss", *(name for term in terms for name in term.logs))
        self.ema_weight = torch.zeros((), device=device)
        self.fraction = torch.zeros((), device=device)
        """How much of the initial training is over, from 0 to 1."""
        self.memory = state.memory
        self.sums = torch.zeros(len(self.names), device=device)
        self.widest_gap = torch.zeros((), device=device)
        self.generator = torch.Generator(device)
        chains = ranks.share(settings.sgld.chains) if state.buffer is not None else 0
        shape, looked_at = training_set.inputs.shape[1:], self.batch_sizes.get(UNLABELED, 0)
        passed = sum(self.batch_sizes.values()) + looked_at + chains  # a term may have two views of each
        self.fast = fast_network(state.model.features, shape, device, dtype, passed)
        self.teacher = state.model if any(term.current_teacher for term in terms) else state.predictor
        network = self.teacher.features
        self.fast_teacher = fast_network(network, shape, device, dtype, looked_at) if looked_at else None
        self.on_features = state.model.features.samples_features
        self.sampler = None if self.fast or self.on_features or not chains else sampling_copy(state.model, dtype)
        sgld = settings.sgld
        self.langevin = Langevin(
            sgld.steps, sgld.step_size, sgld.noise, sgld.gradient_clip, (-1.0, 1.0) if sgld.clamp_samples else None
        )

    def __call__(self) -> None:
        """One update on the images at `positions`."""
        state = self.state
        for network in (self.fast, self.fast_teacher):
            if network:
                network.refresh()
        gathered = [term.views(self) for term in self.terms]
        gathered = [term.finish(self, views) for term, views in zip(self.terms, gathered, strict=True)]
        state.optimizer.zero_grad(set_to_none=True)
        with self._autocast():
            outputs = self._forward([inputs for views in gathered for inputs in views.inputs])
            losses = []
            for term, views in zip(self.terms, gathered, strict=True):
                own = [outputs.pop(0) for _ in views.inputs]
                losses.append(term.loss(state.model, own, views))
            total = losses[0].value
            for loss in losses[1:]:
                total = total + loss.value
        total.backward()  # type: ignore[no-untyped-call]
        # each term is a mean over equal shares, so the mean of the gradients is the gradient of the whole batch
        self.ranks.mean_([p.grad for p in state.model.parameters() if p.grad is not None])
        if self.settings.optim.gradient_clip:
            torch.nn.utils.clip_grad_norm_(state.model.parameters(), self.settings.optim.gradient_clip)
        state.optimizer.step()
        self._average()
        self._log(total, losses)

    def prepare(self, ema_weight: float, fraction: float) -> None:
        """What the next step needs to know of the course of training."""
        self.ema_weight.fill_(ema_weight)
        self.fraction.fill_(fraction)

    def _forward(self, inputs: Sequence[Tensor]) -> list[Outputs]:
        """One pass for all: without batch normalisation the images of a batch do not see each other."""
        model = self.state.model
        if self.on_features:
            features = self._with_features(inputs)
        else:
            together = torch.cat(list(inputs))
            features = self.fast(together) if self.fast else model.features(together)
        scores, energies = model.heads(features)
        sizes = [len(each) for each in inputs]
        parts = zip(torch.split(scores, sizes), torch.split(energies, sizes), strict=True)
        return [Outputs(*each) for each in parts]

    def _with_features(self, inputs: Sequence[Tensor]) -> Tensor:
        """The features of all inputs, some of which are features already; those of images get the noise of training."""
        images = [each for each in inputs if each.ndim == 4]
        sizes = [len(each) for each in images]
        found = iter(torch.split(self._with_noise(self.state.model.features(torch.cat(images))), sizes))
        return torch.cat([next(found) if each.ndim == 4 else each for each in inputs])

    def expected_seconds(self) -> float:
        """About how long an update of a fine-tuned encoder takes, from how long a prediction does."""
        features, some = self.state.model.features, self.training_set.inputs[:TIMED]
        begun = time.monotonic()
        with torch.no_grad(), torch.autocast(some.device.type, self.dtype, enabled=self.dtype != torch.float32):
            for part in torch.split(some, features.batch):
                features(features.scale(part)).cpu()
        predictions = sum(COSTS[stream] * size for stream, size in self.batch_sizes.items())
        return predictions * (time.monotonic() - begun) / len(some) / features.predicted_views

    # --- what terms make their views with ----------------------------------------------------------------------------

    def random(self, *shape: int) -> Tensor:
        """Uniform random numbers in [0, 1)."""
        return torch.rand(*shape, generator=self.generator, device=self.state.device)

    def weak(self, images: Tensor) -> Tensor:
        """Label-preserving views: shifted and flipped."""
        if self.state.model.features.keeps_views:
            return self.state.model.features.view(images, strong=False, generator=self.generator)
        return augment(images, self.augmentation, self.settings.data.max_shift, self.generator)

    def strong(self, images: Tensor) -> Tensor:
        """Views that are hard to recognise: also rotated, zoomed, sheared, recoloured or partly hidden."""
        if self.state.model.features.keeps_views:
            return self.state.model.features.view(images, strong=True, generator=self.generator)
        if not self.state.model.features.takes_images:
            return images
        chosen = self.settings.data
        change = strongly_augment if chosen.strong_views == "combined" else randaugment
        return change(images, self.augmentation, chosen.max_shift, self.generator, chosen.color_jitter)

    def noisy(self, inputs: Tensor) -> Tensor:
        """Inputs as the network sees them in training: with a little noise, channels last."""
        return _channels_last(inputs if self.on_features else self._with_noise(inputs))

    def beside_samples(self, images: Tensor) -> Tensor:
        """Images as a density sees them, where samples are: as noisy inputs, or as noisy features without gradients.

        A network that learned from the density of its features would make all images alike.
        """
        if not self.on_features:
            return self.noisy(images)
        with torch.no_grad(), self._autocast():  # apart from the step's own, as for the teacher
            features: Tensor = self.state.model.features(_channels_last(images))
        return self._with_noise(features)

    def _with_noise(self, values: Tensor) -> Tensor:
        if not self.settings.data.pixel_noise:
            return values
        noise = torch.randn(values.shape, generator=self.generator, device=values.device)
        return values + self.settings.data.pixel_noise * noise

    def teacher_scores(self, images: Tensor) -> Tensor:
        """Class scores of the averaged weights, or of the current ones if the terms say so, without gradients."""
        teacher, images = self.teacher, _channels_last(images)
        # apart from the step's own, which would find weights cast here, without gradients
        with torch.no_grad(), self._autocast():
            return teacher.heads(self.fast_teacher(images) if self.fast_teacher else teacher.features(images))[0]

    def mean_of_all(self, value: Tensor) -> Tensor:
        """The mean over all processes of what each has found in its share of a batch."""
        self.ranks.mean_([value])
        return value

    def sample(self) -> Tensor:
        """Samples from the current model, drawn from and put back into the replay buffer."""
        buffer, model = self.state.buffer, self.state.model
        assert buffer is not None
        index, start = buffer.draw(self.ranks.share(self.settings.sgld.chains), self.generator)
        start = _channels_last(start)
        if self.on_features:
            samples = self.langevin.follow(model.energy_head.energy_gradient(), start, self.generator)
        elif self.fast:
            samples = self.langevin.follow(self.fast.energy_gradient(model.energy_head), start, self.generator)
        else:
            sampler = self.sampler
            assert sampler is not None
            refresh(sampler, model)
            samples = self.langevin(lambda x: sampler(x.to(self.dtype))[1], start, self.generator)
        buffer.store(index, samples)
        return samples

    # --- the rest of a step ------------------------------------------------------------------------------------------

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.state.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32)

    @torch.no_grad()
    def _average(self) -> None:
        if self.state.average is not None:
            average = tuple(self.state.average.parameters())
            difference = torch._foreach_sub(tuple(self.state.model.parameters()), average)
            torch._foreach_mul_(difference, self.ema_weight)
            torch._foreach_add_(average, difference)

    @torch.no_grad()
    def _log(self, total: Tensor, losses: Sequence[Loss]) -> None:
        logged = {"loss": total, **{name: value for loss in losses for name, value in loss.logs.items()}}
        self.sums += torch.stack([logged[name].detach().float() for name in self.names])
        if "energy_gap" in logged:
            # NaN is larger than any number here, so one bad step shows however many good ones follow
            torch.maximum(self.widest_gap, logged["energy_gap"].detach().abs(), out=self.widest_gap)

    def clear_sums(self) -> None:
        """Start summing the logs anew."""
        self.sums.zero_()
        self.widest_gap.zero_()

    def read(self) -> Reading:
        """Sums of the logs, by the order of `names`, and the widest energy gap so far; a GPU is not waited for."""
        everyone = self.ranks.gather(torch.cat([self.sums, self.widest_gap[None]])[None])
        # not a reduction by the collective itself: those need not keep NaN when they look for the largest
        values = torch.cat([everyone[:, :-1].mean(0), everyone[:, -1:].amax(0)])
        if values.device.type != "cuda":
            return values.tolist
        host = torch.empty(values.shape, pin_memory=True).copy_(values, non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()

        def wait() -> list[float]:
            arrived.synchronize()
            return host.tolist()

        return wait


def stream_size(stream: str, settings: Settings, terms: Sequence[LossTerm] = ()) -> int:
    """Images that a step draws from a stream, over all processes."""
    if stream != UNLABELED:
        return settings.optim.batch_size
    ratio = max((term.ratio for term in terms if term.stream == UNLABELED), default=0)
    return ratio * settings.optim.batch_size or settings.consistency.batch_size


def _channels_last(inputs: Tensor) -> Tensor:
    return inputs.contiguous(memory_format=torch.channels_last) if inputs.ndim == 4 else inputs.contiguous()


def runner(step: TrainStep) -> Callable[[], None]:
    """The fastest way to run this step where it lives: a captured graph on a GPU, a plain call elsewhere."""
    return _captured(step) if step.state.device.type == "cuda" else step


def _captured(step: TrainStep) -> Callable[[], None]:
    before = step.state.tensors_copy()
    stream = current = torch.cuda.current_stream()
    if current == torch.cuda.default_stream():  # which cannot be captured
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        for _ in range(3):  # lazy initialisation must not happen during the capture
            step()
    current.wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(step.generator)
    # Graphs captured on one stream share cuBLAS's workspace there, and the first to go may free it for all
    # (github.com/pytorch/pytorch/issues/193402): runs that are trained side by side each capture on their own.
    # thread_local: what other threads do meanwhile, such as NCCL's watchdog, must not end the capture.
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        step()
    step.state.load_tensors(before)
    step.clear_sums()
    return graph.replay
