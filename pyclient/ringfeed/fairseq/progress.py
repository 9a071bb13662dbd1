"""The progress of an epoch, with the interface of fairseq's progress bars."""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from numbers import Number
from typing import Any

from ..errors import InvalidRequest

_FORMATS = ("json", "none", "simple", "tqdm")
_Stats = Mapping[str, Any]


def progress_bar(
    iterator: Any,
    log_format: str | None = None,
    log_interval: int = 100,
    log_file: str | None = None,
    epoch: int | None = None,
    prefix: str | None = None,
    tensorboard_logdir: str | None = None,
    default_log_format: str = "tqdm",
    wandb_project: str | None = None,
    wandb_run_name: str | None = None,
    **others: Any,
) -> ProgressBar:
    """Wrap an epoch's iterator as fairseq's ``progress_bar.progress_bar`` does.

    Shows the same lines as fairseq, and ``feed_wait`` besides: the share of the time since the last
    line in which the loop waited for the feed.

    Args:
        iterator: What ``next_epoch_itr()`` or GroupedIterator gives: has a length, and ``n``, the
            place in the epoch.
        log_format: "json", "none", "simple" or "tqdm"; None: default_log_format. Without a
            terminal, or without tqdm, "tqdm" is "simple".
        log_interval: Updates between two lines.
        log_file: Lines go there too.
        epoch: Its number, from 1.
        prefix: Words after the epoch.
        tensorboard_logdir: Directory for TensorBoard, a writer for each tag.
        wandb_project, wandb_run_name: Also sends everything to Weights & Biases.
        others: Arguments of fairseq's other loggers; must be empty or false.
    Raises:
        InvalidRequest: There is no such format, or a logger that is not supported was asked for.
        ImportError: tensorboard or wandb is not installed.
    """
    asked = log_format or default_log_format
    if asked not in _FORMATS:
        raise InvalidRequest(
            f"progress_bar: log_format={asked!r} is not one of {', '.join(_FORMATS)}"
        )
    unknown = [name for name, value in others.items() if value]
    if unknown:
        raise InvalidRequest(
            f"progress_bar: {', '.join(unknown)}: there are tensorboard_logdir and wandb_project"
        )
    if asked == "tqdm" and (not sys.stderr.isatty() or importlib.util.find_spec("tqdm") is None):
        asked = "simple"
    sinks: list[_TensorBoard | _WeightsAndBiases] = []
    if tensorboard_logdir:
        sinks.append(_TensorBoard(tensorboard_logdir))
    if wandb_project:
        sinks.append(_WeightsAndBiases(wandb_project, wandb_run_name))
    return ProgressBar(iterator, asked, log_interval, log_file, epoch, prefix, sinks)


class ProgressBar:
    """See progress_bar().

    Attributes:
        n: Place in the epoch: groups so far, those before a resume included.
        epoch: Its number; None: not given.
    """

    def __init__(
        self,
        iterator: Any,
        log_format: str,
        log_interval: int,
        log_file: str | None,
        epoch: int | None,
        prefix: str | None,
        sinks: list[_TensorBoard | _WeightsAndBiases],
    ) -> None:
        self._iterator: Iterable[Any] = iterator
        self._format = log_format
        self._interval = log_interval
        self._sinks = sinks
        self._handler = _file_handler(log_file) if log_file else None
        self.epoch = epoch
        words = [] if epoch is None else [f"epoch {epoch:03d}"]
        self._prefix = " | ".join(words + ([prefix] if prefix else []))
        self.n = int(getattr(iterator, "n", 0))
        self._length = len(iterator)
        self._waited_s = 0.0
        self._since = time.monotonic()
        self._bar: Any = None

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        if self._format == "tqdm":
            import tqdm

            self._bar = tqdm.tqdm(
                total=self._length, initial=self.n, desc=self._prefix, dynamic_ncols=True
            )
        source = iter(self._iterator)
        try:
            while True:
                try:
                    # Without a name, so that a loop holds only what its body holds.
                    yield self._take(source)
                except StopIteration:
                    break
        finally:
            if self._bar is not None:
                self._bar.close()

    def _take(self, source: Iterator[Any]) -> Any:
        asked = time.monotonic()
        item = next(source)
        self._waited_s += time.monotonic() - asked
        self.n += 1
        if self._bar is not None:
            self._bar.update()
        return item

    def _feed_wait(self) -> float:
        now = time.monotonic()
        share = self._waited_s / max(now - self._since, 1e-9)
        self._waited_s, self._since = 0.0, now
        return round(min(1.0, share), 3)

    def log(self, stats: _Stats, tag: str | None = None, step: int | None = None) -> None:
        """Values of a running epoch: a line each log_interval steps."""
        step = step or self.n
        if not step or self._interval <= 0 or step % self._interval:
            return
        stats = {**stats, "feed_wait": self._feed_wait()}
        self._send(stats, tag, step)
        shown = {name: _shown(value) for name, value in stats.items()}
        postfix = ", ".join(f"{name}={value}" for name, value in shown.items())
        if self._bar is not None:
            self._bar.set_postfix_str(postfix)
        elif self._format == "simple":
            self._line(tag, f"{self._prefix}:  {self.n:5d} / {self._length:d} {postfix}")
        elif self._format == "json":
            place: dict[str, Any] = {}
            if self.epoch is not None:
                done = self.n / self._length if self._length else 0.0
                place = {"epoch": self.epoch, "update": round(self.epoch - 1 + done, 3)}
            self._line(tag, json.dumps({**place, **shown}))

    def print(self, stats: _Stats, tag: str | None = None, step: int | None = None) -> None:
        """Values at the end of an epoch: one line."""
        self._send(stats, tag, step)
        shown = {name: _shown(value) for name, value in stats.items()}
        if self._format == "none":
            return
        if self._format == "json":
            named = {f"{tag}_{name}" if tag else name: value for name, value in shown.items()}
            first = {} if self.epoch is None else {"epoch": self.epoch}
            return self._line(tag, json.dumps({**first, **named}))
        words = [f"{name} {value}" for name, value in shown.items()]
        self._line(tag, " | ".join(([self._prefix] if self._prefix else []) + words))

    def update_config(self, config: Mapping[str, Any]) -> None:
        """The run's settings, for Weights & Biases."""
        for sink in self._sinks:
            sink.update_config(config)

    def _line(self, tag: str | None, text: str) -> None:
        logger = logging.getLogger(tag or __name__)
        if self._handler is not None and self._handler not in logger.handlers:
            logger.addHandler(self._handler)
        logger.info(text)

    def _send(self, stats: _Stats, tag: str | None, step: int | None) -> None:
        for sink in self._sinks:
            sink.send({name: _number(value) for name, value in stats.items()}, tag, step)


def _file_handler(path: str) -> logging.Handler:
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s | %(levelname)s | %(name)s | %(message)s"))
    return handler


def _number(value: Any) -> Any:
    """A value as a number: of a tensor its item, of a meter its average; else None."""
    if hasattr(value, "item"):
        value = value.item()
    elif hasattr(value, "avg"):
        value = _number(value.avg)
    return value if isinstance(value, Number) else None


def _shown(value: Any) -> str:
    number = _number(value)
    if number is None:
        return str(value)
    # A meter's average has three decimals.
    return f"{number:.3f}" if hasattr(value, "avg") else f"{number:g}"


class _TensorBoard:
    def __init__(self, directory: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._make: Any = SummaryWriter
        self._directory = directory
        self._writers: dict[str, Any] = {}

    def send(self, values: _Stats, tag: str | None, step: int | None) -> None:
        key = tag or "train"
        if key not in self._writers:
            self._writers[key] = self._make(os.path.join(self._directory, key))
        for name, value in values.items():
            if isinstance(value, (int, float)) and math.isfinite(value):
                self._writers[key].add_scalar(name, value, step)
        self._writers[key].flush()

    def update_config(self, config: Mapping[str, Any]) -> None:
        pass


class _WeightsAndBiases:
    def __init__(self, project: str, name: str | None) -> None:
        import wandb

        self._wandb: Any = wandb
        # The run that is there, if a trainer has begun one.
        wandb.init(project=project, name=name, reinit=False)

    def send(self, values: _Stats, tag: str | None, step: int | None) -> None:
        front = f"{tag}/" if tag else ""
        known = {front + name: value for name, value in values.items() if value is not None}
        self._wandb.log(known, step=step)

    def update_config(self, config: Mapping[str, Any]) -> None:
        self._wandb.config.update(dict(config), allow_val_change=True)
