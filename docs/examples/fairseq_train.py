"""Trains a tiny transformer to translate, on a feed of parallel text, with one process a rank.

    ringfeed run fairseq_nllb.textproto --set stages.planner.world_size=2
    torchrun --standalone --nproc-per-node 2 docs/examples/fairseq_train.py

With `world_size: 2` in the planner both ranks get equally many batches. Where an epoch's batches do
not suffice, a rank gets a stand-in: it does the same work, and nothing is learned of it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

PAD = 1
KIND, WORLD = 3, 5  # places in `position`; of kind 0 are the batches that are no stand-ins


class TranslationModel(nn.Module):
    """An encoder and a decoder with one table of embeddings for both and for the output."""

    def __init__(self, vocabulary: int, width: int = 128, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        options: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": True}
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=PAD)
        self.places = nn.Embedding(2048, width)
        encoder = nn.TransformerEncoderLayer(width, heads, 4 * width, **options)
        decoder = nn.TransformerDecoderLayer(width, heads, 4 * width, **options)
        norms = nn.LayerNorm(width), nn.LayerNorm(width)
        self.encoder = nn.TransformerEncoder(encoder, layers, norms[0], enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(decoder, layers, norms[1])
        for table in (self.tokens, self.places):
            nn.init.normal_(table.weight, std=width**-0.5)

    def embed(self, tokens: Tensor) -> Tensor:
        # Places are counted without padding, so that it does not matter on which side that is.
        place = (tokens != PAD).cumsum(1).clamp(max=self.places.num_embeddings - 1)
        scale = self.tokens.embedding_dim**0.5
        embedded: Tensor = scale * self.tokens(tokens) + self.places(place)
        return embedded

    def forward(self, src_tokens: Tensor, prev_output_tokens: Tensor) -> Tensor:
        """Give logits [rows, width of the target, vocabulary]."""
        padding = src_tokens == PAD
        length = prev_output_tokens.shape[1]
        later = torch.ones(length, length, dtype=torch.bool, device=src_tokens.device).triu(1)
        source = self.encoder(self.embed(src_tokens), src_key_padding_mask=padding)
        hidden = self.decoder(
            self.embed(prev_output_tokens), source, later, memory_key_padding_mask=padding
        )
        logits: Tensor = hidden @ self.tokens.weight.T
        return logits


def loss_of(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Sum up the loss over the tokens of the target, in nats."""
    logits = model(batch["src_tokens"].long(), batch["prev_output_tokens"].long())
    target = batch["target"].long()
    return cross_entropy(logits.transpose(1, 2), target, ignore_index=PAD, reduction="sum")


def update(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, Tensor]
) -> Tensor:
    """Make one update together with the other ranks; give loss and tokens over all ranks."""
    counts = float(batch["position"][KIND] == 0)
    loss = counts * loss_of(model, batch)
    total = torch.stack((loss.detach(), counts * batch["ntokens"][0]))
    dist.all_reduce(total)
    optimizer.zero_grad()
    # Gradients are averaged over the ranks, but what is wanted is the mean over all tokens.
    (loss * dist.get_world_size() / total[1].clamp(min=1)).backward()
    optimizer.step()
    return total


def main() -> None:
    import ringfeed

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--feed", default="fairseq_nllb")
    parser.add_argument("--group", default="run-a")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--vocabulary", type=int, default=8192, help="larger than any id (8192)")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = DistributedDataParallel(TranslationModel(options.vocabulary))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    since = torch.zeros(2)
    with ringfeed.attach(options.feed, group=options.group, rank=rank, world=world) as feed:
        for step, batch in zip(range(options.steps), feed):
            tensors = batch.to("cpu")
            if int(tensors["position"][WORLD]) != world:
                raise SystemExit(f"the feed's planner is not for {world} ranks: set its world_size")
            since += update(model, optimizer, tensors)
            if rank == 0 and step % 50 == 0:
                epoch, number, batches = tensors["position"][:3].tolist()
                place = f"epoch {epoch}, batch {number} of {batches}"
                print(f"step {step}: {place}: loss {since[0] / since[1]:.3f}", flush=True)
                since.zero_()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
