"""Models that predict the next character of a text."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from fedbench.models.initialization import initialized

__all__ = ["char_lstm", "char_transformer"]


class _CharLSTM(nn.Module):
    """Embedding, stacked LSTM, and a dense layer on the last step."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.output = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        steps: torch.Tensor = self.lstm(self.embedding(tokens))[0]
        logits: torch.Tensor = self.output(steps[:, -1])
        return logits


def char_lstm(
    vocabulary: int = 80,
    *,
    embedding: int = 8,
    hidden: int = 256,
    layers: int = 2,
    seed: int = 0,
) -> nn.Module:
    """Return the character LSTM of McMahan et al. (2017) as LEAF (Caldas et al., 2018) has it.

    Reddi et al. (2021) count 820,522 parameters for their 90 characters. torch's LSTM keeps
    two bias vectors where theirs has one, so this one has ``layers * 4 * hidden`` (2,048) more.

    Parameters
    ----------
    vocabulary : int
        Number of characters.
    embedding, hidden, layers : int
        Width of the embedding and of the LSTM layers, and their number.
    seed : int
        Seed of the initial parameters.

    Returns
    -------
    torch.nn.Module
        int64 tokens ``[batch, length]`` to logits ``[batch, vocabulary]`` of the character
        that follows the last one.
    """
    return initialized(lambda: _CharLSTM(vocabulary, embedding, hidden, layers), seed=seed)


class _Block(nn.Module):
    """Causal self-attention and a dense layer, each normalised before and added after."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.dense1 = nn.Linear(width, 4 * width)
        self.dense2 = nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, width = hidden.shape
        joint = self.attention(self.norm1(hidden))
        query, key, value = joint.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        dense = functional.gelu(self.dense1(self.norm2(hidden)), approximate="tanh")
        output: torch.Tensor = hidden + self.dense2(dense)
        return output


class _Transformer(nn.Module):
    """GPT-2: the output layer shares the token embedding's weights."""

    def __init__(self, vocabulary: int, length: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self._initialize()

    @torch.no_grad()
    def _initialize(self) -> None:
        # The standard deviation of GPT-2; with that of torch's embeddings, 1, the logits of an
        # output layer that shares these weights would be far too large.
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, 0.02)
            elif name.endswith("bias"):
                parameter.zero_()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        last = self.norm(self.blocks(hidden)[:, -1])
        return functional.linear(last, self.tokens.weight)


def char_transformer(
    vocabulary: int = 80,
    *,
    length: int = 80,
    width: int = 64,
    layers: int = 2,
    heads: int = 4,
    seed: int = 0,
) -> nn.Module:
    """Return a small transformer with the architecture of GPT-2 (Radford et al., 2019).

    It has ``(vocabulary + length) * width + layers * (12 * width**2 + 13 * width) + 2 * width``
    parameters; with GPT-2's sizes (50257, 1024, 768, 12 layers) these are its 124,439,808.
    There is no dropout.

    Parameters
    ----------
    vocabulary : int
        Number of characters.
    length : int
        Largest number of characters per sample.
    width, layers, heads : int
        Width of the hidden states, number of blocks, attention heads per block.
    seed : int
        Seed of the initial parameters.

    Returns
    -------
    torch.nn.Module
        int64 tokens ``[batch, up to length]`` to logits ``[batch, vocabulary]`` of the
        character that follows the last one.

    Raises
    ------
    ValueError
        If `width` is not a multiple of `heads`.
    """
    if width % heads:
        raise ValueError(
            f"width must be a multiple of heads ({heads}), got {width}. "
            f"Use {width - width % heads or heads}, for example."
        )
    return initialized(lambda: _Transformer(vocabulary, length, width, layers, heads), seed=seed)
