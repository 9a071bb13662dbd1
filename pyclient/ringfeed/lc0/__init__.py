"""Leela Chess Zero: see ``ringfeed.lc0_compat``, lczero-training's data loader on top of a feed."""
