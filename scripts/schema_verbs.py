"""JSON schemas of the command line and of `ringfeed web`: a document each. What the supervisor
writes as messages is in schema_messages.py; schema_graph.py and schema_inspect.py have those of two
verbs; the rest is said here, as supervisor/cli and its neighbours write it.
"""

import descriptors
import schema_graph
import schema_inspect
import schema_messages
from schema_words import (
    FEED,
    STATES,
    Maybe,
    Schema,
    a,
    choice,
    document,
    flag,
    many,
    name_number,
    one,
    or_null,
    real,
    record,
    table,
    text,
    texts,
    whole,
)

DIRECTORY = text("Directory of its control socket.")


# ---- parts that several have


def shared() -> dict[str, Schema]:
    memory = record(
        "A part of a feed's memory.",
        part=text('What it is for: "batches", "ring loader>pool".'),
        bytes=whole("Its size.", "bytes"),
    )
    orphan = record(
        "A feed whose supervisor is dead, while its workers run on. The exit status is 5.",
        feed=FEED,
        state=choice("It has no supervisor.", "ORPHANED"),
        reason=text("Who is dead."),
        workers=many(
            "Its living workers.",
            record(
                "A worker.",
                group=text("The stage group that it runs."),
                pid=name_number("Its process.", 1),
            ),
        ),
    )
    problem = record(
        "What is wrong, and where.",
        file=text("The file, as it was given; an override has its own words."),
        line=name_number("The line, from 1; 0: not known."),
        column=name_number("The column, from 1; 0: not known."),
        stage=text('Name of the stage; "": it is about none.'),
        path=text('The setting, as --set names it; "": it is about none.'),
        text=text("What is wrong, and what to do."),
    )
    setting = record(
        "A setting of a stage.",
        name=text("Its name."),
        type=text('What it takes: "uint64", "string", the name of an enumeration.'),
        default=Maybe(text("What it is if it is not given.")),
        range=Maybe(text("Values that it takes.")),
        text=text("What it does."),
        values=Maybe(
            many(
                "Of an enumeration: its values.",
                record("A value.", name=text("Its name."), text=text("What it means.")),
            )
        ),
    )
    port = record(
        "A port of a stage.",
        name=text("Its name."),
        record_type=text("Type of the records that pass through it."),
    )
    return {
        "MemoryPart": memory,
        "Orphan": orphan,
        "Problem": problem,
        "Setting": setting,
        "Port": port,
        "Kind": kind(),
        **schema_graph.parts(),
        **schema_inspect.shared(),
    }


def kind() -> Schema:
    counter = record(
        "A counter.",
        name=text("Its name."),
        help=text("What it counts."),
        kind=choice("A counter only grows; a gauge may fall.", "counter", "gauge"),
    )
    example = record(
        "A configuration with such a stage.",
        text=text("The configuration, in text format."),
        maker=text('What makes its data, of tests/conformance/makers.h; "": it needs none.'),
    )
    return record(
        "A kind of stages.",
        kind=text("Its name."),
        domain=text("What it is for; of a plug-in its program."),
        summary=text("One sentence."),
        text=texts("Paragraphs and lists."),
        settings=Maybe(many("Its settings.", a("Setting"))),
        options=Maybe(many("Of a plug-in's kind, in place of settings.", a("Setting"))),
        common_settings=many("Settings that many stages have.", a("Setting")),
        installed=flag("A worker here has it. The members below are there only then."),
        inputs=Maybe(many("Ports that take records.", a("Port"))),
        outputs=Maybe(many("Ports that give records.", a("Port"))),
        more_ports=Maybe(flag("Other ports follow from its settings.")),
        program=Maybe(text("The worker that its stage group runs in, where that is another one.")),
        counters=Maybe(many("What it counts.", counter)),
        example=Maybe(example),
    )


# ---- check


def check() -> Schema:
    node = record(
        "A part of a stage that has lanes.",
        name=text('Its name; "": the stage itself.'),
        lanes=whole("Lanes that it begins with.", "lanes"),
        lanes_max=whole("Lanes that it may be scaled to.", "lanes"),
    )
    joined = record(
        "An input, and what it is joined to.",
        name=text("The port."),
        record_type=text("Type of the records."),
        from_stage=text("The stage that gives them."),
        from_output=text("Its port."),
        wishes=Maybe(table("What it asks of that stage, by name.", {"type": "string"})),
    )
    output = record(
        "An output.",
        name=text("The port."),
        record_type=text("Type of the records."),
        facts=table("What it promises, by name.", {"type": "string"}),
    )
    stage = record(
        "A stage.",
        name=text("Its name."),
        kind=text("Its kind."),
        nodes=many("Its parts that have lanes.", node),
        inputs=many("What it takes.", joined),
        outputs=many("What it gives.", output),
    )
    group = record(
        "A stage group: a process.",
        name=text("Its name."),
        stages=many("The stages that it runs.", stage),
    )
    tensor = record(
        "An array of a batch.",
        name=text("Its name."),
        dtype=text("As NumPy names it."),
        shape=many(
            "-1: the rows of the batch; below: a length that varies.",
            {"type": "integer", "x-unit": "items"},
        ),
    )
    consumers = record(
        "A consumer group.",
        name=text("Its name."),
        kind=text("How its members share batches."),
        world=whole("Ranks that it has; 0: none.", "ranks"),
        policy=text("What the feed does when it is slow."),
    )
    batches = record(
        "Batches of an output.",
        alias=text('Its name; "": the feed has one output without a name.'),
        stage=text("The stage that writes them."),
        output=text("Its port."),
        dispatch=text("In which order batches are given out."),
        rows_max=whole("Rows of a full batch.", "rows"),
        bytes=whole("Bytes of a slot.", "bytes"),
        slots=whole("Places for batches.", "slots"),
        keeps_newest=flag("It waits for nobody: old batches make room."),
        tensors=Maybe(many("The arrays of a batch.", tensor)),
        groups=many("Its consumer groups.", consumers),
    )
    look = record(
        "The first samples of a stage's files. What would be left out is among the warnings.",
        stage=text("The stage that reads them."),
        files=whole("Files that were found.", "files"),
        files_are_more=flag("The search ended before it had found all."),
        files_passed_over=whole("Of these, files that are not read.", "files"),
        files_looked_at=whole("Files whose first samples were looked at.", "files"),
        samples=whole("Samples that were looked at.", "samples"),
        samples_left_out=whole("Of these, samples that would be left out.", "samples"),
    )
    valid = "Only of a valid configuration."
    return record(
        "What is wrong with a configuration, or the feed that it would make.",
        ok=flag("Nothing is wrong, and there is memory for it. Else the exit status is 1 or 3."),
        problems=many("What is wrong.", a("Problem")),
        problems_left_out=whole("Problems beyond those listed.", "problems"),
        warnings=many("What does not stop it.", a("Problem")),
        feed=Maybe(FEED),
        epochs=Maybe(whole(f"How often the data is given; 0: without end. {valid}", "epochs")),
        from_batch=Maybe(name_number(f"The batch that it begins with. {valid}", 1)),
        drop_remainder=Maybe(flag(f"The last batch is left out unless it is full. {valid}")),
        seed=Maybe(or_null(name_number(f"What shuffling is drawn from; null: a new one. {valid}"))),
        groups=Maybe(many(f"Its processes. {valid}", group)),
        batches=Maybe(many(f"Its outputs. {valid}", batches)),
        memory=Maybe(many(f"Its memory by part. {valid}", a("MemoryPart"))),
        memory_bytes=Maybe(whole(f"Its memory. {valid}", "bytes")),
        data=Maybe(many(f"What the first of its data is like. {valid}", look)),
        socket=Maybe(text(f"Path of its control socket. {valid}")),
        worker=Maybe(text("Program of its plug-in, if it has one.")),
    )


# ---- the others, in the order of `ringfeed --help`


def init() -> Schema:
    return record(
        "What was found in a directory, and written.",
        kind=text("Kind of the data."),
        found=text("What was found, for people."),
        feed=FEED,
        file=text("The configuration."),
    )


def ps() -> Schema:
    states = (*STATES, "ORPHANED", "DEAD", "NO_ANSWER")
    feed = record(
        "A feed. What is not known is null.",
        feed=FEED,
        state=choice(
            "What it is doing. ORPHANED: its supervisor is dead, and its workers run. DEAD: all "
            "its processes have died. NO_ANSWER: its supervisor has not answered within two "
            "seconds.",
            *states,
        ),
        reason=text('Why it is in this state, and what to do; "": nothing is to be said.'),
        directory=DIRECTORY,
        uptime_ms=or_null(whole("How long its supervisor has run.", "milliseconds")),
        supervisor_pid=or_null(name_number("Process of its supervisor.", 1)),
        processes=or_null(whole("The supervisor, and its workers.", "processes")),
        batches_per_s=or_null(real("Of all outputs, over the last 10 seconds.", "batches/s")),
        trainers=or_null(whole("Trainers that are attached.", "trainers")),
        memory_bytes=or_null(whole("Memory that it has reserved.", "bytes")),
        config_file=or_null(text("The file of its configuration.")),
    )
    unreadable = record(
        "A directory that cannot be looked into.", directory=text("Its path."), error=text("Why.")
    )
    return record(
        "The feeds of this machine.",
        feeds=many("By directory and name.", feed),
        unreadable=many("Directories whose feeds are not known.", unreadable),
    )


def status() -> Schema:
    return {
        "description": "A feed; of several feeds one object after the other. Rates are those of "
        "half a second; over HTTP those since the look before.",
        "anyOf": [a("StatusReply"), a("Orphan")],
    }


def metrics() -> Schema:
    return {"description": "Totals, and what was added in the last seconds.", **a("MetricsReply")}


def why() -> Schema:
    return record(
        "What limits a feed.",
        feed=FEED,
        bottlenecks=many("One for each output of batches.", a("BottleneckProto")),
    )


def doctor() -> Schema:
    finding = record(
        "What was found.",
        check=text("What was looked at."),
        severity=choice("How bad it is.", "wrong", "could_be_better", "not_known", "fine"),
        what=text("What was found."),
        cost=text('What it costs; "": nothing.'),
        mend=text('The command that mends it; "": there is none.'),
        advice=text('What to do where no command does it; "": nothing.'),
    )
    return record(
        "What of this machine is in a feed's way.",
        ok=flag("Nothing is wrong. Else the exit status is 1."),
        version=text("Version of ringfeed."),
        wrong=whole("How many findings are wrong.", "findings"),
        could_be_better=whole("How many could be better.", "findings"),
        not_known=whole("How many are not known.", "findings"),
        fine=whole("How many are fine.", "findings"),
        findings=many("All of them.", finding),
    )


def view(said: str) -> Schema:
    return record(
        said,
        feed=FEED,
        status=one("As `ringfeed status --json` says it.", "StatusReply"),
        metrics=one("As `ringfeed metrics --json` says it.", "MetricsReply"),
    )


def peek() -> Schema:
    array = record(
        "An array of the batch.",
        name=text("Its name."),
        dtype=text("As NumPy names it."),
        shape=many("Its lengths.", {"type": "integer", "minimum": 0, "x-unit": "items"}),
        items=whole("Numbers in it.", "items"),
        zeros=whole("Of these, zeros.", "items"),
        nan=whole("Of these, not numbers.", "items"),
        inf=whole("Of these, infinite.", "items"),
        min=Maybe(or_null(real("The smallest; null: JSON lacks it.", "as the array has it"))),
        mean=Maybe(or_null(real("Their mean.", "as the array has it"))),
        max=Maybe(or_null(real("The largest.", "as the array has it"))),
        std=Maybe(or_null(real("Their standard deviation.", "as the array has it"))),
        first=texts("The first of them, as text."),
    )
    row = record(
        "A row for people.", row=name_number("Its number, from 0."), text=text("What is in it.")
    )
    return record(
        "The newest batch.",
        feed=FEED,
        output=text('Alias of the output; "": it has none.'),
        batch=name_number("Number of the batch, from 1.", 1),
        rows=whole("Rows that it has.", "rows"),
        rows_max=whole("Rows of a full batch.", "rows"),
        bytes=whole("Its size.", "bytes"),
        crc32c=name_number("Checksum of its bytes."),
        age_s=or_null(real("How long ago it was published.", "seconds")),
        arrays=many("Its arrays.", array),
        shown=many("Rows that were asked for.", row),
        problems=texts("Why rows are not shown as they might be."),
        saved=Maybe(texts("Files that were written. Only with --save.")),
    )


def stop() -> Schema:
    return record(
        "The feed has ended.",
        feed=FEED,
        asked=choice("How it was ended.", "drain", "stop"),
    )


def restart() -> Schema:
    return record(
        "A stage group has a new process.",
        feed=FEED,
        group=text("The stage group."),
        pid=name_number("Its new process.", 1),
    )


def scale() -> Schema:
    return record(
        "A stage has other lanes.",
        feed=FEED,
        stage=text("The stage."),
        lanes=whole("Lanes that it has now.", "lanes", 1),
        before=whole("Lanes that it had.", "lanes", 1),
        pause_us=whole("How long all lanes stood still.", "microseconds"),
    )


def control() -> Schema:
    return {
        "description": "Answers to a message, by the name of the stage.",
        "type": "object",
        "additionalProperties": a("StageControlResponse"),
    }


def snapshot() -> Schema:
    return record(
        "A snapshot is complete.",
        feed=FEED,
        directory=text("Where it is."),
        bytes=whole("Its size.", "bytes"),
        newest_batch=name_number("The newest batch in it; 0: there was none."),
        pause_us=whole("How long all lanes stood still.", "microseconds"),
        total_ms=whole("How long it took.", "milliseconds"),
    )


def log() -> Schema:
    levels = ("debug", "info", "warning", "error")
    return record(
        "The log of a feed.",
        feed=FEED,
        level=choice("Events below it are left out.", *levels),
        before=choice("The level before this command.", *levels),
        format=choice("How lines are written.", "text", "json"),
        to=text('Where they go: a path, "journal" or "standard error".'),
    )


def clean() -> Schema:
    cleaned = record(
        "A dead feed whose remains were removed.",
        feed=FEED,
        directory=DIRECTORY,
        done=texts("What was removed or ended."),
    )
    left = record(
        "A feed that was left as it is.",
        feed=FEED,
        directory=DIRECTORY,
        why=text("Why."),
        remedy=text('What to do about it; "": nothing.'),
    )
    return record(
        "What killed feeds had left behind.",
        cleaned=many("What was removed.", cleaned),
        left=many("What was not.", left),
    )


def replayed() -> Schema:
    port = record(
        "What came out at a port.",
        port=text("Its name."),
        records=whole("Records.", "records"),
        bytes=whole("Bytes of these.", "bytes"),
        dropped=whole("Records that found no room.", "records"),
    )
    return record(
        "With --replay: what became of the record.",
        file=text("The record."),
        lane=text("The lane that took it."),
        port=text("The port at which it came."),
        outcome=choice(
            "taken: all went well. died: the stage died. hung: it was killed. left: it did not "
            "take the record.",
            *("taken", "died", "hung", "left"),
        ),
        consumed=flag("The stage took the record, whatever came later."),
        finished=flag("The stage came to its end by itself."),
        after_ms=whole("When the record was taken.", "milliseconds"),
        ending=text("How its process ended."),
        signal=name_number("The signal that ended it; 0: none."),
        ports=many("What the stage gave.", port),
        counters=table(
            "What the stage counted.",
            {"type": "integer", "minimum": 0, "x-unit": "as its name says"},
        ),
        lines=texts("What its worker printed."),
        batches=Maybe(whole("Batches that it gave. Only of a stage that makes them.", "batches")),
        rows=Maybe(whole("Rows in these.", "rows")),
    )


def dead_letters() -> Schema:
    listed = record(
        "A record that was set aside.",
        {**schema_inspect.letter(), "config": Maybe(text("Configuration of the feed."))},
        file=text("The record."),
    )
    return {
        "description": "Records that killed their stage: one object a line. With --replay: what "
        "became of one.",
        "anyOf": [listed, replayed()],
    }


def stages() -> Schema:
    return {
        "description": "All kinds of stages; or with KIND one of them.",
        "anyOf": [
            record("All kinds.", kinds=many("By domain.", a("Kind"))),
            a("Kind"),
        ],
    }


def version() -> Schema:
    return record(
        "Versions of the program.",
        version=text("Of ringfeed."),
        json_version=whole("Of the JSON that the verbs print: see json.md.", "version", 1),
        abi=text('Of the shared memory: "MAJOR.MINOR".'),
        layout=text("Of the structures in shared memory, hexadecimal."),
    )


# ---- what only `ringfeed web` has


def web_feeds() -> Schema:
    feed = record(
        "A feed.",
        feed=FEED,
        up=flag("Its supervisor answers."),
        state=Maybe(choice("What it is doing.", *STATES, "ORPHANED", "DEAD")),
        supervisor_pid=Maybe(name_number("Process of its supervisor.", 1)),
        error=Maybe(text("Why nobody answers.")),
    )
    return record("The feeds of the directory.", feeds=many("By name.", feed))


def web_events() -> Schema:
    silent = record("A feed that does not answer.", feed=FEED, error=text("Why."))
    return {
        "description": "`data` of an event named `feeds`, one a second: the feeds as they are.",
        "type": "array",
        "items": {
            "description": "A feed: its status, and its metrics over 10 seconds.",
            "anyOf": [view("A feed that answers."), silent],
        },
    }


def web_error() -> Schema:
    return record("Of an answer with a status from 400 on.", error=text("What is wrong."))


# The schema of each verb that has --json, in the order of `ringfeed --help`.
VERBS = {
    "init": init(),
    "check": check(),
    "ps": ps(),
    "status": status(),
    "metrics": metrics(),
    "why": why(),
    "doctor": doctor(),
    "graph": schema_graph.graph(),
    "top": view("A feed, as the page of `ringfeed web` gets it; one object a line."),
    "peek": peek(),
    "stop": stop(),
    "restart": restart(),
    "scale": scale(),
    "control": control(),
    "snapshot": snapshot(),
    "log": log(),
    "clean": clean(),
    "dead-letters": dead_letters(),
    "stages": stages(),
    "inspect": schema_inspect.inspect(),
    "version": version(),
}
# Of `ringfeed web`: what is asked, and its schema. F is the name of a feed.
WEB = {
    "/api/v1/feeds": "web-feeds",
    "/api/v1/feeds/F": "status",
    "/api/v1/feeds/F/status": "status",
    "/api/v1/feeds/F/metrics": "metrics",
    "/api/v1/feeds/F/why": "why",
    "/api/v1/feeds/F/graph": "graph",
    "/api/v1/feeds/F/events": "web-events",
    "/api/v1/events": "web-events",
}
OF_WEB = {"web-feeds": web_feeds(), "web-events": web_events(), "web-error": web_error()}


def documents(protos: descriptors.Schema) -> dict[str, Schema]:
    """All schemas, by the names of their files without the ending."""
    parts = {**shared(), **schema_messages.shared(protos)}
    made = {}
    for name, schema in {**VERBS, **OF_WEB}.items():
        of_verb = f"ringfeed {name} --json" if name in VERBS else ""
        title = (
            of_verb
            or {
                "web-feeds": "/api/v1/feeds",
                "web-events": "/api/v1/events, /api/v1/feeds/F/events",
                "web-error": "an answer of ringfeed web that is none",
            }[name]
        )
        made[name] = document(name, title, schema, parts)
    return made
