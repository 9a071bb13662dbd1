"""Numbers of the fields of the messages that this package writes and reads by hand.

Written by scripts/reference from proto/, where each field is explained.
"""


class ConsumerGroupStatus:
    name = 1
    kind = 2
    world = 3
    policy = 4
    members = 5
    start = 6
    lag = 7
    skipped = 8
    output = 9
    wait_bounds_us = 10
    wait_counts = 11
    wait_ns = 12
    had_member = 13


class DataLoaderConfig:
    stages = 1
    feed = 10
    seed = 11
    epochs = 12
    drop_remainder = 13
    stage_groups = 14
    storage = 15
    feed_output = 16
    restart = 17
    log = 18
    control = 19
    shutdown = 20
    snapshot = 21
    from_batch = 22
    http = 23
    skip_limit = 24
    worker = 30


class EpochPlannerControlRequest:
    seek = 1
    weights = 2
    from_batch = 3

    class Seek:
        epoch = 1
        batch = 2
        world_size = 3
        forgetful = 4
        weights = 5
        chain_epoch = 6
        chain_pass = 7
        configured_weights = 8
        coming_weights = 9
        coming_epoch = 10
        coming_from_batch = 11
        updates_from_batch = 12
        only_look = 13


class EpochPlannerControlResponse:
    error = 1
    epoch = 2
    batch = 3
    batches = 4
    generation = 5
    world_size = 6
    from_batch = 7
    sentences_left = 8
    chain_epoch = 9
    chain_pass = 10
    epoch_batches = 11


class FeedStatus:
    batches_published = 1
    rows_published = 2
    slots = 3
    slots_used = 4
    schema = 5
    alias = 6
    keep_newest = 7
    from_ = 8
    port = 9


class LaneStatus:
    name = 1
    pid = 2
    incarnation = 3
    restarts = 4
    state = 5
    records_in = 6
    records_out = 7
    bytes_in = 8
    bytes_out = 9
    busy_ns = 10
    starved_ns = 11
    blocked_ns = 12
    group = 13


class MetricsReply:
    feed = 1
    uptime_ms = 2
    total = 3
    windows = 4
    bottlenecks = 5
    json = 6
    sampling_us = 7
    deaths = 8


class MetricsRequest:
    as_json = 1
    describe = 2


class Reply:
    id = 1
    error = 2
    text = 3
    attach = 4
    detach = 5
    status = 6
    stop = 7
    stage_control = 8
    restart = 9
    event = 10
    rejoin = 11
    worker_rejoin = 12
    snapshot = 13
    scale = 14
    metrics = 16
    wait = 17
    snapshots = 18
    origin = 19
    log = 24


class Request:
    id = 1
    attach = 2
    detach = 3
    status = 4
    stop = 5
    stage_control = 6
    restart = 7
    rejoin = 8
    worker_rejoin = 9
    snapshot = 10
    scale = 11
    metrics = 12
    wait = 13
    snapshots = 14
    origin = 16
    log = 20


class SamplingWeight:
    key = 1
    weight = 2


class ShufflingChunkPoolControlRequest:
    reset_chunk_anchor = 1
    set_chunk_anchor = 2


class ShufflingChunkPoolControlResponse:
    chunk_anchor = 1
    chunks_since_anchor = 2


class SnapshotInfo:
    directory = 1
    bytes = 2
    newest_batch = 3
    taken_at = 4
    places = 5


class SnapshotPlace:
    group = 1
    output = 2
    next_batch = 3


class SnapshotReply:
    directory = 1
    bytes = 2
    newest_batch = 3
    pause_us = 4
    total_ms = 5


class SnapshotRequest:
    directory = 1


class SnapshotsReply:
    snapshots = 1
    lineage = 2


class StageControlAnswer:
    stage = 1
    response = 2


class StageControlCall:
    stage = 1
    request = 2
    key = 3


class StageControlReply:
    answers = 1


class StageControlRequest:
    chunk_pool_request = 1
    epoch_planner_request = 30


class StageControlResponse:
    chunk_pool_response = 1
    epoch_planner_response = 30


class StageStatus:
    name = 1
    kind = 2
    group = 3
    lanes = 4
    counters = 5
    progress = 6


class StatusReply:
    feed = 1
    state = 2
    reason = 3
    uptime_ms = 4
    supervisor_pid = 5
    version = 6
    seed = 7
    stages = 8
    rings = 9
    outputs = 10
    trainers = 11
    groups = 12
    progress = 13
    memory_bytes = 14
    config_file = 15
    socket = 16
    problems = 17
    memory_budget_bytes = 18
    memory = 19
    restarts = 20
    http = 21
    under_way = 22


class StopRequest:
    now = 1


class TrainerStatus:
    group = 1
    member = 2
    pid = 3
    taken = 4
    done = 5
    client = 6
    output = 7
    waited_ns = 8
