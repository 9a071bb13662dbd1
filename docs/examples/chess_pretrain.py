"""Trains a tiny decoder-only transformer on a feed of chess games.

Three heads on each token: the token of a board that follows, the best move, and the two values.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

TOKENS, OUTPUTS = 1968, (41, 1924, 2)  # outputs: tokens of boards, moves, two values


class ChessModel(nn.Module):
    def __init__(self, length: int, width: int = 128, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.tokens = nn.Embedding(TOKENS, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.board, self.move, self.values = (nn.Linear(width, n) for n in OUTPUTS)

    def forward(self, input_ids: Tensor, block_id: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        length = input_ids.shape[1]
        # The squares of a board see each other; everything else sees what is before it.
        later = torch.ones(length, length, dtype=torch.bool, device=input_ids.device).triu(1)
        hidden = later & (block_id[:, :, None] != block_id[:, None, :])
        x = self.tokens(input_ids) + self.places[:length]
        x = self.body(x, mask=hidden.repeat_interleave(self.heads, dim=0))
        return self.board(x), self.move(x), self.values(x)


def loss_of(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Add up the losses of the three heads, each the mean over the places that have a target."""
    board, move, values = model(batch["input_ids"].long(), batch["block_id"].long())
    wanted = torch.stack((batch["wl_targets"], batch["d_targets"]), dim=-1)
    # At the place of one value there is no target for the other.
    other = torch.stack((batch["d_positions"], batch["wl_positions"]), dim=-1).bool()
    valid = batch["wdl_valid"].bool()[..., None] & ~other
    loss: Tensor = ((values - wanted) ** 2 * valid).sum() / valid.sum().clamp(min=1)
    for logits, name in ((board, "board_target_ids"), (move, "move_target_ids")):
        targets = batch[name].long()
        # Targets of -100 are passed over.
        error = cross_entropy(logits.mT, targets, reduction="sum")
        loss += error / (targets >= 0).sum().clamp(min=1)
    return loss


def main() -> None:
    import ringfeed

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--feed", default="chess_pretrain")
    parser.add_argument("--group", default="run-a")
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with ringfeed.attach(options.feed, group=options.group) as feed:
        for step, batch in zip(range(options.steps), feed):
            tensors = batch.to(device)
            if step == 0:
                model = ChessModel(tensors["input_ids"].shape[1]).to(device)
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            loss = loss_of(model, tensors)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 100 == 0:
                print(f"step {step}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
