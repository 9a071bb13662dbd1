"""The JSON schema of `ringfeed graph`, as supervisor/graph/json.cc writes it."""

from schema_words import (
    FEED,
    STATES,
    Maybe,
    Schema,
    a,
    choice,
    flag,
    many,
    name_number,
    real,
    record,
    share,
    text,
    texts,
    whole,
)


def parts() -> dict[str, Schema]:
    running = "Only of a running feed."
    process = record(
        "A process.",
        name=text("The stage group that it runs."),
        pid=Maybe(name_number("Its process; absent: it has none now.", 1)),
        restarts=Maybe(whole(f"How often it was replaced. {running}", "restarts")),
    )
    node = record(
        "A stage, or a part of it that has lanes of its own.",
        name=text('Its name: "pool", "pool.read".'),
        stage=text("The stage."),
        kind=text("Its kind."),
        part=Maybe(text("The part; absent: the stage itself.")),
        processes=texts("Names of the processes that run its lanes."),
        lanes=whole("Lanes at work.", "lanes"),
        lanes_max=whole("Lanes that it may be scaled to.", "lanes"),
        progress=Maybe(text("What it does before it gives anything.")),
        records_in=Maybe(whole(f"Records read so far. {running}", "records")),
        records_out=Maybe(whole(f"Records written so far. {running}", "records")),
        limits=Maybe(flag(f"It limits the batches. {running}")),
        busy_share=Maybe(share("Time at work, over the last 10 seconds.")),
        starved_share=Maybe(share("Time asleep for lack of input, over the last 10 seconds.")),
        blocked_share=Maybe(share("Time asleep for lack of room, over the last 10 seconds.")),
    )
    queue = record(
        "The rings between two nodes.",
        {"from": text("The node that writes.")},
        port=text("Its port."),
        to=text("The node that reads."),
        to_port=text("Its port."),
        back=flag("It carries requests to an earlier stage."),
        rings=whole("Rings that it has.", "rings"),
        capacity_records=whole("Records that these can hold.", "records"),
        capacity_bytes=whole("Bytes that these can hold.", "bytes"),
        fill_records=Maybe(whole(f"Records in it now. {running}", "records")),
        fill_bytes=Maybe(whole(f"Bytes in it now. {running}", "bytes")),
        fill_share=Maybe(share(f"How full it is. {running}")),
        dropped=Maybe(whole(f"Records that found no room. {running}", "records")),
        closed=Maybe(flag(f"Nothing more will be written. {running}")),
        records_per_s=Maybe(real("Records that pass, over the last 10 seconds.", "records/s")),
        bytes_per_s=Maybe(real("Bytes that pass, over the last 10 seconds.", "bytes/s")),
    )
    trainer = record(
        "A trainer.",
        member=name_number("Its number in the group."),
        pid=name_number("Its process.", 1),
        client=text("What it calls itself."),
    )
    group = record(
        "A consumer group.",
        name=text("Its name."),
        kind=text("How its members share batches."),
        world=whole("Ranks that it has; 0: none.", "ranks"),
        policy=text("What the feed does when it is slow."),
        lag=Maybe(whole(f"Published batches that it has not finished. {running}", "batches")),
        skipped=Maybe(whole(f"Batches that it lost. {running}", "batches")),
        trainers=Maybe(many(f"Its members. {running}", trainer)),
    )
    output = record(
        "An output of batches.",
        {"from": Maybe(text("The node that writes them."))},
        alias=text('Its name; "": the feed has one output without a name.'),
        port=Maybe(text("The port of that node.")),
        rows_max=whole("Rows of a full batch.", "rows"),
        slot_bytes=whole("Bytes of a slot.", "bytes"),
        slots=whole("Places for batches.", "slots"),
        keep_newest=flag("It waits for nobody: old batches make room."),
        slots_used=Maybe(whole(f"Places in use. {running}", "slots")),
        batches=Maybe(whole(f"Batches made so far. {running}", "batches")),
        limits=Maybe(flag(f"Its trainers limit the batches. {running}")),
        batches_per_s=Maybe(real("Batches made, over the last 10 seconds.", "batches/s")),
        groups=many("Its consumer groups.", group),
    )
    bottleneck = record(
        "What limits an output.",
        output=text("Its alias."),
        kind=text("STAGE, TRAINERS and so on, as `ringfeed why --json` says it."),
        node=Maybe(text("The node that limits.")),
        sentence=text("For people."),
    )
    return {
        "GraphProcess": process,
        "GraphNode": node,
        "GraphQueue": queue,
        "GraphOutput": output,
        "GraphBottleneck": bottleneck,
    }


def graph() -> Schema:
    running = "Only of a running feed."
    return record(
        "The stages of a feed or of a configuration, and how they are joined.",
        json_version=whole("Version of the JSON: see json.md.", "version", 1),
        feed=FEED,
        running=flag("It is a feed that runs; false: a configuration."),
        state=Maybe(choice(f"What the feed is doing. {running}", *STATES)),
        reason=Maybe(text("Why it is in this state.")),
        supervisor_pid=Maybe(name_number(f"Process of its supervisor. {running}", 1)),
        uptime_ms=Maybe(whole(f"How long that has run. {running}", "milliseconds")),
        config_file=Maybe(text(f"The file of its configuration. {running}")),
        seconds_covered=Maybe(real(f"The time that rates are based on. {running}", "seconds")),
        memory_bytes=whole("Memory that it reserves.", "bytes"),
        processes=many("Its processes.", a("GraphProcess")),
        nodes=many("Its stages, and their parts.", a("GraphNode")),
        queues=many("What joins them.", a("GraphQueue")),
        outputs=many("Its outputs.", a("GraphOutput")),
        bottlenecks=Maybe(many(f"What limits the outputs. {running}", a("GraphBottleneck"))),
        memory=Maybe(many("Parts of the memory. Only of a configuration.", a("MemoryPart"))),
    )
