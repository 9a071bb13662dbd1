"""A function for every kind of stage, with its settings.

Written by scripts/reference from proto/, where each setting is explained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING

from . import _call, settings

if TYPE_CHECKING:
    from ._build import Pipeline


@_call.checked
def file_path_provider(
    *,
    directory: str | PathLike[str] | None = None,
    pattern: str | PathLike[str] | Sequence[str | PathLike[str]] | None = None,
    list: str | PathLike[str] | Sequence[str | PathLike[str]] | None = None,
    cache: str | PathLike[str] | None = None,
    cache_bytes: int | str | None = None,
    storage_options: Mapping[str, object] | str | None = None,
    give_up_after_s: float | None = None,
    queue_capacity: int | None = None,
    queue_bytes: int | str | None = None,
    overflow_behavior: settings.OverflowBehavior | None = None,
    name: str | None = None,
) -> Pipeline:
    """Finds files below a directory, by patterns or out of lists. It scans directories in the
    order of names and marks the end of the scan. In an endless run it then adds files as they
    appear.

    - memory: about 150 bytes per file seen.
    - left out: names that begin with a dot; files that are open for writing, until they are closed;
      directories that cannot be read (`directories_unreadable`); names that cannot be examined,
      such as a dangling link or a file in a directory that may not be entered (`files_unreadable`).
      An endless run tries them again.
    - data that moves: it notices within about a second when a directory is made anew, unmounted or
      mounted over.
    - finite run: ends after the scan; a file that was still being written is counted in
      `files_still_open`.

    The arena remembers the files that were output. After a restart, or when the kernel has dropped
    events, the tree is scanned again and compared. While `directory` does not exist, an endless run
    waits for it; a finite run has no data then, and fails. A file that was rewritten is output
    again and replaces its old contents in the pool. If inotify is not available (watch limit), the
    stage scans every 50 ms and says so.

    A URL ("s3://bucket/games", "https://…") as `directory`, `pattern` or `list` makes it the stage
    remote_files: objects come into the cache that `cache` and `cache_bytes` describe.

    Args:
        directory: Directory to search, with everything below it. Names that begin with a dot are
            ignored. While it does not exist, an endless run waits for it. Or the URL of a store,
            see remote_files. Required, unless there is a pattern or a list.
        pattern: Paths of the files to find, as patterns of a shell: "/data/c4/**/*.jsonl.zst". `*`,
            `?` and `[a-f]` stand for characters of a name, `**` for any directories, `{jpg,png}`
            and `{000..146}` for each of these. Below `directory`, if that is given and the pattern
            does not begin with a slash; else below the directory where `ringfeed` is called.
            Default: every file below `directory`.
        list: Text files with a path in each line, below the directory of the list unless it begins
            with a slash. Their files come first, in the order of the list. A list is read at the
            start.
        cache: Of URLs: directory of the cache; made if it is not there. Required with them.
        cache_bytes: (from 1 MiB) Of URLs: limit of the cache, in bytes. Required with them.
        storage_options: Of URLs: what fsspec passes to the file system of the store, as a JSON
            object.
        give_up_after_s: (0.1 to 31536000) Of URLs: seconds for which a store that is away is waited
            for; then the feed ends with the reason. Default: for ever.
        queue_capacity: (1 to 1048576, default 16) Records queued at each output, per ring (from one
            lane to one lane). For batches that trainers read, the number of slots of the feed,
            unless feed_output.slots gives it.
        queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill at
            most half of it. The default suits the record type; for batches that trainers read it is
            what the slots need.
        overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots are
            held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is dropped
            and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
        name: Name of the stage; default: a sensible one.
    """
    return _call.stage("stage.file_path_provider", "file_path_provider", locals())


@_call.checked
def chunk_source_loader(
    *,
    input: Pipeline,
    cache_directory: str | PathLike[str] | None = None,
    threads: int | None = None,
    max_threads: int | None = None,
    queue_capacity: int | None = None,
    queue_bytes: int | str | None = None,
    overflow_behavior: settings.OverflowBehavior | None = None,
    skip_limit: settings.SkipLimit | Mapping[str, object] | None = None,
    name: str | None = None,
) -> Pipeline:
    """Opens files and lists their chunks (games). A `.gz` is one chunk; if it is not gzip, it is
    read as plain records. A `.tar` has one chunk per regular member that is neither a `LICENSE` nor
    an AppleDouble file (`._*`). Nothing is inflated: the number of positions is what the gzip
    trailer claims.

    - `cache_directory`: keeps each tar's list by path, size and time, so that the next start does
      not read its headers.
    - skips: `skipped_extension`, `skipped_vanished`, `skipped_unreadable`, `skipped_empty`,
      `skipped_no_chunks`. Damaged places in a tar are counted in `tar_problems`; the whole members
      around them are used.

    It reads every dialect of tar: v7, ustar with prefix, GNU long names, pax, base-256 sizes, sizes
    that end in a space.

    Args:
        input: Where records come from: "stage" or "stage.port". Required.
        cache_directory: Directory that keeps the index of each tar, so that the next start does not
            read the tar's headers again. Default: no index is kept. Created when missing.
        threads: (1 to 64, default 1) Lanes, each a thread. Lanes that index files.
        max_threads: (1 to 64) The most lanes that `ringfeed scale` may give it while it runs;
            default: the number of threads. Room for their queues is set aside at the start.
        queue_capacity: (1 to 1048576, default 16) Records queued at each output, per ring (from one
            lane to one lane). For batches that trainers read, the number of slots of the feed,
            unless feed_output.slots gives it.
        queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill at
            most half of it. The default suits the record type; for batches that trainers read it is
            what the slots need.
        overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots are
            held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is dropped
            and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
        skip_limit: The feed stops, with the reasons, if this stage leaves out more than that of
            what it counts. Default: as much as `skip_limit` of the feed says, over all stages.
        name: Name of the stage; default: a sensible one.
    """
    return _call.stage("stage.chunk_source_loader", "chunk_source_loader", locals())


@_call.checked
def shuffling_chunk_pool(
    *,
    input: Pipeline,
    chunk_pool_size: int | None = None,
    hanse_sampling_threshold: int | None = None,
    hanse_sampling_gamma: float | None = None,
    store_bytes: int | str | None = None,
    store_directory: str | PathLike[str] | None = None,
    position_sampling: settings.PositionSampling | Mapping[str, object] | None = None,
    weighted_sampling_gamma: float | None = None,
    window_positions: int | None = None,
    window_bytes: int | str | None = None,
    numeric_sort_keys: bool | None = None,
    chunk_anchor: str | None = None,
    frames: settings.ChunkFrames | Mapping[str, object] | None = None,
    threads: int | None = None,
    max_threads: int | None = None,
    queue_capacity: int | None = None,
    queue_bytes: int | str | None = None,
    overflow_behavior: settings.OverflowBehavior | None = None,
    skip_limit: settings.SkipLimit | Mapping[str, object] | None = None,
    name: str | None = None,
) -> Pipeline:
    """Keeps a window of the newest chunks (by file name) and draws each once per pass. The window
    holds as many chunks as `chunk_pool_size`, `window_positions` and `window_bytes` (as stored)
    allow, whichever is reached first. Names are compared bytewise; `numeric_sort_keys` compares the
    numbers in them, so that `run9.tar` comes before `run10.tar`. Files of the same name are ordered
    by their paths.

    - lanes: one that owns the window; `threads` lanes behind it read, inflate and pack.
    - memory: for the shuffler, 32 bytes per chunk of `chunk_pool_size`; for the table, 32 bytes per
      chunk and the path of each file. It grows in steps.
    - skips: `skipped_vanished`, `skipped_unreadable`, `skipped_damaged` (gzip or cut short),
      `skipped_empty`, `skipped_record` (record size, version, input format), `skipped_too_large`.
      Such a chunk is never drawn again (`chunks_dropped`), unless its file is rewritten or the feed
      is started anew. It may be drawn a few more times before the window hears of it. In an endless
      run a file that cannot be opened or read is an exception: its chunks are passed over, and the
      file is tried again after half a second, then less and less often, down to once in thirty
      seconds. When it is back, its chunks are drawn as before.
    - finite run: ends after `epochs` passes; chunks outside the window are not used.
    - counts: `chunks_total`: chunks that were ever in the window; `chunks_outside_window`: chunks
      that left it, or were too old from the start.

    Chunks that arrive later join the pass under way. If no chunk in the window can be used, the
    pool says so and waits for new files. It takes records of versions 3 to 7 in every input format
    (docs/pipelines/lc0.md).

    **Positions.** With `frames {}` the lanes that read put out positions themselves, chosen as a
    `chunk_unpacker` would choose them; the sampler then reads the pool. That saves a tenth of the
    processor time of a feed that uses every position. Leave it out where a validator or a rescorer
    has to see whole games.

    **Single positions** ("Hanse" sampling). With `hanse_sampling_threshold` a drawn chunk of n
    records is accepted with probability min(1, n / threshold)^`hanse_sampling_gamma`; otherwise
    another chunk is drawn (`hanse_rejected`). If a pass accepts nothing, the log, `ringfeed status`
    and `ringfeed why` say so and give the reason (`gives_nothing`). Together with `position_count:
    1` in the unpacker every position is equally likely, whatever the length of its game. n is what
    the gzip trailer claims: a chunk that is not accepted is not read. It counts as drawn in this
    pass, although it was not used.

    **By weight.** With `position_sampling` a drawn chunk is accepted with probability (weight /
    largest weight drawn so far)^`weighted_sampling_gamma`. Its weight is the sum of the weights of
    its positions (see the unpacker). To learn it, separate lanes (`pool.weigh`, as many as
    `threads`) inflate each chunk once, up to 32 chunks ahead; their number does not change what is
    accepted. The counters are `chunks_weighed` and `weighted_rejected`. Not together with
    `hanse_sampling_threshold` (docs/decisions/0015-weights-are-learned-ahead.md).

    **The anchor** is the name of a file. The pool counts the chunks that came after it
    (`chunks_since_anchor`), so that a trainer can wait for new games, train, and wait again. Of the
    files that are there at the start and that the window keeps, those with larger names count;
    later every new file counts. The anchor is `chunk_anchor`, or empty (everything counts), until a
    message sets it (docs/operating.md#messages-to-stages).

    **The store.** With `store_bytes` the pool keeps games that it has inflated, so that their next
    use costs a small read: about 36 KB a game. With `store_directory` they outlive the process and
    the feed. The feed gives the same data with a store as without. `store_hits` and `store_misses`
    count uses; `store_games` and `store_bytes` say what the store holds; `store_evicted` counts
    games that left with the window, and `store_refused` games for which there was no room. A
    directory serves one feed at a time. If it cannot be used, the log says so and the pool works
    without a store.

    Args:
        input: Where records come from: "stage" or "stage.port". Required.
        chunk_pool_size: (1 to 1000000000, default 100000) Size of the window in chunks; default
            100000; 1 to 1000000000. If other limits are given too, the one that is reached first
            holds.
        hanse_sampling_threshold: (from 1) Number of records from which a chunk is always accepted.
            A chunk of n records is accepted with probability min(1, n / threshold)^gamma; otherwise
            another chunk is drawn. With gamma 1 and one position taken from each chunk
            (position_count: 1), every position is equally likely. The number of records is what the
            file claims: a chunk that is not accepted is not read. Default: every draw is accepted;
            from 1 on.
        hanse_sampling_gamma: (0 to 1000, default 1) The exponent gamma above; no unit;0.
        store_bytes: (16 MiB to 16 TiB) Bytes for games that were inflated once, so that their next
            use costs a small read: about 36 KB a game, 400 bytes a position. It does not change
            what the feed gives. Default 0: none; otherwise 16 MiB to 16 TiB.
        store_directory: Directory that keeps these games, so that they outlive the process; one
            feed uses it at a time. Default: memory of the pool's process. Created when missing.
        position_sampling: Weighs chunks by the sum of the weights of their positions. A drawn chunk
            is accepted with probability (weight / largest weight drawn so
            far)^weighted_sampling_gamma; otherwise another chunk is drawn. A chunk is read once to
            learn its weight. Not together with hanse_sampling_threshold. Default: chunks are not
            weighed.
        weighted_sampling_gamma: (0 to 1000, default 1) The exponent above; no unit;0.
        window_positions: (from 1) Size of the window in positions, as the files claim them;
            default: no limit; from 1 on.
        window_bytes: (from 1) Size of the window in bytes, as stored (compressed); default: no
            limit; from 1 on.
        numeric_sort_keys: (default False) Compares numbers in file names as numbers: "run9.tar" is
            older than "run10.tar". Default false: names are compared bytewise.
        chunk_anchor: The anchor at the start: the name of a file. Chunks of files with larger names
            are counted (chunks_since_anchor). Default: empty, all chunks count.
        frames: Puts out positions instead of chunks, as an unpacker behind the pool would, without
            its queue, its copy and its lane. Default: chunks go out whole, for a validator, a
            rescorer or an unpacker.
        threads: (1 to 64, default 1) Lanes, each a thread. Lanes that read and inflate chunks; one
            more lane owns the window.
        max_threads: (1 to 64) The most lanes that `ringfeed scale` may give it while it runs;
            default: the number of threads. Room for their queues is set aside at the start.
        queue_capacity: (1 to 1048576, default 16) Records queued at each output, per ring (from one
            lane to one lane). For batches that trainers read, the number of slots of the feed,
            unless feed_output.slots gives it. Default: 4096 with `frames`; 256 if the unpacker
            takes only some positions of a chunk.
        queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill at
            most half of it. The default suits the record type; for batches that trainers read it is
            what the slots need. 64 KiB to 1 TiB. A chunk may fill at most half of it.
        overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots are
            held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is dropped
            and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
        skip_limit: The feed stops, with the reasons, if this stage leaves out more than that of
            what it counts. Default: as much as `skip_limit` of the feed says, over all stages.
        name: Name of the stage; default: a sensible one.
    """
    return _call.stage("stage.shuffling_chunk_pool", "shuffling_chunk_pool", locals())


@_call.checked
def chunk_unpacker(
    *,
    input: Pipeline,
    position_sampling_rate: float | None = None,
    position_count: int | None = None,
    position_sampling: settings.PositionSampling | Mapping[str, object] | None = None,
    threads: int | None = None,
    max_threads: int | None = None,
    queue_capacity: int | None = None,
    queue_bytes: int | str | None = None,
    overflow_behavior: settings.OverflowBehavior | None = None,
    name: str | None = None,
) -> Pipeline:
    """Takes chunks apart into positions. `position_sampling_rate` or `position_count` says how
    many, not both; with neither it gives every position, as with a rate of 1.

    - rate p: each use of a game gives the share p of its positions, exactly in expectation for
      every p, and each position once in every 1/p uses.
    - count k: each use gives k positions, in shuffled order; all positions of a game are used
      before any comes again.
    - count k with `position_sampling`: as above, but a shuffle keeps a position only with the
      probability weight / largest weight in the game. Its weight is min((α (q_weight |best_q −
      orig_q| + policy_kld) / (q_weight + pol_scale) + β)^γ, τ).
    - skips: `chunks_damaged` (a record that contradicts itself; a bug or damaged memory).

    Args:
        input: Where records come from: "stage" or "stage.port". Required.
        position_sampling_rate: (above 0, at most 1, default 1) Share of a chunk's positions that
            one use of it gives; each position comes once in every 1/rate uses. No unit;0, which
            gives all; above 0, at most 1.
        position_count: (1 to 65535) Positions that one use of a chunk gives, whatever its length.
        position_sampling: With position_count: positions come as often as their weights say.
            Default: all the same.
        threads: (1 to 64, default 1) Lanes, each a thread. Lanes that unpack.
        max_threads: (1 to 64) The most lanes that `ringfeed scale` may give it while it runs;
            default: the number of threads. Room for their queues is set aside at the start.
        queue_capacity: (1 to 1048576, default 16) Records queued at each output, per ring (from one
            lane to one lane). For batches that trainers read, the number of slots of the feed,
            unless feed_output.slots gives it. Frames are small, so 256 and more are worthwhile.
        queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill at
            most half of it. The default suits the record type; for batches that trainers read it is
            what the slots need.
        overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots are
            held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is dropped
            and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
        name: Name of the stage; default: a sensible one.
    """
    return _call.stage("stage.chunk_unpacker", "chunk_unpacker", locals())


@_call.checked
def shuffling_frame_sampler(
    *,
    input: Pipeline,
    reservoir_size_per_thread: int | None = None,
    threads: int | None = None,
    queue_capacity: int | None = None,
    queue_bytes: int | str | None = None,
    overflow_behavior: settings.OverflowBehavior | None = None,
    name: str | None = None,
) -> Pipeline:
    """Mixes frames: each frame that arrives takes the place of a random earlier one, which goes
    out.

    - memory: about 1.2 GB per million of `reservoir_size_per_thread` and lane; reserved at the
      start.
    - at the end: the reservoir goes out in random order: 20 in, 20 out. On `ringfeed stop` it
      stays, because it is state.
    - skips: `frames_skipped`.

    Args:
        input: Where records come from: "stage" or "stage.port". Required.
        reservoir_size_per_thread: (1 to 4294967295, default 1000000) Frames held by each lane;
            default 1000000 (about 1 GB of packed frames).
        threads: (1 to 64, default 1) Lanes, each a thread. Lanes, each with a reservoir of its own.
        queue_capacity: (1 to 1048576, default 16) Records queued at each output, per ring (from one
            lane to one lane). For batches that trainers read, the number of slots of the feed,
            unless feed_output.slots gives it. Frames are small, so 256 and more are worthwhile.
        queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill at
            most half of it. The default suits the record type; for batches that trainers read it is
            what the slots need.
        overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots are
            held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is dropped
            and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
        name: Name of the stage; default: a sensible one.
    """
    return _call.stage("stage.shuffling_frame_sampler", "shuffling_frame_sampler", locals())


@_call.checked
def tensor_generator(
    *,
    input: Pipeline,
    batch_size: int | None = None,
    layout: settings.TensorGeneratorLayout | None = None,
    planes: settings.TensorGeneratorPlanes | None = None,
    policy: settings.TensorGeneratorPolicy | None = None,
    policy_entries_max: int | None = None,
    unknown_values: settings.TensorGeneratorUnknownValues | None = None,
    as_lczero_training: bool | None = None,
    threads: int | None = None,
    queue_capacity: int | None = None,
    queue_bytes: int | str | None = None,
    overflow_behavior: settings.OverflowBehavior | None = None,
    name: str | None = None,
) -> Pipeline:
    """Writes frames as tensors straight into the slots of the feed.

    - tensors: `planes` float32 [B,112,8,8], `policy` float32 [B,1858] (−1: illegal move), `values`
      float32 [B,6,3]; other layouts and types: docs/pipelines/lc0.md.
    - memory: a slot of 36,176 bytes × `batch_size` for each of `feed_output.slots`; with
      `PLANES_BITS` and `POLICY_SPARSE` 2,320 bytes × `batch_size`.
    - at the end: the last batch has the rows that are left, unless `drop_remainder` drops them
      (`rows_dropped`).
    - skips: `frames_skipped`; the log gives the reason.

    Args:
        input: Where records come from: "stage" or "stage.port". Required.
        batch_size: (1 to 1048576, default 1024) Rows of a batch; default 1024.
        layout: (default "THREE_TENSORS") THREE_TENSORS: planes, policy, values [rows, 6, 3] with q,
            d and plies left; FIVE_ARRAYS: planes, probabilities, winner and best_q [rows, 3] as
            shares of win, draw,.
        planes: (default "PLANES_FLOAT32") PLANES_FLOAT32: 28 KiB a row; PLANES_FLOAT16: 14 KiB;
            PLANES_BFLOAT16: 14 KiB; PLANES_UINT8: 7 KiB; the plane of the 50-move rule is the count
            of plies; PLANES_BITS: 896 bytes: uint64 [rows, 112].
        policy: (default "POLICY_FLOAT32") POLICY_FLOAT32: 7 KiB a row; POLICY_FLOAT16;
            POLICY_SPARSE: policy_indices, policy_values [rows, policy_entries_max],
            policy_lengths,.
        policy_entries_max: (1 to 1858, default 224) Entries in a row of the sparse policy; a
            position with more is skipped and counted. No position has more than 218 legal moves.
            Default 224.
        unknown_values: (default "UNKNOWN_AS_STORED") UNKNOWN_AS_STORED: as in the file, and 0 for
            fields that its version lacks; UNKNOWN_NAN: NaN everywhere, so that a loss can mask it;
            UNKNOWN_ZERO: 0 everywhere.
        as_lczero_training: (default False) Makes planes 104 to 110 of every input_format as for
            input_format 1, for nets that lczero-training trained on other formats. 104 to 108 are
            then the record's bytes (a file mask is a number up to 255), 109 is rule50 / 99, and 110
            is 0. Not with PLANES_BITS, which cannot hold such numbers. Default false: each format
            has its own planes.
        threads: (1 to 64, default 1) Lanes, each a thread. Lanes that write batches, each into
            slots of its own.
        queue_capacity: (1 to 256, default 16) Records queued at each output, per ring (from one
            lane to one lane). For batches that trainers read, the number of slots of the feed,
            unless feed_output.slots gives it.
        queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill at
            most half of it. The default suits the record type; for batches that trainers read it is
            what the slots need.
        overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots are
            held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is dropped
            and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
        name: Name of the stage; default: a sensible one.
    """
    return _call.stage("stage.tensor_generator", "tensor_generator", locals())


@_call.checked
def chunk_validator(
    *,
    input: Pipeline,
    check_input_format: bool | None = None,
    check_values: bool | None = None,
    check_orig_values: bool | None = None,
    check_castling: bool | None = None,
    check_side_to_move: bool | None = None,
    check_result: bool | None = None,
    check_rule50: bool | None = None,
    check_probabilities: bool | None = None,
    check_probability_sum: bool | None = None,
    check_move_indices: bool | None = None,
    check_transitions: bool | None = None,
    check_played_moves: bool | None = None,
    check_move_legality: bool | None = None,
    threads: int | None = None,
    max_threads: int | None = None,
    queue_capacity: int | None = None,
    queue_bytes: int | str | None = None,
    overflow_behavior: settings.OverflowBehavior | None = None,
    name: str | None = None,
) -> Pipeline:
    """Checks the records of each game and passes on the games without a flaw, byte for byte. It
    belongs between the pool and the unpacker.

    - checks: `check_input_format`, `check_values`, `check_orig_values`, `check_castling`,
      `check_side_to_move`, `check_result`, `check_rule50`, `check_probabilities`,
      `check_probability_sum`, `check_move_indices`, `check_transitions`, `check_played_moves`,
      `check_move_legality`. All are on by default; docs/pipelines/lc0.md#what-a-validator-checks
      says what each asks.
    - rejects: the whole of a game with a flaw. The first flaw decides which counter grows:
      `rejected_rule50` and so on; `rejected_empty`.
    - skips: `chunks_damaged` (a record that contradicts itself), `skipped_too_large`.

    The log says which record of the game has which flaw. It names the game by its identity, which
    is also the first number of the lineage of its positions. A rejected game stays in the pool's
    window, and is checked again when it is drawn again.

    With a stage between them, the pool passes whole games instead of making the unpacker's choice.
    Low sampling rates then cost as much as packing whole games. The positions that come out are the
    same.

    Args:
        input: Where records come from: "stage" or "stage.port". Required.
        check_input_format: (default True) input_format is a known one, and the same in all records.
            This check and those below are all on by default; docs/pipelines/lc0.md says what each
            asks of a record.
        check_values: (default True) Of root, best and played: q in -1..1, d in 0..1, m and
            plies_left not negative. No NaN.
        check_orig_values: (default True) The same for orig, which may be NaN.
        check_castling: (default True) Castling bytes are 0 or 1, or have at most one bit, depending
            on input_format.
        check_side_to_move: (default True) Side to move is 0 or 1, or the file of an en passant
            capture has at most one bit.
        check_result: (default True) result_q in -1..1, result_d not negative.
        check_rule50: (default True) At most 100 plies.
        check_probabilities: (default True) Each probability in 0..1, or -1, or NaN.
        check_probability_sum: (default True) The probabilities that are not negative sum to
            0.99..1.01.
        check_move_indices: (default True) best_idx and played_idx name moves (below 1858) that are
            not marked illegal.
        check_transitions: (default True) A move of the pieces leads from each board to the next
            one.
        check_played_moves: (default True) That move is played_idx, and not marked illegal.
        check_move_legality: (default True) The rules allow that move: checks, castling, en passant.
            In the last position played_idx is legal.
        threads: (1 to 64, default 1) Lanes, each a thread. Lanes that check.
        max_threads: (1 to 64) The most lanes that `ringfeed scale` may give it while it runs;
            default: the number of threads. Room for their queues is set aside at the start.
        queue_capacity: (1 to 1048576, default 16) Records queued at each output, per ring (from one
            lane to one lane). For batches that trainers read, the number of slots of the feed,
            unless feed_output.slots gives it.
        queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill at
            most half of it. The default suits the record type; for batches that trainers read it is
            what the slots need.
        overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots are
            held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is dropped
            and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
        name: Name of the stage; default: a sensible one.
    """
    return _call.stage("stage.chunk_validator", "chunk_validator", locals())


@_call.checked
def chunk_rescorer(
    *,
    input: Pipeline,
    policy_temperature: float | None = None,
    policy_offset: float | None = None,
    deblunder_threshold: float | None = None,
    deblunder_width: float | None = None,
    st_q_theta: float | None = None,
    syzygy_paths: str | None = None,
    gaviota_paths: str | None = None,
    threads: int | None = None,
    max_threads: int | None = None,
    queue_capacity: int | None = None,
    queue_bytes: int | str | None = None,
    overflow_behavior: settings.OverflowBehavior | None = None,
    name: str | None = None,
) -> Pipeline:
    """Changes the targets of games: the temperature of the policy, results corrected for blunders,
    the fields of version 7 (docs/pipelines/lc0.md#what-a-rescorer-changes). It belongs between the
    pool and the unpacker, behind the validator if there is one.

    - versions: versions 5 and 6 become version 7.
    - settings: `policy_temperature`, `policy_offset`, `deblunder_threshold` with `deblunder_width`,
      `st_q_theta`.
    - counters: `plies_left_filled`, `blunders`, `chunks_deblundered`; `policies_kept`: positions
      whose policy was kept because nothing would have been left of it.
    - skips: `chunks_damaged`, `skipped_too_large`.

    Endgame tables are not supported: `syzygy_paths` and `gaviota_paths` are refused. The rescorer
    trusts its input, so put a validator before it.

    Args:
        input: Where records come from: "stage" or "stage.port". Required.
        policy_temperature: (above 0, at most 1000000, default 1) Probabilities are raised to the
            power 1 / temperature and scaled to sum to 1 again; default 1; above 0.
        policy_offset: (-1 to 1, default 0) Added to the probability of every legal move before
            that; default 0.
        deblunder_threshold: (0 to 2) A move is a blunder if best_q - played_q is beyond the
            threshold; the width makes the limit soft. Give both or neither.
        deblunder_width: (0 to 2)
        st_q_theta: (0 to 1, default 0.833333313) How much later positions count in the short-term
            values of version 7; default 5/6.
        syzygy_paths: Directories of endgame tables. They are refused: ringfeed cannot read them.
        gaviota_paths: See the schema.
        threads: (1 to 64, default 1) Lanes, each a thread. Lanes that rescore.
        max_threads: (1 to 64) The most lanes that `ringfeed scale` may give it while it runs;
            default: the number of threads. Room for their queues is set aside at the start.
        queue_capacity: (1 to 1048576, default 16) Records queued at each output, per ring (from one
            lane to one lane). For batches that trainers read, the number of slots of the feed,
            unless feed_output.slots gives it.
        queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill at
            most half of it. The default suits the record type; for batches that trainers read it is
            what the slots need.
        overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots are
            held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is dropped
            and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
        name: Name of the stage; default: a sensible one.
    """
    return _call.stage("stage.chunk_rescorer", "chunk_rescorer", locals())


@_call.checked
def chunk_source_splitter(
    *,
    input: Pipeline,
    outputs: settings.ChunkSourceSplitterOutputs | None = None,
    key: int | None = None,
    queue_capacity: int | None = None,
    queue_bytes: int | str | None = None,
    overflow_behavior: settings.OverflowBehavior | None = None,
    name: str | None = None,
) -> Pipeline:
    """Divides the chunks of each source among several outputs, for example training and
    validation. Where a chunk goes follows from the name of its file, its number in the file and
    `key` alone. So it is the same on every machine, in every run and in every directory, and new
    files change nothing for the others.

    - share: each output gets the chunks whose hash falls into its part of the sum of all weights.
    - counts: `chunks_NAME`.

    The hash of chunk i of a file called f is the first of two 64-bit numbers of Philox 4×32-10 with
    the key mix(mix(`key`, mix(f)), i) and the counter 0
    (`workers/include/ringfeed/worker/random.h`). The place among the weights is the high half of
    its product with their sum. Changing a weight moves some chunks from one output to the other;
    changing `key` divides all of them anew.

    Args:
        input: Where records come from: "stage" or "stage.port". Required.
        outputs: at least one, at most 16
        key: (default 0) Another key divides the chunks in another way;
        queue_capacity: (1 to 1048576, default 16) Records queued at each output, per ring (from one
            lane to one lane). For batches that trainers read, the number of slots of the feed,
            unless feed_output.slots gives it.
        queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill at
            most half of it. The default suits the record type; for batches that trainers read it is
            what the slots need.
        overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots are
            held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is dropped
            and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
        name: Name of the stage; default: a sensible one.
    """
    return _call.stage("stage.chunk_source_splitter", "chunk_source_splitter", locals())


@_call.checked
def simple_chunk_extractor(
    *,
    input: Pipeline,
    frames: settings.ChunkFrames | Mapping[str, object] | None = None,
    threads: int | None = None,
    max_threads: int | None = None,
    queue_capacity: int | None = None,
    queue_bytes: int | str | None = None,
    overflow_behavior: settings.OverflowBehavior | None = None,
    skip_limit: settings.SkipLimit | Mapping[str, object] | None = None,
    name: str | None = None,
) -> Pipeline:
    """Gives every chunk of each source once, for validation. Sources keep their order; the chunks
    of a source come in random order.

    - lanes: one that hands out chunks; `threads` lanes behind it read, inflate and pack them.
    - skips: as the pool. It also counts `chunks_dropped`, `chunks_processed` and
      `sources_processed`.
    - finite run: one pass, whatever `epochs` says; a file that is rewritten comes again.

    Args:
        input: Where records come from: "stage" or "stage.port". Required.
        frames: Puts out positions instead of chunks, as that of a pool does.
        threads: (1 to 64, default 1) Lanes, each a thread. Lanes that read and inflate chunks; one
            more lane orders them.
        max_threads: (1 to 64) The most lanes that `ringfeed scale` may give it while it runs;
            default: the number of threads. Room for their queues is set aside at the start.
        queue_capacity: (1 to 1048576, default 16) Records queued at each output, per ring (from one
            lane to one lane). For batches that trainers read, the number of slots of the feed,
            unless feed_output.slots gives it. Default: 4096 with `frames`.
        queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill at
            most half of it. The default suits the record type; for batches that trainers read it is
            what the slots need.
        overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots are
            held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is dropped
            and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
        skip_limit: The feed stops, with the reasons, if this stage leaves out more than that of
            what it counts. Default: as much as `skip_limit` of the feed says, over all stages.
        name: Name of the stage; default: a sensible one.
    """
    return _call.stage("stage.simple_chunk_extractor", "simple_chunk_extractor", locals())


@_call.checked
def join_positions(
    *,
    input: Pipeline | Sequence[Pipeline],
    queue_capacity: int | None = None,
    queue_bytes: int | str | None = None,
    overflow_behavior: settings.OverflowBehavior | None = None,
    name: str | None = None,
) -> Pipeline:
    """Joins several streams into one: `input: "a" input: "b"`.

    - order: ORDERED takes one frame from each input in turn and leaves out an input that has ended;
      the slowest input sets the pace. RELAXED takes whatever is there.

    In ORDERED dispatch, do not join two branches of one splitter that go through
    `simple_chunk_extractor`s. One branch may need more sources before it has a chunk than the
    queues of the other branch hold; both then wait for each other for ever. Use pools instead,
    which take all sources, or RELAXED dispatch, which takes what is there.

    Args:
        input: Where frames come from, each as "stage" or "stage.port". At least one, at most 16.
        queue_capacity: (1 to 1048576, default 16) Records queued at each output, per ring (from one
            lane to one lane). For batches that trainers read, the number of slots of the feed,
            unless feed_output.slots gives it.
        queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill at
            most half of it. The default suits the record type; for batches that trainers read it is
            what the slots need.
        overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots are
            held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is dropped
            and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
        name: Name of the stage; default: a sensible one.
    """
    return _call.stage("stage.join_positions", "join_positions", locals())


@_call.checked
def chunk_filter(
    *,
    input: Pipeline,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    queue_capacity: int | None = None,
    queue_bytes: int | str | None = None,
    overflow_behavior: settings.OverflowBehavior | None = None,
    name: str | None = None,
) -> Pipeline:
    """Passes on the chunks of files with certain names and leaves out the others. It belongs
    behind the loader: the chunks of a file that is left out are never read. Patterns are those of a
    shell: `*` stands for any characters, `?` for one, `[a-f]` for one of these. They are compared
    with the name of the file, without its directories.

    - left out: a file that matches no `include`, or that matches an `exclude`.

    Args:
        input: Where records come from: "stage" or "stage.port". Required.
        include: Patterns of files to pass on: a file must match one of them. Default: all files
            pass.
        exclude: Patterns of files to leave out, whatever include says.
        queue_capacity: (1 to 1048576, default 16) Records queued at each output, per ring (from one
            lane to one lane). For batches that trainers read, the number of slots of the feed,
            unless feed_output.slots gives it.
        queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill at
            most half of it. The default suits the record type; for batches that trainers read it is
            what the slots need.
        overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots are
            held. Only BLOCK, the default. BLOCK: the producer waits; nothing is lost; DROP_NEW: the
            new record is dropped and counted; KEEP_NEWEST: the oldest queued record is dropped and
            counted.
        name: Name of the stage; default: a sensible one.
    """
    return _call.stage("stage.chunk_filter", "chunk_filter", locals())


@_call.checked
def parquet_source(
    *,
    directory: str | PathLike[str] | None = None,
    files: str | PathLike[str] | Sequence[str | PathLike[str]] | None = None,
    columns: str | Sequence[str] | None = None,
    shuffle_files: bool | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    repeat: bool | None = None,
    threads: int | None = None,
    queue_capacity: int | None = None,
    queue_bytes: int | str | None = None,
    overflow_behavior: settings.OverflowBehavior | None = None,
    skip_limit: settings.SkipLimit | Mapping[str, object] | None = None,
    name: str | None = None,
) -> Pipeline:
    """Reads Parquet files row group by row group, and only the columns that are asked for. The
    next stage says which; if that stage takes any columns, `columns` says it.

    - input: `requests`, only if the next stage has `order: EXACT`. That stage then says which file
      comes next, and there are no epochs.
    - files: the `*.parquet` in `directory` itself, except names that begin with a dot, in the order
      of their names' bytes; or `files`, as given. Each of `world_size` ranks takes every
      `world_size`-th file. An endless run looks into `directory` again at the start of every epoch
      and adds new files at the end (they are divided among the ranks by name).
    - order: files as listed, or with `shuffle_files` in another order in every epoch, which follows
      from the seed. Rows come as in the file.
    - types: text is strings, enumerations, JSON, and dictionaries of them. Numbers are integers,
      booleans, and floats of 16, 32 and 64 bits. A column that may be anything (an identity) may
      also hold dates, times and bytes. A column of nulls alone fits everything; decimals and nested
      columns fit nothing.
    - memory: in the feed, 4 MiB for its queue, and 100 bytes and the path for each file. In its
      process, one page of each column and the rows of one record: about 50 MB with the library,
      whatever the size of the files.
    - lanes: one; `threads` decode columns beside it.
    - restart: decodes again from the start of the page and goes on with the same records.
    - skips: files: `skipped_vanished`, `skipped_unreadable`, `skipped_changed` (the rest of a file
      that was replaced or written to while it was read), `skipped_missing_column`,
      `skipped_wrong_type` (both name the columns and say what is there). `rows_damaged`: those of a
      row group from where it cannot be read (`row_groups_damaged`). `rows_too_large`: rows of more
      than half of `queue_bytes`.
    - finite run: `epochs` passes, or with `repeat` as many as are taken. Without a file it ends at
      once.

    Page checksums are verified if a file has them. If no file of an epoch can be used, an endless
    run waits until one of them changes or another one appears.

    Files are read by Apache Arrow, which comes with ringfeed, whatever pyarrow is there. A build
    takes it from an installation or from the Python package `pyarrow`; without, `ringfeed check`
    says so.

    Args:
        directory: Directory with the files: its own `*.parquet`, not those in directories below it,
            except names that begin with a dot. They are ordered by the bytes of their names. While
            there is no file, an endless run waits for one. Give this or files, not both.
        files: The files themselves, in this order.
        columns: Columns to read; default: those that the next stage asks for.
        shuffle_files: (default True) Puts the files in another order in every epoch;
        rank: (0 to 65535, default 0) The number of this machine among world_size machines, from 0.
            It reads every world_size-th file from there on. Defaults 0 of 1; a world has 1 to
            65536.
        world_size: (1 to 65536, default 1)
        repeat: (default False) Starts again at its end, whatever `epochs` of the feed says. Use it
            for data that is mixed into other data.
        threads: (1 to 64, default 1) Lanes, each a thread. Threads that decode columns. The number
            does not change what comes out.
        queue_capacity: (1 to 1048576, default 64) Records queued at each output, per ring (from one
            lane to one lane). For batches that trainers read, the number of slots of the feed,
            unless feed_output.slots gives it.
        queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill at
            most half of it. The default suits the record type; for batches that trainers read it is
            what the slots need. 64 KiB to 1 TiB. A row may fill at most half of it.
        overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots are
            held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is dropped
            and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
        skip_limit: The feed stops, with the reasons, if this stage leaves out more than that of
            what it counts. Default: as much as `skip_limit` of the feed says, over all stages.
        name: Name of the stage; default: a sensible one.
    """
    return _call.stage("stage.parquet_source", "parquet_source", locals())


@_call.checked
def chess_games(
    *,
    input: Pipeline,
    length_max: int | None = None,
    order: settings.SampleOrder | None = None,
    skip_board_probability: float | None = None,
    pool_size: int | None = None,
    overwrite_values: bool | None = None,
    window_start: settings.ChessGamesWindowStart | None = None,
    value_columns: settings.ChessGamesValueColumns | None = None,
    shuffle_games: bool | None = None,
    workers: int | None = None,
    threads: int | None = None,
    max_threads: int | None = None,
    queue_capacity: int | None = None,
    queue_bytes: int | str | None = None,
    overflow_behavior: settings.OverflowBehavior | None = None,
    skip_limit: settings.SkipLimit | Mapping[str, object] | None = None,
    name: str | None = None,
) -> Pipeline:
    """Turns games, one row for each ply, into token sequences. docs/pipelines/chess.md explains
    columns, tokens and both kinds of order.

    - lanes: one gathers games and decides what is left out of them, `threads` lanes make tokens,
      and one mixes. With `order: EXACT` there is one lane in all.
    - order: follows from the feed's seed, the epoch, the file's name and the game's number; the
      number of lanes does not matter.
    - memory: the rows of one file (with EXACT, of one file for each of `workers`); about 1 KB for
      each sample of `pool_size` at 256 tokens. It grows as needed.
    - at the end: at the end of the run, and of every epoch, the pool goes out in random order, so
      each game comes once in an epoch. On `ringfeed stop` it stays, because it is state.
    - skips: games: `skipped_fen`, `skipped_played_move`, `skipped_best_move` (in the window),
      `skipped_too_large`, `games_cut` (some of their rows are lost); rows: `rows_without_game`,
      `rows_damaged`. With EXACT `files_given_up`: files whose rest is left out after a fault.

    Args:
        input: Where records come from: "stage" or "stage.port". Required.
        length_max: (1 to 32767, default 256) Most tokens of a sequence, and of a row of the
            batches; default 256.
        order: (default "BETTER") BETTER: Numbers that follow from the feed's seed, the epoch and
            the game. Only what cannot be used is skipped, and it is counted. Samples are mixed
            across files. The number of lanes changes nothing; EXACT: The numbers of the Python
            program that these pipelines were written for, draw for draw, from the feed's seed: the
            same samples in the same order. A fault in a file ends that file, as it does there. One
            lane. All chess stages of a feed must have the same order.
        skip_board_probability: (0 to 1, default 0) Probability that the board of a ply is left out;
            a game's first board never is. Default 0.
        pool_size: (1 to 1000000000, default 8192) Number of samples that are mixed with each other;
            default 8192 (about 8 MB at 256 tokens); 1 to 1000000000. Each epoch is mixed on its
            own. Not with EXACT.
        overwrite_values: A ply whose board is left out writes its values over those of the ply
            before it, at that ply's d_value. Default: true with EXACT, else false.
        window_start: (default "ANY_PLY") ANY_PLY: drawn from the plies of the game; FIRST_PLY.
        value_columns: (default "WIN_DRAW_LOSS") WIN_DRAW_LOSS: `win`, `draw`, `loss`: the best
            move's; PLAYED_Q_D: `played_q`, `played_d`: the played move's.
        shuffle_games: (default True) EXACT: puts the games of a file in random order;
        workers: (0 to 256, default 0) EXACT: number of the original program's worker processes,
            which make batches in turn; 0 (none) gives the same as 1. A sequence_batcher must
            follow, because its batch size counts. Default 0.
        threads: (1 to 64, default 1) Lanes, each a thread. Lanes that make tokens; one more lane
            gathers games, and one mixes them.
        max_threads: (1 to 64) The most lanes that `ringfeed scale` may give it while it runs;
            default: the number of threads. Room for their queues is set aside at the start.
        queue_capacity: (1 to 1048576, default 256) Records queued at each output, per ring (from
            one lane to one lane). For batches that trainers read, the number of slots of the feed,
            unless feed_output.slots gives it.
        queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill at
            most half of it. The default suits the record type; for batches that trainers read it is
            what the slots need.
        overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots are
            held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is dropped
            and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
        skip_limit: The feed stops, with the reasons, if this stage leaves out more than that of
            what it counts. Default: as much as `skip_limit` of the feed says, over all stages.
        name: Name of the stage; default: a sensible one.
    """
    return _call.stage("stage.chess_games", "chess_games", locals())


@_call.checked
def chess_variations(
    *,
    input: Pipeline,
    length_max: int | None = None,
    order: settings.SampleOrder | None = None,
    max_variations: int | None = None,
    max_depth: int | None = None,
    tau_base: float | None = None,
    tau_alpha: float | None = None,
    pool_size: int | None = None,
    shuffle_rows: bool | None = None,
    threads: int | None = None,
    max_threads: int | None = None,
    queue_capacity: int | None = None,
    queue_bytes: int | str | None = None,
    overflow_behavior: settings.OverflowBehavior | None = None,
    skip_limit: settings.SkipLimit | Mapping[str, object] | None = None,
    name: str | None = None,
) -> Pipeline:
    """Turns positions, with the lines that a search has looked at, into token sequences.

    - lanes: `threads` lanes make tokens, and one mixes. With `order: EXACT`, which needs a
      `variation_mixer` as the next stage, there is one lane in all.
    - order: the order of lines and their depth follow from the feed's seed, the epoch, the file's
      name and the row's number.
    - too long: a row of more than `length_max` tokens is tried again with fewer lines, then with
      shorter lines (`tried_again`).
    - memory: about 2.5 KB for each sample of `pool_size` at 1024 tokens; with EXACT, the rows of
      one file for each worker.
    - skips: rows: `rows_without_variations` (which is no fault), `skipped_json`, `skipped_fen`,
      `skipped_visits`, `skipped_root_move`, `skipped_wdl`, `skipped_nodes`, `skipped_no_move`,
      `skipped_no_final_move`, `skipped_too_long`, `skipped_too_large`, `rows_damaged`. With EXACT
      `files_given_up`.

    Args:
        input: Where records come from: "stage" or "stage.port". Required.
        length_max: (1 to 32767, default 1024) Most tokens of a sequence, and of a row of the
            batches; default 1024; 1 to 32767. A longer row is tried with fewer and shorter lines,
            then skipped.
        order: (default "BETTER") BETTER: Numbers that follow from the feed's seed, the epoch and
            the game. Only what cannot be used is skipped, and it is counted. Samples are mixed
            across files. The number of lanes changes nothing; EXACT: The numbers of the Python
            program that these pipelines were written for, draw for draw, from the feed's seed: the
            same samples in the same order. A fault in a file ends that file, as it does there. One
            lane. All chess stages of a feed must have the same order.
        max_variations: (1 to 1000, default 3) Most lines of a position; default 3.
        max_depth: (1 to 1000, default 5) Most positions of a line; the number is drawn from 1 to
            this; default 5.
        tau_base: (above 0, at most 1000000, default 0.3) Temperature of the order of lines:
            tau_base (1 + tau_alpha v), where v is the variance of the position's result. No unit;
            defaults 0.3 and 1; above 0 and from 0 on, to 1000000.
        tau_alpha: (0 to 1000000, default 1)
        pool_size: (1 to 1000000000, default 2048) Number of samples that are mixed with each other;
            default 2048 (about 5 MB at 1024 tokens); 1 to 1000000000. Each epoch is mixed on its
            own. Not with EXACT.
        shuffle_rows: (default True) EXACT: puts the rows of a file in random order;
        threads: (1 to 64, default 1) Lanes, each a thread. Lanes that make tokens; one more lane
            mixes them.
        max_threads: (1 to 64) The most lanes that `ringfeed scale` may give it while it runs;
            default: the number of threads. Room for their queues is set aside at the start.
        queue_capacity: (1 to 1048576, default 256) Records queued at each output, per ring (from
            one lane to one lane). For batches that trainers read, the number of slots of the feed,
            unless feed_output.slots gives it.
        queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill at
            most half of it. The default suits the record type; for batches that trainers read it is
            what the slots need.
        overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots are
            held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is dropped
            and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
        skip_limit: The feed stops, with the reasons, if this stage leaves out more than that of
            what it counts. Default: as much as `skip_limit` of the feed says, over all stages.
        name: Name of the stage; default: a sensible one.
    """
    return _call.stage("stage.chess_variations", "chess_variations", locals())


@_call.checked
def variation_mixer(
    *,
    input: Pipeline,
    variations: Pipeline,
    variation_ratio: float | None = None,
    order: settings.SampleOrder | None = None,
    workers: int | None = None,
    queue_capacity: int | None = None,
    queue_bytes: int | str | None = None,
    overflow_behavior: settings.OverflowBehavior | None = None,
    name: str | None = None,
) -> Pipeline:
    """Draws each sample from one of two inputs: a searched position with probability
    `variation_ratio`, else a game.

    - inputs: `input` takes games, `variations` takes searched positions.
    - the end: it ends with the games. Searched positions start again (`repeat: true` in their
      `parquet_source`). Each sample says how often (`variation_epoch`), and `variation_epochs`
      counts it.
    - without searched positions: games take their place (`games_instead`) if an epoch had none, or
      if they have ended and do not start again. `check` warns of that, and the log gives both
      ratios.
    - the ratio: `ringfeed status` shows the share of searched positions beside the configured one.
    - EXACT: the mixer asks the stages before it for one sample at a time, because all three draw
      from the same streams (docs/decisions/0017-requests-go-back.md).

    Args:
        input: Where records come from: "stage" or "stage.port". Required.
        variations: Where variations come from: "stage" or "stage.port". Required.
        variation_ratio: (0 to 1, default 0.2) Probability that a sample is a variation; default
            0.2.
        order: (default "BETTER") BETTER: Numbers that follow from the feed's seed, the epoch and
            the game. Only what cannot be used is skipped, and it is counted. Samples are mixed
            across files. The number of lanes changes nothing; EXACT: The numbers of the Python
            program that these pipelines were written for, draw for draw, from the feed's seed: the
            same samples in the same order. A fault in a file ends that file, as it does there. One
            lane. All chess stages of a feed must have the same order.
        workers: (0 to 256, default 0) EXACT: as in ChessGamesConfig. Default 0.
        queue_capacity: (1 to 1048576, default 256) Records queued at each output, per ring (from
            one lane to one lane). For batches that trainers read, the number of slots of the feed,
            unless feed_output.slots gives it.
        queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill at
            most half of it. The default suits the record type; for batches that trainers read it is
            what the slots need.
        overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots are
            held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is dropped
            and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
        name: Name of the stage; default: a sensible one.
    """
    return _call.stage("stage.variation_mixer", "variation_mixer", locals())


@_call.checked
def sequence_batcher(
    *,
    input: Pipeline,
    batch_size: int | None = None,
    length: int | None = None,
    compact: bool | None = None,
    lineage: bool | None = None,
    limit_masks: bool | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    threads: int | None = None,
    queue_capacity: int | None = None,
    queue_bytes: int | str | None = None,
    overflow_behavior: settings.OverflowBehavior | None = None,
    name: str | None = None,
) -> Pipeline:
    """Writes token sequences straight into the slots of the feed, as batches.

    - tensors: `input_ids` [B, L], targets and masks; docs/pipelines/chess.md#what-comes-out lists
      them. `compact`, `lineage` and `limit_masks` choose among them.
    - `rank`, `world_size`: it takes every `world_size`-th sample; `sequences_elsewhere` counts the
      others.
    - memory: a slot of 44 bytes × L × `batch_size` (47 bytes with variations; 19 and 22 with
      `compact`) for each of `feed_output.slots`.
    - at the end: the last batch has the rows that are left, unless `drop_remainder` drops them
      (`rows_dropped`). With EXACT this holds for the last batch of each worker and epoch.
    - skips: `sequences_skipped`: sequences longer than a row.

    Args:
        input: Where records come from: "stage" or "stage.port". Required.
        batch_size: (1 to 1048576, default 64) Rows of a batch; default 64.
        length: (1 to 32767) Elements of a row of each array; default: the largest length_max of the
            stages before it; 1 to 32767. A longer sequence is skipped and counted.
        compact: (default False) Small types instead of int64: int16 for ids and blocks, int8 for
            board targets, int32 for variation_epoch; masks stay bool and values float32.
            ringfeed.torch and ringfeed.jax widen them on the device (widen_tokens).
        lineage: (default False) Adds `lineage`, int32 [rows, 4]: file, game (for variations: row),
            first token of the window, epoch of the variations.
        limit_masks: (default False) Adds end_var_max_depth_mask and end_think_max_var_mask; only
            with variations.
        rank: (0 to 65535, default 0) The number of this machine among world_size machines, from 0.
            It takes every world_size-th sample from there on. Defaults 0 of 1; a world has 1 to
            65536.
        world_size: (1 to 65536, default 1)
        threads: (1 to 64, default 1) Lanes, each a thread. Lanes that write batches, each into
            slots of its own.
        queue_capacity: (1 to 256, default 16) Records queued at each output, per ring (from one
            lane to one lane). For batches that trainers read, the number of slots of the feed,
            unless feed_output.slots gives it.
        queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill at
            most half of it. The default suits the record type; for batches that trainers read it is
            what the slots need.
        overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots are
            held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is dropped
            and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
        name: Name of the stage; default: a sensible one.
    """
    return _call.stage("stage.sequence_batcher", "sequence_batcher", locals())


@_call.checked
def bitext_source(
    *,
    directory: str | PathLike[str] | Sequence[str | PathLike[str]],
    lang_pairs: str | Sequence[str],
    langs: str | Sequence[str] | None = None,
    lang_dict: str | PathLike[str] | None = None,
    subsets: str | Sequence[str] | None = None,
    combine: bool | None = None,
    dictionary: str | PathLike[str] | None = None,
    source_dictionary: str | PathLike[str] | None = None,
    target_dictionary: str | PathLike[str] | None = None,
    encoder_langtok: settings.BitextSourceLangTok | None = None,
    decoder_langtok: bool | None = None,
    lang_tok_style: settings.BitextSourceLangTokStyle | None = None,
    langtoks_specs: str | Sequence[str] | None = None,
    langtoks: settings.BitextSourceLangTokss | None = None,
    add_data_source_prefix_tags: bool | None = None,
    extra_symbols: str | Sequence[str] | None = None,
    final_symbols: str | Sequence[str] | None = None,
    upsample_primary: int | None = None,
    truncate_source: int | None = None,
    lang_tok_replacing_bos_eos: bool | None = None,
    extra_data: settings.BitextSourceExtraDatas | None = None,
    ignore_main_data: bool | None = None,
    allow_missing: bool | None = None,
    compat: settings.BitextCompat | None = None,
    warm_up: bool | None = None,
    queue_capacity: int | None = None,
    queue_bytes: int | str | None = None,
    overflow_behavior: settings.OverflowBehavior | None = None,
    skip_limit: settings.SkipLimit | Mapping[str, object] | None = None,
    name: str | None = None,
) -> Pipeline:
    """Finds fairseq's token files of parallel text: for each direction its shards, the number of
    their sentences, and the tokens before them. The next stages map and read the files.
    docs/pipelines/fairseq.md explains names, files and tokens.

    - output: one record for each direction and shard, all directions of the first shard first.
    - files: `SUBSET.SRC-TGT.LANG.idx` and `.bin` in `directory`, else those of `TGT-SRC`, the other
      way round (not for subsets with `bt` in their names; with NLLB and MAIN also if the source's
      `.bin` is missing); `dict.LANG.txt` in the first directory. It looks only at the headers,
      lengths and last sentence of token files; with `warm_up` it reads them whole once.
    - order: as in the configuration.
    - memory: a few bytes a direction.
    - waits: in an endless run, for directories and dictionaries that are not there.
    - skips: `directions_missing`; single shards of a direction: `skipped_unreadable`,
      `skipped_damaged`, `skipped_unequal` (source and target have different lengths).
    - at the end: it ends after the last record, in endless runs too, because the other stages keep
      what they need.

    Args:
        directory: Directories of shards, in their order: shard k of a direction is in the k-th
            directory. At least one.
        lang_pairs: Directions, "SRC-TGT", in the order in which sentences are drawn. At least one.
        langs: Languages in the order of their tokens' ids. Default: those of lang_dict, else all
            languages in lang_pairs, sorted by name.
        lang_dict: File with one language on each line, instead of langs.
        subsets: Names that token files begin with, "SUBSET.SRC-TGT.LANG.bin". Several are parts of
            one data set, one after the other. Default: "train".
        combine: (default False) Also reads SUBSET1, SUBSET2, ... until one is missing. Only with
            compat MAIN.
        dictionary: One dictionary for all languages; default: dict.LANG.txt of each language in the
            first directory.
        source_dictionary: One dictionary for all source languages, one for all target languages;
            default: as above.
        target_dictionary: See the schema.
        encoder_langtok: (default "NO_LANGTOK") The token before the source sentence; default: none.
            NO_LANGTOK; SRC: the token of the source language; TGT: that of the target language.
        decoder_langtok: (default False) The target language's token before the target sentence;
        lang_tok_style: (default "MULTILINGUAL") MULTILINGUAL: __eng_Latn__; MBART: [eng_Latn].
        langtoks_specs: Every language has a token for each of these, in this order. Default:
            "main".
        langtoks: See the schema.
        add_data_source_prefix_tags: (default False) Puts <MINED_DATA>, <MMT_BT_DATA>, <SMT_BT_DATA>
            before the source tokens of the subsets train_mining, train_mmt_bt, train_smt_bt.
        extra_symbols: Symbols that the dictionaries get in addition, such as "<mask>", "__dae__",
            "__lm__": extra_symbols after the languages' tokens and before those tags, final_symbols
            after the tags. Default: none; with MBART "<mask>" comes before extra_symbols.
        final_symbols: See the schema.
        upsample_primary: (1 to 1000000, default 1) How often the first of several subsets counts;
            default 1.
        truncate_source: (2 to 65534) Source sentences are cut to this many tokens, `</s>` included
            (fairseq: max_source_positions with truncate_source); default: none is cut.
        lang_tok_replacing_bos_eos: (default False) Puts the tokens of the languages in the places
            of `</s>` instead of before the sentences: at the end of the source, and at the start of
            prev_output_tokens.
        extra_data: See the schema.
        ignore_main_data: (default False) true: only extra_data is read.
        allow_missing: true: a direction without files is left out with a warning. false: it is an
            error, which lists what is there. Default: true with compat NLLB, else false.
        compat: (default "NONE") NONE: ringfeed's own: no accidental repeats, no losses, one order
            for any world_size; NLLB: fairseq's branch nllb, bit for bit; MAIN: fairseq's branch
            main, bit for bit.
        warm_up: (default False) Reads all files once at the start, so that later reads find them in
            the page cache.
        queue_capacity: (1 to 1048576, default 64) Records queued at each output, per ring (from one
            lane to one lane). For batches that trainers read, the number of slots of the feed,
            unless feed_output.slots gives it.
        queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill at
            most half of it. The default suits the record type; for batches that trainers read it is
            what the slots need.
        overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots are
            held. Only BLOCK, the default. BLOCK: the producer waits; nothing is lost; DROP_NEW: the
            new record is dropped and counted; KEEP_NEWEST: the oldest queued record is dropped and
            counted.
        skip_limit: The feed stops, with the reasons, if this stage leaves out more than that of
            what it counts. Default: as much as `skip_limit` of the feed says, over all stages.
        name: Name of the stage; default: a sensible one.
    """
    return _call.stage("stage.bitext_source", "bitext_source", locals())


@_call.checked
def epoch_planner(
    *,
    input: Pipeline,
    compat: settings.BitextCompat | None = None,
    sampling_method: settings.EpochPlannerSamplingMethod | None = None,
    sampling_temperature: float | None = None,
    sampling_weights: settings.SamplingWeights | None = None,
    sampling_weights_file: str | PathLike[str] | None = None,
    virtual_data_size: int | None = None,
    virtual_epoch_size: int | None = None,
    use_local_shard_size: bool | None = None,
    max_tokens: int | None = None,
    batch_size: int | None = None,
    required_batch_size_multiple: int | None = None,
    max_source_positions: int | None = None,
    max_target_positions: int | None = None,
    seed: int | None = None,
    update_ordered_indices_seed: bool | None = None,
    one_dataset_per_batch: bool | None = None,
    curriculum: int | None = None,
    world_size: int | None = None,
    update_freq: int | Sequence[int] | None = None,
    epoch_remainder_batch: bool | None = None,
    stand_in_first: bool | None = None,
    start_epoch: int | None = None,
    start_batch: int | None = None,
    validation: bool | None = None,
    single_direction: bool | None = None,
    queue_capacity: int | None = None,
    queue_bytes: int | str | None = None,
    overflow_behavior: settings.OverflowBehavior | None = None,
    name: str | None = None,
) -> Pipeline:
    """Plans which sentences make up an epoch, in which order, and where one batch ends and the
    next begins.

    - output: one record for each batch.
    - order: it follows from the configuration, the index files and the number of the epoch alone.
    - `compat`: NLLB and MAIN plan as fairseq's branches do, bit for bit; NONE plans without their
      faults (docs/pipelines/fairseq.md#compat).
    - after a message: a batch that the epoch does not have is refused if the plan is known. If
      nothing can be read (too many ranks, or only sentences that are too long), the stage waits for
      another message.
    - `world_size`: the number of batches of each epoch is a multiple of it. Stand-ins fill up what
      is missing (`stand_ins`): copies of the epoch's first batch before the shuffle.
    - memory: in the feed, 4 bytes for each sentence of an epoch (8 above 4 billion), twice, because
      the next epoch is planned while one is read. In its process, 12 (24) bytes a sentence while a
      plan is made; with `virtual_epoch_size`, 8 (16) bytes for each sentence of the pass stay there
      for its other slices.
    - lanes: one; two more threads while a plan is made.
    - restart: an incomplete plan is made again, and comes out the same.
    - counts: `sentences`, `sentences_kept`, `sentences_repeated`, `batches_dropped` and
      `sentences_dropped` (compat); `epoch`, `epoch_batch` of `epoch_batches`, `plan_percent` of the
      next plan.
    - skips: `skipped_too_long` (beyond `max_source_positions`, `max_target_positions` or
      `max_tokens`), `skipped_empty`.
    - messages: `epoch_planner_request` asks where it is, moves it to another place (`seek`), or
      sets other weights (docs/pipelines/fairseq.md#changing-weights).
    - finite run: ends after `epochs` epochs, counted from `start_epoch`.

    Args:
        input: Where records come from: "stage" or "stage.port". Required.
        compat: (default "NONE") NONE: ringfeed's own: no accidental repeats, no losses, one order
            for any world_size; NLLB: fairseq's branch nllb, bit for bit; MAIN: fairseq's branch
            main, bit for bit.
        sampling_method: (default "CONCAT") CONCAT: every sentence once; UNIFORM: the same number
            from every direction; TEMPERATURE: in proportion to (share of the data)^(1 /
            sampling_temperature); ROUND_ROBIN: As CONCAT. With MAIN, the order within batches also
            depends on the epoch, and batches are cut once for each data set: with one directory, in
            the first epoch of a run.
        sampling_temperature: (above 0, at most 1000000, default 1.5) Default 1.5; above 0, to 1e6.
            No unit.
        sampling_weights: Weights of all directions, one for each, instead of sampling_method. Keys
            that belong to no direction are ignored.
        sampling_weights_file: The same in a file, a JSON object from key to number. The file wins
            over sampling_weights.
        virtual_data_size: (1 to 1000000000000) Sentences of a pass over the data, drawn by the
            weights. Default: as many as let the largest direction keep its size, at most one and a
            half times the data. Not used if every sentence comes once. From 1 to 1e12.
        virtual_epoch_size: (1 to 1000000000000) Sentences of an epoch: a pass is cut into virtual
            epochs of this size. Default: an epoch is a pass. From 1 to 1e12.
        use_local_shard_size: (default False) Weights by temperature follow the sizes of the current
            shards, not of all shards. Only with NLLB, whose scripts set it.
        max_tokens: (1 to 16777216) A batch has at most this many tokens on each side, padding
            included; 1 to 16777216. This or batch_size must be given.
        batch_size: (1 to 1048576) A batch has at most this many sentences.
        required_batch_size_multiple: (1 to 65536, default 8) The number of sentences in a batch is
            a multiple of this, or less than it; default 8.
        max_source_positions: (1 to 65534, default 1024) Sentences that are longer on either side
            are left out and counted (skipped_too_long); language tokens and `</s>` are included.
            Default 1024.
        max_target_positions: (1 to 65534, default 1024)
        seed: Seed of the order. With NLLB and MAIN it is fairseq's --seed, default 1. With NONE the
            default is the feed's seed.
        update_ordered_indices_seed: (default False) NLLB and MAIN: the order within batches also
            depends on the epoch.
        one_dataset_per_batch: (default False) A batch has sentences of one direction only.
        curriculum: (default 0) Number of first epochs whose batches come in the order of their
            lengths;
        world_size: (1 to 4096, default 1) Number of data-parallel ranks. The number of batches of
            each epoch is a multiple of it, so that a ranked group of as many members gets what that
            many ranks of fairseq would get. Ranks that run short get the stand-in, a copy of the
            epoch's first batch before the shuffle, marked as such. Default 1.
        update_freq: (1 to 1048576) Number of batches of a rank that make one update, one number for
            each epoch; the last number holds for all later epochs. NLLB drops what does not fill an
            update. Default: 1.
        epoch_remainder_batch: (default False) NLLB: the last batch of each rank is kept
            (--train-with-epoch-remainder-batch).
        stand_in_first: (default False) Each epoch begins with the stand-in for each rank, marked as
            such, for trainers that want it.
        start_epoch: (1 to 10000000, default 1) Where the feed begins: an epoch, from 1 on, and a
            batch in it, counted over all ranks. Defaults 1 and 0.
        start_batch: (default 0)
        validation: (default False) Epochs are those of a validation, as in fairseq: they depend on
            the seed alone, come in order, and drop nothing.
        single_direction: (default False) Validation with NLLB: as fairseq's sets valid_KEY, each a
            single direction, whose sentences of equal length come in an order that follows from the
            seed. The source then has one direction. Default false: as fairseq's set `valid` of all
            directions, in the order of the files.
        queue_capacity: (1 to 1048576, default 32) Records queued at each output, per ring (from one
            lane to one lane). For batches that trainers read, the number of slots of the feed,
            unless feed_output.slots gives it.
        queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill at
            most half of it. The default suits the record type; for batches that trainers read it is
            what the slots need. 64 KiB to 1 TiB. Default: enough for the largest batch.
        overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots are
            held. Only BLOCK, the default. BLOCK: the producer waits; nothing is lost; DROP_NEW: the
            new record is dropped and counted; KEEP_NEWEST: the oldest queued record is dropped and
            counted.
        name: Name of the stage; default: a sensible one.
    """
    return _call.stage("stage.epoch_planner", "epoch_planner", locals())


@_call.checked
def bitext_collator(
    *,
    input: Pipeline,
    left_pad_source: bool | None = None,
    left_pad_target: bool | None = None,
    compact: bool | None = None,
    pad_to_multiple: int | None = None,
    pad_to_fixed_length: bool | None = None,
    fixed_source_length: int | None = None,
    fixed_target_length: int | None = None,
    enable_lang_ids: bool | None = None,
    lineage: bool | None = None,
    threads: int | None = None,
    queue_capacity: int | None = None,
    queue_bytes: int | str | None = None,
    overflow_behavior: settings.OverflowBehavior | None = None,
    skip_limit: settings.SkipLimit | Mapping[str, object] | None = None,
    name: str | None = None,
) -> Pipeline:
    """Reads the sentences of batch plans and writes them straight into the slots of the feed, as
    batches.

    - tensors: `id`, `src_tokens`, `src_lengths`, `prev_output_tokens`, `target`, `ntokens`,
      `nsentences`, `position`; docs/pipelines/fairseq.md#what-comes-out explains them.
    - lanes: `threads`, with either kind of dispatch; the number does not change what comes out.
    - memory: a slot holds the largest batch that `max_tokens` and `batch_size` allow: three arrays
      of that many tokens of 8 bytes (4 with `compact`), and 16 bytes a sentence. Files are mapped.
    - skips: sentences: `skipped_out_of_bounds`, `skipped_unreadable`, `skipped_changed`,
      `skipped_too_large`, `skipped_no_symbol`; `plans_damaged`. Each plan becomes a batch all the
      same, if need be with fewer rows or none, so that ranks stay in step.
    - counts: `rows`, `batches`, `tokens`, `padding`.

    Args:
        input: Where records come from: "stage" or "stage.port". Required.
        left_pad_source: (default True) Whether sentences are padded on the left; defaults: sources
            on the left, targets on the right.
        left_pad_target: (default False)
        compact: (default False) Tokens as int32 instead of int64.
        pad_to_multiple: (1 to 65536, default 1) Widths are multiples of this many tokens; default
            1.
        pad_to_fixed_length: (default False) Widths are at least fixed_source_length and
            fixed_target_length.
        fixed_source_length: (1 to 65534) fairseq's --max-source-positions and
            --max-target-positions, whatever those of the model are. Defaults: max_source_positions
            and max_target_positions of the planner.
        fixed_target_length: (1 to 65534)
        enable_lang_ids: (default False) Adds src_lang_id and tgt_lang_id, int64 [rows, 1]: place in
            the list of languages, from 1. With compat NLLB and MAIN every row has those of the
            first direction.
        lineage: (default False) Adds `direction`, int32 [rows]: the number of each row's direction,
            as the log of bitext_source lists them.
        threads: (1 to 64, default 1) Lanes, each a thread. Lanes that write batches, each into
            slots of its own.
        queue_capacity: (1 to 256, default 16) Records queued at each output, per ring (from one
            lane to one lane). For batches that trainers read, the number of slots of the feed,
            unless feed_output.slots gives it.
        queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill at
            most half of it. The default suits the record type; for batches that trainers read it is
            what the slots need.
        overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots are
            held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is dropped
            and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
        skip_limit: The feed stops, with the reasons, if this stage leaves out more than that of
            what it counts. Default: as much as `skip_limit` of the feed says, over all stages.
        name: Name of the stage; default: a sensible one.
    """
    return _call.stage("stage.bitext_collator", "bitext_collator", locals())


@_call.checked
def sample_source(
    *,
    input: Pipeline,
    format: settings.SampleSourceFormat | None = None,
    fields: settings.SampleFields | None = None,
    shuffle_files: bool | None = None,
    block_bytes: int | str | None = None,
    line_bytes_max: int | None = None,
    strict: bool | None = None,
    verify: settings.SampleSourceVerify | None = None,
    window_bytes_max: int | None = None,
    group: settings.SampleSourceGroup | None = None,
    group_window: int | None = None,
    csv_delimiter: str | None = None,
    csv_names: bool | None = None,
    threads: int | None = None,
    queue_capacity: int | None = None,
    queue_bytes: int | str | None = None,
    overflow_behavior: settings.OverflowBehavior | None = None,
    skip_limit: settings.SkipLimit | Mapping[str, object] | None = None,
    name: str | None = None,
) -> Pipeline:
    """Reads files into samples: lines of JSON (JSONL) or of text, tars of samples as WebDataset
    has them, both packed with gzip, Zstandard, bzip2 or xz or not; NumPy's arrays; tables of
    Parquet.

    - input: paths of files. By `format` BY_NAME those are read whose ending is known; others, such
      as a README or sums beside the data, are counted in `files_passed_over` and named in the log.
      So are backups and unfinished downloads (`x~`, `#x#`, `.bak`, `.orig`, `.swp`, `.tmp`,
      `.part`, `.partial`, `.crdownload`), whatever `format` says; and, again in every epoch, a
      `.json` that is one object, such as dataset_infos.json, where there are no more of them than
      of data other than text.
    - tars: members that follow each other and have the same name up to its first dot are one
      sample. The rest of the name, in small letters, is the name of the field, which is bytes; with
      `dtype: "text"` text, with a numeric one (here, or in the batcher) the number that is written
      there. The field `__key__` is the name up to the dot. Sparse members come with their holes.
      What is of no sample (a name without a dot, a link, a device) is counted, `skipped_members`;
      directories are not. Tars that are joined (`cat a.tar b.tar`) are read one after the other. A
      damaged member costs its sample, which is counted once; if the damage does not say whose it
      was, the samples before and behind it go too, but for those that have all `fields`.
    - packing: told by the first bytes, not by the name. Members of a packed file follow each other,
      with zeros between them or not. Every checksum is compared; samples that had gone out by then
      are counted, `samples_in_doubt`, or none goes out with `verify: BEFORE`.
    - arrays: a row of the first axis is a sample, in the field `data`, or as the first of `fields`
      says. Strings are text, byte strings bytes, dates and times whole numbers in their unit; of
      records each member is a field, `outer.inner` in a record of a record, and `fields` chooses
      them. Pickled objects are refused.
    - zips of arrays (`.npz`): row i of all arrays together is a sample, each in the field of its
      name. All have the same length; `fields` chooses those that do. Members that are no `.npy` are
      passed over. Stored and deflated members are read, of any size.
    - tables: a row is a sample, a column a field of its type: a number, text or bytes. A list of
      numbers, or of such lists of one length, becomes an array; a member of a struct the field
      `struct.member`; a date or time a whole number in its unit; a decimal, and any other list or
      map, text, with JSON in it. A null is a field that is missing.
    - types: of JSON a string becomes text; a number int64, or float64; a boolean bool; an array of
      numbers, or of such arrays of one shape, an array; anything else text, with the JSON in it. A
      null is a field that is missing. NaN and infinities are numbers, as Python's `json` writes
      them (`strict` refuses them). Of members of one name the last one counts. A line of text
      becomes the field `text`. A byte order mark is no content.
    - conversion: whole numbers of any type become floats, or another type that holds them; floats
      of any type too, and whole ones (5.0) whole numbers; booleans 0 and 1. A finite number that
      would become infinite is out of range. Members that no field names have to be JSON, and no
      more.
    - order: files as they come in, or with `shuffle_files` in another order in every epoch, which
      follows from the seed. Lines come as in the file.
    - lanes: each reads parts of files, `block_bytes` long, in turn. A packed file cannot be taken
      apart, nor can a tar or a zip with deflated arrays: it is one part. A part of a table has the
      row groups that begin in it.
    - tables: Parquet, Arrow and CSV are read by Apache Arrow, which comes with ringfeed, whatever
      pyarrow is there.
    - lineage: a hash of the path, and a place: the byte of the file, as it is unpacked, where the
      line, the sample's first member or the row begins; of zips of arrays and of tables the number
      of the row. `ringfeed.lineage()` in Python finds the file and the place.
    - memory: about 100 bytes and the path for each file; in the process some megabytes a lane.
    - restart: reads the part that was under way again, from where it was. A packed file is unpacked
      up to there, and so are deflated arrays; of a table the row group is decoded again.
    - skips: files: `skipped_vanished`, `skipped_unreadable`, `skipped_changed` (it has become
      shorter since the epoch came to it), `skipped_damaged` (the rest of it, behind the fault; or a
      damaged member of a tar, or the rest of a row group), `skipped_unsupported` (a window beyond
      `window_bytes_max`, a dictionary that is not there), `skipped_trailing` (what lies behind the
      last member). Samples: `skipped_no_json` (or no object), `skipped_missing_field`,
      `skipped_wrong_type`, `skipped_too_large` (for the queue); if an array or a column is missing
      or no array is of the type, the whole file. Empty lines are passed over. Up to a MiB of rows
      before a fault in a deflated array, or 256 in a table, go with it. The checksum of a stored
      array is compared by the lane that reads its last rows, which reads it once more.
    - finite run: `epochs` passes over the files of the scan. An endless run begins anew when it has
      read all files, with those that have come since.

    Args:
        input: Where records come from: "stage" or "stage.port". Required.
        format: (default "BY_NAME") What the files hold. Default: their names say it. BY_NAME: By
            the ending, in small letters or large ones: `.jsonl`, `.jsonlines`, `.ndjson` and
            `.json`; `.txt` and `.text`; `.tar`, `.tgz`; `.npy`; `.npz`; `.parquet`, `.pq`;
            `.arrow`, `.feather`, `.ipc`; `.csv`, `.tsv`. Also before `.gz`, `.zst`, `.bz2` and
            `.xz`. Where the first bytes show one of the formats that begin with a mark of their
            own, they count and not the name. A `.json` whose first line is no object by itself is
            JSON; JSONL: Objects of JSON, one in each line; TEXT: Lines of text; TAR: A tar in
            WebDataset's grouping; NPY: An array of NumPy's; NPZ: Arrays of NumPy's, as savez() and
            savez_compressed() write them; PARQUET: A table; JSON: One document of JSON: an array,
            each element of which is a sample, or one object; ARROW: A table of Apache Arrow (IPC):
            a file, which Feather of version 2 is as well, or a stream; CSV: A table as text, a row
            a line; WHOLE_FILE: Pictures, sounds and the like: a file is a sample, packed or not.
            Its fields are `data`, bytes; `path`, text; and `folder`, text, the name of the
            directory that it lies in.
        fields: The fields to take, in this order; default: all, in the order of each object. A
            line, or a row, that lacks one of them is skipped, unless the field says otherwise.
        shuffle_files: (default False) Puts the files in another order in every epoch.
        block_bytes: (64 KiB to 1 GiB, default 8 MiB) Bytes of a part of a file that one lane reads
            before the next one's turn.
        line_bytes_max: (1 KiB to 1 GiB, default 64 MiB) The longest line, or element of a document,
            in bytes; longer ones are skipped (`skipped_too_large`). 1 KiB to 1 GiB. With a row of
            CSV that is longer the file ends (`skipped_damaged`).
        strict: (default False) A line of JSON with NaN, Infinity or -Infinity in it, wherever that
            is, is none (`skipped_no_json`).
        verify: (default "ALONG") When the checksums of packed files and of zips of arrays are
            compared. ALONG: As the file is read: damage is met behind some of its samples, which
            have gone out by then (`samples_in_doubt`); BEFORE: Before: files that have checksums
            are read twice, by one lane; of a damaged one nothing goes out.
        window_bytes_max: (1 MiB to 2 GiB, default 2 GiB) The most memory that unpacking a file may
            take in a lane: the window of Zstandard, rounded down to a power of two, and the
            dictionary of xz. Files that need more are skipped (`skipped_unsupported`).
        group: (default "NEIGHBOURS") Which members of one key are a sample. A key that comes again
            behind its sample is counted (`keys_again`) and said. NEIGHBOURS: Of a tar, those that
            follow each other; BY_KEY: Those of a tar that come within `group_window` samples.
        group_window: (1 to 16777216, default 65536) With BY_KEY: samples that wait for more of
            their members. When there are more, the first goes out. In memory are the names, and of
            a packed tar what the members hold, to 1 GiB.
        csv_delimiter: Of CSV: what stands between the cells, one character. Default: the comma, or,
            where the first line has none, the first of tab, `;` and `|` that it has.
        csv_names: (default True) Of CSV: the first row names the columns. Without, they are `f0`,
            `f1` and so on.
        threads: (1 to 64, default 1) Lanes, each a thread.
        queue_capacity: (1 to 1048576, default 4096) Records queued at each output, per ring (from
            one lane to one lane). For batches that trainers read, the number of slots of the feed,
            unless feed_output.slots gives it.
        queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill at
            most half of it. The default suits the record type; for batches that trainers read it is
            what the slots need.
        overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots are
            held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is dropped
            and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
        skip_limit: The feed stops, with the reasons, if this stage leaves out more than that of
            what it counts. Default: as much as `skip_limit` of the feed says, over all stages.
        name: Name of the stage; default: a sensible one.
    """
    return _call.stage("stage.sample_source", "sample_source", locals())


@_call.checked
def sample_shuffler(
    *,
    input: Pipeline,
    size: int | None = None,
    reservoir_bytes: int | str | None = None,
    queue_capacity: int | None = None,
    queue_bytes: int | str | None = None,
    overflow_behavior: settings.OverflowBehavior | None = None,
    name: str | None = None,
) -> Pipeline:
    """Shuffles samples in a reservoir: each one that comes in takes the place of one drawn at
    random, which goes out.

    - memory: as much as the samples take, in places a quarter larger at most.
    - restart: the reservoir stays as it is.
    - finite run: at the end of its input it puts out what it holds, in random order.

    Args:
        input: Where records come from: "stage" or "stage.port". Required.
        size: (1 to 1000000000, default 10000) Samples held.
        reservoir_bytes: (from 1 MiB) The most that they take together; a sample for which there is
            no room takes the place of others, which go out. Default: no limit but the machine's.
            From 1 MiB.
        queue_capacity: (1 to 1048576, default 256) Records queued at each output, per ring (from
            one lane to one lane). For batches that trainers read, the number of slots of the feed,
            unless feed_output.slots gives it.
        queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill at
            most half of it. The default suits the record type; for batches that trainers read it is
            what the slots need.
        overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots are
            held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is dropped
            and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
        name: Name of the stage; default: a sensible one.
    """
    return _call.stage("stage.sample_shuffler", "sample_shuffler", locals())


@_call.checked
def sample_batcher(
    *,
    input: Pipeline,
    batch_size: int,
    fields: settings.BatchFields | None = None,
    lineage: bool | None = None,
    queue_capacity: int | None = None,
    queue_bytes: int | str | None = None,
    overflow_behavior: settings.OverflowBehavior | None = None,
    name: str | None = None,
) -> Pipeline:
    """Stacks samples into batches, straight into the slots of the feed.

    - output: an array `[rows, shape...]` for each field. Text and bytes become two arrays: `NAME`,
      uint8, the bytes of all rows one after the other, and `NAME_offsets`, int64, rows + 1 numbers:
      row i is from offset i to offset i + 1.
    - types: a field of another type is converted where no value changes: whole numbers to others
      that hold them, and to floats up to 2^53 (float64) or 2^24 (float32), whole floats to
      integers, booleans to integers (0 and 1), text to bytes, bytes that are UTF-8 to text. An
      array without elements is JSON in a column of text. Floats are rounded to floats of another
      size.
    - skips: `skipped_missing_field`, `skipped_wrong_type` and `skipped_wrong_shape` say which
      field, what it has and what it should have; `skipped_too_large` is text or bytes beyond
      `bytes_max`.
    - restart: goes on with the batch under way.

    Args:
        input: Where records come from: "stage" or "stage.port". Required.
        batch_size: (1 to 1048576) Rows of a batch. Required.
        fields: The arrays, in this order; at least one.
        lineage: (default False) Adds the array `lineage`, uint64 `[rows, 2]`: where each row came
            from, as its source says it.
        queue_capacity: (1 to 1048576, default 8) Records queued at each output, per ring (from one
            lane to one lane). For batches that trainers read, the number of slots of the feed,
            unless feed_output.slots gives it.
        queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill at
            most half of it. The default suits the record type; for batches that trainers read it is
            what the slots need.
        overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots are
            held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is dropped
            and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
        name: Name of the stage; default: a sensible one.
    """
    return _call.stage("stage.sample_batcher", "sample_batcher", locals())


@_call.checked
def index_source(
    *,
    count: int,
    order: settings.IndexSourceOrder | None = None,
    samples: int | None = None,
    weights: str | PathLike[str] | None = None,
    queue_capacity: int | None = None,
    queue_bytes: int | str | None = None,
    overflow_behavior: settings.OverflowBehavior | None = None,
    name: str | None = None,
) -> Pipeline:
    """Gives the numbers of a dataset's items, 0 to `count` - 1, for a stage that looks them up.
    Each sample has one field, `index`, int64.

    - order: a function of the seed, the epoch and the place in it: nothing is kept, and nothing is
      shuffled beforehand.
    - memory: 8 bytes an item in the process with WEIGHTED, else none.
    - finite run: `epochs` passes.

    Args:
        count: (1 to 4294967295) Items of the dataset. Required.
        order: (default "IN_ORDER") IN_ORDER; SHUFFLED: each item once, in another order in every
            epoch; WEIGHTED: drawn with replacement, as often as `weights` say.
        samples: (1 to 281474976710656) Samples of an epoch. Default: `count`. With more, IN_ORDER
            and SHUFFLED begin anew.
        weights: With WEIGHTED: a .npy file of float64 or float32, a weight for each item, 0 and
            more. Their sum need not be 1.
        queue_capacity: (1 to 1048576, default 1024) Records queued at each output, per ring (from
            one lane to one lane). For batches that trainers read, the number of slots of the feed,
            unless feed_output.slots gives it.
        queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill at
            most half of it. The default suits the record type; for batches that trainers read it is
            what the slots need.
        overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots are
            held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is dropped
            and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
        name: Name of the stage; default: a sensible one.
    """
    return _call.stage("stage.index_source", "index_source", locals())


@_call.checked
def sample_mixer(
    *,
    input: Pipeline | Sequence[Pipeline],
    weight: float | Sequence[float] | None = None,
    end: settings.SampleMixerEnd | None = None,
    end_with: Pipeline | None = None,
    queue_capacity: int | None = None,
    queue_bytes: int | str | None = None,
    overflow_behavior: settings.OverflowBehavior | None = None,
    name: str | None = None,
) -> Pipeline:
    """Mixes the samples of several inputs: `input: "a" input: "b" weight: 3 weight: 1`. Which
    input gives the next sample is drawn, as likely as the weights say, and does not depend on which
    is quicker: the slowest one sets the pace.

    - counts: `samples_NAME`: samples of each input.
    - the end: with the first input that ends, with the last, or with a certain one; before that,
      inputs that have ended are left out, and the others keep their proportions. What they still
      have at the end is not used.

    Args:
        input: Where samples come from, each as "stage" or "stage.port". At least one, at most 64.
        weight: A weight for each input, 0 and more; their sum need not be 1. Default: all the same.
        end: (default "FIRST") Whose end is the end of the mixture. FIRST; LAST.
        end_with: Instead of `end`: the mixture ends with this input, written as in `input`.
        queue_capacity: (1 to 1048576, default 256) Records queued at each output, per ring (from
            one lane to one lane). For batches that trainers read, the number of slots of the feed,
            unless feed_output.slots gives it.
        queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill at
            most half of it. The default suits the record type; for batches that trainers read it is
            what the slots need.
        overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots are
            held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is dropped
            and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
        name: Name of the stage; default: a sensible one.
    """
    return _call.stage("stage.sample_mixer", "sample_mixer", locals())


@_call.checked
def python(
    *,
    input: Pipeline,
    object: str | Callable[..., object],
    options: Mapping[str, object] | str | None = None,
    processes: int | None = None,
    max_processes: int | None = None,
    batch: int | None = None,
    interpreter: str | PathLike[str] | None = None,
    python_path: str | PathLike[str] | Sequence[str | PathLike[str]] | None = None,
    on_error: settings.PythonOnError | None = None,
    queue_capacity: int | None = None,
    queue_bytes: int | str | None = None,
    overflow_behavior: settings.OverflowBehavior | None = None,
    name: str | None = None,
) -> Pipeline:
    """Gives each sample to a Python function, and puts out what comes back: a sample, none, or
    several.

    - processes: each lane is a process of its own, with an interpreter of its own.
    - order: samples come out in the order in which they came in, whatever the number of processes.
    - chance: `ctx.rng`, and the generators of `random`, NumPy and PyTorch, are seeded for each
      sample from the feed's seed, the stage and the sample's lineage: what is done again draws the
      same.
    - exceptions: the sample is left out and counted by the type of the exception
      (`skipped_ValueError`, ...; `skipped_other_exceptions`). The log has the first traceback of
      each type. With `on_error: STOP` the feed ends, and trainers get the traceback.
    - death: a sample that kills its process `restart.max_attempts` times is set aside.
    - output: what is printed comes out as lines of the worker's log.

    Args:
        input: Where records come from: "stage" or "stage.port". Required.
        object: What to call: "module:name", a function or a class, or "pickle:PATH", a file that
            cloudpickle wrote. A class is made once in each process. Required.
        options: Keyword arguments of the class, or of a function that makes the function, as a JSON
            object.
        processes: (1 to 64, default 1)
        max_processes: (1 to 64) The most that `ringfeed scale` may give it while it runs; default:
            `processes`.
        batch: (1 to 4096, default 64) Samples that the function gets at once, at most.
        interpreter: The Python that runs it, as a path. Default: the one that runs `ringfeed`, else
            that of the active virtual environment, else `python3` of PATH. It must have the package
            ringfeed.
        python_path: Directories where modules are looked for first.
        on_error: (default "SKIP") What an exception of the object means. SKIP: leave the sample
            out, count it; STOP: end the feed.
        queue_capacity: (1 to 1048576, default 256) Records queued at each output, per ring (from
            one lane to one lane). For batches that trainers read, the number of slots of the feed,
            unless feed_output.slots gives it.
        queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill at
            most half of it. The default suits the record type; for batches that trainers read it is
            what the slots need.
        overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots are
            held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is dropped
            and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
        name: Name of the stage; default: a sensible one.
    """
    return _call.stage("stage.python", "python", locals())


@_call.checked
def python_source(
    *,
    object: str,
    options: Mapping[str, object] | str | None = None,
    batch: int | None = None,
    interpreter: str | PathLike[str] | None = None,
    python_path: str | PathLike[str] | Sequence[str | PathLike[str]] | None = None,
    on_error: settings.PythonSourceOnError | None = None,
    state: settings.PythonSourceState | None = None,
    queue_capacity: int | None = None,
    queue_bytes: int | str | None = None,
    overflow_behavior: settings.OverflowBehavior | None = None,
    skip_limit: settings.SkipLimit | Mapping[str, object] | None = None,
    name: str | None = None,
) -> Pipeline:
    """Samples that an object in Python gives: a class with `read(self, cursor)`, or anything that
    can be iterated over.

    - cursors: `read` yields each sample with a cursor, at most 4 KiB, from which it can go on in
      another process. An object with `state_dict()` and `load_state_dict()` (of Hugging Face
      datasets, torchdata) needs none, if its state is exact, see `state`. Anything else is read
      again from the start of the epoch after a death, up to where it was.
    - process: one, with an interpreter of its own.
    - exceptions: a sample that cannot be taken is left out and counted (`skipped_TypeError`, ...).
      If the object itself raises, it is begun again behind the last sample; three times in a row
      end the feed.
    - finite run: `epochs` passes. An endless run begins anew when the object has given all it has.
    - restart: goes on behind the last sample that was put out; nothing is lost or repeated.

    Args:
        object: What gives samples: "module:name", a class or a function that returns an iterable,
            or "pickle:PATH", a file that cloudpickle wrote. Required.
        options: Keyword arguments of the class or function, as a JSON object.
        batch: (1 to 4096, default 64) Samples that one step takes, at most.
        interpreter: The Python that runs it, as a path. Default: the one that runs `ringfeed`, else
            that of the active virtual environment, else `python3` of PATH. It must have the package
            ringfeed.
        python_path: Directories where modules are looked for first.
        on_error: (default "SKIP") What a sample that cannot be taken means, or an exception of the
            object. SKIP: leave the sample out, count it; STOP: end the feed.
        state: (default "VERIFY") What `state_dict()` of the object is worth after a death. One that
            is known to leave samples out, as Hugging Face's with a shuffle buffer, is never used.
            VERIFY: used if the next samples are those that had come, else RUN_FORWARD; EXACT: used
            as it is; RUN_FORWARD: not used: the epoch is read again up to where it was.
        queue_capacity: (1 to 1048576, default 256) Records queued at each output, per ring (from
            one lane to one lane). For batches that trainers read, the number of slots of the feed,
            unless feed_output.slots gives it.
        queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill at
            most half of it. The default suits the record type; for batches that trainers read it is
            what the slots need.
        overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots are
            held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is dropped
            and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
        skip_limit: The feed stops, with the reasons, if this stage leaves out more than that of
            what it counts. Default: as much as `skip_limit` of the feed says, over all stages.
        name: Name of the stage; default: a sensible one.
    """
    return _call.stage("stage.python_source", "python_source", locals())


@_call.checked
def remote_files(
    *,
    cache: str | PathLike[str],
    url: str | Sequence[str] | None = None,
    list: str | PathLike[str] | Sequence[str | PathLike[str]] | None = None,
    cache_bytes: int | str | None = None,
    storage_options: Mapping[str, object] | str | None = None,
    interpreter: str | PathLike[str] | None = None,
    python_path: str | PathLike[str] | Sequence[str | PathLike[str]] | None = None,
    fetches: int | None = None,
    look_again_s: float | None = None,
    give_up_after_s: float | None = None,
    queue_capacity: int | None = None,
    queue_bytes: int | str | None = None,
    overflow_behavior: settings.OverflowBehavior | None = None,
    name: str | None = None,
) -> Pipeline:
    """Names and fetches the objects of a store: S3, GCS, Azure, a web server. It reads whatever
    fsspec reads, and names the paths of copies in a cache on this host. It stands where a
    file_path_provider stands; a file_path_provider that is given a URL becomes this stage.

    - order: objects of the lists, then pattern by pattern in the order of names; then it marks the
      end of the listing. In an endless run the store is listed again every `look_again_s`: objects
      that are new or have changed are added.
    - cache: shared by all feeds of the host that give the same directory; an object is fetched
      once. Its limit may be smaller than the data: a copy that has gone is fetched again for
      whoever opens it. `sample_source` and `chunk_source_loader` ask for copies that are not there.
    - faults: a store that cuts, stalls, lets nobody in or answers 429 or 5xx is tried again, until
      `give_up_after_s`, and an object goes on where it was cut. One that the store says is gone is
      logged (`given_up`), and counted by its reader (`skipped_vanished`). A full disk is waited
      for.
    - memory: about 150 bytes per object in the arena, about 1 KB in the process.
    - process: one, with an interpreter of its own, until the feed ends: it answers readers.
    - needs: `pip install 'ringfeed[remote]'`, and s3fs, gcsfs or adlfs for these stores. Keys are
      looked for where these libraries look: environment, files, the machine's role.
    - finite run: the store is listed once. If that fails, the feed ends with the reason.
    - restart: the store is listed again and compared with what was output; nothing is repeated.

    Args:
        url: What to read: objects ("s3://bucket/a.jsonl.zst"), patterns
            ("s3://bucket/data/**/*.jsonl.zst", "https://host/part-{000..146}.tar"), or everything
            below a directory, with "/" at the end. Required, unless there is a list.
        list: Text files with a URL in each line; their objects come first. Paths, or URLs.
        cache: Directory of the cache; made if it is not there. Required.
        cache_bytes: (from 1 MiB) Limit of the cache, in bytes; if feeds that share it give
            different ones, each keeps to its own. Required: no default can know what else the disk
            is for.
        storage_options: What fsspec passes to the file system of a store, as a JSON object; with
            several protocols by protocol: '{"s3": {"endpoint_url": "https://…"}}'. Not for keys:
            the configuration is no secret.
        interpreter: The Python that runs it, as a path. Default: the one that runs `ringfeed`, else
            that of the active virtual environment, else `python3` of PATH. It must have the package
            ringfeed.
        python_path: Directories where modules are looked for first.
        fetches: (1 to 256, default 8) Objects that are fetched at the same time.
        look_again_s: (0.1 to 86400, default 60) In an endless run: seconds from one listing to the
            next.
        give_up_after_s: (0.1 to 31536000) Seconds for which a store that is away is waited for;
            then the feed ends with the reason. Default: for ever.
        queue_capacity: (1 to 1048576, default 16) Records queued at each output, per ring (from one
            lane to one lane). For batches that trainers read, the number of slots of the feed,
            unless feed_output.slots gives it.
        queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill at
            most half of it. The default suits the record type; for batches that trainers read it is
            what the slots need.
        overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots are
            held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is dropped
            and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
        name: Name of the stage; default: a sensible one.
    """
    return _call.stage("stage.remote_files", "remote_files", locals())


@_call.checked
def python_batcher(
    *,
    input: Pipeline,
    object: str | Callable[..., object],
    batch_size: int,
    options: Mapping[str, object] | str | None = None,
    fields: settings.BatchFields | None = None,
    lineage: bool | None = None,
    interpreter: str | PathLike[str] | None = None,
    python_path: str | PathLike[str] | Sequence[str | PathLike[str]] | None = None,
    on_error: settings.PythonBatcherOnError | None = None,
    queue_capacity: int | None = None,
    queue_bytes: int | str | None = None,
    overflow_behavior: settings.OverflowBehavior | None = None,
    name: str | None = None,
) -> Pipeline:
    """Makes batches with a Python function: a collate function of one's own. It gets `batch_size`
    samples and returns a mapping from names to arrays `[rows, shape...]`, or writes them to the
    arrays that it is handed as `out`, which lie in the slot of the feed.

    - object: what `@stage.batch` or `stage.Batch` of `ringfeed.stage` marks.
    - output: an array `[rows, shape...]` for each field. Text and bytes, which the function returns
      as a list with a `str` or `bytes` for each row, become two arrays: `NAME`, uint8, the bytes of
      all rows one after the other, and `NAME_offsets`, int64, rows + 1 numbers. They have
      `bytes_max` at most.
    - order: samples are in batches in the order in which they came in; the last batch of a finite
      run may have fewer rows, as the feed's `drop_remainder` says.
    - chance: `ctx.rng`, and the generators of `random`, NumPy and PyTorch, are seeded for each
      batch from the feed's seed, the stage and the lineage of its samples: what is done again draws
      the same.
    - exceptions: the samples are given to the function one by one. Those for which it raises alone
      are left out and counted by the type of the exception (`skipped_ValueError`, ...), and the
      batch is filled up. If it raises for none alone, all samples of the batch are left out. With
      `on_error: STOP` the feed ends, and trainers get the traceback. An array that is not as its
      field says is treated in the same way: `skipped_missing_field`, `skipped_wrong_type`,
      `skipped_wrong_shape`, `skipped_too_large`.
    - death: the samples are given to the function one by one, and what comes of that is not used.
      One that kills its process `restart.max_attempts` times is set aside, and the batch is filled
      up. A batch that kills it so often, and none of its samples alone, is set aside whole.
    - process: one, with an interpreter of its own. What can be done sample by sample is done by
      several in a stage `python` before.
    - memory: the samples of a batch, in the arena.
    - restart: goes on with the samples that it has.

    Args:
        input: Where records come from: "stage" or "stage.port". Required.
        object: What to call: "module:name", a function or a class, or "pickle:PATH", a file that
            cloudpickle wrote. A class is made once in each process. Required.
        options: Keyword arguments of the class, or of the function, as a JSON object.
        batch_size: (1 to 1048576) Samples of a batch, which are its rows. Required.
        fields: The arrays, in this order; at least one.
        lineage: (default False) Adds the array `lineage`, uint64 `[rows, 2]`: where each row came
            from, as its source says it.
        interpreter: The Python that runs it, as a path. Default: the one that runs `ringfeed`, else
            that of the active virtual environment, else `python3` of PATH. It must have the package
            ringfeed.
        python_path: Directories where modules are looked for first.
        on_error: (default "SKIP") What an exception of the object means. SKIP: leave samples out,
            count them; STOP: end the feed.
        queue_capacity: (1 to 1048576, default 8) Records queued at each output, per ring (from one
            lane to one lane). For batches that trainers read, the number of slots of the feed,
            unless feed_output.slots gives it.
        queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill at
            most half of it. The default suits the record type; for batches that trainers read it is
            what the slots need.
        overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots are
            held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is dropped
            and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
        name: Name of the stage; default: a sensible one.
    """
    return _call.stage("stage.python_batcher", "python_batcher", locals())


@_call.checked
def dataset_batcher(
    *,
    parent_socket: str | PathLike[str],
    processes: int | None = None,
    planned: bool | None = None,
    queue_capacity: int | None = None,
    queue_bytes: int | str | None = None,
    overflow_behavior: settings.OverflowBehavior | None = None,
    name: str | None = None,
) -> Pipeline:
    """Makes the batches that a trainer asks for, out of a dataset that lives in the trainer's
    process. It is the only stage of the feeds that `ringfeed.torch.DataLoader` starts; nobody
    writes it by hand.

    - requests: the trainer writes them into memory that it shares with the stage's processes
      (ringfeed/shm/requests.h), each for one batch of the feed. A request stays there until the
      trainer has the batch.
    - processes: each lane is a process, forked by a warm parent that the trainer has started. It
      has the dataset as it was then.
    - output: `head`, uint64 `[16]`: where the batch lies in memory that the trainer shares with the
      processes, as ringfeed.torch writes and reads it.
    - chance: the states of the generators of `random`, NumPy and PyTorch are committed with each
      batch, so that what is done again draws the same.
    - death: the batch is made again. A sample that kills its process `restart.max_attempts` times
      becomes an error of its batch, or is left out.
    - memory: what the dataset says of its state, twice.

    Args:
        processes: (1 to 256, default 1) Workers of the trainer's loader, each a process.
        parent_socket: Absolute path of the socket on which the warm parent listens. Required.
        planned: (default False) For several trainers: batches follow a plan that the workers know,
            as far as the warm parent has said, and not one trainer's requests.
        queue_capacity: (1 to 1048576, default 8) Records queued at each output, per ring (from one
            lane to one lane). For batches that trainers read, the number of slots of the feed,
            unless feed_output.slots gives it.
        queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill at
            most half of it. The default suits the record type; for batches that trainers read it is
            what the slots need.
        overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots are
            held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is dropped
            and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
        name: Name of the stage; default: a sensible one.
    """
    return _call.stage("stage.dataset_batcher", "dataset_batcher", locals())


@_call.checked
def plugin(
    *,
    input: Pipeline | Sequence[Pipeline],
    kind: str,
    options: Mapping[str, object] | str | None = None,
    threads: int | None = None,
    queue_capacity: int | None = None,
    queue_bytes: int | str | None = None,
    overflow_behavior: settings.OverflowBehavior | None = None,
    max_threads: int | None = None,
    name: str | None = None,
) -> Pipeline:
    """A stage that ringfeed itself does not have: that of a plug-in, a worker program which
    `worker` (or `ringfeed run --worker`) names.

    `ringfeed stages --worker PATH` lists the kinds of a plug-in, and `ringfeed stages KIND --worker
    PATH` shows the options of one. Ports, lanes and memory are as the plug-in says.

    - options: `ringfeed check` refuses an option that the kind does not declare, and a value
      outside of its range.
    - inputs: a stage with several gets them in the order in which `input` is given.

    Args:
        input: Where records come from: "stage" or "stage.port". Required. One for each input of the
            stage.
        kind: Name of the kind of stage, as the plug-in declares it. Required.
        options: The options of the kind, as a JSON object: '{"min_words": 20}'. Default: none are
            given.
        threads: (1 to 64, default 1) Lanes, each a thread.
        queue_capacity: (1 to 1048576, default 256) Records queued at each output, per ring (from
            one lane to one lane). For batches that trainers read, the number of slots of the feed,
            unless feed_output.slots gives it.
        queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill at
            most half of it. The default suits the record type; for batches that trainers read it is
            what the slots need.
        overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots are
            held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is dropped
            and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
        max_threads: (1 to 64) The most lanes that `ringfeed scale` may give it while it runs;
            default: the number of threads. Room for their queues is set aside at the start.
        name: Name of the stage; default: a sensible one.
    """
    return _call.stage("stage.plugin", "plugin", locals())
