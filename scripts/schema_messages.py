"""JSON schemas of messages of proto/, as supervisor/metrics/json.cc writes them: by the names of
fields, enumerators by name, numbers as numbers; lists always, other fields only where they are set.

Descriptions are the comments of proto/. What is said here stands in the place of a comment that is
missing, or that needs its neighbours to be understood.
"""

import re
import sys

import descriptors
from schema_words import (
    Maybe,
    Schema,
    a,
    choice,
    flag,
    many,
    name_number,
    one,
    real,
    record,
    text,
    whole,
)


ROOTS = ("StatusReply", "MetricsReply", "StageControlResponse", "BottleneckProto")
# Not in the JSON of the command line: a stage's metrics are written otherwise (see below).
LEFT_OUT = ("MetricsReply.json", "DataLoaderMetricsProto.stage_metrics")

# "Message.field" or "field" = what is said of it.
SAID = {
    "StatusReply.feed": "Name of the feed.",
    "StatusReply.state": "What the feed is doing.",
    "StatusReply.reason": "Why it is in this state: of ENDED and FAILED, and while it waits.",
    "StatusReply.uptime_ms": "How long its supervisor has run.",
    "StatusReply.supervisor_pid": "Process of its supervisor.",
    "StatusReply.version": "Version of ringfeed that runs it.",
    "StatusReply.seed": "What its shuffling is drawn from.",
    "StatusReply.stages": "Its stages, as configured.",
    "StatusReply.rings": "The queues between lanes.",
    "StatusReply.outputs": "Its outputs of batches.",
    "StatusReply.trainers": "Processes that take batches.",
    "StatusReply.groups": "Consumer groups: each gets every batch of its output.",
    "StatusReply.progress": 'What stages do before the first batch: "pool: 812 of 100000 chunks".',
    "StatusReply.memory_bytes": "Memory that the feed has reserved.",
    "StatusReply.config_file": "The file of its configuration.",
    "StatusReply.socket": "Path of its control socket.",
    "StatusReply.restarts": "Restarts of its processes, under this supervisor.",
    "MetricsReply.feed": "Name of the feed.",
    "MetricsReply.total": "Totals since the beginning of the feed.",
    "MetricsReply.windows": "The last 1, 10 and 60 seconds.",
    "StageControlResponse.chunk_pool_response": "Of a shuffling_chunk_pool.",
    "StageControlResponse.epoch_planner_response": "Of an epoch_planner.",
    "StageStatus.name": "Name of the stage.",
    "StageStatus.kind": "Its kind: see `ringfeed stages`.",
    "StageStatus.group": "Its stage group: the process that runs it.",
    "StageStatus.lanes": "Its lanes.",
    "StageStatus.counters": "What it counts: see metrics.md.",
    "StageStatus.progress": "What it does before it gives anything.",
    "RingStatus.from": 'The lane that writes: "loader.0".',
    "RingStatus.to": 'The lane that reads: "pool.0".',
    "RingStatus.fill_records": "Records in it now.",
    "RingStatus.capacity_records": "Records that it can hold.",
    "RingStatus.fill_bytes": "Bytes in it now.",
    "RingStatus.capacity_bytes": "Bytes that it can hold.",
    "RingStatus.put_count": "Records written so far.",
    "RingStatus.get_count": "Records read so far.",
    "RingStatus.drop_count": "Records that found no room.",
    "RingStatus.closed": "Nothing more will be written.",
    "RingStatus.port": 'Port of the lane that writes: "output".',
    "RingStatus.to_port": 'Port of the lane that reads: "input".',
    "RingStatus.back": "It carries requests to an earlier stage.",
    "FeedStatus.batches_published": "Batches made so far.",
    "FeedStatus.rows_published": "Rows in these.",
    "FeedStatus.slots": "Places for batches.",
    "FeedStatus.slots_used": "Places that hold a batch which somebody still needs.",
    "FeedStatus.schema": "The arrays of a batch.",
    "FeedStatus.alias": "Its name; absent if the feed has one output without a name.",
    "FeedStatus.keep_newest": "It waits for nobody: old batches make room.",
    "FeedStatus.port": "The port of that stage.",
    "TrainerStatus.group": "Its consumer group.",
    "TrainerStatus.member": "Its number in the group; its rank where the group has ranks.",
    "TrainerStatus.pid": "Its process.",
    "TrainerStatus.taken": "Batches that it has taken.",
    "TrainerStatus.done": "Batches that it has given back.",
    "TrainerStatus.client": 'What it calls itself: "train.py".',
    "TrainerStatus.waited_ns": "How long it has waited because no batch was there.",
    "ConsumerGroupStatus.name": "Name of the group.",
    "ConsumerGroupStatus.kind": "How batches are shared by its members.",
    "ConsumerGroupStatus.world": "Ranks that it has; absent or 0: none.",
    "ConsumerGroupStatus.policy": "What the feed does when the group is slow.",
    "ConsumerGroupStatus.members": "Trainers in it now.",
    "ConsumerGroupStatus.start": "The first batch that it is entitled to.",
    "ConsumerGroupStatus.lag": "Published batches that it has not finished.",
    "ConsumerGroupStatus.skipped": "Batches that it lost.",
    "ConsumerGroupStatus.wait_bounds_us": "Bounds of the waits that are counted in wait_counts.",
    "ConsumerGroupStatus.wait_counts": (
        "How many waits of its members took at most wait_bounds_us[i], and longer than the bound "
        "before; the last count has the longer ones."
    ),
    "ConsumerGroupStatus.wait_ns": "All waits of its members together.",
    "MemoryStatus.name": 'What it is for: "arena of sampler", "rings from loader to pool (4)".',
    "MemoryStatus.bytes": "Its size.",
    "RestartStatus.group": "The stage group.",
    "RestartStatus.signal": 'What ended the process: "SIGKILL"; "" it ended by itself; "unknown".',
    "RestartStatus.count": "How often.",
    "WindowMetricsProto.seconds_wanted": "Length of the window: 1, 10 or 60.",
    "WindowMetricsProto.seconds_covered": "What it covers: less, while the feed is young.",
    "WindowMetricsProto.metrics": "What was added in it.",
    "BottleneckProto.kind": "What limits the batches.",
    "BottleneckProto.stage": (
        "The stage: of STAGE, GIVES_NOTHING and LEAVES_OUT; of MACHINE the slowest one; of QUEUE "
        "the one that fills it."
    ),
    "BottleneckProto.part": 'The part of the stage: "read"; absent: the stage itself.',
    "BottleneckProto.seconds_covered": "The time that it is based on: 10 seconds at most.",
    "BottleneckProto.lanes": "Lanes of the stage.",
    "BottleneckProto.lanes_max": "Most that `ringfeed scale` can give it; 0: none.",
    "BottleneckProto.batches_per_s": "Batches made now.",
    "BottleneckProto.batches_per_s_next": "With one more lane; absent if lanes do not help.",
    "BottleneckProto.lanes_useful": "Lanes beyond which more do not help, at most 64.",
    "BottleneckProto.batches_per_s_useful": "With so many lanes.",
    "BottleneckProto.next": 'What limits then: a stage, or "machine".',
    "BottleneckProto.cores": "Processors that the feed may use.",
    "BottleneckProto.cores_busy": "Of these, those its lanes keep busy.",
    "BottleneckProto.cores_idle": "Of the machine's, those that nobody uses.",
    "BottleneckProto.setting": 'Of QUEUE: what bounds it, such as "queue_capacity" of the stage.',
    "BottleneckProto.setting_now": "Its value.",
    "BottleneckProto.setting_useful": "A value that would do.",
    "BottleneckProto.left_out": "Of LEAVES_OUT: what the stage leaves out of what it gets.",
    "BottleneckProto.shares": "How the lanes of each stage spend their time.",
    "LaneShareProto.name": 'The stage, or its part: "unpacker", "pool.read".',
    "LaneShareProto.lanes": "Lanes at work.",
    "LaneShareProto.busy": "At work.",
    "LaneShareProto.starved": "Asleep for lack of input.",
    "LaneShareProto.blocked": "Asleep for lack of room.",
    "LaneShareProto.cpu": "On a processor, as part of busy.",
    "LaneShareProto.core_wait": "Ready to run, without a processor.",
    "ShufflingChunkPoolControlResponse.chunk_anchor": "The sort key of the anchor.",
    "ShufflingChunkPoolControlResponse.chunks_since_anchor": (
        "Chunks that came after it; after a reset those before it."
    ),
    "EpochPlannerControlResponse.world_size": "Ranks that the batches are planned for.",
    "EpochPlannerControlResponse.batches": "Batches of the epoch; 0: its plan is being made.",
    "EpochPlannerControlResponse.from_batch": (
        "The batch before which the epoch ends. Only of samplings with weights."
    ),
    "EpochPlannerControlResponse.sentences_left": (
        "Sentences that are not read. Only of samplings with weights."
    ),
    "EpochPlannerControlResponse.chain_epoch": "Epoch of the chain, for `chain_epoch` of a seek.",
    "EpochPlannerControlResponse.chain_pass": "Pass of the chain, for `chain_pass` of a seek.",
    "LaneStatus.name": 'Name of the lane: "pool.0", "pool.read.1".',
    "LaneStatus.pid": "Its process; 0: it has none now.",
    "LaneStatus.incarnation": "Which process of the group it is, from 1.",
    "LaneStatus.restarts": "How often its process was replaced.",
    "LaneStatus.state": "What it is doing.",
    "LaneStatus.records_in": "Records read so far.",
    "LaneStatus.records_out": "Records written so far.",
    "LaneStatus.bytes_in": "Bytes read so far.",
    "LaneStatus.bytes_out": "Bytes written so far.",
    "LaneStatus.busy_ns": "How long it has been at work.",
    "LaneStatus.starved_ns": "How long it has slept for lack of input.",
    "LaneStatus.blocked_ns": "How long it has slept for lack of room.",
    "CounterStatus.name": "Name of the counter: see metrics.md.",
    "CounterStatus.value": "Its value, over all lives of the lanes.",
    "BatchSchema.tensors": "The arrays of a batch.",
    "LoadMetricProto.lanes": "Lanes at work now.",
    "LoadMetricProto.busy_seconds": "At work.",
    "LoadMetricProto.starved_seconds": "Asleep for lack of input.",
    "LoadMetricProto.blocked_seconds": "Asleep for lack of room.",
    "LoadMetricProto.cpu_seconds": "On a processor. Only over a window.",
    "LoadMetricProto.core_wait_seconds": "Ready to run, without a processor. Only over a window.",
    "LoadMetricProto.busy_share": "At work. Only over a window.",
    "LoadMetricProto.starved_share": "Asleep for lack of input. Only over a window.",
    "LoadMetricProto.blocked_share": "Asleep for lack of room. Only over a window.",
    "LoadMetricProto.records_in": "Records read.",
    "LoadMetricProto.records_out": "Records written.",
    "QueueMetricProto.put_count": "Records offered: those queued, and those dropped.",
    "QueueMetricProto.get_count": "Records taken.",
    "QueueMetricProto.fullness": "Records in it; of a feed: slots in use.",
    "QueueMetricProto.capacity": "Records that it can hold; of a feed: slots.",
    "QueueMetricProto.put_per_s": "Records offered. Only over a window.",
    "QueueMetricProto.get_per_s": "Records taken. Only over a window.",
    "StatisticsProtoInt64.min": "The smallest.",
    "StatisticsProtoInt64.max": "The largest.",
    "StatisticsProtoInt64.mean": "The mean.",
    "StatisticsProtoInt64.count": "Looks that these are made of.",
    "StatisticsProtoInt64.latest": "The latest.",
}

# What a number counts, where its name does not say so.
UNITS = {
    **dict.fromkeys(("lanes", "lanes_max", "lanes_useful"), "lanes"),
    **dict.fromkeys(("slots", "slots_used"), "slots"),
    **dict.fromkeys(("records_in", "records_out", "fill_records", "capacity_records"), "records"),
    **dict.fromkeys(("put_count", "get_count", "drop_count", "capacity"), "records"),
    **dict.fromkeys(("put_per_s", "get_per_s"), "records/s"),
    **dict.fromkeys(("busy", "starved", "blocked", "cpu", "core_wait"), "share"),
    **dict.fromkeys(("cores", "cores_busy", "cores_idle"), "processors"),
    **dict.fromkeys(("taken", "done", "lag", "skipped", "batches_published"), "batches"),
    **dict.fromkeys(("batches", "epoch_batches"), "batches"),
    **dict.fromkeys(("rows_published", "rows_max"), "rows"),
    **dict.fromkeys(("world", "world_size"), "ranks"),
    **dict.fromkeys(("min", "max", "mean", "latest"), "records"),
    "restarts": "restarts",
    "members": "trainers",
    "deaths": "deaths",
    "wait_counts": "waits",
    "shape": "rows",
    "offset": "bytes",
    "sentences_left": "sentences",
    "chunks_since_anchor": "chunks",
    **dict.fromkeys(("ProgressStatus.done", "ProgressStatus.total"), "as its text says"),
    "RestartStatus.count": "restarts",
    "StatisticsProtoInt64.count": "looks",
    "CounterStatus.value": "as its name says",
    **dict.fromkeys(("setting_now", "setting_useful"), "records, bytes or slots"),
    "left_out": "share",
}
SUFFIXES = (
    *(("batches_per_s", "batches/s"), ("bytes", "bytes"), ("bytes_in", "bytes")),
    *(("bytes_out", "bytes"), ("_ns", "nanoseconds"), ("_us", "microseconds")),
    *(("_ms", "milliseconds"), ("seconds", "seconds"), ("_share", "share")),
    *(("seconds_wanted", "seconds"), ("seconds_covered", "seconds")),
    *(("batches_per_s_next", "batches/s"), ("batches_per_s_useful", "batches/s")),
)
# Numbers that name something.
NAMES = (
    *("supervisor_pid", "pid", "seed", "member", "incarnation", "start", "epoch", "batch"),
    *("generation", "from_batch", "chain_epoch", "chain_pass"),
)
SIGNED = ("shape", "min", "max", "latest", "chunks_since_anchor")


def sentence(comment: str) -> str:
    """A comment as a description: "of the supervisor" becomes a sentence."""
    said = re.sub(r"\s+", " ", comment).strip()
    said = said[:1].upper() + said[1:]
    return said if said.endswith((".", "…", ":")) else said + "."


def name_of(message: str) -> str:
    """In $defs: "StageStatus"."""
    return message.removeprefix(".ringfeed.").replace(".", "_")


def unit_of(message: str, field: descriptors.Field) -> str | None:
    for key in (f"{message}.{field.name}", field.name):
        if key in UNITS:
            return UNITS[key]
    if field.name in NAMES:
        return None
    for suffix, unit in SUFFIXES:
        if field.name.endswith(suffix):
            return unit
    sys.exit(f"scripts/schema_messages.py: {message}.{field.name} needs a unit, or is a name")


def value_schema(
    schema: descriptors.Schema, message: str, field: descriptors.Field, said: str
) -> Schema:
    if field.type == "message":
        return one(said, name_of(field.type_name))
    if field.type == "enum":
        values = schema.enums[field.type_name].values
        told = [f"{name}: {sentence(comment)}" for name, comment in values if comment]
        return choice(" ".join([said, *told]), *(name for name, _ in values))
    if field.type == "string":
        return text(said)
    if field.type == "bool":
        return flag(said)
    unit = unit_of(message, field)
    if field.type in ("double", "float"):
        return real(said, unit or "")
    least = None if field.name in SIGNED else 0
    return whole(said, unit, least) if unit else name_number(said, least)


def field_schema(schema: descriptors.Schema, message: str, field: descriptors.Field) -> Schema:
    said = SAID.get(f"{message}.{field.name}") or (sentence(field.comment) if field.comment else "")
    if not said:
        sys.exit(f"scripts/schema_messages.py: say what {message}.{field.name} is, there or here")
    one_of_them = value_schema(schema, message, field, said)
    if not field.repeated:
        return one_of_them
    return many(said, {key: value for key, value in one_of_them.items() if key != "description"})


def message_schema(schema: descriptors.Schema, message: str) -> Schema:
    found = schema.messages[f".ringfeed.{message}"]
    members = {
        field.name: (dict if field.repeated else Maybe)(field_schema(schema, message, field))
        for field in found.fields
        if f"{message}.{field.name}" not in LEFT_OUT
    }
    first = re.split(r"(?<=\.)\s", found.comment)[0] if found.comment else ""
    return record(sentence(first) if first else sentence(words_of(message)), members)


def words_of(message: str) -> str:
    """ "StageStatus" as words, for a message without a comment."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", message.removesuffix("Proto")).lower()


# ---- what is more than its message


def stage_metrics() -> dict[str, Schema]:
    """A stage, as proto/metrics.proto says that its JSON is."""
    own = {
        "description": "What the stage counts: counters, capacities and texts by their names, as "
        "metrics.md has them. Over a window a counter has what was added in it.",
        "type": "object",
        "properties": {
            "loads": many(
                "How its lanes spend their time; the parts of a stage one by one.",
                a("LoadMetricProto"),
            )
        },
        "additionalProperties": {"type": ["integer", "string"], "x-unit": "as its name says"},
    }
    counter = record(
        "A counter whose name comes from the configuration, or which stages of any kind have.",
        name=text("Its name."),
        value=whole("Its value.", "as its name says"),
    )
    stage = record(
        "What a stage counts. Besides these it has one member that is named after its kind.",
        name=Maybe(text("Name of the stage.")),
        output_queue_metrics=many(
            "Its output ports; the output of the last stage is the feed, and counts slots.",
            a("QueueMetricProto"),
        ),
        other_counters=many("Counters that are not of its kind.", a("OtherCounter")),
    )
    stage["additionalProperties"] = a("KindMetrics")
    return {"StageMetrics": stage, "KindMetrics": own, "OtherCounter": counter}


def shared(schema: descriptors.Schema) -> dict[str, Schema]:
    """What $defs may have, by name."""
    made: dict[str, Schema] = {}
    queue = [name for name in ROOTS]
    while queue:
        message = queue.pop()
        if name_of(message) in made:
            continue
        made[name_of(message)] = message_schema(schema, message)
        queue += [
            name_of(field.type_name)
            for field in schema.messages[f".ringfeed.{message}"].fields
            if field.type == "message" and f"{message}.{field.name}" not in LEFT_OUT
        ]
    made |= stage_metrics()
    made["LoadMetricProto"] = message_schema(schema, "LoadMetricProto")
    made["QueueMetricProto"] = message_schema(schema, "QueueMetricProto")
    made["StatisticsProtoInt64"] = message_schema(schema, "StatisticsProtoInt64")
    metrics = made["DataLoaderMetricsProto"]
    metrics["properties"]["stage_metrics"] = many("The stages, as configured.", a("StageMetrics"))
    metrics["required"].append("stage_metrics")
    lane, output = made["LaneStatus"]["properties"], made["FeedStatus"]["properties"]
    lane["records_per_s"] = real("Records written, between two looks.", "records/s")
    output["batches_per_s"] = real("Batches made, between two looks.", "batches/s")
    unknown = [key for key in SAID if not is_there(schema, key)]
    if unknown:
        sys.exit(f"scripts/schema_messages.py: there is no {', '.join(unknown)} any more")
    return made


def is_there(schema: descriptors.Schema, key: str) -> bool:
    message, _, name = key.partition(".")
    found = schema.messages.get(f".ringfeed.{message}")
    return found is not None and any(field.name == name for field in found.fields)
