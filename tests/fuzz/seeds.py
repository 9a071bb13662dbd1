"""Seeds of the fuzz targets: small files of each format, cut from tests/data or made here.

    seeds.py DIRECTORY    writes DIRECTORY/TARGET/NAME
"""

from __future__ import annotations

import io
import pathlib
import sys
import tarfile

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
SEEDS: dict[str, dict[str, bytes]] = {}


def seed(target: str, name: str, content: bytes) -> None:
    SEEDS.setdefault(target, {})[name] = content


def tars() -> None:
    real = (DATA / "lc0" / "lc0-data-sample.tar").read_bytes()
    seed("tar", "sample-cut", real[:4096])
    for dialect, form in (("ustar", tarfile.USTAR_FORMAT), ("gnu", tarfile.GNU_FORMAT), ("pax", tarfile.PAX_FORMAT)):
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
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "x"}) as tar:
        info = tarfile.TarInfo("g")
        info.size = 4
        info.pax_headers = {"size": "4", "path": "g/h.gz", "mtime": "1.5"}
        tar.addfile(info, io.BytesIO(b"abcd"))
    seed("tar", "pax-global", out.getvalue()[:4096])


def main() -> None:
    tars()
    for target, seeds in SEEDS.items():
        directory = pathlib.Path(sys.argv[1]) / target
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in seeds.items():
            (directory / name).write_bytes(content)


main()
