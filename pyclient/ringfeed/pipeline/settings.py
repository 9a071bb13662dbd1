"""Messages in the settings of stages and feeds, and the words that settings may have.

Written by scripts/reference from proto/, where each setting is explained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Literal, TypeAlias

from ._call import Message, checked

BitextCompat = Literal["NONE", "NLLB", "MAIN"]
BitextSourceLangTok = Literal["NO_LANGTOK", "SRC", "TGT"]
BitextSourceLangTokStyle = Literal["MULTILINGUAL", "MBART"]
ChessGamesValueColumns = Literal["WIN_DRAW_LOSS", "PLAYED_Q_D"]
ChessGamesWindowStart = Literal["ANY_PLY", "FIRST_PLY"]
ConsumerGroupKind = Literal["SHARED", "RANKED"]
ConsumerGroupPolicy = Literal["BLOCK", "SKIP", "DETACH"]
EpochPlannerSamplingMethod = Literal["CONCAT", "UNIFORM", "TEMPERATURE", "ROUND_ROBIN"]
FeedOutputDispatch = Literal["ORDERED", "RELAXED"]
IndexSourceOrder = Literal["IN_ORDER", "SHUFFLED", "WEIGHTED"]
LogFormat = Literal["TEXT", "JSON"]
LogLevel = Literal["DEBUG", "INFO", "WARN", "ERROR"]
OverflowBehavior = Literal["BLOCK", "DROP_NEW", "KEEP_NEWEST"]
PythonBatcherOnError = Literal["SKIP", "STOP"]
PythonOnError = Literal["SKIP", "STOP"]
PythonSourceOnError = Literal["SKIP", "STOP"]
PythonSourceState = Literal["VERIFY", "EXACT", "RUN_FORWARD"]
SampleFieldOnMissing = Literal["SKIP", "LEAVE_OUT"]
SampleMixerEnd = Literal["FIRST", "LAST"]
SampleOrder = Literal["BETTER", "EXACT"]
SampleSourceFormat = Literal[
    "BY_NAME",
    "JSONL",
    "TEXT",
    "TAR",
    "NPY",
    "NPZ",
    "PARQUET",
    "JSON",
    "ARROW",
    "CSV",
    "WHOLE_FILE",
]
SampleSourceGroup = Literal["NEIGHBOURS", "BY_KEY"]
SampleSourceVerify = Literal["ALONG", "BEFORE"]
TensorGeneratorLayout = Literal["THREE_TENSORS", "FIVE_ARRAYS"]
TensorGeneratorPlanes = Literal[
    "PLANES_FLOAT32",
    "PLANES_FLOAT16",
    "PLANES_BFLOAT16",
    "PLANES_UINT8",
    "PLANES_BITS",
]
TensorGeneratorPolicy = Literal["POLICY_FLOAT32", "POLICY_FLOAT16", "POLICY_SPARSE"]
TensorGeneratorUnknownValues = Literal["UNKNOWN_AS_STORED", "UNKNOWN_NAN", "UNKNOWN_ZERO"]


class StageGroup(Message):
    """The stages that share one process: they live, die and restart together.

    Args:
        name: like the name of a stage; unique among the groups; required
        stages: names of its stages; at least one
    """

    __slots__ = ()

    @checked
    def __init__(
        self,
        name: str | None = None,
        stages: str | Sequence[str] | None = None,
    ) -> None:
        self._take("StageGroupConfig", locals())


class Storage(Message):
    """`StorageConfig` of the schema.

    Args:
        directory: Directory (tmpfs, huge-page mount, disk) for the segments, so that the feed
            survives the death of all its processes. Default: unnamed memory (memfd).
        memory_budget_bytes: (from 1 MiB) Maximum memory of the feed, in bytes; a feed that needs
            more is refused at the start, with the bytes of each part. Default: what the machine and
            the control group have free; at least 1 MiB.
    """

    __slots__ = ()

    @checked
    def __init__(
        self,
        directory: str | PathLike[str] | None = None,
        memory_budget_bytes: int | str | None = None,
    ) -> None:
        self._take("StorageConfig", locals())


class Restart(Message):
    """What happens after the death of a worker.

    Args:
        max_restarts: (0 to 1000000, default 10) More deaths than this of one stage group within
            `within_s` seconds stop the feed with the reason; default 10; 0 to 1000000 (0: the first
            death stops the feed).
        within_s: (1 to 86400, default 60)
        backoff_ms_min: (0 to 60000, default 10) Delay before the second quick restart, in
            milliseconds; doubled each time up to the maximum. The first restart is immediate.
            Default 10.
        backoff_ms_max: (0 to 3600000, default 5000) Longest such delay, in milliseconds; default
            5000; 0 to 3600000; not below backoff_ms_min.
        max_attempts: (1 to 255, default 3) Number of deaths on the same record before it is set
            aside; default 3.
        stall_ms: (0 to 86400000, default 0) A worker is killed and restarted after this many
            milliseconds without a sign of life. A finished step is one; a sleeping lane gives one
            every 50 ms. Must be longer than the longest step, for example indexing the largest tar.
            Default 0: never; up to 86400000.
        dead_letters: Directory for records that were set aside; each comes with a description.
            Created when needed. Default: $XDG_STATE_HOME/ringfeed/FEED/dead-letters, where
            $XDG_STATE_HOME is ~/.local/state if unset.
        ready_ms: (0 to 86400000, default 300000) A process that is not ready this many milliseconds
            after its start, because a module that it imports waits for a server, for example, is
            killed and started again; the third in a row stops the feed with the reason. Default
            300000; up to 86400000; 0: it is waited for without a limit.
    """

    __slots__ = ()

    @checked
    def __init__(
        self,
        max_restarts: int | None = None,
        within_s: int | None = None,
        backoff_ms_min: int | None = None,
        backoff_ms_max: int | None = None,
        max_attempts: int | None = None,
        stall_ms: int | None = None,
        dead_letters: str | PathLike[str] | None = None,
        ready_ms: int | None = None,
    ) -> None:
        self._take("RestartConfig", locals())


class Log(Message):
    """`LogConfig` of the schema.

    Args:
        level: (default "INFO") Events below it are left out. `ringfeed log FEED LEVEL` changes it
            while the feed runs. DEBUG; INFO: events that happen once; WARN: data was skipped, a
            process was replaced; ERROR: someone must act.
        file: appended to; default: standard error
        format: (default "TEXT") TEXT: an event and its values: `worker_died group=sampler
            signal=9`; JSON: one JSON object a line, with the values as members.
        rotate_bytes: (0 to 1 TiB, default 0) Size of `file` beyond which it is renamed to FILE.1,
            FILE.1 to FILE.2 and so on, and a new one is begun; a line is always whole. Default 0:
            never; at least 4 KiB.
        rotate_keep: (1 to 1000, default 5) Number of files that are kept beside `file`; default 5.
    """

    __slots__ = ()

    @checked
    def __init__(
        self,
        level: LogLevel | None = None,
        file: str | PathLike[str] | None = None,
        format: LogFormat | None = None,
        rotate_bytes: int | str | None = None,
        rotate_keep: int | None = None,
    ) -> None:
        self._take("LogConfig", locals())


class Control(Message):
    """`ControlConfig` of the schema.

    Args:
        directory: Directory of the control socket; default: $RINGFEED_SOCKET_DIR, else
            $XDG_RUNTIME_DIR/ringfeed, else /run/ringfeed.
    """

    __slots__ = ()

    @checked
    def __init__(
        self,
        directory: str | PathLike[str] | None = None,
    ) -> None:
        self._take("ControlConfig", locals())


class Shutdown(Message):
    """`ShutdownConfig` of the schema.

    Args:
        drain_timeout_s: (0 to 86400, default 30) Seconds that a drain may take before it becomes a
            stop; default 30.
        orphan_timeout_s: (0 to 604800, default 600) Seconds that workers keep running without a
            supervisor; default 600.
    """

    __slots__ = ()

    @checked
    def __init__(
        self,
        drain_timeout_s: int | None = None,
        orphan_timeout_s: int | None = None,
    ) -> None:
        self._take("ShutdownConfig", locals())


class Snapshot(Message):
    """Snapshots that a feed takes by itself while it runs, so that a checkpoint of a model always
    has one that it can go on from. With every_batches and every_s, whichever comes first.

    Args:
        directory: Directory for them, created when needed; required. Each is a directory in it,
            named after the feed and the newest batch when it was begun: lc0-000000012000.
        every_batches: (0 to 1000000000000, default 0) Takes one after this many batches of the
            first output. Default 0: not by batches; up to 1000000000000.
        every_s: (0 to 2592000, default 0) Takes one after this many seconds. Default 0: not by
            time; up to 2592000 (30 days).
        keep: (1 to 1000, default 2) Number of snapshots that stay; older ones are removed once a
            new one is complete. The disk must have room for one more. Default 2.
    """

    __slots__ = ()

    @checked
    def __init__(
        self,
        directory: str | PathLike[str] | None = None,
        every_batches: int | None = None,
        every_s: int | None = None,
        keep: int | None = None,
    ) -> None:
        self._take("SnapshotConfig", locals())


class SkipLimit(Message):
    """How much may be left out.

    Args:
        share: (0 to 1, default 0.01) The samples that were left out, divided by them and those that
            came. A file that cannot be read, or the rest of one, counts as one. Stages that count
            files, chunks, rows or games go by these. Default 0.01.
        after: (1 to 1099511627776, default 1000) Nothing is done before there are so many of them.
            Default 1000; at least 1.
    """

    __slots__ = ()

    @checked
    def __init__(
        self,
        share: float | None = None,
        after: int | None = None,
    ) -> None:
        self._take("SkipLimitConfig", locals())


class Http(Message):
    """`ringfeed web` in a process of its own, which starts and ends with the feed. It shows all
    feeds of the socket directory, so one of them needs it. The feed does not depend on it: it is
    started again when it has died.

    Args:
        listen: Address and port; required. 127.0.0.1:9464 and [::1]:9464 are reached from this
            machine alone; port 0 is any that is free, which `ringfeed status` shows.
        token_file: File whose first line is the token that everybody has to send (Authorization:
            Bearer). Default: everybody who reaches the address may read.
        allow_hosts: Names by which browsers may call it, besides addresses and localhost.
    """

    __slots__ = ()

    @checked
    def __init__(
        self,
        listen: str | None = None,
        token_file: str | PathLike[str] | None = None,
        allow_hosts: str | Sequence[str] | None = None,
    ) -> None:
        self._take("HttpConfig", locals())


class ConsumerGroup(Message):
    """A group of trainers: the group sees every batch, and each batch goes to one of its members.

    Args:
        name: like the name of the feed; unique among the groups; required
        kind: (default "SHARED") SHARED: members take the lowest batch that nobody has taken;
            RANKED: member r of `world` takes the batches s (from 1) with (s - 1) mod world = r.
        world: (1 to 16) Number of members of a RANKED group; required for RANKED and refused for
            SHARED.
        policy: (default "BLOCK") BLOCK: the feed waits for it; SKIP: it loses the oldest batches
            that nobody has taken; they are counted; DETACH: after stall_ms it leaves the feed.
        stall_ms: (1 to 86400000, default 10000) For DETACH: milliseconds without progress before
            the group leaves; default 10000; at least 1.
        redeliver: (default True) true: the batches that a dead member held go to another member (or
            to the same one when it returns), with `tries` one higher. false: they are closed, so no
            batch is ever delivered twice. A member may choose for itself.
        max_tries: (1 to 255, default 3) Number of deliveries of one batch before it is closed;
            default 3.
        max_hold: (1 to 255) Number of batches that one member may hold at once; 1 to 255. Default:
            the number of slots, but 2 if a group of the feed has the policy SKIP or DETACH. For
            these policies each producing lane needs at least 2 slots more than the max_hold of all
            groups together.
        rejoin_ms: (0 to 604800000, default 60000) Milliseconds that a group without members stays,
            so that a restarted trainer finds its batches; default 60000; 0 to 604800000 (a week).
    """

    __slots__ = ()

    @checked
    def __init__(
        self,
        name: str | None = None,
        kind: ConsumerGroupKind | None = None,
        world: int | None = None,
        policy: ConsumerGroupPolicy | None = None,
        stall_ms: int | None = None,
        redeliver: bool | None = None,
        max_tries: int | None = None,
        max_hold: int | None = None,
        rejoin_ms: int | None = None,
    ) -> None:
        self._take("ConsumerGroupConfig", locals())


class PositionSampling(Message):
    """Weights of positions: how far the result of the search is from what the network thought
    ("diff focus"), min((alpha (q_weight |best_q - orig_q| + policy_kld) / (q_weight + pol_scale) +
    beta)^gamma, tau) without units. A position has default_weight if its orig_q is NaN. Every
    position has it if neither diff_focus_q_weight nor diff_focus_pol_scale is given.

    Args:
        diff_focus_q_weight: (0 to 1000000000, default 0)
        diff_focus_pol_scale: (0 to 1000000000, default 1)
        diff_focus_alpha: (0 to 1000000000, default 1)
        diff_focus_beta: (0 to 1000000000, default 0)
        diff_focus_gamma: (0 to 1000, default 1)
        diff_focus_tau: (above 0, at most 1000000000, default 1)
        default_weight: (0 to 1000000000, default 1)
    """

    __slots__ = ()

    @checked
    def __init__(
        self,
        diff_focus_q_weight: float | None = None,
        diff_focus_pol_scale: float | None = None,
        diff_focus_alpha: float | None = None,
        diff_focus_beta: float | None = None,
        diff_focus_gamma: float | None = None,
        diff_focus_tau: float | None = None,
        default_weight: float | None = None,
    ) -> None:
        self._take("PositionSamplingConfig", locals())


class ChunkFrames(Message):
    """The positions that each use of a chunk gives, chosen as an unpacker chooses them. With
    neither `position_sampling_rate` nor `position_count` it gives all.

    Args:
        position_sampling_rate: (above 0, at most 1, default 1) Share of a chunk's positions; each
            comes once in every 1/rate uses. No unit;0, which gives all; above 0, at most 1.
        position_count: (1 to 65535) Positions that one use of a chunk gives, whatever its length.
        position_sampling: With position_count: positions come as often as their weights say.
            Default: all the same.
    """

    __slots__ = ()

    @checked
    def __init__(
        self,
        position_sampling_rate: float | None = None,
        position_count: int | None = None,
        position_sampling: PositionSampling | Mapping[str, object] | None = None,
    ) -> None:
        self._take("ChunkFramesConfig", locals())


class ChunkSourceSplitterOutput(Message):
    """`ChunkSourceSplitterConfig.Output` of the schema.

    Args:
        name: by which others read it: "splitter.NAME"; 1 to 32 characters out of
        weight: (1 to 1000000, default 1) A-Z a-z 0-9 _ -; required Share of the chunks, relative to
            the other outputs'; default 1.
    """

    __slots__ = ()

    @checked
    def __init__(
        self,
        name: str | None = None,
        weight: int | None = None,
    ) -> None:
        self._take("ChunkSourceSplitterConfig.Output", locals())


class BitextSourceLangToks(Message):
    """Which token comes before the sentences of a category. A category other than "main" has none
    without such an entry. A spec that ends in "dae", "lm" or "mined" asks for the language's token
    of that name (__eng_Latn_mined__); langtoks_specs must have it.

    Args:
        category: See the schema.
        source_spec: "src..." or "tgt...": whose language; absent: no token
        target_spec: always the target language; absent: no token
    """

    __slots__ = ()

    @checked
    def __init__(
        self,
        category: str | None = None,
        source_spec: str | None = None,
        target_spec: str | None = None,
    ) -> None:
        self._take("BitextSourceConfig.LangToks", locals())


class BitextSourceExtraData(Message):
    """Data of another category, with tokens of its own (langtoks). It comes after all data of
    category "main".

    Args:
        category: e.g. "mined"; required
        directory: as BitextSourceConfig.directory
        lang_pairs: as BitextSourceConfig.lang_pairs
    """

    __slots__ = ()

    @checked
    def __init__(
        self,
        category: str | None = None,
        directory: str | PathLike[str] | Sequence[str | PathLike[str]] | None = None,
        lang_pairs: str | Sequence[str] | None = None,
    ) -> None:
        self._take("BitextSourceConfig.ExtraData", locals())


class SamplingWeight(Message):
    """The share of a direction in an epoch, relative to the others.

    Args:
        key: "main:eng_Latn-tur_Latn"; without a category it means "main"
        weight: (0 to 1000000000000) no unit; from 0 on
    """

    __slots__ = ()

    @checked
    def __init__(
        self,
        key: str | None = None,
        weight: float | None = None,
    ) -> None:
        self._take("SamplingWeight", locals())


class SampleField(Message):
    """A field of a sample.

    Args:
        name: Its name in the data: a member of a JSON object, an array of a zip, a column of a
            table. Required.
        dtype: Type, as NumPy names it, or `text` or `bytes`. Default: as the batcher has it that
            reads the samples, straight or through shufflers and mixers; else as it is in the data.
            Numbers are converted; a sample whose number the type cannot hold is skipped
            (`skipped_wrong_type`).
        as_: Its name in the sample; default: the same.
        default: What it is where the data lacks it, or has null: a number, or an array of numbers,
            as JSON writes it (`0`, `NaN`, `[0, 0]`), `true` or `false`, text as it is. It needs
            `dtype`.
        on_missing: (default "SKIP") What happens where the data lacks it, or has null, and there is
            no `default`. SKIP: The sample is skipped (`skipped_missing_field`); LEAVE_OUT: The
            sample comes without the field.
    """

    __slots__ = ()

    @checked
    def __init__(
        self,
        name: str | None = None,
        dtype: str | None = None,
        as_: str | None = None,
        default: str | float | Iterable[object] | None = None,
        on_missing: SampleFieldOnMissing | None = None,
    ) -> None:
        self._take("SampleFieldConfig", locals())


class BatchField(Message):
    """An array of a batch.

    Args:
        name: The sample's field, and the array's name. Required.
        dtype: Type, as NumPy names it, or `text` or `bytes`. Required; but a sample_batcher goes by
            what the source of its samples says in its `fields`. If both say a type, values are
            converted as the stage's page says; a number and text contradict each other.
        shape: Shape of a row; none: a number, or in a sample_batcher what the source's `default`
            has. Not of text and bytes.
        bytes_max: (1 KiB to 1 TiB, default 1 MiB) Of text and bytes: the most that all rows of a
            batch have together. A batch of sample_batcher that comes to it has fewer rows.
    """

    __slots__ = ()

    @checked
    def __init__(
        self,
        name: str | None = None,
        dtype: str | None = None,
        shape: int | Sequence[int] | None = None,
        bytes_max: int | None = None,
    ) -> None:
        self._take("BatchFieldConfig", locals())


# What a setting takes that has several of them.
BatchFields: TypeAlias = Iterable[BatchField | Mapping[str, object] | str] | Mapping[str, object]
BitextSourceExtraDatas: TypeAlias = Iterable[BitextSourceExtraData | Mapping[str, object]]
BitextSourceLangTokss: TypeAlias = Iterable[BitextSourceLangToks | Mapping[str, object]]
ChunkSourceSplitterOutputs: TypeAlias = (
    Iterable[ChunkSourceSplitterOutput | Mapping[str, object] | str] | Mapping[str, object]
)
ConsumerGroups: TypeAlias = (
    Iterable[ConsumerGroup | Mapping[str, object] | str] | Mapping[str, object]
)
SampleFields: TypeAlias = Iterable[SampleField | Mapping[str, object] | str] | Mapping[str, object]
SamplingWeights: TypeAlias = Iterable[SamplingWeight | Mapping[str, object]]
StageGroups: TypeAlias = Iterable[StageGroup | Mapping[str, object] | str] | Mapping[str, object]
