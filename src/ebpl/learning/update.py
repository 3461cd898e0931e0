"""One training update, and the ways to run it.

The update exists once, as `Update.__call__`, which reads its batch from fixed tensors. On the CPU it is called; on a
GPU it is captured once as a CUDA graph and replayed, which spares the launch of thousands of small kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ebpl.data.augment import augment, strongly_augment
from ebpl.fast.network import fast_network
from ebpl.learning.learner import Learner, refresh, sampling_copy
from ebpl.learning.objective import Terms, objective
from ebpl.learning.ranks import ALONE, Ranks
from ebpl.sampling.langevin import Langevin
from ebpl.settings import Settings

TERMS = ("loss", "cross_entropy", "energy_images", "energy_samples", "coupling", "consistency", "asked")
Reading = Callable[[], list[float]]
"""Numbers on their way from the device: calling it waits for them."""


@dataclass
class Pool:
    """The training images on their device as uint8 (N, C, H, W), each with a target distribution, changed in place."""

    images: Tensor
    targets: Tensor
    labeled: int = 0
    """So many of them, the first ones, have a true label."""

    def take(self, index: Tensor) -> Tensor:
        """Images at these positions, scaled to [-1, 1]."""
        return self.images[index].float() / 127.5 - 1


class Update:
    """Draw a batch, sample, differentiate, step, average; sums of the loss terms stay on the device until asked for."""

    def __init__(
        self,
        learner: Learner,
        pool: Pool,
        settings: Settings,
        augmentation: str,
        dtype: torch.dtype,
        ranks: Ranks = ALONE,
    ) -> None:
        self.learner, self.pool, self.settings = learner, pool, settings
        self.augmentation, self.dtype, self.ranks = augmentation, dtype, ranks
        device = learner.device
        self.classified = torch.zeros(ranks.share(settings.batch_size), dtype=torch.long, device=device)
        self.everything = torch.zeros(ranks.share(settings.batch_size), dtype=torch.long, device=device)
        looked_at = ranks.share(settings.consistency_batch) if settings.consistency else 0
        self.compared = torch.zeros(looked_at, dtype=torch.long, device=device)
        self.average_weight = torch.zeros((), device=device)
        self.sums = torch.zeros(len(TERMS), device=device)
        self.widest_gap = torch.zeros((), device=device)
        self.generator = torch.Generator(device)
        passed = 2 * ranks.share(settings.batch_size) + ranks.share(settings.chains) + looked_at
        shape = pool.images.shape[1:]
        self.fast = fast_network(learner.model.features, shape, device, dtype, passed)
        judge = learner.predictor.features
        self.fast_judge = fast_network(judge, shape, device, dtype, looked_at) if looked_at else None
        self.sampler = None if self.fast else sampling_copy(learner.model, dtype)
        self.langevin = Langevin(
            settings.sgld_steps,
            settings.sgld_step_size,
            settings.sgld_noise,
            settings.sgld_gradient_clip,
            (-1.0, 1.0) if settings.clamp_samples else None,
        )

    def clear_sums(self) -> None:
        """Start summing the loss terms anew."""
        self.sums.zero_()
        self.widest_gap.zero_()

    def read(self) -> Reading:
        """The sums of the loss terms so far, and the widest gap; nothing waits until the result is called."""
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

    def __call__(self) -> None:
        """One update on the batch at positions `classified`, `everything` and `compared` of the pool."""
        learner, settings = self.learner, self.settings
        if self.fast:
            self.fast.refresh()
        if self.fast_judge:
            self.fast_judge.refresh()
        classified, targets = self._classified()
        images = samples = None
        if learner.buffer is not None:
            samples = self._sample()
            images = self._ready(self._everything())
        strong, agreed = self._compared() if settings.consistency else (None, None)
        learner.optimizer.zero_grad(set_to_none=True)
        with self._autocast():
            terms = objective(
                learner.model,
                self._ready(classified),
                targets,
                images,
                samples,
                density_weight=settings.density_weight,
                coupling_weight=settings.coupling_weight,
                energy_penalty=settings.energy_penalty,
                energy_center=settings.energy_center,
                strong=strong,
                agreed=agreed,
                consistency=settings.consistency,
                features=self.fast,
            )
        terms.loss.backward()  # type: ignore[no-untyped-call]
        # each term is a mean over equal shares, so the mean of the gradients is the gradient of the whole batch
        self.ranks.mean_([p.grad for p in learner.model.parameters() if p.grad is not None])
        if settings.gradient_clip:
            torch.nn.utils.clip_grad_norm_(learner.model.parameters(), settings.gradient_clip)
        learner.optimizer.step()
        self._average()
        self._count(terms)

    def _classified(self) -> tuple[Tensor, Tensor]:
        """Views of the labelled and pseudo-labelled images of this batch, and their target distributions."""
        settings = self.settings
        plain, targets = self.pool.take(self.classified), self.pool.targets[self.classified]
        views = self._weak(plain)
        if settings.strong:
            views = torch.where(self._drawn(settings.strong, len(views)), self._strong(plain), views)
        if settings.mix:  # the batch is in random order: its mirror image is another one
            share = self._drawn(settings.mix, len(views)) * torch.rand(
                len(views), 1, 1, 1, generator=self.generator, device=views.device
            )
            if settings.mixed == "labeled":
                share = share * (self.classified < self.pool.labeled).view(-1, 1, 1, 1)
            views = views + share / 2 * (views.flip(0) - views)
            targets = targets + share.flatten(1) / 2 * (targets.flip(0) - targets)
        return views, targets

    def _everything(self) -> Tensor:
        """The images of this batch whose density is learned; as weak views where at first they are very few."""
        images = self.pool.take(self.everything)
        return self._weak(images) if self.settings.reject_outliers else images

    @torch.no_grad()
    def _compared(self) -> tuple[Tensor, Tensor]:
        """Strong views of unlabelled images, and what averaged weights say of weak ones where they are confident."""
        settings, judge = self.settings, self.learner.predictor
        plain = self.pool.take(self.compared)
        weak = self._weak(plain).contiguous(memory_format=torch.channels_last)
        with self._autocast():  # apart from the objective's, which would find weights cast here, without gradients
            scores, _ = judge.heads(self.fast_judge(weak) if self.fast_judge else judge.features(weak))
        confidence, label = scores.softmax(1).max(1, keepdim=True)
        if settings.consistency_sharpening:
            agreed = (scores / settings.consistency_sharpening).softmax(1)
        else:
            agreed = torch.zeros_like(scores).scatter_(1, label, 1.0)
        return self._ready(self._strong(plain)), agreed * (confidence >= settings.gate)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.learner.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32)

    def _weak(self, images: Tensor) -> Tensor:
        return augment(images, self.augmentation, self.settings.max_shift, self.generator)

    def _strong(self, images: Tensor) -> Tensor:
        settings = self.settings
        return strongly_augment(images, self.augmentation, settings.max_shift, self.generator, settings.strong_colors)

    def _drawn(self, share: float, count: int) -> Tensor:
        """For each of so many images whether it is among this share of them, (N, 1, 1, 1)."""
        return torch.rand(count, 1, 1, 1, generator=self.generator, device=self.learner.device) < share

    def _ready(self, images: Tensor) -> Tensor:
        """Images as the network sees them in training: with a little noise, channels last."""
        if self.settings.pixel_noise:
            noise = torch.randn(images.shape, generator=self.generator, device=images.device)
            images = images + self.settings.pixel_noise * noise
        return images.contiguous(memory_format=torch.channels_last)

    def _sample(self) -> Tensor:
        """Samples from the model as it is now, drawn from and put back into the replay buffer."""
        buffer, model = self.learner.buffer, self.learner.model
        assert buffer is not None
        assert model.gaussian is not None
        index, start = buffer.draw(self.ranks.share(self.settings.chains), self.generator)
        start = start.contiguous(memory_format=torch.channels_last)
        if self.fast:
            samples = self.langevin.follow(self.fast.energy_gradient(model.gaussian), start, self.generator)
        else:
            sampler = self.sampler
            assert sampler is not None
            refresh(sampler, model)
            samples = self.langevin(lambda x: sampler(x.to(self.dtype))[1], start, self.generator)
        buffer.store(index, samples)
        return samples

    @torch.no_grad()
    def _average(self) -> None:
        if self.learner.average is not None:
            average = tuple(self.learner.average.parameters())
            difference = torch._foreach_sub(tuple(self.learner.model.parameters()), average)
            torch._foreach_mul_(difference, self.average_weight)
            torch._foreach_add_(average, difference)

    @torch.no_grad()
    def _count(self, terms: Terms) -> None:
        values = torch.stack([getattr(terms, name).detach().float() for name in TERMS])
        self.sums += values
        # NaN is larger than any number here, so one bad update shows however many good ones follow
        torch.maximum(self.widest_gap, (terms.energy_images - terms.energy_samples).detach().abs(), out=self.widest_gap)


def runner(update: Update) -> Callable[[], None]:
    """The fastest way to run this update where it lives: a captured graph on a GPU, a plain call elsewhere."""
    return _captured(update) if update.learner.device.type == "cuda" else update


def _captured(update: Update) -> Callable[[], None]:
    before = update.learner.state()
    stream = current = torch.cuda.current_stream()
    if current == torch.cuda.default_stream():  # which cannot be captured
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        for _ in range(3):  # lazy initialisation must not happen during the capture
            update()
    current.wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(update.generator)
    # Graphs captured on one stream share cuBLAS's workspace there, and the first to go may free it for all
    # (github.com/pytorch/pytorch/issues/193402): runs that are trained side by side each capture on their own.
    # thread_local: what other threads do meanwhile, such as NCCL's watchdog, must not end the capture.
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        update()
    update.learner.restore(before)
    update.clear_sums()
    return graph.replay
