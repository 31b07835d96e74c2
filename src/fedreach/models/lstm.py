"""A character model for Shakespeare."""

from collections.abc import Sequence

from torch import Tensor, nn

from fedreach.errors import ConfigError


def lstm(
    sample_shape: Sequence[int], num_classes: int, embedding: int = 8, hidden: int = 100, layers: int = 2
) -> nn.Module:
    """Embedding, stacked LSTM, and a linear layer on the last output: predicts the next character.

    When: text, character by character.

    Args:
        sample_shape: (length,) of a window of tokens in 0 .. num_classes - 1.
        embedding: Width of the embedding; 8 in LEAF.
        hidden: Width of each LSTM layer; 256 in LEAF, 100 in FedDyn.
        layers: Number of LSTM layers.

    Reference: Caldas et al., "LEAF: A Benchmark for Federated Settings" (arXiv 1812.01097), Shakespeare.

    Example:
        >>> sum(p.numel() for p in lstm((80,), 80).parameters())
        133520
    """
    if len(sample_shape) != 1:
        raise ConfigError(f"The model 'lstm' needs windows of tokens of shape (length,); got {tuple(sample_shape)}.")
    return _NextToken(num_classes, embedding, hidden, layers)


class _NextToken(nn.Module):
    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.output = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs, _ = self.lstm(self.embed(tokens))
        logits: Tensor = self.output(outputs[:, -1])
        return logits
