"""One model and its optimizer: an update, an evaluation, and what a checkpoint keeps of both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...cores import State
from .data import EVALUATED_MODEL, MODEL, Batch, generator
from .key_value_model import KeyValueModel
from .metrics import Scores, loss_of
from .recipe import Recipe
from .sequence_model import MemoryModel, SequenceModel, SequenceSpec

KINDS = {"core": SequenceModel, "memory": MemoryModel, "pairs": KeyValueModel}


def make_model(spec: SequenceSpec) -> nn.Module:
    return KINDS[spec.kind](spec)


class Learner:
    """Trains a model by Adam."""

    def __init__(self, recipe: Recipe, seed: int, device: torch.device) -> None:
        """Make the model of a recipe; `seed` decides its weights and all that is drawn while it trains."""
        self._recipe, self._seed = recipe, seed
        torch.manual_seed(seed)
        self.model = make_model(recipe.spec).to(device)
        self.state: State | None = None
        """after the last update, where it is carried over"""
        self._trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        kind = torch.optim.AdamW if recipe.weight_decay else torch.optim.Adam
        self.optimizer = kind(
            self._trained,
            lr=recipe.learning_rate,
            betas=recipe.betas,
            eps=recipe.eps,
            weight_decay=recipe.weight_decay,
        )

    def learning_rate(self, update: int) -> float:
        """Return the learning rate of an update, counted from 0."""
        recipe, rate = self._recipe, self._recipe.learning_rate
        if update < recipe.warm_up:
            return rate * (update + 1) / recipe.warm_up
        if recipe.to_zero:
            return rate * (recipe.updates - update) / (recipe.updates - recipe.warm_up)
        return rate

    def update(self, batch: Batch, update: int) -> tuple[Tensor, Tensor]:
        """Learn from a batch; return its loss and the model's output `[T, B, classes]`, both detached."""
        # Dropout and what else is drawn depends on the update alone, so that a run that goes on draws the
        # same.
        torch.manual_seed(int(generator(self._seed, MODEL, update).integers(2**63)))
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(update)
        self.model.train()
        output, state = self.model(batch.tokens, batch.reset, self.state)
        if self._recipe.span:
            self.state = tuple(part.detach() for part in state)
        loss = loss_of(self._recipe.loss, output, batch.target)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if self._recipe.max_grad_norm:
            nn.utils.clip_grad_norm_(self._trained, self._recipe.max_grad_norm)
        self.optimizer.step()
        return loss.detach(), output.detach()

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Batch], update: int) -> dict[str, float]:
        """Return the scores of some batches after so many updates."""
        torch.manual_seed(int(generator(self._seed, EVALUATED_MODEL, update).integers(2**63)))
        self.model.eval()
        scores, state = Scores(), None
        for batch in batches:
            output, after = self.model(batch.tokens, batch.reset, state)
            state = after if self._recipe.span else None
            scores.add(loss_of(self._recipe.loss, output, batch.target), output, batch.target)
        return scores.means()

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer.state_dict(), "carried": self.state}

    def load_state_dict(self, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(weights)
        self.optimizer.load_state_dict(state["optimizer"])
        carried = state["carried"]
        device = next(self.model.parameters()).device
        self.state = None if carried is None else tuple(part.to(device) for part in carried)
