"""Greedy autoregressive decoding: whole batches, each token projected to keys and values once."""

from dataclasses import dataclass

import torch
from torch import Tensor

from maskprior import functional
from maskprior.models.transformer import Transformer


@dataclass(frozen=True)
class Decoded:
    """What a decoder wrote.

    Attributes:
        tokens: integers ``[batch, steps]``.
        probabilities: the model's probability of each of them, given those before, ``[batch, steps]``.
    """

    tokens: Tensor
    probabilities: Tensor


class CachedDecoder:
    """A decoder that is fed piece by piece and keeps the keys and values of what it has seen.

    The outputs are those of one forward pass over everything fed so far. Row i of log σ(M) belongs to
    position i, so a piece reads rows ``seen:seen + new`` of it.

    Args:
        model: a causal Transformer, in evaluation mode for exact results.

    Raises:
        ValueError: the model is not causal.
    """

    def __init__(self, model: Transformer) -> None:
        if not model.config.causal:
            raise ValueError("expected a causal model: in an encoder every token depends on all the others")
        self._model = model
        with torch.no_grad():
            self._biases = model.layer_biases(model.config.length)
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    @property
    def seen(self) -> int:
        """Number of tokens fed so far."""
        return self._keys[0].shape[2] if self._keys else 0

    @torch.no_grad()
    def feed(self, tokens: Tensor) -> Tensor:
        """Outputs ``[batch, new, outputs]`` of new integer tokens ``[batch, new]``.

        Raises:
            ValueError: more tokens than the model has positions.
        """
        start, end = self.seen, self.seen + tokens.shape[1]
        if end > self._model.config.length:
            raise ValueError(f"expected at most {self._model.config.length} tokens in all, got {end}")
        x = self._model.place(torch.nn.functional.embedding(tokens, self._model.token), start)
        keys, values = [], []
        for layer, block in enumerate(self._model.layer_blocks):
            query, key, value = block.attention.project(block.attention_norm(x))
            keys.append(torch.cat([self._keys[layer], key], dim=2) if start else key)
            values.append(torch.cat([self._values[layer], value], dim=2) if start else value)
            bias = self._biases[layer]
            attended = functional.attention(
                query,
                keys[-1],
                values[-1],
                bias=None if bias is None else bias[..., start:end, :end],
                is_causal=True,
            )
            x = x + block.attention.mix(attended)
            x = x + block.mlp(block.mlp_norm(x))
        self._keys, self._values = keys, values
        outputs: Tensor = self._model.head(self._model.norm(x))
        return outputs


def decode(model: Transformer, prompts: Tensor, steps: int) -> Decoded:
    """Continue each prompt greedily: the most probable token, given the prompt and what has been written.

    Args:
        model: a causal Transformer whose outputs are token ids, in evaluation mode.
        prompts: integers ``[batch, prompt length]``.
        steps: how many tokens to write.

    Raises:
        ValueError: the model is not causal, ``steps`` < 1, or prompt and answer don't fit in.
    """
    if steps < 1:
        raise ValueError(f"expected steps ≥ 1, got {steps}")
    decoder, new = CachedDecoder(model), prompts
    tokens, probabilities = [], []
    for _ in range(steps):
        best = decoder.feed(new)[:, -1].softmax(-1).max(-1)
        new = best.indices.unsqueeze(-1)
        tokens.append(best.indices)
        probabilities.append(best.values)
    return Decoded(torch.stack(tokens, dim=1), torch.stack(probabilities, dim=1))
