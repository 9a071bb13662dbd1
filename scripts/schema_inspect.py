"""The JSON schema of `ringfeed inspect`, as workers/inspect and the domains write it."""

from schema_words import (
    Maybe,
    Schema,
    a,
    choice,
    flag,
    many,
    name_number,
    one,
    one_or_null,
    or_null,
    real,
    record,
    table,
    text,
    texts,
    whole,
)


def letter() -> dict[str, Schema]:
    """What is known of a record that was set aside: members of its .json file."""
    return {
        "feed": Maybe(text("Name of the feed.")),
        "stage": text("The stage that died on it."),
        "node": text('Its part; "": the stage itself.'),
        "lane": name_number("Number of the lane."),
        "port": text("The port at which the record came."),
        "ring": name_number("Number of the ring at that port."),
        "seq": Maybe(name_number("Number of the record in that ring.")),
        "lineage": many("Where the record comes from, for the stages.", {"type": "integer"}),
        "user": name_number("A number that stages give their records."),
        "bytes": whole("Its size.", "bytes"),
        "xxh3": Maybe(text("Checksum of its bytes, hexadecimal.")),
        "deaths": whole("Processes that died on it.", "deaths"),
        "cause": text("How the last of them ended, and what it said."),
        "seed": Maybe(name_number("What the feed's shuffling is drawn from.")),
        "version": Maybe(text("Version of ringfeed that set it aside.")),
    }


# ---- Lc0


def lc0_record() -> Schema:
    """Of a position, versions 3 to 7 of the format."""
    number = {"type": ["number", "null"]}
    value = {**number, "x-unit": "share"}
    fields = {
        **{
            f"castling_{side}": Maybe(name_number(f"Byte castling_{side}."))
            for side in ("us_ooo", "us_oo", "them_ooo", "them_oo")
        },
        "side_to_move": Maybe(name_number("Byte side_to_move. Not of canonical formats.")),
        "en_passant": Maybe(name_number("Byte of the files of en passant. Of canonical formats.")),
        "rule50_count": whole("Half-moves since a capture or a pawn's move.", "half-moves"),
        "move_count": Maybe(name_number("Byte move_count. Before version 5.")),
        "invariance_info": Maybe(name_number("Byte invariance_info. From version 5 on.")),
        "result": Maybe(name_number("1 won, 0 drawn, -1 lost. Before version 6.", None)),
        **{
            f"{of}_{what}": Maybe(
                {"description": f"Field {of}_{what}: {said}.", **number, "x-unit": unit}
            )
            for of in ("root", "best", "result", "played", "orig")
            for what, said, unit in (
                ("q", "won less lost", "share"),
                ("d", "drawn", "share"),
                ("m", "moves left", "half-moves"),
            )
            if (of, what) != ("result", "m")
        },
        "plies_left": Maybe({"description": "Field plies_left.", **number, "x-unit": "half-moves"}),
        "visits": Maybe(whole("Visits of the search. From version 6 on.", "visits")),
        "played_idx": Maybe(name_number("Index of the move played.")),
        "best_idx": Maybe(name_number("Index of the best move.")),
        "policy_kld": Maybe({"description": "Field policy_kld.", **number, "x-unit": "nats"}),
        "q_st": Maybe({"description": "Field q_st. Of version 7.", **value}),
        "d_st": Maybe({"description": "Field d_st. Of version 7.", **value}),
        "opp_played_idx": Maybe(name_number("Index of the opponent's move. Of version 7.")),
        "next_played_idx": Maybe(name_number("Index of the next own move. Of version 7.")),
    }
    policy = record(
        "The policy.",
        legal=or_null(whole("Legal moves; null: version 3 does not say.", "moves")),
        sum=real("Sum of the probabilities.", "share"),
        nan=Maybe(whole("Moves whose probability is not a number.", "moves")),
        top=many("The likeliest moves, as many as asked for.", a("Lc0Move")),
    )
    return record(
        "A record: a position.",
        index=name_number("Its number, from 0."),
        version=name_number("Version of the format."),
        input_format=name_number("Number of the input format."),
        input_format_name=text("Its name."),
        side_to_move={"description": "null: not known.", "enum": ["white", "black", None]},
        board=texts("Eight ranks as the side to move sees them."),
        fen=or_null(text("The position; null: see fen_missing.")),
        fen_missing=Maybe(text("Why there is no FEN.")),
        move_number_known=flag("The move number of the FEN is that of the game."),
        history_steps=whole("Earlier positions in the planes.", "positions"),
        repetition=flag("The position has been there before."),
        fields=record("Fields of the record by name.", fields),
        invariance=Maybe(texts("Names of the bits of invariance_info.")),
        policy=policy,
        played=Maybe(one_or_null("The move played; null: not known.", "Lc0Move")),
        best=Maybe(one_or_null("The best move; null: not known.", "Lc0Move")),
    )


def lc0_move() -> Schema:
    return record(
        "A move.",
        index=name_number("Its index in the policy."),
        move=text("In UCI's form; castling as the king takes the rook."),
        castling=or_null(text("Castling as the king moves; null: it is none.")),
        probability=Maybe(or_null(real("Its probability; only of the policy.", "share"))),
    )


def claimed() -> dict[str, Schema]:
    """Of a game in a tar."""
    return {
        "index": name_number("Its number, from 0."),
        "offset": whole("Where it begins in the tar.", "bytes"),
        "stored_bytes": whole("Its size in the tar.", "bytes"),
        "bytes_claimed": whole("Its size inflated, as its last bytes say.", "bytes"),
        "records_claimed": whole("Records of that size; 0: not whole ones.", "records"),
    }


def games() -> dict[str, Schema]:
    chunk = record(
        "A game.",
        version=name_number("Version of its records; 0: not known."),
        input_format=name_number("Number of their input format."),
        records=whole("Its records.", "records"),
        record_bytes=whole("Size of a record.", "bytes"),
        bytes=whole("Its size.", "bytes"),
        stored_bytes=whole("Its size as stored.", "bytes"),
        usable=flag("The stages take it."),
        trailing_bytes=Maybe(whole("Bytes after the end of the gzip data.", "bytes")),
        name=Maybe(text("Its name in the tar.")),
        index=Maybe(name_number("Its number in the tar, from 0.")),
    )
    tar = record(
        "Of the index of a tar: the tar.",
        path=text("Its path."),
        bytes=whole("Its size.", "bytes"),
        mtime_ns=whole("When it was changed, since 1970.", "nanoseconds", None),
        problems=whole("Faults in it.", "problems"),
        state=choice(
            "Whether it is still the same.", "as it was", "has changed since", "cannot be opened"
        ),
    )
    member = record("A game of a tar.", claimed(), name=text("Its name."))
    indexed = record("A game of the index.", claimed(), gzip=flag("It is compressed."))
    return {
        "chunk": Maybe(chunk),
        "records": Maybe(many("Records of the game that are shown.", a("Lc0Record"))),
        "members": Maybe(many("Games of the tar that are listed.", member)),
        "members_omitted": Maybe(whole("Games that are not; --all lists them.", "games")),
        "tar": Maybe(tar),
        "chunks": Maybe(many("Games of the index that are listed.", indexed)),
        "chunks_omitted": Maybe(whole("Games that are not; --all lists them.", "games")),
    }


# ---- token files and Parquet files


def tokens() -> Schema:
    length = record(
        "Sentences of these lengths.",
        {"from": whole("The shortest of them.", "tokens")},
        to=whole("The longest of them.", "tokens"),
        sentences=whole("How many there are.", "sentences"),
    )
    dictionary = record(
        "The dictionary.",
        path=text("Its file."),
        symbols=whole("Its size.", "symbols"),
    )
    sentence = record(
        "A sentence.",
        index=name_number("Its number, from 0."),
        ids=or_null(many("Its tokens; null: outside of the file.", {"type": "integer"})),
        text=or_null(text("Its words; null: there is no dictionary.")),
    )
    return record(
        "A token file.",
        format=text("Which kind of token file."),
        code=name_number("Number of the type of its tokens."),
        type=text("That type."),
        sentences=whole("Its sentences.", "sentences"),
        documents=Maybe(whole("Its documents. Only of Megatron's kind.", "documents")),
        tokens=whole("Its tokens.", "tokens"),
        bytes=whole("Size of these.", "bytes"),
        out_of_bounds=whole("Sentences outside of the file.", "sentences"),
        length_min=Maybe(whole("The shortest sentence.", "tokens")),
        length_max=Maybe(whole("The longest sentence.", "tokens")),
        length_mean=Maybe(real("Mean length.", "tokens")),
        lengths=many("How lengths are spread.", length),
        dictionary={
            "description": "null: there is none.",
            "anyOf": [dictionary, {"type": "null"}],
        },
        first=many("The sentences that are shown.", sentence),
    )


def skipped() -> Schema:
    return table(
        "Why stages would leave something out, by reason.",
        record(
            "How often, and the first place.",
            count=whole("How often.", "rows"),
            row=name_number("Number of the row, from 0."),
            text=text("What is there."),
        ),
    )


def rows() -> Schema:
    column = record("A column.", name=text("Its name."), type=text("Its type."))
    first = record(
        "The first game.",
        id=text("Its name."),
        plies=whole("Its half-moves.", "half-moves"),
        tokens=whole("Tokens that it makes.", "tokens"),
        fen=text("Where it begins."),
        moves=texts("The first moves."),
        board=Maybe(texts("The position that it begins with, by ranks.")),
    )
    of_games = record(
        "The file as chess_games reads it.",
        games=whole("Games.", "games"),
        rows_without_game=whole("Rows of no game.", "rows"),
        first=Maybe(first),
        plies_min=whole("The shortest game.", "half-moves"),
        plies_max=whole("The longest game.", "half-moves"),
        skipped=skipped(),
    )
    variations = record(
        "The file as chess_variations reads it.",
        samples=whole("Rows that make a sample.", "rows"),
        rows_without_variations=whole("Rows without variations.", "rows"),
        lines=whole("Variations.", "variations"),
        tokens_max=whole("The longest sample.", "tokens"),
        skipped=skipped(),
    )
    return record(
        "A Parquet file.",
        rows=whole("Its rows.", "rows"),
        row_groups=whole("Its row groups.", "row groups"),
        columns=many("Its columns.", column),
        missing=Maybe(table("Columns that stages of a kind need.", texts("By that kind."))),
        games=Maybe(of_games),
        variations=Maybe(variations),
    )


def data() -> Schema:
    kind = record(
        "A type that the field has.",
        type=text('With its shape; "*": a size that varies.'),
        samples=whole("Samples in which it is of this type.", "samples"),
    )
    field = record(
        "A field of the samples.",
        name=text("Its name."),
        samples=whole("Samples that have it.", "samples"),
        bytes_max=whole("Its longest value.", "bytes"),
        types=many("Its types.", kind),
    )
    reason = record(
        "Why something is left out, or to be looked at.",
        count=whole("How often.", "samples"),
        what=choice(
            "What becomes of it.", "left out", "of no sample", "of a key that has come before"
        ),
        place=text("The first place."),
        text=text("The reason there."),
    )
    sample = record(
        "A sample.",
        index=name_number("Its number, from 0."),
        place=text("Where it begins."),
        fields=texts("Its fields, for people."),
    )
    return record(
        "A file as sample_source reads it.",
        format=text("Its format, for people."),
        packed=flag("It is packed."),
        bytes=whole("Its size.", "bytes"),
        bytes_read=whole("Bytes that were looked at, as they are unpacked.", "bytes"),
        whole=flag("These are all that it has."),
        damaged=flag("What follows them cannot be read; `problems` says why."),
        samples=whole("Samples among them.", "samples"),
        left_out=whole("What would have been samples, and would be left out.", "samples"),
        fields=many("The fields.", field),
        fields_omitted=whole("Fields beyond those listed.", "fields"),
        reasons=many("What would be left out, by reason.", reason),
        first=many("The samples that are shown.", sample),
    )


# ---- what ringfeed leaves behind


def stage() -> Schema:
    return record(
        "A stage of a configuration.",
        name=text("Its name."),
        kind=text("Its kind."),
        input=texts("The stages that it reads from."),
    )


def manifest() -> Schema:
    group = record(
        "A consumer group.",
        name=text("Its name."),
        next_batch=name_number("The lowest batch that it had not finished."),
    )
    segment = record(
        "A segment of memory.",
        name=text("Its name."),
        bytes=whole("Its size.", "bytes"),
        file=text("Its file in the snapshot."),
    )
    return record(
        "What a snapshot has.",
        feed=text("Name of the feed."),
        taken_at=text("When it was taken: UTC, ISO 8601."),
        newest_batch=name_number("The newest batch in it."),
        seed=name_number("What the feed's shuffling is drawn from."),
        ringfeed_version=text("Version of ringfeed that took it."),
        abi=text('Of the shared memory: "MAJOR.MINOR".'),
        feed_id=text("Names the feed's memory."),
        groups=many("Its consumer groups.", group),
        segments=many("Its memory.", segment),
        bytes=whole("Size of all segments.", "bytes"),
        stages=many("Its stages.", a("ConfiguredStage")),
    )


def shared() -> dict[str, Schema]:
    return {
        "ConfiguredStage": stage(),
        "Lc0Move": lc0_move(),
        "Lc0Record": lc0_record(),
        "SetAside": record(
            "A record that was set aside.",
            letter(),
            stage_kind=text('Kind of the stage; "": not known.'),
            holds=Maybe(text("What the record is.")),
        ),
    }


def inspect() -> Schema:
    return record(
        "A file: what it is, and what is in it.",
        path=text("The path as it was given."),
        kind=choice(
            "What it is.",
            *("unknown", "gzip_chunk", "raw_chunk", "tar", "chunk_index", "token_file", "parquet"),
            "samples",
            *("snapshot", "dead_letter", "ringfeed_configuration", "lczero_configuration"),
        ),
        text=text("The same for people."),
        problems=texts("What is wrong with it. The exit status is then 1."),
        **games(),
        tokens=Maybe(tokens()),
        rows=Maybe(rows()),
        data=Maybe(data()),
        manifest=Maybe(manifest()),
        letter=Maybe(one("Of a dead letter: what is known of it.", "SetAside")),
        sample=Maybe(texts("Of a dead letter: the sample, a line for each array.")),
        feed=Maybe(text("Of a configuration: the feed's name.")),
        stages=Maybe(many("Of a configuration: its stages.", a("ConfiguredStage"))),
    )
