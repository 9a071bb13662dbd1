"""Seeds of the fuzz targets: small files of each format, cut from tests/data or made here.

seeds.py DIRECTORY    writes DIRECTORY/TARGET/NAME
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pathlib
import re
import struct
import subprocess
import sys
import tarfile
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
SEEDS: dict[str, dict[str, bytes]] = {}


def seed(target: str, name: str, content: bytes) -> None:
    SEEDS.setdefault(target, {})[name] = content


def requests() -> None:
    """To ringfeed-web."""
    host = "Host: 127.0.0.1\r\n"
    token = "Authorization: Bearer 0123456789abcdef\r\n"
    feed = "/api/v1/feeds/hidden-feed"
    paths = [
        "/",
        "/page.js",
        "/metrics",
        "/healthz",
        "/readyz",
        "/api/v1/feeds",
        "/api/v1/events",
        "/no",
    ]
    paths += [f"{feed}/{what}" for what in ("status", "metrics", "why", "graph", "events", "no")]
    for number, path in enumerate(paths):
        for name, fields in (("open", host), ("token", host + token)):
            text = f"GET {path} HTTP/1.1\r\n{fields}\r\n"
            seed("http", f"{number}-{name}", text.encode())
    for name, text in {
        "head": f"HEAD / HTTP/1.1\r\n{host}\r\nHEAD /metrics HTTP/1.1\r\n{host}{token}\r\n",
        "post": f"POST / HTTP/1.1\r\n{host}Content-Length: 3\r\n\r\nabc",
        "chunks": f"GET / HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        "rebound": f"GET {feed} HTTP/1.1\r\nHost: evil.example\r\n{token}\r\n",
        "foreign": f"GET {feed} HTTP/1.1\r\n{host}Origin: http://evil.example\r\n\r\n",
        "many": f"GET /healthz HTTP/1.1\r\n{host}\r\n" * 20,
        "old": f"GET /metrics HTTP/1.0\r\n{host}\r\n",
        "long": f"GET /{'a' * 9000} HTTP/1.1\r\n{host}\r\n",
        "tls": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    }.items():
        seed("http", name, text.encode("latin1"))


def tars() -> None:
    real = (DATA / "lc0" / "lc0-data-sample.tar").read_bytes()
    seed("tar", "sample-cut", real[:4096])
    for dialect, form in (
        ("ustar", tarfile.USTAR_FORMAT),
        ("gnu", tarfile.GNU_FORMAT),
        ("pax", tarfile.PAX_FORMAT),
    ):
        for name, members in (
            ("plain", [("a.gz", b"12345678"), ("b/c", b"")]),
            ("long", [("d/" * 70 + "e.gz", b"x" * 600), ("f", b"y")]),
        ):
            out = io.BytesIO()
            with tarfile.open(fileobj=out, mode="w", format=form, bufsize=512) as tar:
                for path, data in members:
                    info = tarfile.TarInfo(path)
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
                link = tarfile.TarInfo("link")
                link.type, link.linkname = tarfile.SYMTYPE, "a.gz"
                tar.addfile(link)
            # tarfile fills up to 10 KiB.
            content = out.getvalue().rstrip(b"\0")
            seed("tar", f"{dialect}-{name}", content + b"\0" * (-len(content) % 512 + 1024))
    out = io.BytesIO()
    with tarfile.open(
        fileobj=out, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "x"}
    ) as tar:
        info = tarfile.TarInfo("g")
        info.size = 4
        info.pax_headers = {"size": "4", "path": "g/h.gz", "mtime": "1.5"}
        tar.addfile(info, io.BytesIO(b"abcd"))
    seed("tar", "pax-global", out.getvalue()[:4096])


def json_lines() -> None:
    rows = [
        {"id": 1, "text": 'a "quoted" line\n', "x": -1.5e-7, "tags": ["a", "b"]},
        {"x": 0.1, "id": -9223372036854775808, "text": "\u00e9\U0001f600", "vector": [1, 2.5, 3]},
        {"id": 7, "text": "", "x": 1e22, "matrix": [[1, 2], [3, 4]], "ok": True, "none": None},
    ]
    lines = [json.dumps(row) for row in rows]
    seed("json_lines", "rows", "\n".join(lines).encode())
    plain = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows]
    seed("json_lines", "plain", ("\n".join(plain) + "\n").encode())
    seed("json_lines", "damaged", (lines[0] + '\n{"id": [1 2]}\n\n' + lines[1][:30]).encode())


def gzips() -> None:
    text = b"the quick brown fox jumps over the lazy dog; " * 8
    whole = gzip.compress(text, mtime=0)
    seed("gzip", "one", whole)
    seed("gzip", "empty", gzip.compress(b"", mtime=0))
    seed("gzip", "joined-padded", whole + gzip.compress(b"more", mtime=0) + b"\0" * 16)
    # Extra field, name, comment and checksum of the header.
    head = (
        bytes([0x1F, 0x8B, 8, 4 | 8 | 16 | 2, 0, 0, 0, 0, 0, 3])
        + b"\x04\0ab\0\0"
        + b"name\0"
        + b"comment\0"
    )
    seed("gzip", "all-fields", head + struct.pack("<H", zlib.crc32(head) & 0xFFFF) + whole[10:])
    for level in (0, 1, 9):
        packer = zlib.compressobj(level, zlib.DEFLATED, -15)
        seed("gzip", f"stream-{level}", packer.compress(text) + packer.flush())
    packer = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_FIXED)
    seed("gzip", "stream-fixed", packer.compress(text) + packer.flush())


def packed_files() -> None:
    text = b"the quick brown fox jumps over the lazy dog\n" * 8
    # A Zstandard frame with one block, as it is, behind a frame that is passed over.
    block = struct.pack("<I", len(text) << 3 | 1)[:3] + text
    frame = b"\x28\xb5\x2f\xfd\x60" + struct.pack("<H", len(text) - 256) + block
    packed = {
        "gz": gzip.compress(text, mtime=0),
        "zst": struct.pack("<II", 0x184D2A53, 3) + b"abc" + frame,
        "bz2": bz2.compress(text, 1),
        "xz": lzma.compress(text, preset=0),
    }
    for name, data in packed.items():
        seed("packed", name, data)
        seed("packed", f"{name}-joined", data + bytes(64) + data + b"rubbish")
    seed("packed", "zst-alone", frame)


def token_files() -> None:
    inputs = DATA / "fairseq" / "inputs"

    def pair(name: str, index: bytes, data: bytes) -> None:
        seed("token_file", name, struct.pack("<H", len(index)) + index + data)

    for index in sorted((inputs / "dtypes").glob("*.idx")) + [inputs / "legacy.idx"]:
        pair(index.stem, index.read_bytes(), index.with_suffix(".bin").read_bytes())
    mapped = (inputs / "dtypes" / "uint16.idx").read_bytes()
    documents = struct.pack("<QQQ", 0, 1, 2)
    pair(
        "megatron",
        mapped[:26] + struct.pack("<Q", 3) + mapped[26:] + documents,
        (inputs / "dtypes" / "uint16.bin").read_bytes(),
    )


def records() -> None:
    def padded(content: bytes) -> bytes:
        return content + b"\0" * (-len(content) % 8)

    path = padded(b"/data/a.parquet")
    columns = [
        (2, 1, padded(b"\1\0\1") + padded(struct.pack("<4I", 0, 3, 3, 5)) + padded(b"abcde")),
        (3, 1, padded(b"\1\1\0") + struct.pack("<3q", 1, -2, 0)),
        (4, 0, struct.pack("<3d", 0.5, float("nan"), -1.0)),
        (0, 0, b""),
        (1, 0, b""),
    ]
    table, body = b"", b""
    at = 32 + 16 * len(columns) + len(path)
    for kind, flags, content in columns:
        table += struct.pack("<IIQ", kind, flags, at + len(body))
        body += content
    seed(
        "row_batch",
        "rows",
        struct.pack("<Q6I", 7, 3, len(columns), 0, 1, 15, 0) + table + path + body,
    )

    text = b"/d/a.en/d/a.fr"
    head = struct.pack("<QQQ6I2Q", 1, 0, 4, 0, 1, 0, 2, 1, len(text), 1, 0)
    part = struct.pack(
        "<QQ8I4H4I", 0, 10, 0, 0, 0xFFFFFFFF, 5, 0, 0, 0, 0, 1, 7, 7, 0, 0, 7, 100, 100
    )
    rows = struct.pack("<QII", 3, 0, 0) + struct.pack("<QII", 13, 0, 0)
    seed("row_batch", "plan", head + part + rows + padded(text))

    head = struct.pack("<4I5I3I", 1, 2, 0, 0, 3, 1, 1, 1, 1, 0, 0, 0)
    value, target, block = (
        struct.pack("<IIff", 1, 3, 0.5, 0.25),
        struct.pack("<IhbB", 0, 7, 1, 1),
        struct.pack("<II", 0, 3),
    )
    seed("row_batch", "sequence", head + value + target + block + struct.pack("<3H", 1936, 5, 1944))


def lc0() -> None:
    with tarfile.open(DATA / "lc0" / "lc0-data-sample.tar") as tar:
        names = [member.name for member in tar.getmembers()]
        chunk = next(name for name in names if name.endswith(".gz") and "/._" not in f"/{name}")
        records_of_game = gzip.decompress(tar.extractfile(chunk).read())
    version = struct.unpack_from("<I", records_of_game)[0]
    bytes_of = {3: 8276, 4: 8292, 5: 8308, 6: 8356, 7: 8396}
    record = records_of_game[: bytes_of[version]]
    seed("lc0_record", "two", records_of_game[: 2 * len(record)])
    for other, count in bytes_of.items():
        content = (record + b"\0" * 64)[:count]
        content = struct.pack("<I", other) + content[4:]
        if other == 3:
            content = content[:4] + content[8:] + b"\0" * 4
        seed("lc0_record", f"version-{other}", content)

    def policy(record: bytes) -> tuple[bytes, bytes]:
        entries = [(i, record[8 + 4 * i : 12 + 4 * i]) for i in range(1858)]
        entries = [(i, bits) for i, bits in entries if bits != b"\x00\x00\x80\xbf"]
        return b"".join(bits for _, bits in entries), b"".join(
            struct.pack("<H", i) for i, _ in entries
        )

    values, indices = policy(record)
    body = record[:8] + record[7440:8272] + record[8272:8356] + values + indices
    frame_bytes = -(-(8 + len(body)) // 16) * 16
    frame = struct.pack("<IHBB", frame_bytes, len(indices) // 2, 0, 6) + body
    frame += b"\0" * (frame_bytes - len(frame))
    seed("lc0_record", "frame", frame)
    rest = struct.pack("<HH", len(indices) // 2, 0) + record[8272:8356] + values + indices
    rest += b"\0" * (-len(rest) % 4)
    boards = record[7440 : 7440 + 104]
    whole = struct.pack("<HH", 0, 2) + frame
    offsets = [32 + 208, 32 + 208 + len(rest), 32 + 208 + len(rest) + len(whole)]
    seed(
        "lc0_record",
        "game",
        struct.pack("<4I3I4x", offsets[-1], 2, 6, 1, *offsets) + boards * 2 + rest + whole,
    )

    path = b"/data/a.tar"
    chunks = struct.pack("<QQQII", 512, 100, 8356, 1, 0) + struct.pack(
        "<QQQII", 1536, 8356, 8356, 0, 0
    )
    seed(
        "chunk_index",
        "two",
        struct.pack("<8sIIQqQQQQ", b"rfchunks", 2, 0, 10240, 5, 1, 2, len(path), 0) + chunks + path,
    )


def chess() -> None:
    fens = [
        "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1",
        "r3k2r/8/8/3pP3/8/8/8/R3K2R b HAha d6 12 34",
        "4k3/8/8/8/8/8/4Q~3/4K3 w - -",
    ]
    for i, fen in enumerate(fens):
        seed("chess", f"fen-{i}", fen.encode())
    line = {
        "root_move": "e2e4",
        "visit_count": 7,
        "visit_fraction": 0.5,
        "nodes": [
            {"fen": fens[0], "move": "e7e5", "wdl": [0.5, 0.25, 0.25]},
            {"fen": fens[1], "move": "", "wdl": None},
        ],
    }
    other = {"root_move": "e1g1", "visit_count": 3, "visit_fraction": 0.25, "nodes": "no list"}
    seed("chess", "variations", json.dumps([line]).encode())
    seed("chess", "variations-other", json.dumps([other, line]).replace("0.25", "NaN").encode())
    games = f"{fens[0]};e2e4;e2e4\n;e7e5;d7d5\n{fens[1]};e1h1;e1h1\n{fens[2]};;\n"
    seed("chess", "game", games.encode())


def dictionaries() -> None:
    seed(
        "dictionary",
        "real",
        (DATA / "fairseq/inputs/data_bin/shard000/dict.fra_Latn.txt")
        .read_bytes()[:300]
        .rsplit(b"\n", 1)[0]
        + b"\n",
    )
    seed(
        "dictionary",
        "rules",
        "a b 1\r\né -2\rc 3\nc 4 #fairseq:overwrite\n</s> 5 #fairseq:overwrite".encode(),
    )


def encoded(message: str, proto: str, text: str) -> bytes:
    """The message as protoc serializes it."""
    command = ["protoc", f"--encode={message}", f"-I{ROOT}", f"{ROOT}/proto/{proto}"]
    return subprocess.run(command, input=text.encode(), capture_output=True, check=True).stdout


def configurations() -> None:
    for path in sorted((ROOT / "workers" / "pipelines").glob("*.textproto")):
        text = path.read_text()
        seed(
            "config",
            f"text-{path.stem}",
            b"\0"
            + "\n".join(
                line for line in text.splitlines() if not line.lstrip().startswith("#")
            ).encode(),
        )
        seed(
            "config",
            f"serialized-{path.stem}",
            b"\2" + encoded("ringfeed.DataLoaderConfig", "config.proto", text),
        )
    seed(
        "config",
        "json",
        b"\1"
        + json.dumps(
            {
                "feed": "f",
                "seed": "18446744073709551615",
                "stages": [
                    {
                        "name": "p",
                        "filePathProvider": {"directory": "\u00e9\n", "queue_capacity": 3.0},
                    },
                    {"name": "t", "tensor_generator": {"input": "p", "batch_size": 1e3}},
                ],
                "feedOutput": [
                    {"dispatch": "RELAXED", "checksum": True, "groups": [{"name": "a"}]}
                ],
            }
        ).encode(),
    )
    for i, override in enumerate(
        [
            "seed=7",
            "stages[1].shuffling_chunk_pool.threads=2",
            "stages.pool.threads=0x2",
            'storage={directory: "/dev/shm/lc0"}',
            "feed=a b",
            "epochs=[1, 2]",
        ]
    ):
        seed("config", f"override-{i}", b"\3" + override.encode())
    for path in sorted((DATA / "lczero").glob("*.textproto")):
        text = path.read_text()
        seed("import_lc0", f"text-{path.stem}", b"\0" + text.encode())
        try:
            content = encoded("lczero.training.RootConfig", "lczero.proto", text)
        except subprocess.CalledProcessError:
            continue  # has parts of theirs that are none of the data loader's
        seed("import_lc0", f"serialized-{path.stem}", b"\2" + content)
    seed(
        "import_lc0",
        "json",
        b"\1"
        + json.dumps(
            {"data_loader": {"stage": [{"name": "file", "file_path_provider": {"directory": "d"}}]}}
        ).encode(),
    )


def messages() -> None:
    tensor = 'tensors { name: "planes" dtype: "float32" shape: [-1, 112, 8, 8] offset: 4096 bytes: 29360128 }'
    for name, text in {
        "attach": f'id: 5 attach {{ abi_major: 1 layout_hash: 77 feed_id: "0123456789abcdef" feed: "lc0" group_index: 3 '
        f"member_index: 15 lanes: 2 slot_bytes: 1099511627776 rows_max: 1024 supervisor_pid: 42 output: 1 "
        f'output_alias: "v" {tensor} {tensor} }}',
        "error": 'id: 7 error: GROUP_MISMATCH text: "the group is of another kind"',
        "control": 'id: 1 stage_control { answers { stage: "pool" response: "\\n\\003\\n\\001a" } }',
        "metrics": 'id: 2 metrics { json: "{}" }',
        "event": 'event { state: RUNNING reason: "x" }',
    }.items():
        seed("reply", name, encoded("ringfeed.Reply", "control.proto", text))


def conversations() -> None:
    """Packets to a supervisor, each behind its length; manifests. Their targets know the number of
    the layout.
    """
    header = (ROOT / "shm/include/ringfeed/shm/abi.h").read_text()
    major = int(re.search(r"kAbiMajor = (\d+)", header)[1])
    layout = int.from_bytes(b"LAYOUT\0\0", "little")
    same = f"abi_major: {major} layout_hash: {layout}"
    oldest = f'id: 1 attach {{ {same} group: "a" client: "t.py" start: OLDEST }}'
    ranked = (
        f'id: 2 attach {{ {same} group: "r" kind: RANKED rank: 1 world: 4 policy: SKIP stall_ms: 50 redeliver: false '
        "max_tries: 2 max_hold: 1 rejoin_ms: 9 position: 1 }"
    )
    detach = "id: 3 detach { close_group: true }"
    rejoin = 'id: 4 rejoin { feed_id: "0123456789abcdef" group_index: 0 member_index: 0 epoch: 1 pid: 7 }'
    for name, packets in {
        "join-leave": [oldest, detach, oldest],
        "ranked": [ranked, ranked, detach],
        "other": [
            rejoin,
            "id: 6 status { }",
            "id: 7 stop { now: true }",
            'id: 8 attach { group: "x" }',
        ],
    }.items():
        whole = b""
        for packet in packets:
            content = encoded("ringfeed.Request", "control.proto", packet)
            whole += struct.pack("<H", len(content)) + content
        seed("control", name, whole)

    known = f'format: 1 abi_major: {major} layout_hash: LAYOUT feed: "f" feed_id: "{"0f" * 16}" config_hash: 5 seed: 6 '
    segment = 'segments { name: "control" kind: 1 bytes: 4096 geometry: [1, 2] file: "000.segment" digest: "ab" } '
    group = 'groups { name: "a" next_batch: 7 output: "" } '
    config = "config { feed: 'f' stages { name: 'p' file_path_provider { directory: '/d\\n' } } }"
    seed("manifest", "known", (known + segment + group + config).encode())
    seed(
        "manifest",
        "other-version",
        b'format: 1 ringfeed_version: "9.9" abi_major: 77 layout_hash: 5',
    )


def parquets() -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return  # then there is no such target either
    table = pyarrow.table(
        {
            "text": pyarrow.array(["a", None, "cde", ""]),
            "integer": pyarrow.array([1, None, -3, 4], pyarrow.int32()),
            "number": pyarrow.array([0.5, None, 1e300, -0.0]),
            "any": pyarrow.array([True, False, None, True]),
        }
    )
    for name, options in {
        "snappy": {"compression": "snappy"},
        "plain": {"compression": "none", "use_dictionary": False, "row_group_size": 2},
        "v2-gzip": {"compression": "gzip", "data_page_version": "2.0", "write_page_checksum": True},
        "delta": {
            "compression": "zstd",
            "use_dictionary": False,
            "column_encoding": {
                "text": "DELTA_BYTE_ARRAY",
                "integer": "DELTA_BINARY_PACKED",
                "number": "BYTE_STREAM_SPLIT",
                "any": "PLAIN",
            },
        },
    }.items():
        out = io.BytesIO()
        pyarrow.parquet.write_table(
            table, out, store_schema=False, write_statistics=False, **options
        )
        seed("parquet", name, out.getvalue())


def main() -> None:
    for make in (
        tars,
        requests,
        json_lines,
        gzips,
        packed_files,
        token_files,
        records,
        lc0,
        chess,
        dictionaries,
        configurations,
        messages,
        conversations,
        parquets,
    ):
        make()
    for target, seeds in SEEDS.items():
        directory = pathlib.Path(sys.argv[1]) / target
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in seeds.items():
            (directory / name).write_bytes(content)


main()
