"""Debian's Prometheus over a `ringfeed web`."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.support.feeds.feed_run import wait_until
from tests.support.feeds.web import Web

PROMETHEUS = Path(sys.prefix) / "prometheus" / "usr" / "bin"  # scripts/setup


@contextlib.contextmanager
def prometheus_over(
    web: Web, place: Path, rules: Path | None = None
) -> Iterator[Callable[[str], list[Any]]]:
    """Debian's own, which looks every second; what it answers to a query."""
    config = place / "prometheus.yml"
    config.write_text(
        f"""
global: {{ scrape_interval: 1s, evaluation_interval: 1s }}
rule_files: [{"" if rules is None else rules}]
scrape_configs:
  - job_name: ringfeed
    static_configs: [{{ targets: ["127.0.0.1:{web.port}"] }}]
"""
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with subprocess.Popen(
        [
            str(PROMETHEUS / "prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={place / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as prometheus:

        def asked(query: str) -> list[Any]:
            # As Grafana does it: the values of a variable come from another place.
            values = re.fullmatch(r"label_values\((\w+), (\w+)\)", query)
            place = f"label/{values[2]}/values" if values else "query"
            words = urllib.parse.urlencode({"match[]": values[1]} if values else {"query": query})
            try:
                with urllib.request.urlopen(
                    f"http://127.0.0.1:{port}/api/v1/{place}?{words}"
                ) as got:
                    data: Any = json.load(got)["data"]
                    found: list[Any] = data if values else data["result"]
                    return found
            except urllib.error.HTTPError as error:
                if error.code == 503:  # it starts
                    return []
                raise AssertionError(f"{query}: {error.read().decode()}") from error
            except OSError:
                return []

        try:
            wait_until(lambda: asked('up{job="ringfeed"} == 1'), "a scrape")
            yield asked
        finally:
            prometheus.terminate()
