"""A byte-level transformer of about 6 million parameters: small enough for a laptop, real enough to learn."""

import torch
from torch import Tensor, nn
from torch.nn import functional

NUM_BYTES = 256


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each behind a norm and added to its input."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(width)
        self.attention_in = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.feed_norm = nn.LayerNorm(width)
        self.feed_in = nn.Linear(width, 4 * width)
        self.feed_out = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, length, width] to the same shape."""
        batch, length, width = x.shape
        heads = self.attention_in(self.attention_norm(x)).view(batch, length, 3, self.num_heads, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))
        fed: Tensor = self.feed_out(functional.gelu(self.feed_in(self.feed_norm(x))))
        return x + fed


class ByteTransformer(nn.Module):
    """Predicts the next byte from the bytes before it."""

    def __init__(self, *, width: int = 256, num_blocks: int = 7, num_heads: int = 4, length: int = 64) -> None:
        super().__init__()
        self.bytes = nn.Embedding(NUM_BYTES, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, num_heads) for _ in range(num_blocks)))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, NUM_BYTES, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        """Map [batch, length] bytes, int64, to [batch, length, 256] logits."""
        places = torch.arange(text.shape[1], device=text.device)
        logits: Tensor = self.out(self.norm(self.blocks(self.bytes(text) + self.positions(places))))
        return logits

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats per byte."""
        return functional.cross_entropy(logits.flatten(0, 1), target.flatten())
