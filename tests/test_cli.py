"""`python -m ddp_src.train` as a person uses it: its table, its refusals, stopping and resuming."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from ddp_src.cli import main
from ddp_src.runlog import read_run

SHORT = ["--epochs", "2", "--checkpoint-every", "3"]


@pytest.fixture(autouse=True)
def _keep_signal_handlers():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def small_disk(tmp_path):
    """A function that mounts a tmpfs with the given options, and unmounts it when the test is over."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root on Linux")
    disk = tmp_path / "disk"
    disk.mkdir()

    def mount(options: str) -> Path:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", disk], check=True)
        return disk

    yield mount
    subprocess.run(["umount", disk], check=False)


def sentences(capsys) -> list[str]:
    return capsys.readouterr().err.strip().splitlines()


def losses(folder) -> list[list]:
    return [[(s.step, s.loss, s.samples) for s in log.steps] for log in read_run(folder)]


def test_a_run_ends_with_its_table_and_its_pictures(tmp_path, capsys):
    out = tmp_path / "训练 run"
    assert main(["--nproc", "2", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    ranks = read_run(out)
    for log in ranks:
        assert re.search(rf"rank {log.rank} +{log.steps[-1].loss:.4f} +80\n", text)
    accuracy = ranks[0].epochs[-1].accuracy
    assert accuracy >= 0.89
    assert f"test accuracy {accuracy:.2%} ({round(1000 * accuracy)} of 1,000)" in text
    assert "parameters equal on all ranks: yes" in text
    assert "samples/s" in text and f"{out}/loss.png" in text and "./launch.sh lab" in text
    assert text.count("training:") <= 1  # one progress line per run
    present = {path.name for path in out.iterdir()}
    assert present == {
        "config.json", "hardware.json", "checkpoint.pt", "rank0.jsonl", "rank1.jsonl",
        "rank0.log", "rank1.log", "loss.png", "phases.png", "accuracy.png",
    }  # fmt: skip
    assert json.loads((out / "config.json").read_text())["batch_size"] == 128
    assert json.loads((out / "hardware.json").read_text())["torch"] == torch.__version__


def test_help_explains_every_option(capsys):
    with pytest.raises(SystemExit) as done:
        main(["--help"])
    assert done.value.code == 0
    text = capsys.readouterr().out
    for option in (
        "epochs",
        "batch-size",
        "lr",
        "seed",
        "model",
        "data",
        "nproc",
        "backend",
        "out",
        "resume",
    ):
        assert f"--{option}" in text
    assert "EACH rank" in text


@pytest.mark.parametrize(
    ("words", "en", "zh"),
    [
        (["--epochs", "0"], "--epochs is 0: it must be at least 1.", "--epochs 是 0：它必须至少为 1。"),
        (["--batch-size", "-1"], "--batch-size is -1: it must be at least 1.", "--batch-size 是 -1"),
        (["--lr", "nan"], "--lr is nan: it must be greater than 0.", "--lr 是 nan：它必须大于 0。"),
        (["--seed", "-1"], "--seed is -1: it must be 0 or more.", "--seed 是 -1：它必须不小于 0。"),
        (["--nproc", "0"], "--nproc is 0: it must be at least 1.", "--nproc 是 0：它必须至少为 1。"),
        (["--backend", "nccl", "--nproc", "99"], "nccl needs a GPU for each of the 99 ranks", "99 个 rank"),
        (["--data", "no/such/file.pth"], "no/such/file.pth", "no/such/file.pth"),
        (["--resume", "nowhere"], "nowhere holds no run", "nowhere 里没有训练记录"),
        (["--resume"], "there is no run in", "没有任何训练"),
    ],
)
def test_a_mistake_gets_one_sentence_in_each_language(words, en, zh, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    err = capsys.readouterr().err
    assert en in err and zh in err
    assert "Traceback" not in err


def test_a_run_is_never_overwritten(tmp_path, capsys):
    out = str(tmp_path / "run")
    assert main(["--nproc", "1", "--epochs", "1", "--out", out]) == 0
    before = {path: path.read_bytes() for path in Path(out).iterdir()}
    capsys.readouterr()
    assert main(["--nproc", "1", "--epochs", "1", "--out", out]) == 2
    assert sentences(capsys)[0] == (
        f"{out} holds a run already: continue it with --resume {out}, or choose another --out."
    )
    assert main(["--resume", out, "--seed", "5"]) == 2
    assert sentences(capsys)[0] == (
        f"{out} was started with --seed 0, not 5: leave the option out, or start a new run without --resume."
    )
    assert {path: path.read_bytes() for path in Path(out).iterdir()} == before


def test_more_epochs_are_remembered_and_nothing_is_done_twice(tmp_path, capsys):
    out = str(tmp_path / "run")
    words = ["--nproc", "1", "--batch-size", "500"]  # 8 steps an epoch
    assert main([*words, "--epochs", "1", "--out", out]) == 0
    assert main(["--resume", out, "--epochs", "2"]) == 0
    first = losses(out)
    assert [step for step, *_ in first[0]] == list(range(16))
    assert main(["--resume", out]) == 0  # two epochs are what it has, and what it was told last
    assert losses(out) == first
    assert json.loads(Path(out, "config.json").read_text())["epochs"] == 2


def test_a_run_of_another_version_is_one_sentence(tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"epochs": 1, "flavour": "new"}')
    assert main(["--resume", str(tmp_path)]) == 2
    en, zh = sentences(capsys)
    assert en.startswith(f"{tmp_path} was written by another version of this program") and "flavour" in en
    assert zh.startswith(f"{tmp_path} 是由本程序的另一个版本写的")


def test_a_run_that_is_refused_leaves_no_folder(tmp_path):
    out = tmp_path / "run"
    assert main(["--backend", "nccl", "--nproc", "99", "--out", str(out)]) == 2
    assert main(["--data", str(tmp_path / "none.pth"), "--out", str(out)]) == 2
    assert not out.exists()


def test_the_folder_cannot_be_made_where_a_file_is(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["--out", str(tmp_path / "file" / "run")]) == 2
    en, zh = sentences(capsys)
    assert en.startswith(f"cannot write {tmp_path}/file/run (Not a directory): choose a folder")
    assert zh.startswith(f"无法写入 {tmp_path}/file/run")


def test_a_read_only_folder_is_one_sentence(small_disk, capsys):
    disk = small_disk("ro,size=1m")
    assert main(["--out", str(disk / "run")]) == 2
    en, _ = sentences(capsys)
    assert en.startswith(f"cannot write {disk}/run (Read-only file system)")


@pytest.mark.parametrize("nproc", ["1", "2"])
def test_a_full_disk_is_one_sentence_and_the_last_checkpoint_still_loads(small_disk, capsys, nproc):
    disk = small_disk("size=1200k")  # room for one checkpoint of 960 kB, and not for a second beside it
    assert main(["--nproc", nproc, "--epochs", "2", "--out", str(disk / "run")]) == 2
    en, zh = sentences(capsys)[-2:]
    assert en == (
        f"cannot write {disk}/run/checkpoint.pt (No space left on device): choose a folder you can write to "
        "with --out, or make room on the disk."
    )
    assert zh.startswith(f"无法写入 {disk}/run/")
    state = torch.load(disk / "run" / "checkpoint.pt", map_location="cpu", weights_only=True)
    assert state["step"] in (16, 32)
    assert not list((disk / "run").glob("*.new"))


def test_a_damaged_checkpoint_is_one_sentence(tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["--nproc", "1", "--epochs", "1", "--out", str(out)]) == 0
    for damage in (b"", b"not a torch file", (out / "checkpoint.pt").read_bytes()[:5000]):
        (out / "checkpoint.pt").write_bytes(damage)
        capsys.readouterr()
        assert main(["--resume", str(out), "--epochs", "2"]) == 2
        en, zh = sentences(capsys)[-2:]
        assert en.startswith(f"{out}/checkpoint.pt cannot be continued from")
        assert zh.startswith(f"无法从 {out}/checkpoint.pt 恢复训练")


def program(*words: str, launcher: tuple[str, ...] = ("-m",)) -> list[str]:
    return [sys.executable, *launcher, "ddp_src.train", *words]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    subprocess.run(program("--nproc", "2", *SHORT, "--out", str(out)), check=True, capture_output=True)
    return out


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_run_is_resumed_bit_for_bit(tmp_path, undisturbed, sent):
    out = tmp_path / "run"
    process = subprocess.Popen(
        program("--nproc", "2", *SHORT, "--epochs", "500", "--out", str(out)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (out / "checkpoint.pt").exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.005)
    process.send_signal(sent)
    _, err = process.communicate(timeout=30)
    assert "Traceback" not in err
    if sent == signal.SIGINT:
        assert process.returncode == 130 and "--resume" in err and "接着训练" in err
    subprocess.run(program("--resume", str(out), "--epochs", "2"), check=True, capture_output=True)
    steps = [step.step for step in read_run(out)[0].steps]
    assert steps == list(range(len(steps))) and len(steps) >= 32
    assert [log[:32] for log in losses(out)] == losses(undisturbed)
    if len(steps) == 32:
        first, second = (
            torch.load(o / "checkpoint.pt", weights_only=True)["model"] for o in (out, undisturbed)
        )
        assert all(torch.equal(first[name], second[name]) for name in second)


def test_torchrun_trains_the_same_model(tmp_path, undisturbed):
    out = tmp_path / "run"
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "-m")
    done = subprocess.run(
        program(*SHORT, "--out", str(out), launcher=torchrun), check=True, capture_output=True, text=True
    )
    assert losses(out) == losses(undisturbed)
    assert done.stdout.count("parameters equal on all ranks: yes") == 1


def test_a_part_of_the_launchers_variables_is_told_by_name(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["--out", str(tmp_path / "run")]) == 2
    en, zh = sentences(capsys)
    assert en.startswith("RANK, WORLD_SIZE is set but LOCAL_RANK, MASTER_ADDR, MASTER_PORT is not")
    assert "torchrun --nproc-per-node 2" in en and zh.startswith("设置了 RANK, WORLD_SIZE")
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert main(["--nproc", "3", "--out", str(tmp_path / "run")]) == 2
    assert sentences(capsys)[0].startswith("3 ranks are wanted and the launcher started 2")


def test_fewer_samples_than_ranks_is_one_sentence(tmp_path, capsys):
    few = torch.zeros(5, 28, 28, dtype=torch.uint8), torch.arange(5)
    torch.save(few, tmp_path / "few_train.pth")
    torch.save(few, tmp_path / "few_test.pth")
    words = ["--data", str(tmp_path / "few_train.pth"), "--nproc", "6", "--out", str(tmp_path / "run")]
    assert main(words) == 2
    en, zh = sentences(capsys)[-2:]
    assert en.startswith("5 training samples are too few for 6 ranks")
    assert zh.startswith("5 个训练样本分不到 6 个 rank")


@pytest.mark.parametrize("nproc", [1, 2])
def test_as_few_samples_as_ranks_are_enough(tmp_path, nproc):
    few = torch.zeros(nproc, 28, 28, dtype=torch.uint8), torch.arange(nproc)
    torch.save(few, tmp_path / "few_train.pth")
    torch.save(few, tmp_path / "few_test.pth")
    out = tmp_path / "run"
    words = ["--data", str(tmp_path / "few_train.pth"), "--nproc", str(nproc), "--epochs", "2"]
    assert main([*words, "--out", str(out)]) == 0
    assert [[(step.step, step.samples) for step in log.steps] for log in read_run(out)] == [
        [(0, 1), (1, 1)]
    ] * nproc
