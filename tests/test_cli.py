# SPDX-License-Identifier: MIT
"""The command line, run as a reader runs it: in a process of its own."""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch

from deepdive.anatomy import as_html
from deepdive.commands import anatomy, bench, generate, main
from deepdive.commands.anatomy import published
from deepdive.models.gpt import Gpt
from deepdive.pretrained import load
from deepdive.pretrained.auto import LOADERS
from tests.compare import close

ENV = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
COMMAND = [sys.executable, "-m", "deepdive"]
STEPS = ("--steps", "20", "--device", "cpu")


def run(*arguments, cwd=None, console="utf-8"):
    """Exit status, stdout and stderr of a command, on a console of an encoding."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=cwd, env=ENV | {"PYTHONIOENCODING": console},
        capture_output=True, text=True, encoding=console,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def one_line(stderr):
    """The error is said once, without a traceback."""
    assert "Traceback" not in stderr
    return stderr.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder of 20 updates of `reverse`."""
    folder = tmp_path_factory.mktemp("cli")
    status, out, err = run("train", "reverse", *STEPS, cwd=folder)
    assert status == 0, err
    assert "exact" in out and "generate runs/reverse-seed-0" in out
    return folder / "runs" / "reverse-seed-0"


# Help and usage


def test_help_is_quick_and_needs_no_torch():
    code = (
        "import sys; from deepdive.commands import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as e: assert e.code == 0\n"
        "assert 'torch' not in sys.modules"
    )
    for arguments in ([], ["train"], ["generate"], ["bench"], ["anatomy"], ["weights"]):
        command = [sys.executable, "-c", code, *arguments, "--help"]
        times = []
        for _ in range(1 if arguments else 3):
            start = time.perf_counter()
            done = subprocess.run(command, env=ENV, capture_output=True, text=True)
            times.append(time.perf_counter() - start)
            assert done.returncode == 0, done.stderr
        assert "exit status" in done.stdout
    assert run("--help")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "COMMAND"),
        (["fly"], "invalid choice: 'fly'"),
        (["train"], "which recipe? known: reverse, grammar"),
        (["train", "cake"], "no 'cake'; known: reverse"),
        (["train", "reverse", "--steps", "0"], "must be at least 1, got 0"),
        (["train", "reverse", "--seed", "-1"], "in 0 … 4294967295, got -1"),
        (["train", "reverse", "--steps", "many"], "'many' is no whole number"),
        (["train", "reverse", "--precision", "int4"], "'int4'"),
        (["generate"], "MODEL"),
        (["generate", "nowhere"], "'nowhere' is no folder, and none of smollm2"),
        (["generate", "smollm2", "--top-p", "0"], "above 0 and at most 1, got 0"),
        (["generate", "smollm2", "--top-p", "nan"], "above 0 and at most 1, got nan"),
        (["generate", "smollm2", "--top-k", "0"], "at least 1, got 0"),
        (["generate", "smollm2", "--temperature", "-1"], "at least 0"),
        (["generate", "smollm2", "--temperature", "warm"], "'warm' is no number"),
        (["bench", "--rounds", "2"], "at least 5, got 2"),
        (["anatomy", "gpt5"], "unknown: gpt5; known: transformer-base"),
        (["weights", "gpt5"], "unknown: gpt5; known: minilm"),
    ],
)
def test_wrong_usage_is_status_2(arguments, part, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    shown = capsys.readouterr()
    assert part in shown.err and "usage: python -m deepdive" in shown.err
    assert not shown.out


def test_wrong_usage_in_a_process():
    status, out, err = run("generate", "nowhere")
    assert status == 2 and not out
    assert one_line(err).startswith("python -m deepdive generate: error: 'nowhere'")


# train


def test_train_lists_the_recipes(capsys):
    assert main(["train", "--list"]) == 0
    out = capsys.readouterr().out
    assert "reverse" in out and "grammar" in out


def test_train_leaves_everything(trained):
    made = sorted(path.name for path in trained.iterdir())
    assert made == [
        "checkpoint.pt", "log.jsonl", "model.safetensors", "recipe.json", "result.json",
    ]  # fmt: skip
    lines = (trained / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 21))
    what = json.loads((trained / "recipe.json").read_text())
    assert what["recipe"] == "reverse" and what["seed"] == 0 and what["steps"] == 20


# `reverse` as it is, with a checkpoint at each update; update 9 takes a minute.
# A child of a job in the background is born deaf to Ctrl+C; this one listens again.
SLOWED = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from dataclasses import replace
from deepdive import recipes
from deepdive.commands import main
calls = []
def loss(model, batch):
    calls.append(1)
    if len(calls) == 9:
        print("at nine", flush=True)
        time.sleep(60)
    return recipes.REVERSE.loss(model, batch)
loss.__name__ = "loss"
recipes.RECIPES["reverse"] = replace(recipes.REVERSE, loss=loss, every=1)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "how", ["SIGINT", pytest.param("SIGKILL", marks=pytest.mark.slow)]
)
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(how, trained, tmp_path):
    arguments = ["train", "reverse", "--out", str(tmp_path / "run"), *STEPS]
    process = subprocess.Popen(
        [sys.executable, "-c", SLOWED, *arguments],
        env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert "at nine\n" in iter(process.stdout.readline, "")  # and it reads no further
    process.send_signal(getattr(signal, how))
    _, err = process.communicate(timeout=30)
    assert not (tmp_path / "run" / "model.safetensors").exists()
    if how == "SIGINT":
        assert process.returncode == 130 and "Traceback" not in err
        assert "go on from it with\n    python -m deepdive train reverse" in err
        said = err.strip().splitlines()[-1].split()
        assert said[:3] == ["python", "-m", "deepdive"]
        arguments = said[3:]  # what it says is what is done
    status, _, err = run(*arguments)
    assert status == 0, err
    log = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in log] == list(range(1, 21))
    made, whole = (f / "model.safetensors" for f in (tmp_path / "run", trained))
    assert made.read_bytes() == whole.read_bytes()


def test_train_touches_nothing_of_the_users(trained, tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("mine")
    assert main(["train", "grammar", "--out", str(tmp_path), *STEPS]) == 1
    assert "thesis.txt" in one_line(capsys.readouterr().err)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    before = {path: path.read_bytes() for path in trained.iterdir()}
    for other in (["grammar"], ["reverse", "--seed", "1"]):
        assert main(["train", *other, "--out", str(trained), *STEPS]) == 1
        assert "another run" in one_line(capsys.readouterr().err)
    assert {path: path.read_bytes() for path in trained.iterdir()} == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_a_device_that_is_not_there(tmp_path, capsys):
    out = str(tmp_path / "run")
    assert main(["train", "reverse", "--device", "cuda", "--out", out]) == 1
    assert "no cuda device" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


# generate


def test_generate_from_a_trained_run(trained, capsys):
    status, out, err = run("generate", trained, "--prompt", "abc", "--max-new", 6)
    assert status == 0, err
    assert re.fullmatch(r"[a-t]{0,6}\n", out)
    assert re.search(r"1 tokens read in .* s, \d+ written", err)
    assert main(["generate", str(trained), "--prompt", "abc", "--max-new", "6"]) == 0
    assert capsys.readouterr().out == out


def test_generate_says_what_a_recipe_cannot_read(trained, capsys):
    assert main(["generate", str(trained), "--prompt", "ä"]) == 1
    assert "'ä' is not in the vocabulary" in one_line(capsys.readouterr().err)
    with pytest.raises(SystemExit):
        main(["generate", str(trained), "--chat", "--prompt", "Hi"])
    assert "--chat is for chat models" in capsys.readouterr().err


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny GPT-2 in Hugging Face's layout, with a tokenizer of bytes."""
    transformers = pytest.importorskip("transformers")
    from deepdive.tokenizers import byte_tokenizer

    torch.manual_seed(0)
    place = tmp_path_factory.mktemp("gpt2")
    config = transformers.GPT2Config(
        vocab_size=257, n_embd=16, n_layer=2, n_head=2, n_positions=48,
        bos_token_id=256, eos_token_id=256,
    )  # fmt: skip
    transformers.GPT2LMHeadModel(config).save_pretrained(place)
    byte_tokenizer(["<end>"]).raw.save(str(place / "tokenizer.json"))
    return place


def test_generate_from_a_hugging_face_folder(folder, capsys):
    arguments = ["generate", str(folder), "--prompt", "Hello", "--max-new", "9"]
    drawn = ["--temperature", "1.5", "--top-k", "40", "--top-p", "0.95", "--seed"]
    texts = []
    for more in ([], [], [*drawn, "1"], [*drawn, "1"], [*drawn, "2"]):
        assert main([*arguments, *more]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] and texts[2] == texts[3]
    assert len({texts[0], texts[2], texts[4]}) == 3
    assert main(["generate", str(folder), "--prompt", "x" * 40]) == 0  # 8 places left
    assert "40 tokens read" in capsys.readouterr().err
    assert main(["generate", str(folder), "--prompt", "x" * 60]) == 1
    assert "max_seq_len, 48" in one_line(capsys.readouterr().err)


def test_generate_on_a_console_without_the_letters(folder):
    arguments = ("generate", folder, "--temperature", 2, "--max-new", 40)
    status, out, err = run(*arguments)
    assert status == 0 and not out.isascii(), err
    status, escaped, err = run(*arguments, console="ascii")
    assert status == 0, err
    assert escaped == out.encode("ascii", "backslashreplace").decode()


@pytest.mark.parametrize("kind", LOADERS)
def test_load_chooses_the_family(kind, folder, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    called = []
    monkeypatch.setitem(LOADERS, kind, lambda *given: called.append(given))
    load(tmp_path, torch.bfloat16, ("head",))
    assert called == [(tmp_path, torch.bfloat16, ("head",))]


def test_load_reads_and_refuses(folder, tmp_path):
    model = load(folder)
    assert type(model) is Gpt
    transformers = pytest.importorskip("transformers")
    reference = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
    ids = torch.randint(257, (2, 9))
    with torch.no_grad():
        close(model(ids), reference(ids).logits, 1e-5)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match=r"'bert' is no decoder .*gpt2, llama"):
        load(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        load(tmp_path / "nothing")


def test_generate_from_a_folder_of_something_else(tmp_path, capsys):
    assert main(["generate", str(tmp_path)]) == 1
    assert "no config.json" in one_line(capsys.readouterr().err)


def test_missing_weights_say_how_to_get_them(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DEEPDIVE_CACHE", str(tmp_path))
    assert main(["generate", "glassllm"]) == 1
    assert "python -m deepdive weights glassllm" in capsys.readouterr().err


def test_half_a_character_waits_for_its_other_half():
    parts = ["né".encode()[:1], "né".encode()[:2], "né".encode()]
    decode = [part.decode(errors="replace") for part in parts]
    said = list(generate.spoken([0, 1, 2], lambda ids: decode[len(ids) - 1]))
    assert said == ["n", "é", ""]


@pytest.mark.weights
def test_generate_from_glassllm():
    status, out, err = run("generate", "glassllm", "--prompt", "Alice", "--max-new", 8)
    assert status == 0 and len(out) > 9 and "8 written" in err
    status, out, _ = run("generate", "glassllm-pt", "--prompt", "O amor", "--top-k", 5)
    assert status == 0 and len(out) > 20


@pytest.mark.weights
def test_generate_from_smollm2():
    question = ("--chat", "--prompt", "What is the capital of France?")
    status, out, err = run("generate", "smollm2", *question)
    assert status == 0 and out == "The capital of France is Paris.\n"
    assert "tokens/s" in err


# bench

SCRIPT = '''
"""Work that is no work.

    python benchmarks/speed/{name}.py
"""
import time

import torch

from deepdive.timing import Goal, Row, main


def busy(seconds):
    def call():
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass
        return torch.ones(2)

    return call


def row():
    ways = {{"slow": busy(0.06), "fast": busy(0.02)}}
    goals = (Goal("fast", "slow", {goal}),)
    return Row("{name}", "1 × 1", ways, goals, named={{"another": "2 × slow"}})


if __name__ == "__main__":
    main(__doc__, (row, row), (row,))
'''


@pytest.fixture
def speed(tmp_path, monkeypatch):
    """A book of our own: writes scripts into its benchmarks/speed."""
    folder = tmp_path / "benchmarks" / "speed"
    folder.mkdir(parents=True)
    monkeypatch.setenv("DEEPDIVE_BOOK", str(tmp_path))

    def write(name, goal=2.0, text=SCRIPT):
        (folder / f"{name}.py").write_text(
            text.format(name=name, goal=goal), encoding="utf-8"
        )

    return write


def test_bench_tells_ways_and_goals_and_keeps_them(speed, tmp_path, capfd):
    speed("one")
    file = tmp_path / "numbers.json"
    assert main(["bench", "--rounds", "5", "--json", str(file)]) == 0
    out = capfd.readouterr().out
    for word in ("slow", "3.0", "not run: another, 2 × slow", "2 goals: 2 reached"):
        assert word in out
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found["machine"]["torch"] == torch.__version__ and found["rounds"] == 5
    assert [row["row"] for row in found["rows"]] == ["one", "one"]
    (goal,) = found["rows"][0]["judged"]
    assert goal["verdict"] == "reached" and 2.5 < goal["ratio"] < 3.5
    before = file.read_bytes()
    assert main(["bench", "--json", str(file)]) == 1  # at once, not at the end
    assert file.read_bytes() == before and "exists" in capfd.readouterr().err


def test_bench_fails_for_a_goal_that_no_round_reached(speed, capfd):
    speed("one")
    speed("two", goal=9.0)
    assert main(["bench", "--rounds", "5"]) == 1
    out = capfd.readouterr().out
    assert "4 goals: 2 reached, 0 within the spread, 2 missed" in out
    assert "missed: two, 1 × 1: fast" in out
    assert main(["bench", "--rounds", "5", "one"]) == 0  # of this topic alone
    assert main(["bench", "--rounds", "5", "--quick"]) == 0  # no goals, no verdict
    assert "2 rows; all ways of each gave the same numbers" in capfd.readouterr().out


def test_bench_goes_on_behind_a_topic_that_fails(speed, capfd):
    speed("one", text="raise SystemExit('no such thing')")
    speed("two")
    assert main(["bench", "--rounds", "5", "--quick"]) == 1
    out, err = capfd.readouterr()
    assert "no such thing" in err and "one stopped with exit status 1" in err
    assert "two: 1 × 1" in out


def test_bench_knows_its_topics(speed, capfd):
    speed("one")
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "three"])
    assert "no topic 'three'; there are one" in capfd.readouterr().err


def test_bench_writes_json_to_stdout_and_the_rest_to_stderr(speed, capfd):
    speed("one")
    assert main(["bench", "--quick", "--rounds", "5", "--json", "-"]) == 0
    out, err = capfd.readouterr()
    assert [m["sizes"] for m in json.loads(out)["rows"]] == ["1 × 1"]
    assert out.isascii() and "one: 1 × 1" in err
    for head in ("way", "time", "times as fast", "lowest … highest"):
        assert head in err


def test_bench_keeps_its_numbers_when_nobody_listens(speed, tmp_path, monkeypatch):
    speed("one")

    def closed(text):
        raise BrokenPipeError

    monkeypatch.setattr(bench, "say", closed)
    chosen = argparse.Namespace(topics=[], quick=True, rounds=5)
    chosen.json = tmp_path / "numbers.json"
    with pytest.raises(BrokenPipeError):
        bench.run(chosen)
    found = json.loads(chosen.json.read_text(encoding="utf-8"))
    assert len(found["rows"]) == 1
    chosen.json, measured = None, []  # nobody would have the numbers: stop at once
    monkeypatch.setattr(bench, "measured", lambda *a: measured.append(a))
    with pytest.raises(BrokenPipeError):
        bench.run(chosen)
    assert not measured


# anatomy, weights


def test_anatomy_of_the_family(capsys):
    assert main(["anatomy"]) == 0
    out = capsys.readouterr().out
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert "causal, window 4096" in lines["mistral-7b"]
    assert "671,026,404,352" in lines["deepseek-v3"] and "latent" in out


def test_anatomy_of_one_model(capsys):
    assert main(["anatomy", "gpt2-small", "bert-base"]) == 0
    out = capsys.readouterr().out
    assert "124,439,808" in out
    assert re.search("KV bytes a token, 16-bit  +36,864\n", out)
    assert main(["anatomy", "gpt2-small", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["name"] == "gpt2-small" and found["parameters"] == 124_439_808
    assert found["cost"]["FLOPs of one more token"] > 2 * 85_000_000


def test_anatomy_on_a_narrow_terminal_is_blocks(capsys, monkeypatch):
    rows = [{"name": "one", "mask": "causal"}, {"name": "two", "mask": "–"}]
    wide, blocks = "name  mask\n", "name: one\nmask: causal\n\nname: two\nmask: –"
    for terminal, room, narrow in [
        (True, 11, True),
        (True, 12, False),
        (False, 9, False),
    ]:
        monkeypatch.setattr(sys.stdout, "isatty", lambda t=terminal: t, raising=False)
        monkeypatch.setenv("COLUMNS", str(room))
        text = anatomy._fitting(rows)
        assert text == blocks if narrow else text.startswith(wide)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(anatomy, "FAMILY", ["gpt2-small", "bert-base"])
    assert main(["anatomy"]) == 0
    first, second = capsys.readouterr().out.split("\n\n")
    assert first.startswith("name: gpt2-small\n") and "\nmask: causal\n" in first
    assert second.startswith("name: bert-base\n")


def test_a_dash_is_spoken_on_a_page():
    row = {"name": "–", "experts": "–", "tied": "–", "mask": "causal"}
    page = as_html([row], "One")
    cells = ["none", "no output layer", "causal"]
    assert "".join(f"<td>{cell}</td>" for cell in cells) in page


def test_every_published_size_has_a_name():
    assert {"gpt2-small", "llama-3-8b", "mixtral-8x7b"} <= published().keys()


def test_anatomy_in_a_process():
    status, out, err = run("anatomy", "llama-7b")
    assert status == 0 and "6,738,415,616" in out, err


def test_anatomy_on_a_console_without_the_dash():
    status, out, err = run("anatomy", "gpt2-small", console="ascii")
    assert status == 0 and re.search(r"experts +\\u2013\n", out), err


def test_weights_are_listed():
    status, out, _ = run("weights", "--list")
    assert status == 0 and "smollm2" in out and "glassllm" in out


def test_a_closed_pipe_is_no_error():
    first = subprocess.Popen(
        [*COMMAND, "weights", "--list"],
        env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    first.stdout.close()
    assert first.communicate()[1] == b""
