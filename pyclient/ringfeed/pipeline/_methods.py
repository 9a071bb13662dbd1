"""The methods of pipelines, and the functions where they begin.

Written by scripts/reference from proto/, where each setting is explained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING

from . import _call, settings

if TYPE_CHECKING:
    from ._build import Feed, Output, Pipeline

__all__ = ["feed", "files", "indices", "mix"]


@_call.checked
def files(
    *pattern: str | PathLike[str],
    directory: str | PathLike[str] | None = None,
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

    A stage `file_path_provider`.

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
        *pattern: Paths of the files to find, as patterns of a shell: "/data/c4/**/*.jsonl.zst".
            `*`, `?` and `[a-f]` stand for characters of a name, `**` for any directories,
            `{jpg,png}` and `{000..146}` for each of these. Below `directory`, if that is given and
            the pattern does not begin with a slash; else below the directory where `ringfeed` is
            called. Default: every file below `directory`.
        directory: Directory to search, with everything below it. Names that begin with a dot are
            ignored. While it does not exist, an endless run waits for it. Or the URL of a store,
            see remote_files. Required, unless there is a pattern or a list.
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
    return _call.stage("files", "file_path_provider", locals(), suggested="files")


@_call.checked
def indices(
    count: int,
    *,
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

    A stage `index_source`.

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
    return _call.stage("indices", "index_source", locals(), suggested="indices")


@_call.checked
def mix(
    *inputs: Pipeline,
    weights: float | Sequence[float] | None = None,
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

    A stage `sample_mixer`.

    - counts: `samples_NAME`: samples of each input.
    - the end: with the first input that ends, with the last, or with a certain one; before that,
      inputs that have ended are left out, and the others keep their proportions. What they still
      have at the end is not used.

    Args:
        *inputs: Where samples come from, each as "stage" or "stage.port". At least one, at most 64.
        weights: A weight for each input, 0 and more; their sum need not be 1. Default: all the
            same.
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
    return _call.stage(
        "mix",
        "sample_mixer",
        locals(),
        suggested="mixed",
        called={"weight": "weights", "input": "inputs"},
    )


@_call.checked
def feed(
    name: str,
    *outputs: Pipeline | Output,
    seed: int | None = None,
    epochs: int | None = None,
    drop_remainder: bool | None = None,
    from_batch: int | None = None,
    stage_groups: settings.StageGroups | None = None,
    storage: settings.Storage | Mapping[str, object] | None = None,
    restart: settings.Restart | Mapping[str, object] | None = None,
    log: settings.Log | Mapping[str, object] | None = None,
    control: settings.Control | Mapping[str, object] | None = None,
    shutdown: settings.Shutdown | Mapping[str, object] | None = None,
    snapshot: settings.Snapshot | Mapping[str, object] | None = None,
    skip_limit: settings.SkipLimit | Mapping[str, object] | None = None,
    http: settings.Http | Mapping[str, object] | None = None,
    worker: str | PathLike[str] | None = None,
) -> Feed:
    """Make a feed, whose batches trainers read. It can be saved, checked and started.

    Args:
        name: Name of the feed, which trainers and the command line use to find it. 1 to 64
            characters from A-Z a-z 0-9 _ . -, none of the last two at the beginning; default: the
            name of the file without its extension.
        *outputs: What trainers read: pipelines that end with batches, or output() of them.
        seed: Seed of all random numbers. The same seed, the same data and ORDERED dispatch give the
            same batches. Default: drawn when the feed starts, and shown by `ringfeed status`.
        epochs: (0 to 65535, default 0) Number of passes over the data. 0: endless, new files are
            used as they appear. N > 0: a finite run; the provider ends after its first scan, each
            chunk is used N times, then the feed closes. Default 0.
        drop_remainder: (default False) In a finite run: true drops the last batch if it is not
            full, false delivers it short.
        from_batch: (1 to 1099511627775, default 1) Number of the first batch, from 1; earlier
            batches are not made. Needs batches that are planned ahead (epoch_planner) and dispatch
            ORDERED; any other feed resumes from a snapshot instead. Usually given as `ringfeed run
            --from-batch`, to continue training after a feed was lost. Batches have the content and
            numbers that they have in a feed that begins with batch 1.
        stage_groups: Which stages share a process. Default: the supervisor groups them by weight
            and cores. If given, every stage must be in exactly one group.
        storage: where shared memory is, and its maximum size
        restart: what happens after the death of a process
        log: what is logged, and where
        control: where the control socket is
        shutdown: how long a shutdown may take
        snapshot: snapshots that the feed takes by itself
        skip_limit: The feed stops, with the reasons, if more samples are left out than that, over
            all its stages; files, chunks and games, which some of them count, each for themselves.
            Default: it goes on, and warns of a share of 1 %. Stages that read data may have limits
            of their own.
        http: a page in the browser, and metrics for Prometheus
        worker: The program that runs the stages: a plug-in, which has stages of its own beside
            those of ringfeed (docs/plugins.md). Usually given as `ringfeed run --worker`. Default:
            ringfeed-worker beside ringfeed, else $RINGFEED_WORKER, else from PATH.
    """
    return _call.feed(outputs, locals())


class FeedMethods:
    """What becomes a feed."""

    __slots__ = ()

    @_call.checked
    def feed(
        self,
        name: str,
        *,
        seed: int | None = None,
        epochs: int | None = None,
        drop_remainder: bool | None = None,
        from_batch: int | None = None,
        stage_groups: settings.StageGroups | None = None,
        storage: settings.Storage | Mapping[str, object] | None = None,
        restart: settings.Restart | Mapping[str, object] | None = None,
        log: settings.Log | Mapping[str, object] | None = None,
        control: settings.Control | Mapping[str, object] | None = None,
        shutdown: settings.Shutdown | Mapping[str, object] | None = None,
        snapshot: settings.Snapshot | Mapping[str, object] | None = None,
        skip_limit: settings.SkipLimit | Mapping[str, object] | None = None,
        http: settings.Http | Mapping[str, object] | None = None,
        worker: str | PathLike[str] | None = None,
    ) -> Feed:
        """Make a feed, whose batches trainers read. It can be saved, checked and started.

        Args:
            name: Name of the feed, which trainers and the command line use to find it. 1 to 64
                characters from A-Z a-z 0-9 _ . -, none of the last two at the beginning; default:
                the name of the file without its extension.
            seed: Seed of all random numbers. The same seed, the same data and ORDERED dispatch give
                the same batches. Default: drawn when the feed starts, and shown by `ringfeed
                status`.
            epochs: (0 to 65535, default 0) Number of passes over the data. 0: endless, new files
                are used as they appear. N > 0: a finite run; the provider ends after its first
                scan, each chunk is used N times, then the feed closes. Default 0.
            drop_remainder: (default False) In a finite run: true drops the last batch if it is not
                full, false delivers it short.
            from_batch: (1 to 1099511627775, default 1) Number of the first batch, from 1; earlier
                batches are not made. Needs batches that are planned ahead (epoch_planner) and
                dispatch ORDERED; any other feed resumes from a snapshot instead. Usually given as
                `ringfeed run --from-batch`, to continue training after a feed was lost. Batches
                have the content and numbers that they have in a feed that begins with batch 1.
            stage_groups: Which stages share a process. Default: the supervisor groups them by
                weight and cores. If given, every stage must be in exactly one group.
            storage: where shared memory is, and its maximum size
            restart: what happens after the death of a process
            log: what is logged, and where
            control: where the control socket is
            shutdown: how long a shutdown may take
            snapshot: snapshots that the feed takes by itself
            skip_limit: The feed stops, with the reasons, if more samples are left out than that,
                over all its stages; files, chunks and games, which some of them count, each for
                themselves. Default: it goes on, and warns of a share of 1 %. Stages that read data
                may have limits of their own.
            http: a page in the browser, and metrics for Prometheus
            worker: The program that runs the stages: a plug-in, which has stages of its own beside
                those of ringfeed (docs/plugins.md). Usually given as `ringfeed run --worker`.
                Default: ringfeed-worker beside ringfeed, else $RINGFEED_WORKER, else from PATH.
        """
        return _call.feed((self,), locals())


class PipelineMethods(FeedMethods):
    """The stages that can follow."""

    __slots__ = ()

    @_call.checked
    def read(
        self,
        *,
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
        """Reads files into samples: lines of JSON (JSONL) or of text, tars of samples as
        WebDataset has them, both packed with gzip, Zstandard, bzip2 or xz or not; NumPy's arrays;
        tables of Parquet.

        A stage `sample_source`.

        - input: paths of files. By `format` BY_NAME those are read whose ending is known; others,
          such as a README or sums beside the data, are counted in `files_passed_over` and named in
          the log. So are backups and unfinished downloads (`x~`, `#x#`, `.bak`, `.orig`, `.swp`,
          `.tmp`, `.part`, `.partial`, `.crdownload`), whatever `format` says; and, again in every
          epoch, a `.json` that is one object, such as dataset_infos.json, where there are no more
          of them than of data other than text.
        - tars: members that follow each other and have the same name up to its first dot are one
          sample. The rest of the name, in small letters, is the name of the field, which is bytes;
          with `dtype: "text"` text, with a numeric one (here, or in the batcher) the number that is
          written there. The field `__key__` is the name up to the dot. Sparse members come with
          their holes. What is of no sample (a name without a dot, a link, a device) is counted,
          `skipped_members`; directories are not. Tars that are joined (`cat a.tar b.tar`) are read
          one after the other. A damaged member costs its sample, which is counted once; if the
          damage does not say whose it was, the samples before and behind it go too, but for those
          that have all `fields`.
        - packing: told by the first bytes, not by the name. Members of a packed file follow each
          other, with zeros between them or not. Every checksum is compared; samples that had gone
          out by then are counted, `samples_in_doubt`, or none goes out with `verify: BEFORE`.
        - arrays: a row of the first axis is a sample, in the field `data`, or as the first of
          `fields` says. Strings are text, byte strings bytes, dates and times whole numbers in
          their unit; of records each member is a field, `outer.inner` in a record of a record, and
          `fields` chooses them. Pickled objects are refused.
        - zips of arrays (`.npz`): row i of all arrays together is a sample, each in the field of
          its name. All have the same length; `fields` chooses those that do. Members that are no
          `.npy` are passed over. Stored and deflated members are read, of any size.
        - tables: a row is a sample, a column a field of its type: a number, text or bytes. A list
          of numbers, or of such lists of one length, becomes an array; a member of a struct the
          field `struct.member`; a date or time a whole number in its unit; a decimal, and any other
          list or map, text, with JSON in it. A null is a field that is missing.
        - types: of JSON a string becomes text; a number int64, or float64; a boolean bool; an array
          of numbers, or of such arrays of one shape, an array; anything else text, with the JSON in
          it. A null is a field that is missing. NaN and infinities are numbers, as Python's `json`
          writes them (`strict` refuses them). Of members of one name the last one counts. A line of
          text becomes the field `text`. A byte order mark is no content.
        - conversion: whole numbers of any type become floats, or another type that holds them;
          floats of any type too, and whole ones (5.0) whole numbers; booleans 0 and 1. A finite
          number that would become infinite is out of range. Members that no field names have to be
          JSON, and no more.
        - order: files as they come in, or with `shuffle_files` in another order in every epoch,
          which follows from the seed. Lines come as in the file.
        - lanes: each reads parts of files, `block_bytes` long, in turn. A packed file cannot be
          taken apart, nor can a tar or a zip with deflated arrays: it is one part. A part of a
          table has the row groups that begin in it.
        - tables: Parquet, Arrow and CSV are read by Apache Arrow, which comes with ringfeed,
          whatever pyarrow is there.
        - lineage: a hash of the path, and a place: the byte of the file, as it is unpacked, where
          the line, the sample's first member or the row begins; of zips of arrays and of tables the
          number of the row. `ringfeed.lineage()` in Python finds the file and the place.
        - memory: about 100 bytes and the path for each file; in the process some megabytes a lane.
        - restart: reads the part that was under way again, from where it was. A packed file is
          unpacked up to there, and so are deflated arrays; of a table the row group is decoded
          again.
        - skips: files: `skipped_vanished`, `skipped_unreadable`, `skipped_changed` (it has become
          shorter since the epoch came to it), `skipped_damaged` (the rest of it, behind the fault;
          or a damaged member of a tar, or the rest of a row group), `skipped_unsupported` (a window
          beyond `window_bytes_max`, a dictionary that is not there), `skipped_trailing` (what lies
          behind the last member). Samples: `skipped_no_json` (or no object),
          `skipped_missing_field`, `skipped_wrong_type`, `skipped_too_large` (for the queue); if an
          array or a column is missing or no array is of the type, the whole file. Empty lines are
          passed over. Up to a MiB of rows before a fault in a deflated array, or 256 in a table, go
          with it. The checksum of a stored array is compared by the lane that reads its last rows,
          which reads it once more.
        - finite run: `epochs` passes over the files of the scan. An endless run begins anew when it
          has read all files, with those that have come since.

        Args:
            format: (default "BY_NAME") What the files hold. Default: their names say it. BY_NAME:
                By the ending, in small letters or large ones: `.jsonl`, `.jsonlines`, `.ndjson` and
                `.json`; `.txt` and `.text`; `.tar`, `.tgz`; `.npy`; `.npz`; `.parquet`, `.pq`;
                `.arrow`, `.feather`, `.ipc`; `.csv`, `.tsv`. Also before `.gz`, `.zst`, `.bz2` and
                `.xz`. Where the first bytes show one of the formats that begin with a mark of their
                own, they count and not the name. A `.json` whose first line is no object by itself
                is JSON; JSONL: Objects of JSON, one in each line; TEXT: Lines of text; TAR: A tar
                in WebDataset's grouping; NPY: An array of NumPy's; NPZ: Arrays of NumPy's, as
                savez() and savez_compressed() write them; PARQUET: A table; JSON: One document of
                JSON: an array, each element of which is a sample, or one object; ARROW: A table of
                Apache Arrow (IPC): a file, which Feather of version 2 is as well, or a stream; CSV:
                A table as text, a row a line; WHOLE_FILE: Pictures, sounds and the like: a file is
                a sample, packed or not. Its fields are `data`, bytes; `path`, text; and `folder`,
                text, the name of the directory that it lies in.
            fields: The fields to take, in this order; default: all, in the order of each object. A
                line, or a row, that lacks one of them is skipped, unless the field says otherwise.
            shuffle_files: (default False) Puts the files in another order in every epoch.
            block_bytes: (64 KiB to 1 GiB, default 8 MiB) Bytes of a part of a file that one lane
                reads before the next one's turn.
            line_bytes_max: (1 KiB to 1 GiB, default 64 MiB) The longest line, or element of a
                document, in bytes; longer ones are skipped (`skipped_too_large`). 1 KiB to 1 GiB.
                With a row of CSV that is longer the file ends (`skipped_damaged`).
            strict: (default False) A line of JSON with NaN, Infinity or -Infinity in it, wherever
                that is, is none (`skipped_no_json`).
            verify: (default "ALONG") When the checksums of packed files and of zips of arrays are
                compared. ALONG: As the file is read: damage is met behind some of its samples,
                which have gone out by then (`samples_in_doubt`); BEFORE: Before: files that have
                checksums are read twice, by one lane; of a damaged one nothing goes out.
            window_bytes_max: (1 MiB to 2 GiB, default 2 GiB) The most memory that unpacking a file
                may take in a lane: the window of Zstandard, rounded down to a power of two, and the
                dictionary of xz. Files that need more are skipped (`skipped_unsupported`).
            group: (default "NEIGHBOURS") Which members of one key are a sample. A key that comes
                again behind its sample is counted (`keys_again`) and said. NEIGHBOURS: Of a tar,
                those that follow each other; BY_KEY: Those of a tar that come within `group_window`
                samples.
            group_window: (1 to 16777216, default 65536) With BY_KEY: samples that wait for more of
                their members. When there are more, the first goes out. In memory are the names, and
                of a packed tar what the members hold, to 1 GiB.
            csv_delimiter: Of CSV: what stands between the cells, one character. Default: the comma,
                or, where the first line has none, the first of tab, `;` and `|` that it has.
            csv_names: (default True) Of CSV: the first row names the columns. Without, they are
                `f0`, `f1` and so on.
            threads: (1 to 64, default 1) Lanes, each a thread.
            queue_capacity: (1 to 1048576, default 4096) Records queued at each output, per ring
                (from one lane to one lane). For batches that trainers read, the number of slots of
                the feed, unless feed_output.slots gives it.
            queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill
                at most half of it. The default suits the record type; for batches that trainers
                read it is what the slots need.
            overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots
                are held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is
                dropped and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
            skip_limit: The feed stops, with the reasons, if this stage leaves out more than that of
                what it counts. Default: as much as `skip_limit` of the feed says, over all stages.
            name: Name of the stage; default: a sensible one.
        """
        return _call.stage("read", "sample_source", locals(), suggested="samples")

    @_call.checked
    def map(
        self,
        object: str | Callable[..., object],
        *,
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

        A stage `python`.

        - processes: each lane is a process of its own, with an interpreter of its own.
        - order: samples come out in the order in which they came in, whatever the number of
          processes.
        - chance: `ctx.rng`, and the generators of `random`, NumPy and PyTorch, are seeded for each
          sample from the feed's seed, the stage and the sample's lineage: what is done again draws
          the same.
        - exceptions: the sample is left out and counted by the type of the exception
          (`skipped_ValueError`, ...; `skipped_other_exceptions`). The log has the first traceback
          of each type. With `on_error: STOP` the feed ends, and trainers get the traceback.
        - death: a sample that kills its process `restart.max_attempts` times is set aside.
        - output: what is printed comes out as lines of the worker's log.

        Args:
            object: What to call: "module:name", a function or a class, or "pickle:PATH", a file
                that cloudpickle wrote. A class is made once in each process. Required.
            options: Keyword arguments of the class, or of a function that makes the function, as a
                JSON object.
            processes: (1 to 64, default 1)
            max_processes: (1 to 64) The most that `ringfeed scale` may give it while it runs;
                default: `processes`.
            batch: (1 to 4096, default 64) Samples that the function gets at once, at most.
            interpreter: The Python that runs it, as a path. Default: the one that runs `ringfeed`,
                else that of the active virtual environment, else `python3` of PATH. It must have
                the package ringfeed.
            python_path: Directories where modules are looked for first.
            on_error: (default "SKIP") What an exception of the object means. SKIP: leave the sample
                out, count it; STOP: end the feed.
            queue_capacity: (1 to 1048576, default 256) Records queued at each output, per ring
                (from one lane to one lane). For batches that trainers read, the number of slots of
                the feed, unless feed_output.slots gives it.
            queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill
                at most half of it. The default suits the record type; for batches that trainers
                read it is what the slots need.
            overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots
                are held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is
                dropped and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
            name: Name of the stage; default: a sensible one.
        """
        return _call.stage("map", "python", locals())

    @_call.checked
    def shuffle(
        self,
        size: int | None = None,
        *,
        reservoir_bytes: int | str | None = None,
        queue_capacity: int | None = None,
        queue_bytes: int | str | None = None,
        overflow_behavior: settings.OverflowBehavior | None = None,
        name: str | None = None,
    ) -> Pipeline:
        """Shuffles samples in a reservoir: each one that comes in takes the place of one drawn at
        random, which goes out.

        A stage `sample_shuffler`.

        - memory: as much as the samples take, in places a quarter larger at most.
        - restart: the reservoir stays as it is.
        - finite run: at the end of its input it puts out what it holds, in random order.

        Args:
            size: (1 to 1000000000, default 10000) Samples held.
            reservoir_bytes: (from 1 MiB) The most that they take together; a sample for which there
                is no room takes the place of others, which go out. Default: no limit but the
                machine's. From 1 MiB.
            queue_capacity: (1 to 1048576, default 256) Records queued at each output, per ring
                (from one lane to one lane). For batches that trainers read, the number of slots of
                the feed, unless feed_output.slots gives it.
            queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill
                at most half of it. The default suits the record type; for batches that trainers
                read it is what the slots need.
            overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots
                are held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is
                dropped and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
            name: Name of the stage; default: a sensible one.
        """
        return _call.stage("shuffle", "sample_shuffler", locals(), suggested="shuffled")

    @_call.checked
    def batch(
        self,
        batch_size: int,
        *,
        fields: settings.BatchFields | None = None,
        lineage: bool | None = None,
        queue_capacity: int | None = None,
        queue_bytes: int | str | None = None,
        overflow_behavior: settings.OverflowBehavior | None = None,
        name: str | None = None,
    ) -> Pipeline:
        """Stacks samples into batches, straight into the slots of the feed.

        A stage `sample_batcher`.

        - output: an array `[rows, shape...]` for each field. Text and bytes become two arrays:
          `NAME`, uint8, the bytes of all rows one after the other, and `NAME_offsets`, int64, rows
          + 1 numbers: row i is from offset i to offset i + 1.
        - types: a field of another type is converted where no value changes: whole numbers to
          others that hold them, and to floats up to 2^53 (float64) or 2^24 (float32), whole floats
          to integers, booleans to integers (0 and 1), text to bytes, bytes that are UTF-8 to text.
          An array without elements is JSON in a column of text. Floats are rounded to floats of
          another size.
        - skips: `skipped_missing_field`, `skipped_wrong_type` and `skipped_wrong_shape` say which
          field, what it has and what it should have; `skipped_too_large` is text or bytes beyond
          `bytes_max`.
        - restart: goes on with the batch under way.

        Args:
            batch_size: (1 to 1048576) Rows of a batch. Required.
            fields: The arrays, in this order; at least one.
            lineage: (default False) Adds the array `lineage`, uint64 `[rows, 2]`: where each row
                came from, as its source says it.
            queue_capacity: (1 to 1048576, default 8) Records queued at each output, per ring (from
                one lane to one lane). For batches that trainers read, the number of slots of the
                feed, unless feed_output.slots gives it.
            queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill
                at most half of it. The default suits the record type; for batches that trainers
                read it is what the slots need.
            overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots
                are held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is
                dropped and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
            name: Name of the stage; default: a sensible one.
        """
        return _call.stage("batch", "sample_batcher", locals(), suggested="batches")

    @_call.checked
    def collate(
        self,
        object: str | Callable[..., object],
        *,
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
        """Makes batches with a Python function: a collate function of one's own. It gets
        `batch_size` samples and returns a mapping from names to arrays `[rows, shape...]`, or
        writes them to the arrays that it is handed as `out`, which lie in the slot of the feed.

        A stage `python_batcher`.

        - object: what `@stage.batch` or `stage.Batch` of `ringfeed.stage` marks.
        - output: an array `[rows, shape...]` for each field. Text and bytes, which the function
          returns as a list with a `str` or `bytes` for each row, become two arrays: `NAME`, uint8,
          the bytes of all rows one after the other, and `NAME_offsets`, int64, rows + 1 numbers.
          They have `bytes_max` at most.
        - order: samples are in batches in the order in which they came in; the last batch of a
          finite run may have fewer rows, as the feed's `drop_remainder` says.
        - chance: `ctx.rng`, and the generators of `random`, NumPy and PyTorch, are seeded for each
          batch from the feed's seed, the stage and the lineage of its samples: what is done again
          draws the same.
        - exceptions: the samples are given to the function one by one. Those for which it raises
          alone are left out and counted by the type of the exception (`skipped_ValueError`, ...),
          and the batch is filled up. If it raises for none alone, all samples of the batch are left
          out. With `on_error: STOP` the feed ends, and trainers get the traceback. An array that is
          not as its field says is treated in the same way: `skipped_missing_field`,
          `skipped_wrong_type`, `skipped_wrong_shape`, `skipped_too_large`.
        - death: the samples are given to the function one by one, and what comes of that is not
          used. One that kills its process `restart.max_attempts` times is set aside, and the batch
          is filled up. A batch that kills it so often, and none of its samples alone, is set aside
          whole.
        - process: one, with an interpreter of its own. What can be done sample by sample is done by
          several in a stage `python` before.
        - memory: the samples of a batch, in the arena.
        - restart: goes on with the samples that it has.

        Args:
            object: What to call: "module:name", a function or a class, or "pickle:PATH", a file
                that cloudpickle wrote. A class is made once in each process. Required.
            options: Keyword arguments of the class, or of the function, as a JSON object.
            batch_size: (1 to 1048576) Samples of a batch, which are its rows. Required.
            fields: The arrays, in this order; at least one.
            lineage: (default False) Adds the array `lineage`, uint64 `[rows, 2]`: where each row
                came from, as its source says it.
            interpreter: The Python that runs it, as a path. Default: the one that runs `ringfeed`,
                else that of the active virtual environment, else `python3` of PATH. It must have
                the package ringfeed.
            python_path: Directories where modules are looked for first.
            on_error: (default "SKIP") What an exception of the object means. SKIP: leave samples
                out, count them; STOP: end the feed.
            queue_capacity: (1 to 1048576, default 8) Records queued at each output, per ring (from
                one lane to one lane). For batches that trainers read, the number of slots of the
                feed, unless feed_output.slots gives it.
            queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill
                at most half of it. The default suits the record type; for batches that trainers
                read it is what the slots need.
            overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots
                are held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is
                dropped and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
            name: Name of the stage; default: a sensible one.
        """
        return _call.stage("collate", "python_batcher", locals())

    @_call.checked
    def jsonl(
        self,
        *,
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
        """Reads files into samples: lines of JSON (JSONL) or of text, tars of samples as
        WebDataset has them, both packed with gzip, Zstandard, bzip2 or xz or not; NumPy's arrays;
        tables of Parquet.

        A stage `sample_source` with `format: JSONL`.

        - input: paths of files. By `format` BY_NAME those are read whose ending is known; others,
          such as a README or sums beside the data, are counted in `files_passed_over` and named in
          the log. So are backups and unfinished downloads (`x~`, `#x#`, `.bak`, `.orig`, `.swp`,
          `.tmp`, `.part`, `.partial`, `.crdownload`), whatever `format` says; and, again in every
          epoch, a `.json` that is one object, such as dataset_infos.json, where there are no more
          of them than of data other than text.
        - tars: members that follow each other and have the same name up to its first dot are one
          sample. The rest of the name, in small letters, is the name of the field, which is bytes;
          with `dtype: "text"` text, with a numeric one (here, or in the batcher) the number that is
          written there. The field `__key__` is the name up to the dot. Sparse members come with
          their holes. What is of no sample (a name without a dot, a link, a device) is counted,
          `skipped_members`; directories are not. Tars that are joined (`cat a.tar b.tar`) are read
          one after the other. A damaged member costs its sample, which is counted once; if the
          damage does not say whose it was, the samples before and behind it go too, but for those
          that have all `fields`.
        - packing: told by the first bytes, not by the name. Members of a packed file follow each
          other, with zeros between them or not. Every checksum is compared; samples that had gone
          out by then are counted, `samples_in_doubt`, or none goes out with `verify: BEFORE`.
        - arrays: a row of the first axis is a sample, in the field `data`, or as the first of
          `fields` says. Strings are text, byte strings bytes, dates and times whole numbers in
          their unit; of records each member is a field, `outer.inner` in a record of a record, and
          `fields` chooses them. Pickled objects are refused.
        - zips of arrays (`.npz`): row i of all arrays together is a sample, each in the field of
          its name. All have the same length; `fields` chooses those that do. Members that are no
          `.npy` are passed over. Stored and deflated members are read, of any size.
        - tables: a row is a sample, a column a field of its type: a number, text or bytes. A list
          of numbers, or of such lists of one length, becomes an array; a member of a struct the
          field `struct.member`; a date or time a whole number in its unit; a decimal, and any other
          list or map, text, with JSON in it. A null is a field that is missing.
        - types: of JSON a string becomes text; a number int64, or float64; a boolean bool; an array
          of numbers, or of such arrays of one shape, an array; anything else text, with the JSON in
          it. A null is a field that is missing. NaN and infinities are numbers, as Python's `json`
          writes them (`strict` refuses them). Of members of one name the last one counts. A line of
          text becomes the field `text`. A byte order mark is no content.
        - conversion: whole numbers of any type become floats, or another type that holds them;
          floats of any type too, and whole ones (5.0) whole numbers; booleans 0 and 1. A finite
          number that would become infinite is out of range. Members that no field names have to be
          JSON, and no more.
        - order: files as they come in, or with `shuffle_files` in another order in every epoch,
          which follows from the seed. Lines come as in the file.
        - lanes: each reads parts of files, `block_bytes` long, in turn. A packed file cannot be
          taken apart, nor can a tar or a zip with deflated arrays: it is one part. A part of a
          table has the row groups that begin in it.
        - tables: Parquet, Arrow and CSV are read by Apache Arrow, which comes with ringfeed,
          whatever pyarrow is there.
        - lineage: a hash of the path, and a place: the byte of the file, as it is unpacked, where
          the line, the sample's first member or the row begins; of zips of arrays and of tables the
          number of the row. `ringfeed.lineage()` in Python finds the file and the place.
        - memory: about 100 bytes and the path for each file; in the process some megabytes a lane.
        - restart: reads the part that was under way again, from where it was. A packed file is
          unpacked up to there, and so are deflated arrays; of a table the row group is decoded
          again.
        - skips: files: `skipped_vanished`, `skipped_unreadable`, `skipped_changed` (it has become
          shorter since the epoch came to it), `skipped_damaged` (the rest of it, behind the fault;
          or a damaged member of a tar, or the rest of a row group), `skipped_unsupported` (a window
          beyond `window_bytes_max`, a dictionary that is not there), `skipped_trailing` (what lies
          behind the last member). Samples: `skipped_no_json` (or no object),
          `skipped_missing_field`, `skipped_wrong_type`, `skipped_too_large` (for the queue); if an
          array or a column is missing or no array is of the type, the whole file. Empty lines are
          passed over. Up to a MiB of rows before a fault in a deflated array, or 256 in a table, go
          with it. The checksum of a stored array is compared by the lane that reads its last rows,
          which reads it once more.
        - finite run: `epochs` passes over the files of the scan. An endless run begins anew when it
          has read all files, with those that have come since.

        Args:
            fields: The fields to take, in this order; default: all, in the order of each object. A
                line, or a row, that lacks one of them is skipped, unless the field says otherwise.
            shuffle_files: (default False) Puts the files in another order in every epoch.
            block_bytes: (64 KiB to 1 GiB, default 8 MiB) Bytes of a part of a file that one lane
                reads before the next one's turn.
            line_bytes_max: (1 KiB to 1 GiB, default 64 MiB) The longest line, or element of a
                document, in bytes; longer ones are skipped (`skipped_too_large`). 1 KiB to 1 GiB.
                With a row of CSV that is longer the file ends (`skipped_damaged`).
            strict: (default False) A line of JSON with NaN, Infinity or -Infinity in it, wherever
                that is, is none (`skipped_no_json`).
            verify: (default "ALONG") When the checksums of packed files and of zips of arrays are
                compared. ALONG: As the file is read: damage is met behind some of its samples,
                which have gone out by then (`samples_in_doubt`); BEFORE: Before: files that have
                checksums are read twice, by one lane; of a damaged one nothing goes out.
            window_bytes_max: (1 MiB to 2 GiB, default 2 GiB) The most memory that unpacking a file
                may take in a lane: the window of Zstandard, rounded down to a power of two, and the
                dictionary of xz. Files that need more are skipped (`skipped_unsupported`).
            group: (default "NEIGHBOURS") Which members of one key are a sample. A key that comes
                again behind its sample is counted (`keys_again`) and said. NEIGHBOURS: Of a tar,
                those that follow each other; BY_KEY: Those of a tar that come within `group_window`
                samples.
            group_window: (1 to 16777216, default 65536) With BY_KEY: samples that wait for more of
                their members. When there are more, the first goes out. In memory are the names, and
                of a packed tar what the members hold, to 1 GiB.
            csv_delimiter: Of CSV: what stands between the cells, one character. Default: the comma,
                or, where the first line has none, the first of tab, `;` and `|` that it has.
            csv_names: (default True) Of CSV: the first row names the columns. Without, they are
                `f0`, `f1` and so on.
            threads: (1 to 64, default 1) Lanes, each a thread.
            queue_capacity: (1 to 1048576, default 4096) Records queued at each output, per ring
                (from one lane to one lane). For batches that trainers read, the number of slots of
                the feed, unless feed_output.slots gives it.
            queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill
                at most half of it. The default suits the record type; for batches that trainers
                read it is what the slots need.
            overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots
                are held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is
                dropped and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
            skip_limit: The feed stops, with the reasons, if this stage leaves out more than that of
                what it counts. Default: as much as `skip_limit` of the feed says, over all stages.
            name: Name of the stage; default: a sensible one.
        """
        return _call.stage("jsonl", "sample_source", locals(), suggested="lines", format="JSONL")

    @_call.checked
    def text(
        self,
        *,
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
        """Reads files into samples: lines of JSON (JSONL) or of text, tars of samples as
        WebDataset has them, both packed with gzip, Zstandard, bzip2 or xz or not; NumPy's arrays;
        tables of Parquet.

        A stage `sample_source` with `format: TEXT`.

        - input: paths of files. By `format` BY_NAME those are read whose ending is known; others,
          such as a README or sums beside the data, are counted in `files_passed_over` and named in
          the log. So are backups and unfinished downloads (`x~`, `#x#`, `.bak`, `.orig`, `.swp`,
          `.tmp`, `.part`, `.partial`, `.crdownload`), whatever `format` says; and, again in every
          epoch, a `.json` that is one object, such as dataset_infos.json, where there are no more
          of them than of data other than text.
        - tars: members that follow each other and have the same name up to its first dot are one
          sample. The rest of the name, in small letters, is the name of the field, which is bytes;
          with `dtype: "text"` text, with a numeric one (here, or in the batcher) the number that is
          written there. The field `__key__` is the name up to the dot. Sparse members come with
          their holes. What is of no sample (a name without a dot, a link, a device) is counted,
          `skipped_members`; directories are not. Tars that are joined (`cat a.tar b.tar`) are read
          one after the other. A damaged member costs its sample, which is counted once; if the
          damage does not say whose it was, the samples before and behind it go too, but for those
          that have all `fields`.
        - packing: told by the first bytes, not by the name. Members of a packed file follow each
          other, with zeros between them or not. Every checksum is compared; samples that had gone
          out by then are counted, `samples_in_doubt`, or none goes out with `verify: BEFORE`.
        - arrays: a row of the first axis is a sample, in the field `data`, or as the first of
          `fields` says. Strings are text, byte strings bytes, dates and times whole numbers in
          their unit; of records each member is a field, `outer.inner` in a record of a record, and
          `fields` chooses them. Pickled objects are refused.
        - zips of arrays (`.npz`): row i of all arrays together is a sample, each in the field of
          its name. All have the same length; `fields` chooses those that do. Members that are no
          `.npy` are passed over. Stored and deflated members are read, of any size.
        - tables: a row is a sample, a column a field of its type: a number, text or bytes. A list
          of numbers, or of such lists of one length, becomes an array; a member of a struct the
          field `struct.member`; a date or time a whole number in its unit; a decimal, and any other
          list or map, text, with JSON in it. A null is a field that is missing.
        - types: of JSON a string becomes text; a number int64, or float64; a boolean bool; an array
          of numbers, or of such arrays of one shape, an array; anything else text, with the JSON in
          it. A null is a field that is missing. NaN and infinities are numbers, as Python's `json`
          writes them (`strict` refuses them). Of members of one name the last one counts. A line of
          text becomes the field `text`. A byte order mark is no content.
        - conversion: whole numbers of any type become floats, or another type that holds them;
          floats of any type too, and whole ones (5.0) whole numbers; booleans 0 and 1. A finite
          number that would become infinite is out of range. Members that no field names have to be
          JSON, and no more.
        - order: files as they come in, or with `shuffle_files` in another order in every epoch,
          which follows from the seed. Lines come as in the file.
        - lanes: each reads parts of files, `block_bytes` long, in turn. A packed file cannot be
          taken apart, nor can a tar or a zip with deflated arrays: it is one part. A part of a
          table has the row groups that begin in it.
        - tables: Parquet, Arrow and CSV are read by Apache Arrow, which comes with ringfeed,
          whatever pyarrow is there.
        - lineage: a hash of the path, and a place: the byte of the file, as it is unpacked, where
          the line, the sample's first member or the row begins; of zips of arrays and of tables the
          number of the row. `ringfeed.lineage()` in Python finds the file and the place.
        - memory: about 100 bytes and the path for each file; in the process some megabytes a lane.
        - restart: reads the part that was under way again, from where it was. A packed file is
          unpacked up to there, and so are deflated arrays; of a table the row group is decoded
          again.
        - skips: files: `skipped_vanished`, `skipped_unreadable`, `skipped_changed` (it has become
          shorter since the epoch came to it), `skipped_damaged` (the rest of it, behind the fault;
          or a damaged member of a tar, or the rest of a row group), `skipped_unsupported` (a window
          beyond `window_bytes_max`, a dictionary that is not there), `skipped_trailing` (what lies
          behind the last member). Samples: `skipped_no_json` (or no object),
          `skipped_missing_field`, `skipped_wrong_type`, `skipped_too_large` (for the queue); if an
          array or a column is missing or no array is of the type, the whole file. Empty lines are
          passed over. Up to a MiB of rows before a fault in a deflated array, or 256 in a table, go
          with it. The checksum of a stored array is compared by the lane that reads its last rows,
          which reads it once more.
        - finite run: `epochs` passes over the files of the scan. An endless run begins anew when it
          has read all files, with those that have come since.

        Args:
            fields: The fields to take, in this order; default: all, in the order of each object. A
                line, or a row, that lacks one of them is skipped, unless the field says otherwise.
            shuffle_files: (default False) Puts the files in another order in every epoch.
            block_bytes: (64 KiB to 1 GiB, default 8 MiB) Bytes of a part of a file that one lane
                reads before the next one's turn.
            line_bytes_max: (1 KiB to 1 GiB, default 64 MiB) The longest line, or element of a
                document, in bytes; longer ones are skipped (`skipped_too_large`). 1 KiB to 1 GiB.
                With a row of CSV that is longer the file ends (`skipped_damaged`).
            strict: (default False) A line of JSON with NaN, Infinity or -Infinity in it, wherever
                that is, is none (`skipped_no_json`).
            verify: (default "ALONG") When the checksums of packed files and of zips of arrays are
                compared. ALONG: As the file is read: damage is met behind some of its samples,
                which have gone out by then (`samples_in_doubt`); BEFORE: Before: files that have
                checksums are read twice, by one lane; of a damaged one nothing goes out.
            window_bytes_max: (1 MiB to 2 GiB, default 2 GiB) The most memory that unpacking a file
                may take in a lane: the window of Zstandard, rounded down to a power of two, and the
                dictionary of xz. Files that need more are skipped (`skipped_unsupported`).
            group: (default "NEIGHBOURS") Which members of one key are a sample. A key that comes
                again behind its sample is counted (`keys_again`) and said. NEIGHBOURS: Of a tar,
                those that follow each other; BY_KEY: Those of a tar that come within `group_window`
                samples.
            group_window: (1 to 16777216, default 65536) With BY_KEY: samples that wait for more of
                their members. When there are more, the first goes out. In memory are the names, and
                of a packed tar what the members hold, to 1 GiB.
            csv_delimiter: Of CSV: what stands between the cells, one character. Default: the comma,
                or, where the first line has none, the first of tab, `;` and `|` that it has.
            csv_names: (default True) Of CSV: the first row names the columns. Without, they are
                `f0`, `f1` and so on.
            threads: (1 to 64, default 1) Lanes, each a thread.
            queue_capacity: (1 to 1048576, default 4096) Records queued at each output, per ring
                (from one lane to one lane). For batches that trainers read, the number of slots of
                the feed, unless feed_output.slots gives it.
            queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill
                at most half of it. The default suits the record type; for batches that trainers
                read it is what the slots need.
            overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots
                are held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is
                dropped and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
            skip_limit: The feed stops, with the reasons, if this stage leaves out more than that of
                what it counts. Default: as much as `skip_limit` of the feed says, over all stages.
            name: Name of the stage; default: a sensible one.
        """
        return _call.stage("text", "sample_source", locals(), suggested="lines", format="TEXT")

    @_call.checked
    def tar(
        self,
        *,
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
        """Reads files into samples: lines of JSON (JSONL) or of text, tars of samples as
        WebDataset has them, both packed with gzip, Zstandard, bzip2 or xz or not; NumPy's arrays;
        tables of Parquet.

        A stage `sample_source` with `format: TAR`.

        - input: paths of files. By `format` BY_NAME those are read whose ending is known; others,
          such as a README or sums beside the data, are counted in `files_passed_over` and named in
          the log. So are backups and unfinished downloads (`x~`, `#x#`, `.bak`, `.orig`, `.swp`,
          `.tmp`, `.part`, `.partial`, `.crdownload`), whatever `format` says; and, again in every
          epoch, a `.json` that is one object, such as dataset_infos.json, where there are no more
          of them than of data other than text.
        - tars: members that follow each other and have the same name up to its first dot are one
          sample. The rest of the name, in small letters, is the name of the field, which is bytes;
          with `dtype: "text"` text, with a numeric one (here, or in the batcher) the number that is
          written there. The field `__key__` is the name up to the dot. Sparse members come with
          their holes. What is of no sample (a name without a dot, a link, a device) is counted,
          `skipped_members`; directories are not. Tars that are joined (`cat a.tar b.tar`) are read
          one after the other. A damaged member costs its sample, which is counted once; if the
          damage does not say whose it was, the samples before and behind it go too, but for those
          that have all `fields`.
        - packing: told by the first bytes, not by the name. Members of a packed file follow each
          other, with zeros between them or not. Every checksum is compared; samples that had gone
          out by then are counted, `samples_in_doubt`, or none goes out with `verify: BEFORE`.
        - arrays: a row of the first axis is a sample, in the field `data`, or as the first of
          `fields` says. Strings are text, byte strings bytes, dates and times whole numbers in
          their unit; of records each member is a field, `outer.inner` in a record of a record, and
          `fields` chooses them. Pickled objects are refused.
        - zips of arrays (`.npz`): row i of all arrays together is a sample, each in the field of
          its name. All have the same length; `fields` chooses those that do. Members that are no
          `.npy` are passed over. Stored and deflated members are read, of any size.
        - tables: a row is a sample, a column a field of its type: a number, text or bytes. A list
          of numbers, or of such lists of one length, becomes an array; a member of a struct the
          field `struct.member`; a date or time a whole number in its unit; a decimal, and any other
          list or map, text, with JSON in it. A null is a field that is missing.
        - types: of JSON a string becomes text; a number int64, or float64; a boolean bool; an array
          of numbers, or of such arrays of one shape, an array; anything else text, with the JSON in
          it. A null is a field that is missing. NaN and infinities are numbers, as Python's `json`
          writes them (`strict` refuses them). Of members of one name the last one counts. A line of
          text becomes the field `text`. A byte order mark is no content.
        - conversion: whole numbers of any type become floats, or another type that holds them;
          floats of any type too, and whole ones (5.0) whole numbers; booleans 0 and 1. A finite
          number that would become infinite is out of range. Members that no field names have to be
          JSON, and no more.
        - order: files as they come in, or with `shuffle_files` in another order in every epoch,
          which follows from the seed. Lines come as in the file.
        - lanes: each reads parts of files, `block_bytes` long, in turn. A packed file cannot be
          taken apart, nor can a tar or a zip with deflated arrays: it is one part. A part of a
          table has the row groups that begin in it.
        - tables: Parquet, Arrow and CSV are read by Apache Arrow, which comes with ringfeed,
          whatever pyarrow is there.
        - lineage: a hash of the path, and a place: the byte of the file, as it is unpacked, where
          the line, the sample's first member or the row begins; of zips of arrays and of tables the
          number of the row. `ringfeed.lineage()` in Python finds the file and the place.
        - memory: about 100 bytes and the path for each file; in the process some megabytes a lane.
        - restart: reads the part that was under way again, from where it was. A packed file is
          unpacked up to there, and so are deflated arrays; of a table the row group is decoded
          again.
        - skips: files: `skipped_vanished`, `skipped_unreadable`, `skipped_changed` (it has become
          shorter since the epoch came to it), `skipped_damaged` (the rest of it, behind the fault;
          or a damaged member of a tar, or the rest of a row group), `skipped_unsupported` (a window
          beyond `window_bytes_max`, a dictionary that is not there), `skipped_trailing` (what lies
          behind the last member). Samples: `skipped_no_json` (or no object),
          `skipped_missing_field`, `skipped_wrong_type`, `skipped_too_large` (for the queue); if an
          array or a column is missing or no array is of the type, the whole file. Empty lines are
          passed over. Up to a MiB of rows before a fault in a deflated array, or 256 in a table, go
          with it. The checksum of a stored array is compared by the lane that reads its last rows,
          which reads it once more.
        - finite run: `epochs` passes over the files of the scan. An endless run begins anew when it
          has read all files, with those that have come since.

        Args:
            fields: The fields to take, in this order; default: all, in the order of each object. A
                line, or a row, that lacks one of them is skipped, unless the field says otherwise.
            shuffle_files: (default False) Puts the files in another order in every epoch.
            block_bytes: (64 KiB to 1 GiB, default 8 MiB) Bytes of a part of a file that one lane
                reads before the next one's turn.
            line_bytes_max: (1 KiB to 1 GiB, default 64 MiB) The longest line, or element of a
                document, in bytes; longer ones are skipped (`skipped_too_large`). 1 KiB to 1 GiB.
                With a row of CSV that is longer the file ends (`skipped_damaged`).
            strict: (default False) A line of JSON with NaN, Infinity or -Infinity in it, wherever
                that is, is none (`skipped_no_json`).
            verify: (default "ALONG") When the checksums of packed files and of zips of arrays are
                compared. ALONG: As the file is read: damage is met behind some of its samples,
                which have gone out by then (`samples_in_doubt`); BEFORE: Before: files that have
                checksums are read twice, by one lane; of a damaged one nothing goes out.
            window_bytes_max: (1 MiB to 2 GiB, default 2 GiB) The most memory that unpacking a file
                may take in a lane: the window of Zstandard, rounded down to a power of two, and the
                dictionary of xz. Files that need more are skipped (`skipped_unsupported`).
            group: (default "NEIGHBOURS") Which members of one key are a sample. A key that comes
                again behind its sample is counted (`keys_again`) and said. NEIGHBOURS: Of a tar,
                those that follow each other; BY_KEY: Those of a tar that come within `group_window`
                samples.
            group_window: (1 to 16777216, default 65536) With BY_KEY: samples that wait for more of
                their members. When there are more, the first goes out. In memory are the names, and
                of a packed tar what the members hold, to 1 GiB.
            csv_delimiter: Of CSV: what stands between the cells, one character. Default: the comma,
                or, where the first line has none, the first of tab, `;` and `|` that it has.
            csv_names: (default True) Of CSV: the first row names the columns. Without, they are
                `f0`, `f1` and so on.
            threads: (1 to 64, default 1) Lanes, each a thread.
            queue_capacity: (1 to 1048576, default 4096) Records queued at each output, per ring
                (from one lane to one lane). For batches that trainers read, the number of slots of
                the feed, unless feed_output.slots gives it.
            queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill
                at most half of it. The default suits the record type; for batches that trainers
                read it is what the slots need.
            overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots
                are held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is
                dropped and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
            skip_limit: The feed stops, with the reasons, if this stage leaves out more than that of
                what it counts. Default: as much as `skip_limit` of the feed says, over all stages.
            name: Name of the stage; default: a sensible one.
        """
        return _call.stage("tar", "sample_source", locals(), suggested="samples", format="TAR")

    @_call.checked
    def npy(
        self,
        *,
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
        """Reads files into samples: lines of JSON (JSONL) or of text, tars of samples as
        WebDataset has them, both packed with gzip, Zstandard, bzip2 or xz or not; NumPy's arrays;
        tables of Parquet.

        A stage `sample_source` with `format: NPY`.

        - input: paths of files. By `format` BY_NAME those are read whose ending is known; others,
          such as a README or sums beside the data, are counted in `files_passed_over` and named in
          the log. So are backups and unfinished downloads (`x~`, `#x#`, `.bak`, `.orig`, `.swp`,
          `.tmp`, `.part`, `.partial`, `.crdownload`), whatever `format` says; and, again in every
          epoch, a `.json` that is one object, such as dataset_infos.json, where there are no more
          of them than of data other than text.
        - tars: members that follow each other and have the same name up to its first dot are one
          sample. The rest of the name, in small letters, is the name of the field, which is bytes;
          with `dtype: "text"` text, with a numeric one (here, or in the batcher) the number that is
          written there. The field `__key__` is the name up to the dot. Sparse members come with
          their holes. What is of no sample (a name without a dot, a link, a device) is counted,
          `skipped_members`; directories are not. Tars that are joined (`cat a.tar b.tar`) are read
          one after the other. A damaged member costs its sample, which is counted once; if the
          damage does not say whose it was, the samples before and behind it go too, but for those
          that have all `fields`.
        - packing: told by the first bytes, not by the name. Members of a packed file follow each
          other, with zeros between them or not. Every checksum is compared; samples that had gone
          out by then are counted, `samples_in_doubt`, or none goes out with `verify: BEFORE`.
        - arrays: a row of the first axis is a sample, in the field `data`, or as the first of
          `fields` says. Strings are text, byte strings bytes, dates and times whole numbers in
          their unit; of records each member is a field, `outer.inner` in a record of a record, and
          `fields` chooses them. Pickled objects are refused.
        - zips of arrays (`.npz`): row i of all arrays together is a sample, each in the field of
          its name. All have the same length; `fields` chooses those that do. Members that are no
          `.npy` are passed over. Stored and deflated members are read, of any size.
        - tables: a row is a sample, a column a field of its type: a number, text or bytes. A list
          of numbers, or of such lists of one length, becomes an array; a member of a struct the
          field `struct.member`; a date or time a whole number in its unit; a decimal, and any other
          list or map, text, with JSON in it. A null is a field that is missing.
        - types: of JSON a string becomes text; a number int64, or float64; a boolean bool; an array
          of numbers, or of such arrays of one shape, an array; anything else text, with the JSON in
          it. A null is a field that is missing. NaN and infinities are numbers, as Python's `json`
          writes them (`strict` refuses them). Of members of one name the last one counts. A line of
          text becomes the field `text`. A byte order mark is no content.
        - conversion: whole numbers of any type become floats, or another type that holds them;
          floats of any type too, and whole ones (5.0) whole numbers; booleans 0 and 1. A finite
          number that would become infinite is out of range. Members that no field names have to be
          JSON, and no more.
        - order: files as they come in, or with `shuffle_files` in another order in every epoch,
          which follows from the seed. Lines come as in the file.
        - lanes: each reads parts of files, `block_bytes` long, in turn. A packed file cannot be
          taken apart, nor can a tar or a zip with deflated arrays: it is one part. A part of a
          table has the row groups that begin in it.
        - tables: Parquet, Arrow and CSV are read by Apache Arrow, which comes with ringfeed,
          whatever pyarrow is there.
        - lineage: a hash of the path, and a place: the byte of the file, as it is unpacked, where
          the line, the sample's first member or the row begins; of zips of arrays and of tables the
          number of the row. `ringfeed.lineage()` in Python finds the file and the place.
        - memory: about 100 bytes and the path for each file; in the process some megabytes a lane.
        - restart: reads the part that was under way again, from where it was. A packed file is
          unpacked up to there, and so are deflated arrays; of a table the row group is decoded
          again.
        - skips: files: `skipped_vanished`, `skipped_unreadable`, `skipped_changed` (it has become
          shorter since the epoch came to it), `skipped_damaged` (the rest of it, behind the fault;
          or a damaged member of a tar, or the rest of a row group), `skipped_unsupported` (a window
          beyond `window_bytes_max`, a dictionary that is not there), `skipped_trailing` (what lies
          behind the last member). Samples: `skipped_no_json` (or no object),
          `skipped_missing_field`, `skipped_wrong_type`, `skipped_too_large` (for the queue); if an
          array or a column is missing or no array is of the type, the whole file. Empty lines are
          passed over. Up to a MiB of rows before a fault in a deflated array, or 256 in a table, go
          with it. The checksum of a stored array is compared by the lane that reads its last rows,
          which reads it once more.
        - finite run: `epochs` passes over the files of the scan. An endless run begins anew when it
          has read all files, with those that have come since.

        Args:
            fields: The fields to take, in this order; default: all, in the order of each object. A
                line, or a row, that lacks one of them is skipped, unless the field says otherwise.
            shuffle_files: (default False) Puts the files in another order in every epoch.
            block_bytes: (64 KiB to 1 GiB, default 8 MiB) Bytes of a part of a file that one lane
                reads before the next one's turn.
            line_bytes_max: (1 KiB to 1 GiB, default 64 MiB) The longest line, or element of a
                document, in bytes; longer ones are skipped (`skipped_too_large`). 1 KiB to 1 GiB.
                With a row of CSV that is longer the file ends (`skipped_damaged`).
            strict: (default False) A line of JSON with NaN, Infinity or -Infinity in it, wherever
                that is, is none (`skipped_no_json`).
            verify: (default "ALONG") When the checksums of packed files and of zips of arrays are
                compared. ALONG: As the file is read: damage is met behind some of its samples,
                which have gone out by then (`samples_in_doubt`); BEFORE: Before: files that have
                checksums are read twice, by one lane; of a damaged one nothing goes out.
            window_bytes_max: (1 MiB to 2 GiB, default 2 GiB) The most memory that unpacking a file
                may take in a lane: the window of Zstandard, rounded down to a power of two, and the
                dictionary of xz. Files that need more are skipped (`skipped_unsupported`).
            group: (default "NEIGHBOURS") Which members of one key are a sample. A key that comes
                again behind its sample is counted (`keys_again`) and said. NEIGHBOURS: Of a tar,
                those that follow each other; BY_KEY: Those of a tar that come within `group_window`
                samples.
            group_window: (1 to 16777216, default 65536) With BY_KEY: samples that wait for more of
                their members. When there are more, the first goes out. In memory are the names, and
                of a packed tar what the members hold, to 1 GiB.
            csv_delimiter: Of CSV: what stands between the cells, one character. Default: the comma,
                or, where the first line has none, the first of tab, `;` and `|` that it has.
            csv_names: (default True) Of CSV: the first row names the columns. Without, they are
                `f0`, `f1` and so on.
            threads: (1 to 64, default 1) Lanes, each a thread.
            queue_capacity: (1 to 1048576, default 4096) Records queued at each output, per ring
                (from one lane to one lane). For batches that trainers read, the number of slots of
                the feed, unless feed_output.slots gives it.
            queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill
                at most half of it. The default suits the record type; for batches that trainers
                read it is what the slots need.
            overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots
                are held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is
                dropped and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
            skip_limit: The feed stops, with the reasons, if this stage leaves out more than that of
                what it counts. Default: as much as `skip_limit` of the feed says, over all stages.
            name: Name of the stage; default: a sensible one.
        """
        return _call.stage("npy", "sample_source", locals(), suggested="rows", format="NPY")

    @_call.checked
    def npz(
        self,
        *,
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
        """Reads files into samples: lines of JSON (JSONL) or of text, tars of samples as
        WebDataset has them, both packed with gzip, Zstandard, bzip2 or xz or not; NumPy's arrays;
        tables of Parquet.

        A stage `sample_source` with `format: NPZ`.

        - input: paths of files. By `format` BY_NAME those are read whose ending is known; others,
          such as a README or sums beside the data, are counted in `files_passed_over` and named in
          the log. So are backups and unfinished downloads (`x~`, `#x#`, `.bak`, `.orig`, `.swp`,
          `.tmp`, `.part`, `.partial`, `.crdownload`), whatever `format` says; and, again in every
          epoch, a `.json` that is one object, such as dataset_infos.json, where there are no more
          of them than of data other than text.
        - tars: members that follow each other and have the same name up to its first dot are one
          sample. The rest of the name, in small letters, is the name of the field, which is bytes;
          with `dtype: "text"` text, with a numeric one (here, or in the batcher) the number that is
          written there. The field `__key__` is the name up to the dot. Sparse members come with
          their holes. What is of no sample (a name without a dot, a link, a device) is counted,
          `skipped_members`; directories are not. Tars that are joined (`cat a.tar b.tar`) are read
          one after the other. A damaged member costs its sample, which is counted once; if the
          damage does not say whose it was, the samples before and behind it go too, but for those
          that have all `fields`.
        - packing: told by the first bytes, not by the name. Members of a packed file follow each
          other, with zeros between them or not. Every checksum is compared; samples that had gone
          out by then are counted, `samples_in_doubt`, or none goes out with `verify: BEFORE`.
        - arrays: a row of the first axis is a sample, in the field `data`, or as the first of
          `fields` says. Strings are text, byte strings bytes, dates and times whole numbers in
          their unit; of records each member is a field, `outer.inner` in a record of a record, and
          `fields` chooses them. Pickled objects are refused.
        - zips of arrays (`.npz`): row i of all arrays together is a sample, each in the field of
          its name. All have the same length; `fields` chooses those that do. Members that are no
          `.npy` are passed over. Stored and deflated members are read, of any size.
        - tables: a row is a sample, a column a field of its type: a number, text or bytes. A list
          of numbers, or of such lists of one length, becomes an array; a member of a struct the
          field `struct.member`; a date or time a whole number in its unit; a decimal, and any other
          list or map, text, with JSON in it. A null is a field that is missing.
        - types: of JSON a string becomes text; a number int64, or float64; a boolean bool; an array
          of numbers, or of such arrays of one shape, an array; anything else text, with the JSON in
          it. A null is a field that is missing. NaN and infinities are numbers, as Python's `json`
          writes them (`strict` refuses them). Of members of one name the last one counts. A line of
          text becomes the field `text`. A byte order mark is no content.
        - conversion: whole numbers of any type become floats, or another type that holds them;
          floats of any type too, and whole ones (5.0) whole numbers; booleans 0 and 1. A finite
          number that would become infinite is out of range. Members that no field names have to be
          JSON, and no more.
        - order: files as they come in, or with `shuffle_files` in another order in every epoch,
          which follows from the seed. Lines come as in the file.
        - lanes: each reads parts of files, `block_bytes` long, in turn. A packed file cannot be
          taken apart, nor can a tar or a zip with deflated arrays: it is one part. A part of a
          table has the row groups that begin in it.
        - tables: Parquet, Arrow and CSV are read by Apache Arrow, which comes with ringfeed,
          whatever pyarrow is there.
        - lineage: a hash of the path, and a place: the byte of the file, as it is unpacked, where
          the line, the sample's first member or the row begins; of zips of arrays and of tables the
          number of the row. `ringfeed.lineage()` in Python finds the file and the place.
        - memory: about 100 bytes and the path for each file; in the process some megabytes a lane.
        - restart: reads the part that was under way again, from where it was. A packed file is
          unpacked up to there, and so are deflated arrays; of a table the row group is decoded
          again.
        - skips: files: `skipped_vanished`, `skipped_unreadable`, `skipped_changed` (it has become
          shorter since the epoch came to it), `skipped_damaged` (the rest of it, behind the fault;
          or a damaged member of a tar, or the rest of a row group), `skipped_unsupported` (a window
          beyond `window_bytes_max`, a dictionary that is not there), `skipped_trailing` (what lies
          behind the last member). Samples: `skipped_no_json` (or no object),
          `skipped_missing_field`, `skipped_wrong_type`, `skipped_too_large` (for the queue); if an
          array or a column is missing or no array is of the type, the whole file. Empty lines are
          passed over. Up to a MiB of rows before a fault in a deflated array, or 256 in a table, go
          with it. The checksum of a stored array is compared by the lane that reads its last rows,
          which reads it once more.
        - finite run: `epochs` passes over the files of the scan. An endless run begins anew when it
          has read all files, with those that have come since.

        Args:
            fields: The fields to take, in this order; default: all, in the order of each object. A
                line, or a row, that lacks one of them is skipped, unless the field says otherwise.
            shuffle_files: (default False) Puts the files in another order in every epoch.
            block_bytes: (64 KiB to 1 GiB, default 8 MiB) Bytes of a part of a file that one lane
                reads before the next one's turn.
            line_bytes_max: (1 KiB to 1 GiB, default 64 MiB) The longest line, or element of a
                document, in bytes; longer ones are skipped (`skipped_too_large`). 1 KiB to 1 GiB.
                With a row of CSV that is longer the file ends (`skipped_damaged`).
            strict: (default False) A line of JSON with NaN, Infinity or -Infinity in it, wherever
                that is, is none (`skipped_no_json`).
            verify: (default "ALONG") When the checksums of packed files and of zips of arrays are
                compared. ALONG: As the file is read: damage is met behind some of its samples,
                which have gone out by then (`samples_in_doubt`); BEFORE: Before: files that have
                checksums are read twice, by one lane; of a damaged one nothing goes out.
            window_bytes_max: (1 MiB to 2 GiB, default 2 GiB) The most memory that unpacking a file
                may take in a lane: the window of Zstandard, rounded down to a power of two, and the
                dictionary of xz. Files that need more are skipped (`skipped_unsupported`).
            group: (default "NEIGHBOURS") Which members of one key are a sample. A key that comes
                again behind its sample is counted (`keys_again`) and said. NEIGHBOURS: Of a tar,
                those that follow each other; BY_KEY: Those of a tar that come within `group_window`
                samples.
            group_window: (1 to 16777216, default 65536) With BY_KEY: samples that wait for more of
                their members. When there are more, the first goes out. In memory are the names, and
                of a packed tar what the members hold, to 1 GiB.
            csv_delimiter: Of CSV: what stands between the cells, one character. Default: the comma,
                or, where the first line has none, the first of tab, `;` and `|` that it has.
            csv_names: (default True) Of CSV: the first row names the columns. Without, they are
                `f0`, `f1` and so on.
            threads: (1 to 64, default 1) Lanes, each a thread.
            queue_capacity: (1 to 1048576, default 4096) Records queued at each output, per ring
                (from one lane to one lane). For batches that trainers read, the number of slots of
                the feed, unless feed_output.slots gives it.
            queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill
                at most half of it. The default suits the record type; for batches that trainers
                read it is what the slots need.
            overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots
                are held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is
                dropped and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
            skip_limit: The feed stops, with the reasons, if this stage leaves out more than that of
                what it counts. Default: as much as `skip_limit` of the feed says, over all stages.
            name: Name of the stage; default: a sensible one.
        """
        return _call.stage("npz", "sample_source", locals(), suggested="samples", format="NPZ")

    @_call.checked
    def parquet(
        self,
        *,
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
        """Reads files into samples: lines of JSON (JSONL) or of text, tars of samples as
        WebDataset has them, both packed with gzip, Zstandard, bzip2 or xz or not; NumPy's arrays;
        tables of Parquet.

        A stage `sample_source` with `format: PARQUET`.

        - input: paths of files. By `format` BY_NAME those are read whose ending is known; others,
          such as a README or sums beside the data, are counted in `files_passed_over` and named in
          the log. So are backups and unfinished downloads (`x~`, `#x#`, `.bak`, `.orig`, `.swp`,
          `.tmp`, `.part`, `.partial`, `.crdownload`), whatever `format` says; and, again in every
          epoch, a `.json` that is one object, such as dataset_infos.json, where there are no more
          of them than of data other than text.
        - tars: members that follow each other and have the same name up to its first dot are one
          sample. The rest of the name, in small letters, is the name of the field, which is bytes;
          with `dtype: "text"` text, with a numeric one (here, or in the batcher) the number that is
          written there. The field `__key__` is the name up to the dot. Sparse members come with
          their holes. What is of no sample (a name without a dot, a link, a device) is counted,
          `skipped_members`; directories are not. Tars that are joined (`cat a.tar b.tar`) are read
          one after the other. A damaged member costs its sample, which is counted once; if the
          damage does not say whose it was, the samples before and behind it go too, but for those
          that have all `fields`.
        - packing: told by the first bytes, not by the name. Members of a packed file follow each
          other, with zeros between them or not. Every checksum is compared; samples that had gone
          out by then are counted, `samples_in_doubt`, or none goes out with `verify: BEFORE`.
        - arrays: a row of the first axis is a sample, in the field `data`, or as the first of
          `fields` says. Strings are text, byte strings bytes, dates and times whole numbers in
          their unit; of records each member is a field, `outer.inner` in a record of a record, and
          `fields` chooses them. Pickled objects are refused.
        - zips of arrays (`.npz`): row i of all arrays together is a sample, each in the field of
          its name. All have the same length; `fields` chooses those that do. Members that are no
          `.npy` are passed over. Stored and deflated members are read, of any size.
        - tables: a row is a sample, a column a field of its type: a number, text or bytes. A list
          of numbers, or of such lists of one length, becomes an array; a member of a struct the
          field `struct.member`; a date or time a whole number in its unit; a decimal, and any other
          list or map, text, with JSON in it. A null is a field that is missing.
        - types: of JSON a string becomes text; a number int64, or float64; a boolean bool; an array
          of numbers, or of such arrays of one shape, an array; anything else text, with the JSON in
          it. A null is a field that is missing. NaN and infinities are numbers, as Python's `json`
          writes them (`strict` refuses them). Of members of one name the last one counts. A line of
          text becomes the field `text`. A byte order mark is no content.
        - conversion: whole numbers of any type become floats, or another type that holds them;
          floats of any type too, and whole ones (5.0) whole numbers; booleans 0 and 1. A finite
          number that would become infinite is out of range. Members that no field names have to be
          JSON, and no more.
        - order: files as they come in, or with `shuffle_files` in another order in every epoch,
          which follows from the seed. Lines come as in the file.
        - lanes: each reads parts of files, `block_bytes` long, in turn. A packed file cannot be
          taken apart, nor can a tar or a zip with deflated arrays: it is one part. A part of a
          table has the row groups that begin in it.
        - tables: Parquet, Arrow and CSV are read by Apache Arrow, which comes with ringfeed,
          whatever pyarrow is there.
        - lineage: a hash of the path, and a place: the byte of the file, as it is unpacked, where
          the line, the sample's first member or the row begins; of zips of arrays and of tables the
          number of the row. `ringfeed.lineage()` in Python finds the file and the place.
        - memory: about 100 bytes and the path for each file; in the process some megabytes a lane.
        - restart: reads the part that was under way again, from where it was. A packed file is
          unpacked up to there, and so are deflated arrays; of a table the row group is decoded
          again.
        - skips: files: `skipped_vanished`, `skipped_unreadable`, `skipped_changed` (it has become
          shorter since the epoch came to it), `skipped_damaged` (the rest of it, behind the fault;
          or a damaged member of a tar, or the rest of a row group), `skipped_unsupported` (a window
          beyond `window_bytes_max`, a dictionary that is not there), `skipped_trailing` (what lies
          behind the last member). Samples: `skipped_no_json` (or no object),
          `skipped_missing_field`, `skipped_wrong_type`, `skipped_too_large` (for the queue); if an
          array or a column is missing or no array is of the type, the whole file. Empty lines are
          passed over. Up to a MiB of rows before a fault in a deflated array, or 256 in a table, go
          with it. The checksum of a stored array is compared by the lane that reads its last rows,
          which reads it once more.
        - finite run: `epochs` passes over the files of the scan. An endless run begins anew when it
          has read all files, with those that have come since.

        Args:
            fields: The fields to take, in this order; default: all, in the order of each object. A
                line, or a row, that lacks one of them is skipped, unless the field says otherwise.
            shuffle_files: (default False) Puts the files in another order in every epoch.
            block_bytes: (64 KiB to 1 GiB, default 8 MiB) Bytes of a part of a file that one lane
                reads before the next one's turn.
            line_bytes_max: (1 KiB to 1 GiB, default 64 MiB) The longest line, or element of a
                document, in bytes; longer ones are skipped (`skipped_too_large`). 1 KiB to 1 GiB.
                With a row of CSV that is longer the file ends (`skipped_damaged`).
            strict: (default False) A line of JSON with NaN, Infinity or -Infinity in it, wherever
                that is, is none (`skipped_no_json`).
            verify: (default "ALONG") When the checksums of packed files and of zips of arrays are
                compared. ALONG: As the file is read: damage is met behind some of its samples,
                which have gone out by then (`samples_in_doubt`); BEFORE: Before: files that have
                checksums are read twice, by one lane; of a damaged one nothing goes out.
            window_bytes_max: (1 MiB to 2 GiB, default 2 GiB) The most memory that unpacking a file
                may take in a lane: the window of Zstandard, rounded down to a power of two, and the
                dictionary of xz. Files that need more are skipped (`skipped_unsupported`).
            group: (default "NEIGHBOURS") Which members of one key are a sample. A key that comes
                again behind its sample is counted (`keys_again`) and said. NEIGHBOURS: Of a tar,
                those that follow each other; BY_KEY: Those of a tar that come within `group_window`
                samples.
            group_window: (1 to 16777216, default 65536) With BY_KEY: samples that wait for more of
                their members. When there are more, the first goes out. In memory are the names, and
                of a packed tar what the members hold, to 1 GiB.
            csv_delimiter: Of CSV: what stands between the cells, one character. Default: the comma,
                or, where the first line has none, the first of tab, `;` and `|` that it has.
            csv_names: (default True) Of CSV: the first row names the columns. Without, they are
                `f0`, `f1` and so on.
            threads: (1 to 64, default 1) Lanes, each a thread.
            queue_capacity: (1 to 1048576, default 4096) Records queued at each output, per ring
                (from one lane to one lane). For batches that trainers read, the number of slots of
                the feed, unless feed_output.slots gives it.
            queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill
                at most half of it. The default suits the record type; for batches that trainers
                read it is what the slots need.
            overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots
                are held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is
                dropped and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
            skip_limit: The feed stops, with the reasons, if this stage leaves out more than that of
                what it counts. Default: as much as `skip_limit` of the feed says, over all stages.
            name: Name of the stage; default: a sensible one.
        """
        return _call.stage(
            "parquet", "sample_source", locals(), suggested="samples", format="PARQUET"
        )

    @_call.checked
    def json(
        self,
        *,
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
        """Reads files into samples: lines of JSON (JSONL) or of text, tars of samples as
        WebDataset has them, both packed with gzip, Zstandard, bzip2 or xz or not; NumPy's arrays;
        tables of Parquet.

        A stage `sample_source` with `format: JSON`.

        - input: paths of files. By `format` BY_NAME those are read whose ending is known; others,
          such as a README or sums beside the data, are counted in `files_passed_over` and named in
          the log. So are backups and unfinished downloads (`x~`, `#x#`, `.bak`, `.orig`, `.swp`,
          `.tmp`, `.part`, `.partial`, `.crdownload`), whatever `format` says; and, again in every
          epoch, a `.json` that is one object, such as dataset_infos.json, where there are no more
          of them than of data other than text.
        - tars: members that follow each other and have the same name up to its first dot are one
          sample. The rest of the name, in small letters, is the name of the field, which is bytes;
          with `dtype: "text"` text, with a numeric one (here, or in the batcher) the number that is
          written there. The field `__key__` is the name up to the dot. Sparse members come with
          their holes. What is of no sample (a name without a dot, a link, a device) is counted,
          `skipped_members`; directories are not. Tars that are joined (`cat a.tar b.tar`) are read
          one after the other. A damaged member costs its sample, which is counted once; if the
          damage does not say whose it was, the samples before and behind it go too, but for those
          that have all `fields`.
        - packing: told by the first bytes, not by the name. Members of a packed file follow each
          other, with zeros between them or not. Every checksum is compared; samples that had gone
          out by then are counted, `samples_in_doubt`, or none goes out with `verify: BEFORE`.
        - arrays: a row of the first axis is a sample, in the field `data`, or as the first of
          `fields` says. Strings are text, byte strings bytes, dates and times whole numbers in
          their unit; of records each member is a field, `outer.inner` in a record of a record, and
          `fields` chooses them. Pickled objects are refused.
        - zips of arrays (`.npz`): row i of all arrays together is a sample, each in the field of
          its name. All have the same length; `fields` chooses those that do. Members that are no
          `.npy` are passed over. Stored and deflated members are read, of any size.
        - tables: a row is a sample, a column a field of its type: a number, text or bytes. A list
          of numbers, or of such lists of one length, becomes an array; a member of a struct the
          field `struct.member`; a date or time a whole number in its unit; a decimal, and any other
          list or map, text, with JSON in it. A null is a field that is missing.
        - types: of JSON a string becomes text; a number int64, or float64; a boolean bool; an array
          of numbers, or of such arrays of one shape, an array; anything else text, with the JSON in
          it. A null is a field that is missing. NaN and infinities are numbers, as Python's `json`
          writes them (`strict` refuses them). Of members of one name the last one counts. A line of
          text becomes the field `text`. A byte order mark is no content.
        - conversion: whole numbers of any type become floats, or another type that holds them;
          floats of any type too, and whole ones (5.0) whole numbers; booleans 0 and 1. A finite
          number that would become infinite is out of range. Members that no field names have to be
          JSON, and no more.
        - order: files as they come in, or with `shuffle_files` in another order in every epoch,
          which follows from the seed. Lines come as in the file.
        - lanes: each reads parts of files, `block_bytes` long, in turn. A packed file cannot be
          taken apart, nor can a tar or a zip with deflated arrays: it is one part. A part of a
          table has the row groups that begin in it.
        - tables: Parquet, Arrow and CSV are read by Apache Arrow, which comes with ringfeed,
          whatever pyarrow is there.
        - lineage: a hash of the path, and a place: the byte of the file, as it is unpacked, where
          the line, the sample's first member or the row begins; of zips of arrays and of tables the
          number of the row. `ringfeed.lineage()` in Python finds the file and the place.
        - memory: about 100 bytes and the path for each file; in the process some megabytes a lane.
        - restart: reads the part that was under way again, from where it was. A packed file is
          unpacked up to there, and so are deflated arrays; of a table the row group is decoded
          again.
        - skips: files: `skipped_vanished`, `skipped_unreadable`, `skipped_changed` (it has become
          shorter since the epoch came to it), `skipped_damaged` (the rest of it, behind the fault;
          or a damaged member of a tar, or the rest of a row group), `skipped_unsupported` (a window
          beyond `window_bytes_max`, a dictionary that is not there), `skipped_trailing` (what lies
          behind the last member). Samples: `skipped_no_json` (or no object),
          `skipped_missing_field`, `skipped_wrong_type`, `skipped_too_large` (for the queue); if an
          array or a column is missing or no array is of the type, the whole file. Empty lines are
          passed over. Up to a MiB of rows before a fault in a deflated array, or 256 in a table, go
          with it. The checksum of a stored array is compared by the lane that reads its last rows,
          which reads it once more.
        - finite run: `epochs` passes over the files of the scan. An endless run begins anew when it
          has read all files, with those that have come since.

        Args:
            fields: The fields to take, in this order; default: all, in the order of each object. A
                line, or a row, that lacks one of them is skipped, unless the field says otherwise.
            shuffle_files: (default False) Puts the files in another order in every epoch.
            block_bytes: (64 KiB to 1 GiB, default 8 MiB) Bytes of a part of a file that one lane
                reads before the next one's turn.
            line_bytes_max: (1 KiB to 1 GiB, default 64 MiB) The longest line, or element of a
                document, in bytes; longer ones are skipped (`skipped_too_large`). 1 KiB to 1 GiB.
                With a row of CSV that is longer the file ends (`skipped_damaged`).
            strict: (default False) A line of JSON with NaN, Infinity or -Infinity in it, wherever
                that is, is none (`skipped_no_json`).
            verify: (default "ALONG") When the checksums of packed files and of zips of arrays are
                compared. ALONG: As the file is read: damage is met behind some of its samples,
                which have gone out by then (`samples_in_doubt`); BEFORE: Before: files that have
                checksums are read twice, by one lane; of a damaged one nothing goes out.
            window_bytes_max: (1 MiB to 2 GiB, default 2 GiB) The most memory that unpacking a file
                may take in a lane: the window of Zstandard, rounded down to a power of two, and the
                dictionary of xz. Files that need more are skipped (`skipped_unsupported`).
            group: (default "NEIGHBOURS") Which members of one key are a sample. A key that comes
                again behind its sample is counted (`keys_again`) and said. NEIGHBOURS: Of a tar,
                those that follow each other; BY_KEY: Those of a tar that come within `group_window`
                samples.
            group_window: (1 to 16777216, default 65536) With BY_KEY: samples that wait for more of
                their members. When there are more, the first goes out. In memory are the names, and
                of a packed tar what the members hold, to 1 GiB.
            csv_delimiter: Of CSV: what stands between the cells, one character. Default: the comma,
                or, where the first line has none, the first of tab, `;` and `|` that it has.
            csv_names: (default True) Of CSV: the first row names the columns. Without, they are
                `f0`, `f1` and so on.
            threads: (1 to 64, default 1) Lanes, each a thread.
            queue_capacity: (1 to 1048576, default 4096) Records queued at each output, per ring
                (from one lane to one lane). For batches that trainers read, the number of slots of
                the feed, unless feed_output.slots gives it.
            queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill
                at most half of it. The default suits the record type; for batches that trainers
                read it is what the slots need.
            overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots
                are held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is
                dropped and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
            skip_limit: The feed stops, with the reasons, if this stage leaves out more than that of
                what it counts. Default: as much as `skip_limit` of the feed says, over all stages.
            name: Name of the stage; default: a sensible one.
        """
        return _call.stage("json", "sample_source", locals(), suggested="samples", format="JSON")

    @_call.checked
    def arrow(
        self,
        *,
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
        """Reads files into samples: lines of JSON (JSONL) or of text, tars of samples as
        WebDataset has them, both packed with gzip, Zstandard, bzip2 or xz or not; NumPy's arrays;
        tables of Parquet.

        A stage `sample_source` with `format: ARROW`.

        - input: paths of files. By `format` BY_NAME those are read whose ending is known; others,
          such as a README or sums beside the data, are counted in `files_passed_over` and named in
          the log. So are backups and unfinished downloads (`x~`, `#x#`, `.bak`, `.orig`, `.swp`,
          `.tmp`, `.part`, `.partial`, `.crdownload`), whatever `format` says; and, again in every
          epoch, a `.json` that is one object, such as dataset_infos.json, where there are no more
          of them than of data other than text.
        - tars: members that follow each other and have the same name up to its first dot are one
          sample. The rest of the name, in small letters, is the name of the field, which is bytes;
          with `dtype: "text"` text, with a numeric one (here, or in the batcher) the number that is
          written there. The field `__key__` is the name up to the dot. Sparse members come with
          their holes. What is of no sample (a name without a dot, a link, a device) is counted,
          `skipped_members`; directories are not. Tars that are joined (`cat a.tar b.tar`) are read
          one after the other. A damaged member costs its sample, which is counted once; if the
          damage does not say whose it was, the samples before and behind it go too, but for those
          that have all `fields`.
        - packing: told by the first bytes, not by the name. Members of a packed file follow each
          other, with zeros between them or not. Every checksum is compared; samples that had gone
          out by then are counted, `samples_in_doubt`, or none goes out with `verify: BEFORE`.
        - arrays: a row of the first axis is a sample, in the field `data`, or as the first of
          `fields` says. Strings are text, byte strings bytes, dates and times whole numbers in
          their unit; of records each member is a field, `outer.inner` in a record of a record, and
          `fields` chooses them. Pickled objects are refused.
        - zips of arrays (`.npz`): row i of all arrays together is a sample, each in the field of
          its name. All have the same length; `fields` chooses those that do. Members that are no
          `.npy` are passed over. Stored and deflated members are read, of any size.
        - tables: a row is a sample, a column a field of its type: a number, text or bytes. A list
          of numbers, or of such lists of one length, becomes an array; a member of a struct the
          field `struct.member`; a date or time a whole number in its unit; a decimal, and any other
          list or map, text, with JSON in it. A null is a field that is missing.
        - types: of JSON a string becomes text; a number int64, or float64; a boolean bool; an array
          of numbers, or of such arrays of one shape, an array; anything else text, with the JSON in
          it. A null is a field that is missing. NaN and infinities are numbers, as Python's `json`
          writes them (`strict` refuses them). Of members of one name the last one counts. A line of
          text becomes the field `text`. A byte order mark is no content.
        - conversion: whole numbers of any type become floats, or another type that holds them;
          floats of any type too, and whole ones (5.0) whole numbers; booleans 0 and 1. A finite
          number that would become infinite is out of range. Members that no field names have to be
          JSON, and no more.
        - order: files as they come in, or with `shuffle_files` in another order in every epoch,
          which follows from the seed. Lines come as in the file.
        - lanes: each reads parts of files, `block_bytes` long, in turn. A packed file cannot be
          taken apart, nor can a tar or a zip with deflated arrays: it is one part. A part of a
          table has the row groups that begin in it.
        - tables: Parquet, Arrow and CSV are read by Apache Arrow, which comes with ringfeed,
          whatever pyarrow is there.
        - lineage: a hash of the path, and a place: the byte of the file, as it is unpacked, where
          the line, the sample's first member or the row begins; of zips of arrays and of tables the
          number of the row. `ringfeed.lineage()` in Python finds the file and the place.
        - memory: about 100 bytes and the path for each file; in the process some megabytes a lane.
        - restart: reads the part that was under way again, from where it was. A packed file is
          unpacked up to there, and so are deflated arrays; of a table the row group is decoded
          again.
        - skips: files: `skipped_vanished`, `skipped_unreadable`, `skipped_changed` (it has become
          shorter since the epoch came to it), `skipped_damaged` (the rest of it, behind the fault;
          or a damaged member of a tar, or the rest of a row group), `skipped_unsupported` (a window
          beyond `window_bytes_max`, a dictionary that is not there), `skipped_trailing` (what lies
          behind the last member). Samples: `skipped_no_json` (or no object),
          `skipped_missing_field`, `skipped_wrong_type`, `skipped_too_large` (for the queue); if an
          array or a column is missing or no array is of the type, the whole file. Empty lines are
          passed over. Up to a MiB of rows before a fault in a deflated array, or 256 in a table, go
          with it. The checksum of a stored array is compared by the lane that reads its last rows,
          which reads it once more.
        - finite run: `epochs` passes over the files of the scan. An endless run begins anew when it
          has read all files, with those that have come since.

        Args:
            fields: The fields to take, in this order; default: all, in the order of each object. A
                line, or a row, that lacks one of them is skipped, unless the field says otherwise.
            shuffle_files: (default False) Puts the files in another order in every epoch.
            block_bytes: (64 KiB to 1 GiB, default 8 MiB) Bytes of a part of a file that one lane
                reads before the next one's turn.
            line_bytes_max: (1 KiB to 1 GiB, default 64 MiB) The longest line, or element of a
                document, in bytes; longer ones are skipped (`skipped_too_large`). 1 KiB to 1 GiB.
                With a row of CSV that is longer the file ends (`skipped_damaged`).
            strict: (default False) A line of JSON with NaN, Infinity or -Infinity in it, wherever
                that is, is none (`skipped_no_json`).
            verify: (default "ALONG") When the checksums of packed files and of zips of arrays are
                compared. ALONG: As the file is read: damage is met behind some of its samples,
                which have gone out by then (`samples_in_doubt`); BEFORE: Before: files that have
                checksums are read twice, by one lane; of a damaged one nothing goes out.
            window_bytes_max: (1 MiB to 2 GiB, default 2 GiB) The most memory that unpacking a file
                may take in a lane: the window of Zstandard, rounded down to a power of two, and the
                dictionary of xz. Files that need more are skipped (`skipped_unsupported`).
            group: (default "NEIGHBOURS") Which members of one key are a sample. A key that comes
                again behind its sample is counted (`keys_again`) and said. NEIGHBOURS: Of a tar,
                those that follow each other; BY_KEY: Those of a tar that come within `group_window`
                samples.
            group_window: (1 to 16777216, default 65536) With BY_KEY: samples that wait for more of
                their members. When there are more, the first goes out. In memory are the names, and
                of a packed tar what the members hold, to 1 GiB.
            csv_delimiter: Of CSV: what stands between the cells, one character. Default: the comma,
                or, where the first line has none, the first of tab, `;` and `|` that it has.
            csv_names: (default True) Of CSV: the first row names the columns. Without, they are
                `f0`, `f1` and so on.
            threads: (1 to 64, default 1) Lanes, each a thread.
            queue_capacity: (1 to 1048576, default 4096) Records queued at each output, per ring
                (from one lane to one lane). For batches that trainers read, the number of slots of
                the feed, unless feed_output.slots gives it.
            queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill
                at most half of it. The default suits the record type; for batches that trainers
                read it is what the slots need.
            overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots
                are held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is
                dropped and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
            skip_limit: The feed stops, with the reasons, if this stage leaves out more than that of
                what it counts. Default: as much as `skip_limit` of the feed says, over all stages.
            name: Name of the stage; default: a sensible one.
        """
        return _call.stage("arrow", "sample_source", locals(), suggested="samples", format="ARROW")

    @_call.checked
    def csv(
        self,
        *,
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
        """Reads files into samples: lines of JSON (JSONL) or of text, tars of samples as
        WebDataset has them, both packed with gzip, Zstandard, bzip2 or xz or not; NumPy's arrays;
        tables of Parquet.

        A stage `sample_source` with `format: CSV`.

        - input: paths of files. By `format` BY_NAME those are read whose ending is known; others,
          such as a README or sums beside the data, are counted in `files_passed_over` and named in
          the log. So are backups and unfinished downloads (`x~`, `#x#`, `.bak`, `.orig`, `.swp`,
          `.tmp`, `.part`, `.partial`, `.crdownload`), whatever `format` says; and, again in every
          epoch, a `.json` that is one object, such as dataset_infos.json, where there are no more
          of them than of data other than text.
        - tars: members that follow each other and have the same name up to its first dot are one
          sample. The rest of the name, in small letters, is the name of the field, which is bytes;
          with `dtype: "text"` text, with a numeric one (here, or in the batcher) the number that is
          written there. The field `__key__` is the name up to the dot. Sparse members come with
          their holes. What is of no sample (a name without a dot, a link, a device) is counted,
          `skipped_members`; directories are not. Tars that are joined (`cat a.tar b.tar`) are read
          one after the other. A damaged member costs its sample, which is counted once; if the
          damage does not say whose it was, the samples before and behind it go too, but for those
          that have all `fields`.
        - packing: told by the first bytes, not by the name. Members of a packed file follow each
          other, with zeros between them or not. Every checksum is compared; samples that had gone
          out by then are counted, `samples_in_doubt`, or none goes out with `verify: BEFORE`.
        - arrays: a row of the first axis is a sample, in the field `data`, or as the first of
          `fields` says. Strings are text, byte strings bytes, dates and times whole numbers in
          their unit; of records each member is a field, `outer.inner` in a record of a record, and
          `fields` chooses them. Pickled objects are refused.
        - zips of arrays (`.npz`): row i of all arrays together is a sample, each in the field of
          its name. All have the same length; `fields` chooses those that do. Members that are no
          `.npy` are passed over. Stored and deflated members are read, of any size.
        - tables: a row is a sample, a column a field of its type: a number, text or bytes. A list
          of numbers, or of such lists of one length, becomes an array; a member of a struct the
          field `struct.member`; a date or time a whole number in its unit; a decimal, and any other
          list or map, text, with JSON in it. A null is a field that is missing.
        - types: of JSON a string becomes text; a number int64, or float64; a boolean bool; an array
          of numbers, or of such arrays of one shape, an array; anything else text, with the JSON in
          it. A null is a field that is missing. NaN and infinities are numbers, as Python's `json`
          writes them (`strict` refuses them). Of members of one name the last one counts. A line of
          text becomes the field `text`. A byte order mark is no content.
        - conversion: whole numbers of any type become floats, or another type that holds them;
          floats of any type too, and whole ones (5.0) whole numbers; booleans 0 and 1. A finite
          number that would become infinite is out of range. Members that no field names have to be
          JSON, and no more.
        - order: files as they come in, or with `shuffle_files` in another order in every epoch,
          which follows from the seed. Lines come as in the file.
        - lanes: each reads parts of files, `block_bytes` long, in turn. A packed file cannot be
          taken apart, nor can a tar or a zip with deflated arrays: it is one part. A part of a
          table has the row groups that begin in it.
        - tables: Parquet, Arrow and CSV are read by Apache Arrow, which comes with ringfeed,
          whatever pyarrow is there.
        - lineage: a hash of the path, and a place: the byte of the file, as it is unpacked, where
          the line, the sample's first member or the row begins; of zips of arrays and of tables the
          number of the row. `ringfeed.lineage()` in Python finds the file and the place.
        - memory: about 100 bytes and the path for each file; in the process some megabytes a lane.
        - restart: reads the part that was under way again, from where it was. A packed file is
          unpacked up to there, and so are deflated arrays; of a table the row group is decoded
          again.
        - skips: files: `skipped_vanished`, `skipped_unreadable`, `skipped_changed` (it has become
          shorter since the epoch came to it), `skipped_damaged` (the rest of it, behind the fault;
          or a damaged member of a tar, or the rest of a row group), `skipped_unsupported` (a window
          beyond `window_bytes_max`, a dictionary that is not there), `skipped_trailing` (what lies
          behind the last member). Samples: `skipped_no_json` (or no object),
          `skipped_missing_field`, `skipped_wrong_type`, `skipped_too_large` (for the queue); if an
          array or a column is missing or no array is of the type, the whole file. Empty lines are
          passed over. Up to a MiB of rows before a fault in a deflated array, or 256 in a table, go
          with it. The checksum of a stored array is compared by the lane that reads its last rows,
          which reads it once more.
        - finite run: `epochs` passes over the files of the scan. An endless run begins anew when it
          has read all files, with those that have come since.

        Args:
            fields: The fields to take, in this order; default: all, in the order of each object. A
                line, or a row, that lacks one of them is skipped, unless the field says otherwise.
            shuffle_files: (default False) Puts the files in another order in every epoch.
            block_bytes: (64 KiB to 1 GiB, default 8 MiB) Bytes of a part of a file that one lane
                reads before the next one's turn.
            line_bytes_max: (1 KiB to 1 GiB, default 64 MiB) The longest line, or element of a
                document, in bytes; longer ones are skipped (`skipped_too_large`). 1 KiB to 1 GiB.
                With a row of CSV that is longer the file ends (`skipped_damaged`).
            strict: (default False) A line of JSON with NaN, Infinity or -Infinity in it, wherever
                that is, is none (`skipped_no_json`).
            verify: (default "ALONG") When the checksums of packed files and of zips of arrays are
                compared. ALONG: As the file is read: damage is met behind some of its samples,
                which have gone out by then (`samples_in_doubt`); BEFORE: Before: files that have
                checksums are read twice, by one lane; of a damaged one nothing goes out.
            window_bytes_max: (1 MiB to 2 GiB, default 2 GiB) The most memory that unpacking a file
                may take in a lane: the window of Zstandard, rounded down to a power of two, and the
                dictionary of xz. Files that need more are skipped (`skipped_unsupported`).
            group: (default "NEIGHBOURS") Which members of one key are a sample. A key that comes
                again behind its sample is counted (`keys_again`) and said. NEIGHBOURS: Of a tar,
                those that follow each other; BY_KEY: Those of a tar that come within `group_window`
                samples.
            group_window: (1 to 16777216, default 65536) With BY_KEY: samples that wait for more of
                their members. When there are more, the first goes out. In memory are the names, and
                of a packed tar what the members hold, to 1 GiB.
            csv_delimiter: Of CSV: what stands between the cells, one character. Default: the comma,
                or, where the first line has none, the first of tab, `;` and `|` that it has.
            csv_names: (default True) Of CSV: the first row names the columns. Without, they are
                `f0`, `f1` and so on.
            threads: (1 to 64, default 1) Lanes, each a thread.
            queue_capacity: (1 to 1048576, default 4096) Records queued at each output, per ring
                (from one lane to one lane). For batches that trainers read, the number of slots of
                the feed, unless feed_output.slots gives it.
            queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill
                at most half of it. The default suits the record type; for batches that trainers
                read it is what the slots need.
            overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots
                are held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is
                dropped and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
            skip_limit: The feed stops, with the reasons, if this stage leaves out more than that of
                what it counts. Default: as much as `skip_limit` of the feed says, over all stages.
            name: Name of the stage; default: a sensible one.
        """
        return _call.stage("csv", "sample_source", locals(), suggested="samples", format="CSV")

    @_call.checked
    def whole_file(
        self,
        *,
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
        """Reads files into samples: lines of JSON (JSONL) or of text, tars of samples as
        WebDataset has them, both packed with gzip, Zstandard, bzip2 or xz or not; NumPy's arrays;
        tables of Parquet.

        A stage `sample_source` with `format: WHOLE_FILE`.

        - input: paths of files. By `format` BY_NAME those are read whose ending is known; others,
          such as a README or sums beside the data, are counted in `files_passed_over` and named in
          the log. So are backups and unfinished downloads (`x~`, `#x#`, `.bak`, `.orig`, `.swp`,
          `.tmp`, `.part`, `.partial`, `.crdownload`), whatever `format` says; and, again in every
          epoch, a `.json` that is one object, such as dataset_infos.json, where there are no more
          of them than of data other than text.
        - tars: members that follow each other and have the same name up to its first dot are one
          sample. The rest of the name, in small letters, is the name of the field, which is bytes;
          with `dtype: "text"` text, with a numeric one (here, or in the batcher) the number that is
          written there. The field `__key__` is the name up to the dot. Sparse members come with
          their holes. What is of no sample (a name without a dot, a link, a device) is counted,
          `skipped_members`; directories are not. Tars that are joined (`cat a.tar b.tar`) are read
          one after the other. A damaged member costs its sample, which is counted once; if the
          damage does not say whose it was, the samples before and behind it go too, but for those
          that have all `fields`.
        - packing: told by the first bytes, not by the name. Members of a packed file follow each
          other, with zeros between them or not. Every checksum is compared; samples that had gone
          out by then are counted, `samples_in_doubt`, or none goes out with `verify: BEFORE`.
        - arrays: a row of the first axis is a sample, in the field `data`, or as the first of
          `fields` says. Strings are text, byte strings bytes, dates and times whole numbers in
          their unit; of records each member is a field, `outer.inner` in a record of a record, and
          `fields` chooses them. Pickled objects are refused.
        - zips of arrays (`.npz`): row i of all arrays together is a sample, each in the field of
          its name. All have the same length; `fields` chooses those that do. Members that are no
          `.npy` are passed over. Stored and deflated members are read, of any size.
        - tables: a row is a sample, a column a field of its type: a number, text or bytes. A list
          of numbers, or of such lists of one length, becomes an array; a member of a struct the
          field `struct.member`; a date or time a whole number in its unit; a decimal, and any other
          list or map, text, with JSON in it. A null is a field that is missing.
        - types: of JSON a string becomes text; a number int64, or float64; a boolean bool; an array
          of numbers, or of such arrays of one shape, an array; anything else text, with the JSON in
          it. A null is a field that is missing. NaN and infinities are numbers, as Python's `json`
          writes them (`strict` refuses them). Of members of one name the last one counts. A line of
          text becomes the field `text`. A byte order mark is no content.
        - conversion: whole numbers of any type become floats, or another type that holds them;
          floats of any type too, and whole ones (5.0) whole numbers; booleans 0 and 1. A finite
          number that would become infinite is out of range. Members that no field names have to be
          JSON, and no more.
        - order: files as they come in, or with `shuffle_files` in another order in every epoch,
          which follows from the seed. Lines come as in the file.
        - lanes: each reads parts of files, `block_bytes` long, in turn. A packed file cannot be
          taken apart, nor can a tar or a zip with deflated arrays: it is one part. A part of a
          table has the row groups that begin in it.
        - tables: Parquet, Arrow and CSV are read by Apache Arrow, which comes with ringfeed,
          whatever pyarrow is there.
        - lineage: a hash of the path, and a place: the byte of the file, as it is unpacked, where
          the line, the sample's first member or the row begins; of zips of arrays and of tables the
          number of the row. `ringfeed.lineage()` in Python finds the file and the place.
        - memory: about 100 bytes and the path for each file; in the process some megabytes a lane.
        - restart: reads the part that was under way again, from where it was. A packed file is
          unpacked up to there, and so are deflated arrays; of a table the row group is decoded
          again.
        - skips: files: `skipped_vanished`, `skipped_unreadable`, `skipped_changed` (it has become
          shorter since the epoch came to it), `skipped_damaged` (the rest of it, behind the fault;
          or a damaged member of a tar, or the rest of a row group), `skipped_unsupported` (a window
          beyond `window_bytes_max`, a dictionary that is not there), `skipped_trailing` (what lies
          behind the last member). Samples: `skipped_no_json` (or no object),
          `skipped_missing_field`, `skipped_wrong_type`, `skipped_too_large` (for the queue); if an
          array or a column is missing or no array is of the type, the whole file. Empty lines are
          passed over. Up to a MiB of rows before a fault in a deflated array, or 256 in a table, go
          with it. The checksum of a stored array is compared by the lane that reads its last rows,
          which reads it once more.
        - finite run: `epochs` passes over the files of the scan. An endless run begins anew when it
          has read all files, with those that have come since.

        Args:
            fields: The fields to take, in this order; default: all, in the order of each object. A
                line, or a row, that lacks one of them is skipped, unless the field says otherwise.
            shuffle_files: (default False) Puts the files in another order in every epoch.
            block_bytes: (64 KiB to 1 GiB, default 8 MiB) Bytes of a part of a file that one lane
                reads before the next one's turn.
            line_bytes_max: (1 KiB to 1 GiB, default 64 MiB) The longest line, or element of a
                document, in bytes; longer ones are skipped (`skipped_too_large`). 1 KiB to 1 GiB.
                With a row of CSV that is longer the file ends (`skipped_damaged`).
            strict: (default False) A line of JSON with NaN, Infinity or -Infinity in it, wherever
                that is, is none (`skipped_no_json`).
            verify: (default "ALONG") When the checksums of packed files and of zips of arrays are
                compared. ALONG: As the file is read: damage is met behind some of its samples,
                which have gone out by then (`samples_in_doubt`); BEFORE: Before: files that have
                checksums are read twice, by one lane; of a damaged one nothing goes out.
            window_bytes_max: (1 MiB to 2 GiB, default 2 GiB) The most memory that unpacking a file
                may take in a lane: the window of Zstandard, rounded down to a power of two, and the
                dictionary of xz. Files that need more are skipped (`skipped_unsupported`).
            group: (default "NEIGHBOURS") Which members of one key are a sample. A key that comes
                again behind its sample is counted (`keys_again`) and said. NEIGHBOURS: Of a tar,
                those that follow each other; BY_KEY: Those of a tar that come within `group_window`
                samples.
            group_window: (1 to 16777216, default 65536) With BY_KEY: samples that wait for more of
                their members. When there are more, the first goes out. In memory are the names, and
                of a packed tar what the members hold, to 1 GiB.
            csv_delimiter: Of CSV: what stands between the cells, one character. Default: the comma,
                or, where the first line has none, the first of tab, `;` and `|` that it has.
            csv_names: (default True) Of CSV: the first row names the columns. Without, they are
                `f0`, `f1` and so on.
            threads: (1 to 64, default 1) Lanes, each a thread.
            queue_capacity: (1 to 1048576, default 4096) Records queued at each output, per ring
                (from one lane to one lane). For batches that trainers read, the number of slots of
                the feed, unless feed_output.slots gives it.
            queue_bytes: (64 KiB to 1 TiB) Bytes queued at each output, per ring; a record may fill
                at most half of it. The default suits the record type; for batches that trainers
                read it is what the slots need.
            overflow_behavior: (default "BLOCK") What happens when the queue is full, or all slots
                are held. BLOCK: the producer waits; nothing is lost; DROP_NEW: the new record is
                dropped and counted; KEEP_NEWEST: the oldest queued record is dropped and counted.
            skip_limit: The feed stops, with the reasons, if this stage leaves out more than that of
                what it counts. Default: as much as `skip_limit` of the feed says, over all stages.
            name: Name of the stage; default: a sensible one.
        """
        return _call.stage(
            "whole_file", "sample_source", locals(), suggested="samples", format="WHOLE_FILE"
        )

    @_call.checked
    def output(
        self,
        alias: str | None = None,
        *,
        slots: int | None = None,
        dispatch: settings.FeedOutputDispatch | None = None,
        checksum: bool | None = None,
        groups: settings.ConsumerGroups | None = None,
    ) -> Output:
        """Give the batches of the last stage settings of their own, or a name among several.

        Args:
            alias: The name that trainers use to ask for this output, e.g. "validation"; like the
                name of a stage; unique among the outputs. Default: none. A trainer that names no
                output gets the one without an alias, or the first in this configuration if all have
                one.
            slots: (1 to 256, default 8) Number of batches that the feed can hold, over all
                producing lanes; default 8; 1 to 256. The max_hold of each group must fit, see
                max_hold.
            dispatch: (default "ORDERED") ORDERED: in rotation: one deterministic order, whatever
                the number of lanes; RELAXED: to any lane with room: highest throughput, no fixed
                order.
            checksum: (default False) Stores a CRC-32C of every batch in its descriptor, for
                trainers that call rf_verify() or batch.verify(). It detects failing memory and
                stray writes. The lane reads each batch once more to compute it.
            groups: Consumer groups that exist from the start: batches wait for them before any
                trainer has attached. At most 16. Other groups join when their first trainer
                attaches.
        """
        return _call.output(self, locals())
