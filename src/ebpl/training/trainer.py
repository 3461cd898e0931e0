"""The trainer: a loop over phases, epochs and updates that changes a `TrainState` and calls callbacks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ebpl.calibration import CalibrationCheck, revalidate_temperature
from ebpl.config import Settings
from ebpl.data.dataset import ImageSet
from ebpl.devices import choose_device, choose_dtype
from ebpl.errors import number_of
from ebpl.metrics.calibration import expected_calibration_error
from ebpl.metrics.classification import accuracy
from ebpl.models import Architecture
from ebpl.models.predictions import Predictions
from ebpl.rng import derived_seed, generator
from ebpl.terminal import duration, facts_in_words
from ebpl.training import Deadline, checkpoint, divergence, made_updates, probe, shortened
from ebpl.training.callbacks import Callback
from ebpl.training.distributed import ALONE, Ranks, features_together, predict_together
from ebpl.training.divergence import Diverged, Divergence
from ebpl.training.losses import LossTerm
from ebpl.training.relabel import Phase, described_counts, lr_factor, phases, relabel
from ebpl.training.train_state import TrainState
from ebpl.training.train_step import Reading, TrainStep, runner
from ebpl.training.training_set import UNLABELED, TrainingSet, epoch_order

Terms = Callable[[Settings], Sequence[LossTerm]]
Checkpoint = dict[str, Any]


class Trainer:
    """Trains one run to its end. What a checkpoint must hold is in `state`."""

    def __init__(
        self,
        settings: Settings,
        data: ImageSet,
        terms: Terms,
        *,
        reinitialise: bool = False,
        callbacks: Sequence[Callback] = (),
        ranks: Ranks = ALONE,
    ) -> None:
        """`terms` gives the loss terms under some settings; `reinitialise` begins every step with fresh weights."""
        self.settings, self.terms, self.reinitialise = settings, terms, reinitialise
        self.callbacks, self.ranks = callbacks, ranks
        self.device = ranks.device or choose_device(settings.runtime)
        self.dtype = choose_dtype(settings.runtime, self.device)
        torch.backends.cudnn.benchmark = self.device.type == "cuda"  # shapes never change: find fast kernels once
        self.augmentation = data.augment if settings.data.augment == "auto" else settings.data.augment
        made, classes = terms(settings), len(data.classes)
        architecture = Architecture.of(settings.model, data.shape, classes, any(term.gaussian for term in made))
        model = architecture.build()
        # fresh weights say nothing of labels that were held out from others
        self.holdout = 0.0 if reinitialise else settings.curriculum.calibration_holdout
        self.training_set = TrainingSet.prepare(data, settings, self.holdout, model.features, self.device)
        probe.fit_backbone(self.training_set, settings)
        self.state = TrainState(architecture, settings, self.device, ranks, model)
        self.state.targets = self.training_set.targets
        self.state.create_memory([term.memory(classes) for term in made])
        if any(term.density for term in made):
            self.state.create_buffer(*self.training_set.start_of_chains(settings))
        self.schedule = phases(settings)
        self.updates = settings.optim.updates_per_epoch or -(-len(self.training_set) // settings.optim.batch_size)
        self.epoch_updates = self.updates
        self.deadline: Deadline | None = None
        self.check_every = divergence.CHECK_EVERY

    @property
    def total_updates(self) -> int:
        """Updates of the whole schedule."""
        return sum(phase.epochs for phase in self.schedule) * self.updates

    def train(self, stored: Checkpoint | None = None) -> None:
        """Train from a checkpoint, or from the start, to the end of the schedule."""
        for _ in self.work(stored):
            pass

    def work(self, stored: Checkpoint | None = None) -> Generator[None, None, None]:
        """Training in small pieces: each `next` starts some updates, so that several trainers can take turns.

        On a GPU the updates are only queued; the first piece prepares without any.
        """
        self._start(stored)
        progress = self.state.progress
        self._tell("begin", self.total_updates, len(progress.history), len(progress.history) * self.updates)
        try:
            yield
            while self.state.progress.phase < len(self.schedule):
                progress, phase = self.state.progress, self.schedule[self.state.progress.phase]
                if progress.epoch == 0 and phase.step:
                    self._relabel(phase)
                if progress.epoch < phase.epochs:
                    yield from self._epoch(phase)  # may go back, even into the phase before
                if (progress := self.state.progress).epoch >= self.schedule[progress.phase].epochs:
                    self._end_phase()
            if less := shortened(made_updates(self.state.progress.history, self.updates), self.total_updates):
                self.say(less)
        except KeyboardInterrupt:
            # the last epoch that was finished; not among several processes, whose chains cannot be gathered any more
            if self.healthy and self.last_good["history"] and self.ranks.count == 1:
                self._save(self.last_good)
            raise
        finally:
            # NCCL cannot end while a captured graph still refers to it
            self.run_step: Callable[[], None] = self.step
            self._tell("end")

    def _start(self, stored: Checkpoint | None) -> None:
        state = self.state
        if stored is not None:
            with checkpoint.trusted(stored, self.training_set.targets, self.training_set.labeled):
                stored = state.with_own_chains(stored)
                state.restore(stored)
                state.divergence, state.seconds = Divergence(**stored["divergence"]), stored["seconds"]
        else:
            state.initialise("start")
            mix = self.training_set.class_mix(self.settings)
            if self.training_set.backbone.starts_from_probe:
                probe.start(state, self.training_set, self.settings, *self._features(), mix)
            elif mix != "auto":
                state.set_class_mix(mix)
            state.restart_chains("start")
        self._keep_weights()
        for line in self.introduction():
            self.say(line)
        self._build_step()
        if self.device.type == "cpu" and self.training_set.backbone.samples_features:
            left = self.total_updates - len(state.progress.history) * self.updates
            expected = duration(left * self.step.expected_seconds())
            self.say(f"fine-tuning will take about {expected} on this CPU; a GPU is far faster")
        older = (stored or {}).get("last_good")
        self.healthy, self.last_good = older is None, older or state.snapshot()
        self.saved_at = time.monotonic()

    def _features(self) -> tuple[Any, Any]:
        """Of the labelled and of the unlabelled images."""
        images = self.training_set
        parts = (images.inputs[: images.labeled], images.inputs[images.labeled :])
        known, unknown = (features_together(self.state.predictor, part, self.dtype, self.ranks) for part in parts)
        return known, unknown

    # --- messages ----------------------------------------------------------------------------------------------------

    def _tell(self, event: str, *values: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(*values)

    def say(self, text: str) -> None:
        """Send a message to the callbacks."""
        self._tell("message", text)

    def introduction(self) -> list[str]:
        """What is trained on what, and what looks odd about it."""
        images, settings = self.training_set, self.settings
        numbers = str(self.dtype).removeprefix("torch.")
        progress, epochs = self.state.progress, len(self.state.progress.history)
        return [
            *images.introduction(),
            *images.holdout_lines(sum(phase.epochs for phase in self.schedule[1:]) > 0, settings, self.reinitialise),
            *([str(progress.check)] if progress.check and not epochs else []),
            *([progress.class_mix.in_words(images.data.classes)] if progress.class_mix else []),
            f"{settings.method}, {settings.model.network}, {self.state.model.parameter_count():,} parameters, "
            f"{numbers} on {self.device}, augmentation {self.augmentation}, {self.updates} updates an epoch",
            *([f"continuing after {number_of(epochs, 'epoch')}"] if epochs else []),
        ]

    # --- predictions -------------------------------------------------------------------------------------------------

    def predict(self, inputs: Tensor) -> Predictions:
        """What the weights to be kept say of these images, the same in every process."""
        return predict_together(self.state.predictor, inputs, self.dtype, self.ranks)

    def _relabel(self, phase: Phase) -> None:
        """Begin a curriculum step: new pseudo-labels, and fresh weights if the method wants them."""
        images, progress, mix = self.training_set, self.state.progress, self.state.progress.class_mix
        predictions = self.predict(images.inputs[images.labeled :])
        self._revalidate(predictions)
        if progress.spreading and phase.step > 1:  # the step before has flattened them
            predictions = Predictions(self.state.tempered(predictions.probabilities), predictions.energies)
        found = relabel(images, predictions, self._features, self.settings, phase, progress.spreading, mix)
        if found.outlier_rows is not None:
            self.say(f"{phase.name}: {len(found.rejected)} of {images.unlabeled} images are outliers and left out")
        images.set_pseudo_labels(found.selected, found.targets)
        progress.selected, progress.rejected = found.selected.tolist(), found.rejected
        progress.pseudo_label_accuracy = found.accuracy
        self._tell("relabeled", phase.step, found)
        if self.reinitialise:
            self.state.initialise("step", phase.step)
        known = "" if found.accuracy is None else f", {100 * found.accuracy:.1f} % of them right"
        self.say(
            f"{phase.name}: {len(found.selected)} of {images.unlabeled} images get a pseudo-label{known} "
            f"({described_counts(found.counts)})"
        )

    def _revalidate(self, predictions: Predictions) -> None:
        before = self.state.progress.check
        if before is None:
            return
        after = self.state.progress.check = revalidate_temperature(before, predictions.probabilities)
        if after.temperature != before.temperature:
            self.say(str(after))

    def _end_phase(self) -> None:
        progress, images = self.state.progress, self.training_set
        if progress.phase == 0 and images.held_out:
            here = slice(images.labeled - images.held_out, images.labeled)
            probabilities = self.predict(images.inputs[here]).probabilities
            progress.check = CalibrationCheck.of(probabilities, images.labels[here])
            self.say(str(progress.check))
        if progress.phase == 0 and images.estimates_mix_late(self.settings):
            found = self.predict(images.inputs[images.labeled :]).probabilities
            self.say(self.state.estimate_mix(found, images.label_counts(), images.data.classes))
            self._build_step()  # samplers have their own copy
        progress.phase, progress.epoch = progress.phase + 1, 0
        self._keep_weights()
        self._keep(save=True)

    # --- an epoch ----------------------------------------------------------------------------------------------------

    def _epoch(self, phase: Phase) -> Iterator[None]:
        """All updates of an epoch; goes back and becomes careful where training diverged."""
        started, progress = time.monotonic(), self.state.progress
        if self.deadline is not None:
            epochs = [each.epochs for each in self.schedule[progress.phase :]]
            self.epoch_updates = self.deadline.updates(self.updates, sum(epochs) - progress.epoch, len(epochs) - 1)
        try:
            means = yield from self._updates(phase)
            entropy, classes = means.get("cross_entropy", 0.0), len(self.training_set.data.classes)
            now = divergence.entropy_now(self.state, self.training_set, self.dtype)
            self.state.divergence.check_epoch(entropy, classes, self.state.progress.epoch + 1 == phase.epochs, now)
        except Diverged as reason:
            self._recover(str(reason), phase)
            return
        finally:
            self.state.seconds += time.monotonic() - started
        updated = time.monotonic()
        if self.epoch_updates < self.updates:  # for the bar
            self._tell("updates", self.updates - self.epoch_updates, phase.name, self._facts(means))
        self.state.progress.epoch += 1
        self._record(phase, means)
        self.healthy = self.state.divergence.is_healthy(self.widest_gap, max(entropy, now), classes)
        age = time.monotonic() - self.saved_at
        self._keep(save=self.ranks.first(lambda: age >= self.settings.runtime.checkpoint_seconds))
        if self.deadline is not None:
            self.deadline.measured(self.epoch_updates, updated - started, time.monotonic() - updated)

    def _updates(self, phase: Phase) -> Generator[None, None, dict[str, float]]:
        """All updates of an epoch; returns the mean of each logged value.

        The GPU never waits: losses of some updates are looked at while the next ones are running.
        """
        settings, step, state = self.settings, self.step, self.state
        epoch = state.progress.epoch
        purpose = (phase.step, epoch, state.divergence.healed)
        order = self._order(generator(settings.seed, "order", *purpose))
        other = () if self.ranks.is_first else (self.ranks.index,)
        step.generator.manual_seed(derived_seed(settings.seed, "noise", *purpose, *other))
        step.clear_sums()
        where = f"{phase.name}, epoch {epoch + 1}/{phase.epochs}"
        readings: deque[tuple[int, Reading]] = deque()
        unread = 1 if self.device.type == "cuda" else 0
        self.seen, count = 0, self.epoch_updates
        for i in range(count):
            for place, positions in order:
                place.copy_(positions[i])
            fraction = (epoch + i / count) / phase.epochs
            step.prepare(state.next_ema_weight(), 1.0 if phase.step else fraction)
            whole = state.ema_updates * self.updates / count  # so that the warm-up is shortened as well
            self.rate = lr_factor(settings, fraction, whole) * state.divergence.learning_rate
            if not phase.step and self.training_set.backbone.fixed:
                self.rate = 0.0  # the heads were fitted; the chains find their density
            state.set_learning_rate(self.rate)
            self.run_step()
            if (i + 1) % self.check_every == 0 or i + 1 == count:
                readings.append((i + 1, step.read()))
                while len(readings) > unread:
                    self._check(*readings.popleft(), where)
                yield
        for reading in readings:
            self._check(*reading, where)
        if not self.ranks.everywhere(state.is_finite()):  # the last update came after the last look
            raise Diverged("the weights are not finite numbers")
        return self.means

    def _order(self, generator: torch.Generator) -> list[tuple[Tensor, Tensor]]:
        """Where the step reads the positions of its images from, and those of every update of an epoch."""
        images, progress, settings = self.training_set, self.state.progress, self.settings
        unjudged = settings.curriculum.reject_outliers and progress.phase == 0
        left_out = range(images.unlabeled) if unjudged else progress.rejected
        held_out = 0 if progress.phase else images.held_out
        alone = self.ranks.count * self.step.batch_sizes.get(UNLABELED, 0)
        counts = (images.labeled, len(images), progress.selected, left_out, self.epoch_updates)
        order = epoch_order(*counts, settings, self.ranks, generator, held_out, alone)
        return [(place, order[stream].to(self.device)) for stream, place in self.step.positions.items()]

    def _check(self, updates: int, reading: Reading, where: str) -> None:
        """Look for divergence in the losses of the epoch's first updates, and show them."""
        *sums, self.widest_gap = reading()
        self.means = {name: value / updates for name, value in zip(self.step.names, sums, strict=True)}
        self.state.divergence.check(self.means["loss"], self.widest_gap)
        self._tell("updates", updates - self.seen, where, self._facts(self.means))
        self.seen = updates

    def _facts(self, means: dict[str, float]) -> dict[str, float]:
        """What the bar shows; the most important first, since a narrow terminal cuts the rest off."""
        facts, history = {}, self.state.progress.history
        if history and self.training_set.validation:
            facts["validation accuracy"] = history[-1]["validation_accuracy"]
        facts |= {name.replace("_", " "): means[name] for name in ("cross_entropy", "energy_gap") if name in means}
        return {**facts, "loss": means["loss"]}

    def _record(self, phase: Phase, means: dict[str, float]) -> None:
        """A row for the epoch; remember the weights if they are the best so far."""
        state, progress, images = self.state, self.state.progress, self.training_set
        row: dict[str, Any] = {"phase": phase.name, "epoch": progress.epoch, **means}
        right = progress.pseudo_label_accuracy if phase.step else None
        row |= {"pseudo_labels": len(progress.selected), "pseudo_label_accuracy": right}
        row["rejected"] = len(progress.rejected)
        score = float(len(progress.history))
        if images.validation is not None and images.validation_inputs is not None:
            predicted, labels = self.predict(images.validation_inputs), images.validation.labels
            probabilities = state.tempered(predicted.probabilities)
            score = row["validation_accuracy"] = accuracy(probabilities, labels)
            row["validation_ece"] = expected_calibration_error(probabilities, labels)
            row["validation_confidence"] = float(probabilities.max(1).mean())
        row |= {"learning_rate": self.rate, "sgld_steps": state.divergence.sgld_steps}
        row |= {"healed": state.divergence.healed, "seconds": round(state.seconds, 3)}
        row |= {"updates": self.epoch_updates} if self.deadline else {}
        progress.history.append(row)
        if not progress.best or score > progress.best["score"]:
            weights = {name: tensor.detach().clone() for name, tensor in state.predictor.state_dict().items()}
            progress.best = {"score": score, "phase": phase.name, "epoch": progress.epoch, "weights": weights}
        facts = facts_in_words(self._facts(means))
        self._tell("epoch", progress.history, f"{phase.name}, epoch {progress.epoch}/{phase.epochs} | {facts}")

    # --- safety ------------------------------------------------------------------------------------------------------

    def _recover(self, reason: str, phase: Phase) -> None:
        """Back to the last good state, with new random numbers, a lower rate and more sampling; or give up.

        The chains go back too: starting them anew from noise would open the very gap that was growing.
        """
        state = self.state
        try:
            if state.buffer is not None:
                reason = f"{reason} ({state.buffer.described()})"
            kept = bool(self.last_good["best"])
            message = state.divergence.recover(reason, phase.name, state.progress.epoch + 1, kept)
        finally:
            undone = len(state.progress.history) - len(self.last_good["history"])
            state.restore(self.last_good)
            self.healthy = True
            self._keep_weights()
            self._save(self.last_good)  # so that a run that is resumed knows how often it has recovered
        self._tell("rewound", len(state.progress.history), self.seen + undone * self.updates, phase.name)
        self._tell("message", message, True)
        self._build_step()

    def _build_step(self) -> None:
        """Build the train step as careful as divergences have made it."""
        vars(self).pop("run_step", None)  # a captured graph frees its memory before the next is captured
        self.state.set_learning_rate(self.state.divergence.learning_rate)
        settings = self.state.divergence.careful(self.settings)
        terms = self.terms(settings)
        self.step = TrainStep(self.state, self.training_set, terms, settings, self.augmentation, self.dtype, self.ranks)
        self.run_step = runner(self.step)

    def _keep(self, save: bool) -> None:
        """Remember a healthy state as the one to go back to, and write a checkpoint if it is time.

        The checkpoint of a state that is not healthy carries the one to go back to as well.
        """
        if self.healthy:
            self.last_good = self.state.snapshot()
        if save:
            self._save(self.last_good if self.healthy else {**self.state.snapshot(), "last_good": self.last_good})

    def _save(self, snapshot: Checkpoint) -> None:
        more = {"divergence": self.state.divergence.state(), "seconds": self.state.seconds}
        whole = {**self.state.with_all_chains(snapshot), **more}
        self._tell("checkpoint", len(snapshot["history"]), whole)
        self.saved_at = time.monotonic()

    def _keep_weights(self) -> None:
        """Hand the best weights so far to the callbacks."""
        if self.state.progress.best:
            self._tell("weights", self.state.kept_weights(), self.chosen())

    def chosen(self) -> dict[str, Any]:
        """Which weights are kept, and how they were chosen."""
        best, by = self.state.progress.best, "validation accuracy" if self.training_set.validation else "last epoch"
        return {"phase": best["phase"], "epoch": best["epoch"], "by": by}
