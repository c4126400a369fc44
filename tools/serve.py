# SPDX-License-Identifier: MIT
"""How does one look at the built site in a browser? A small server on this machine.

`python tools/serve.py [folder] [--port N]` serves `_build/html` on loopback only and
compresses text, as a web host would, so that what is measured is what readers get.
"""

from __future__ import annotations

import argparse
import gzip
import io
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO

TEXT = {".html", ".css", ".js", ".svg", ".json", ".ipynb", ".txt", ".md", ".inv"}


@cache
def _compressed(path: Path, stamp: float) -> bytes:
    """Compress a file once for each time that it changes."""
    return gzip.compress(path.read_bytes(), compresslevel=9, mtime=0)


def compressed_size(path: Path) -> int:
    """Return how many bytes of this file go over the wire."""
    if path.suffix in TEXT:
        return len(_compressed(path, path.stat().st_mtime))
    return path.stat().st_size


class Handler(SimpleHTTPRequestHandler):
    """Serve files, text compressed; never write to the console."""

    protocol_version = "HTTP/1.1"
    extensions_map = {  # noqa: RUF012 - the base class wants a dict here
        **SimpleHTTPRequestHandler.extensions_map,
        ".js": "text/javascript",
        ".svg": "image/svg+xml",
        ".woff2": "font/woff2",
        ".ipynb": "application/x-ipynb+json",
    }

    def send_head(self) -> BinaryIO | None:
        path = Path(self.translate_path(self.path))
        accepted = "gzip" in self.headers.get("Accept-Encoding", "")
        if not (accepted and path.is_file() and path.suffix in TEXT):
            return super().send_head()
        body = _compressed(path, path.stat().st_mtime)
        kind = self.guess_type(str(path))
        charset = "; charset=utf-8" if kind.startswith("text/") else ""
        self.send_response(200)
        self.send_header("Content-Type", kind + charset)
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        return io.BytesIO(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """One that takes no port away from another server."""

    daemon_threads = True
    # On Windows this option lets two servers share a port.
    allow_reuse_address = os.name != "nt"


def make_server(folder: Path, port: int = 0) -> Server:
    """Return a server of `folder` on loopback; port 0 takes any free one.

    Raises:
        ValueError: if there is no such folder.
    """
    if not folder.is_dir():
        raise ValueError(f"nothing to serve: {folder} is not a folder")
    handler = partial(Handler, directory=str(folder))
    return Server(("127.0.0.1", port), handler)


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve `folder` from another thread; give its address."""
    server = make_server(folder)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default="_build/html", type=Path)
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    try:
        server = make_server(options.folder, options.port)
    except OSError:  # the port is taken: any free one will do
        server = make_server(options.folder)
    print(f"The book is at http://127.0.0.1:{server.server_address[1]}/", flush=True)
    print("Press Ctrl+C to stop.", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print()


if __name__ == "__main__":
    main()
