"""Writes the counters of a feed as a DataLoaderMetricsProto of lczero-training, by hand.

That project has five kinds of metrics, found by name: loads, queues, counts, gauges and statistics.
Here a stage has counters, and the feed says which of them are gauges, and with what capacities
(CounterMetricProto in proto/metrics.proto). A gauge becomes a gauge there; all other counters
become counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from .._core import control

# Counts that have another name there; counts with the same name are summed.
_COUNTED_THERE_AS = {
    "weighted_rejected": "hanse_rejected",
    "chunks_weighed": "hanse_cache_misses",
    "weights_known": "hanse_cache_hits",
    "store_hits": "cache_hits",
    "store_misses": "cache_misses",
}
# Counts that are always there; the others appear only once they are not 0, to keep rows short.
_ALWAYS = {
    *("skipped_files", "dropped", "hanse_rejected", "hanse_cache_hits", "hanse_cache_misses"),
    *("reshuffles", "chunks_processed", "chunks_dropped", "sources_processed", "failed_rescores"),
    *("chunk_sources", "chunks_kept", "chunks_total", "chunks_since_anchor", "frames_held"),
}
# Also if nothing is weighed, so that nobody counts them.
_OF_EVERY_POOL = ("hanse_cache_hits", "hanse_cache_misses")
_OF_A_STORE = {"cache_hits", "cache_misses"}
# Gauges that have another name there. Our own gauge of that name is left out: their chunks_current
# counts the chunks of all sources that are kept.
_SHOWN_THERE_AS = {"chunks_kept": "chunks_current", "chunks_current": ""}
# And a gauge that has the capacity of another gauge.
_CAPACITY_OF = {"chunks_kept": "chunks_current"}
# Together these form one of their statistics.
_WEIGHT = "chunk_weight"
_WEIGHT_SAMPLES = "chunk_weights"
_MILLIONTHS = "_millionths"
# A chunk that their rescorer fails on is refused here by the validator before the rescorer, or by
# the rescorer.
_FAILED = "failed_rescores"
_REFUSED = ("rejected_", "skipped_", "chunks_damaged")
_LOADS_OF_POOLS = {"load": "source_ingestion", "read": "chunk_loading"}
# A window may be this much shorter than requested: their minute is 64 s.
_NEARLY = 1.1

# StageMetricProto; the messages in it begin with their name.
_NAME = 1
_LOAD = 3
_QUEUE = 4
_COUNT = 5
_ANCHOR = 9
_GAUGE = 11
_STATISTICS = 12


def of_last(seconds: float, reply: Mapping[str, Any]) -> tuple[bytes, float]:
    """The smallest window that covers this many seconds, or the totals; and the seconds it covers.

    Args:
        reply: The reply of control.metrics(), with descriptions.
    """
    total = reply.get("total", {})
    for window in reply["windows"]:
        if seconds <= window["seconds_wanted"] * _NEARLY:
            return _metrics(window["metrics"], total), window["seconds_covered"]
    return _metrics(total, total), reply["uptime_ms"] / 1000


def _metrics(metrics: Mapping[str, Any], total: Mapping[str, Any]) -> bytes:
    out, before = b"", None
    both = zip(metrics.get("stage_metrics", ()), total.get("stage_metrics", ()), strict=True)
    for stage, ever in both:
        out += control.bytes_field(1, _stage(stage, ever, before))
        before = stage
    return out


def _stage(
    stage: Mapping[str, Any], total: Mapping[str, Any], before: Mapping[str, Any] | None
) -> bytes:
    """A StageMetricProto; `before`: the stage configured before it."""
    kind, own = _own(stage)
    out = _text(_NAME, stage["name"])
    for load in own["loads"]:
        out += control.bytes_field(_LOAD, _load(load, kind))
    for queue in stage["output_queue_metrics"]:
        # Others are inside the stage.
        if kind == "chunk_source_splitter" or queue["name"] == "output":
            out += control.bytes_field(_QUEUE, _queue(queue))
    ever, counts = _counts(total), _counts(stage)
    if kind == "shuffling_chunk_pool":
        counts.update(dict.fromkeys(_OF_EVERY_POOL, 0))
    counters = {counter["name"]: counter for counter in stage["counters"]}
    stores = counters.get("store_bytes", {}).get("capacity", 0) != 0
    always = _ALWAYS | _OF_A_STORE if stores else _ALWAYS
    if kind == "chunk_rescorer":
        counts[_FAILED] = _refused(stage) + _refused(before if _validates(before) else None)
    for name, count in counts.items():
        if not name.startswith(_WEIGHT) and (ever[name] or name in always):
            out += _named(_COUNT, name, control.number_field(2, count))
    if counts[_WEIGHT_SAMPLES]:
        out += control.bytes_field(_STATISTICS, _weight(own))
    if "anchor" in own:
        out += _text(_ANCHOR, own["anchor"])
    for name, gauge in counters.items():
        shown = _SHOWN_THERE_AS.get(name, name)
        if not gauge.get("gauge") or not shown or name.startswith(_WEIGHT):
            continue
        if gauge.get("value") or ("value" in gauge and name in _ALWAYS):
            value = control.number_field(2, gauge["value"])
            limited = counters.get(_CAPACITY_OF.get(name, name), {})
            if "capacity" in limited:
                lanes = own["loads"][0]["lanes"] if limited.get("capacity_each_lane") else 1
                value += control.number_field(3, limited["capacity"] * lanes)
            out += _named(_GAUGE, shown, value)
    return out


def _validates(stage: Mapping[str, Any] | None) -> bool:
    return stage is not None and _own(stage)[0] == "chunk_validator"


def _refused(stage: Mapping[str, Any] | None) -> int:
    """Chunks that did not pass a stage."""
    if stage is None:
        return 0
    return sum(value for name, value in _numbers(stage) if name.startswith(_REFUSED))


def _weight(own: Mapping[str, Any]) -> bytes:
    """A StatisticsProtoDouble. Smallest and largest are of all time."""

    def weight(which: str) -> float:
        value: int = own[f"{_WEIGHT}_{which}{_MILLIONTHS}"]
        return value / 1e6

    out = _text(1, _WEIGHT) + control.double_field(2, weight("min"))
    out += control.double_field(3, weight("max")) + control.double_field(4, weight("sum"))
    out += control.number_field(5, own[_WEIGHT_SAMPLES])
    return out + control.double_field(6, weight("latest"))


def _own(stage: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The kind of a stage, and the message with what only this kind has."""
    return next((name, value) for name, value in stage.items() if isinstance(value, dict))


def _counts(stage: Mapping[str, Any]) -> Counter[str]:
    """The counters of a stage, by name."""
    counts: Counter[str] = Counter()
    for name, value in _numbers(stage):
        counts[_COUNTED_THERE_AS.get(name, name)] += value
    return counts


def _numbers(stage: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Counters that are not gauges."""
    for counter in stage["counters"]:
        if "value" in counter and not counter.get("gauge"):
            yield counter["name"], counter["value"]


def _load(load: Mapping[str, Any], kind: str) -> bytes:
    busy, asleep = load["busy_seconds"], load["starved_seconds"] + load["blocked_seconds"]
    name = load["name"]
    if kind == "shuffling_chunk_pool":
        name = _LOADS_OF_POOLS.get(name, name)
    seconds = control.double_field(2, busy) + control.double_field(3, busy + asleep)
    return _text(1, name) + seconds


def _queue(queue: Mapping[str, Any]) -> bytes:
    out = _text(1, queue["name"])
    for field, name in enumerate(("put_count", "get_count", "drop_count"), 2):
        out += control.number_field(field, queue[name])
    seen = queue["fullness"]
    if seen["count"]:
        sum_ = round(seen["mean"] * seen["count"])
        numbers = (seen["min"], seen["max"], sum_, seen["count"], seen["latest"])
        fullness = (control.number_field(field, value) for field, value in enumerate(numbers, 1))
        out += control.bytes_field(5, b"".join(fullness))
    return out + control.number_field(6, queue["capacity"])


def _named(field: int, name: str, rest: bytes) -> bytes:
    return control.bytes_field(field, _text(1, name) + rest)


def _text(field: int, text: str) -> bytes:
    return control.bytes_field(field, text.encode())
