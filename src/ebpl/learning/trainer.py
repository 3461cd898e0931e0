"""The trainer: runs the schedule of a method from a run directory's settings, and can go on from any checkpoint."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ebpl.data.images import ImageSet
from ebpl.data.split import split_for
from ebpl.devices import choose_device, choose_dtype
from ebpl.learning import checkpoint
from ebpl.learning.batches import epoch_order
from ebpl.learning.checking import Check, cooled, run_check, share_to_wait, waiting
from ebpl.learning.curriculum import Phase, phases, rate_factor, tempered
from ebpl.learning.guard import Guard, RanAway
from ebpl.learning.learner import Learner
from ebpl.learning.prediction import Predictions, features_together, predict_together
from ebpl.learning.ranks import ALONE, Ranks
from ebpl.learning.stepping import begin_step
from ebpl.learning.telling import introduction
from ebpl.learning.update import TERMS, Pool, Reading, Update, runner
from ebpl.measuring.calibration import expected_calibration_error
from ebpl.measuring.classification import accuracy
from ebpl.methods import METHODS
from ebpl.model.hybrid import Architecture
from ebpl.reporting.progress import Progress
from ebpl.reporting.tensorboard import Board
from ebpl.runs import WEIGHTS, Run
from ebpl.seeds import derived_seed, generator
from ebpl.weights import describe_model


class Trainer:
    """Trains one run to its end. All that a checkpoint must hold is in `learner`, `guard` and the few fields below."""

    def __init__(self, run: Run, data: ImageSet, progress: Progress, ranks: Ranks = ALONE) -> None:
        self.run, self.data, self.progress, self.ranks = run, data, progress, ranks
        self.settings = settings = run.settings
        self.method = METHODS[settings.method]
        self.device = ranks.device or choose_device(settings)
        self.dtype = choose_dtype(settings, self.device)
        torch.backends.cudnn.benchmark = self.device.type == "cuda"  # shapes never change: find fast kernels once
        self.augmentation = data.augment if settings.augment == "auto" else settings.augment
        self._prepare_data()
        architecture = Architecture(
            settings.depth,
            settings.width,
            data.shape[0],
            len(data.classes),
            settings.precision if self.method.density else None,
        )
        self.learner = Learner(architecture, data.shape, settings, self.device, ranks)
        self.schedule = phases(settings)
        self.updates = settings.epoch_updates or -(-len(self.pool.images) // settings.batch_size)

        self.phase = 0
        self.epoch = 0
        self.chosen: list[int] = []
        """Positions among the unlabelled images that have a pseudo-label now."""
        self.rejected: list[int] = []
        """Positions among them that do not belong, and are not learned from."""
        self.pseudo_label_accuracy: float | None = None
        self.check: Check | None = None
        self.history: list[dict[str, Any]] = []
        self.best: dict[str, Any] = {}
        self.guard = Guard.of(settings)
        self.seconds = 0.0
        self.healthy = True
        self.looked = 0
        """Updates of this epoch that the guard found good and the bar has counted."""

    def _prepare_data(self) -> None:
        """Training images on the device, labelled ones first, those that wait last of them; validation images too."""
        data = self.data
        parts = split_for(data, self.settings)
        waits = waiting(data.train.labels[parts.labeled], share_to_wait(self.settings), self.settings.seed)
        self.waiting = int(waits.sum())
        labeled = parts.labeled[np.argsort(waits, kind="stable")]
        order = np.concatenate([labeled, parts.unlabeled])
        self.unlabeled = data.train.take(parts.unlabeled)
        self.unlabeled_index = parts.unlabeled
        held_out = data.train.take(parts.validation)
        if len(held_out) == 0 and data.validation is not None:
            held_out = data.validation.take(np.flatnonzero(data.validation.labeled))
        self.validation = held_out if len(held_out) else None
        targets = torch.zeros(len(order), len(data.classes))
        labels = torch.from_numpy(data.train.labels[labeled])
        targets[torch.arange(len(labeled)), labels] = 1
        self.pool = Pool(self._on_device(data.train.pixels[order]), targets.to(self.device), len(labeled))
        self.validation_images = self._on_device(held_out.pixels) if self.validation else None

    @property
    def labeled_count(self) -> int:
        """So many of the training images, the first ones, have a true label."""
        return self.pool.labeled

    def _on_device(self, pixels: np.ndarray) -> Tensor:
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().to(self.device)

    def train(self) -> None:
        """Train from the newest checkpoint, or from the start, to the end of the schedule."""
        for _ in self.work():
            pass

    def work(self) -> Generator[None, None, None]:
        """Training in small pieces: each `next` starts some updates, so that several trainers can take turns.

        On a GPU the updates are only queued; the first piece prepares without any.
        """
        stored = self.ranks.first(lambda: checkpoint.load(self.run.checkpoints, self.say))
        if stored is not None:
            with checkpoint.trusted(self.run.checkpoints, stored, self.pool):
                stored = _each(stored, self.learner.with_own_chains)
                self._restore(stored)
                self.guard, self.seconds = Guard(**stored["guard"]), stored["seconds"]
            if not (self.run.path / WEIGHTS).is_file():
                self._save_best()
        else:
            self.learner.initialise("start")
            self.learner.restart_chains("start")
        for line in introduction(self):
            self.say(line)
        self._careful()
        older = (stored or {}).get("good")
        self.healthy, self.good = older is None, older or self._snapshot()
        self.saved_at = time.monotonic()
        self._open_board()
        total = sum(phase.epochs for phase in self.schedule) * self.updates
        self.progress.begin(total, len(self.history) * self.updates)
        try:
            yield
            while self.phase < len(self.schedule):
                phase = self.schedule[self.phase]
                if self.epoch == 0 and phase.step:
                    begin_step(self, phase)
                if self.epoch < phase.epochs:
                    yield from self._epoch(phase)  # may go back, even into the phase before
                if self.epoch >= self.schedule[self.phase].epochs:
                    self._end_phase()
        except KeyboardInterrupt:
            # the last epoch that was finished; not among several processes, whose chains cannot be gathered any more
            if self.healthy and self.good["history"] and self.ranks.count == 1:
                self._save(self.good)
            raise
        finally:
            # NCCL cannot say goodbye while a captured graph still refers to it
            self.run_update: Callable[[], None] = self.update
            self.progress.end()
            if self.board:
                self.board.close()

    def _open_board(self) -> None:
        """TensorBoard events, without what was written after the state that training goes on from."""
        wanted = self.settings.tensorboard and self.ranks.is_first
        self.board = Board(self.run.path / "tensorboard", len(self.history)) if wanted else None

    # --- a phase -----------------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """Tell the log and whoever is watching."""
        self.run.log.info("%s", text)
        self.progress.say(text)

    def _end_phase(self) -> None:
        if self.phase == 0 and self.waiting:
            run_check(self)
        self.phase, self.epoch = self.phase + 1, 0
        self._save_best()
        self._keep(save=True)

    # --- an epoch ----------------------------------------------------------------------------------------------------

    def _epoch(self, phase: Phase) -> Iterator[None]:
        """One pass over all training images; goes back and becomes careful where training ran away."""
        started = time.monotonic()
        try:
            means = yield from self._updates(phase)
        except RanAway as reason:
            self._heal(str(reason), phase)
            return
        finally:
            self.seconds += time.monotonic() - started
        self.epoch += 1
        self._record(phase, means)
        self.healthy = self.guard.is_healthy(self.widest_gap)
        age = time.monotonic() - self.saved_at
        self._keep(save=self.ranks.first(lambda: age >= self.settings.checkpoint_seconds))

    def _updates(self, phase: Phase) -> Generator[None, None, dict[str, float]]:
        """All updates of an epoch; returns the mean of each loss term.

        The GPU never waits for the guard: it looks at the losses of some updates while the next ones are running.
        """
        settings, update = self.settings, self.update
        purpose = (phase.step, self.epoch, self.guard.healed)
        order = self._order(generator(settings.seed, "order", *purpose))
        other = () if self.ranks.is_first else (self.ranks.index,)
        update.generator.manual_seed(derived_seed(settings.seed, "noise", *purpose, *other))
        update.clear_sums()
        where = f"{phase.name}, epoch {self.epoch + 1}/{phase.epochs}"
        readings: deque[tuple[int, Reading]] = deque()
        unread = 1 if self.device.type == "cuda" else 0
        self.looked = 0
        for i in range(self.updates):
            for place, positions in order:
                place.copy_(positions[i])
            update.average_weight.fill_(self.learner.next_average_weight())
            progress = (self.epoch + i / self.updates) / phase.epochs
            factor = rate_factor(settings, progress, self.learner.averaged_updates)
            self.rate = factor * self.guard.learning_rate
            self.learner.set_learning_rate(self.rate)
            self.run_update()
            if (i + 1) % settings.guard_every == 0 or i + 1 == self.updates:
                readings.append((i + 1, update.read()))
                while len(readings) > unread:
                    self._look(*readings.popleft(), where)
                yield
        for reading in readings:
            self._look(*reading, where)
        if not self.ranks.everywhere(self.learner.is_finite()):  # the last step came after the last look
            raise RanAway("the weights are not finite numbers")
        return self.means

    def _order(self, generator: torch.Generator) -> list[tuple[Tensor, Tensor]]:
        """Where the update reads the positions of its images from, and those of every update of an epoch."""
        update = self.update
        unjudged = self.settings.reject_outliers and self.phase == 0
        order = epoch_order(
            self.labeled_count,
            len(self.pool.images),
            self.chosen,
            range(len(self.unlabeled)) if unjudged else self.rejected,
            self.updates,
            self.settings,
            self.ranks,
            generator,
            0 if self.phase else self.waiting,
        )
        places = [(update.classified, order.classified), (update.everything, order.everything)]
        if order.compared is not None:
            places.append((update.compared, order.compared))
        return [(place, positions.to(self.device)) for place, positions in places]

    def _look(self, updates: int, reading: Reading, where: str) -> None:
        """Let the guard look at the losses of the epoch's first updates, and the bar show them."""
        *sums, self.widest_gap = reading()
        self.means = {name: value / updates for name, value in zip(TERMS, sums, strict=True)}
        self.guard.look(self.means["loss"], self.widest_gap)
        self.progress.advance(updates - self.looked, where, self._facts(self.means))
        self.looked = updates

    def _facts(self, means: dict[str, float]) -> dict[str, float]:
        """What the bar shows."""
        facts = {}  # the most telling first: a narrow terminal cuts the rest off
        if self.history and self.validation:
            facts["val %"] = 100 * self.history[-1]["validation_accuracy"]
        facts["CE"] = means["cross_entropy"]
        if self.method.density:
            facts["gap"] = means["energy_images"] - means["energy_samples"]
        return {**facts, "loss": means["loss"]}

    def predict(self, images: Tensor) -> Predictions:
        """What the weights to be kept say of these images, the same in every process."""
        return predict_together(self.learner.predictor, images, self.dtype, self.ranks)

    @property
    def temperature(self) -> float:
        """By which class scores are divided in what is kept."""
        return self.check.temperature if self.check else 1.0

    def features(self, images: Tensor) -> np.ndarray:
        """What the heads of these weights see of images, the same in every process."""
        return features_together(self.learner.predictor, images, self.dtype, self.ranks)

    def _record(self, phase: Phase, means: dict[str, float]) -> None:
        """A row in metrics.csv; remember the weights if they are the best so far."""
        row: dict[str, Any] = {"phase": phase.name, "epoch": self.epoch, **means}
        row |= {"pseudo_labels": len(self.chosen), "pseudo_label_accuracy": None, "rejected": len(self.rejected)}
        if phase.step:
            row["pseudo_label_accuracy"] = self.pseudo_label_accuracy
        score = float(len(self.history))
        if self.validation is not None and self.validation_images is not None:
            probabilities = tempered(self.predict(self.validation_images).probabilities, self.temperature)
            score = accuracy(probabilities, self.validation.labels)
            row["validation_accuracy"] = score
            row["validation_ece"] = expected_calibration_error(probabilities, self.validation.labels)
            row["validation_confidence"] = float(probabilities.max(1).mean())
        row |= {"learning_rate": self.rate, "sgld_steps": self.guard.sgld_steps}
        row |= {"healed": self.guard.healed, "seconds": round(self.seconds, 3)}
        self.history.append(row)
        if not self.best or score > self.best["score"]:
            weights = {name: tensor.detach().clone() for name, tensor in self.learner.predictor.state_dict().items()}
            self.best = {"score": score, "phase": phase.name, "epoch": self.epoch, "weights": weights}
        self.run.save_table("metrics.csv", self.history)
        if self.board:
            self.board.add(len(self.history), row)
        line = f"{phase.name}, epoch {self.epoch}/{phase.epochs} | " + "  ".join(
            f"{name} {value:.4g}" for name, value in self._facts(means).items()
        )
        self.run.log.info("%s", line)
        self.progress.epoch(line)

    # --- safety ------------------------------------------------------------------------------------------------------

    def _heal(self, reason: str, phase: Phase) -> None:
        """Back to the last good state, with new random numbers, a lower rate and more sampling; or give up.

        The chains go back too: starting them anew from noise would open the very gap that was running away.
        """
        try:
            if self.learner.buffer is not None:
                reason = f"{reason} ({self.learner.buffer.described()})"
            message = self.guard.heal(reason, phase.name, self.epoch + 1)
        finally:
            undone = len(self.history) - len(self.good["history"])
            self._restore(self.good)
            self.healthy = True
            self._save_best()
        self.run.log.warning("%s", message)
        self.progress.advance(-self.looked - undone * self.updates, phase.name, {})
        self.progress.say(message)
        if self.board:
            self.board.close()
            self._open_board()
        self._careful()

    def _careful(self) -> None:
        """Build the update as the guard wants it now."""
        vars(self).pop("run_update", None)  # a captured graph frees its memory before the next is captured
        self.learner.set_learning_rate(self.guard.learning_rate)
        settings = self.guard.careful(self.settings)
        self.update = Update(self.learner, self.pool, settings, self.augmentation, self.dtype, self.ranks)
        self.run_update = runner(self.update)

    def _snapshot(self) -> dict[str, Any]:
        """A copy of all that training changes, but for what the guard has learned."""
        return {
            "learner": self.learner.state(),
            "targets": self.pool.targets.clone(),
            "phase": self.phase,
            "epoch": self.epoch,
            "chosen": self.chosen,
            "rejected": self.rejected,
            "pseudo_label_accuracy": self.pseudo_label_accuracy,
            "check": asdict(self.check) if self.check else None,
            "history": list(self.history),
            "best": self.best,
        }

    def _restore(self, state: dict[str, Any]) -> None:
        self.learner.restore(state["learner"])
        self.pool.targets.copy_(state["targets"])
        self.phase, self.epoch, self.chosen = state["phase"], state["epoch"], state["chosen"]
        self.rejected = state["rejected"]
        self.pseudo_label_accuracy = state["pseudo_label_accuracy"]
        self.history, self.best = list(state["history"]), state["best"]
        self.check = Check.stored(state.get("check"))  # older checkpoints have none

    def _keep(self, save: bool) -> None:
        """Remember a healthy state as the one to go back to, and write a checkpoint if it is time.

        The checkpoint of a state that is not healthy carries the one to go back to as well.
        """
        if self.healthy:
            self.good = self._snapshot()
        if save and self.healthy:
            self._save(self.good)
        elif save:
            self._save({**self._snapshot(), "good": self.good})

    def _save(self, state: dict[str, Any]) -> None:
        more = {"guard": self.guard.state(), "seconds": self.seconds}
        whole = _each(state, self.learner.with_all_chains)
        if self.ranks.is_first:
            checkpoint.save(self.run.checkpoints, len(state["history"]), {**whole, **more})
        self.saved_at = time.monotonic()

    def _save_best(self) -> None:
        """The best weights so far, in the run directory."""
        if self.best:
            chosen = {key: self.best[key] for key in ("phase", "epoch")}
            chosen["by"] = "validation accuracy" if self.validation else "last epoch"
            description = describe_model(self.learner.model, self.data, chosen)
            self.run.save_model(cooled(self.best["weights"], self.temperature), description)


def _each(state: dict[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """The state with its learner's changed, and so that of the state to go back to, if it carries one."""
    changed = {**state, "learner": change(state["learner"])}
    return {**changed, "good": _each(state["good"], change)} if "good" in state else changed
