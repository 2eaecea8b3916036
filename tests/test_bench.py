"""The measurements run and are written down; a test never says how fast anything has to be."""

import json
import os

from ddp_src import bench, spawn


def test_every_row_is_printed_and_written(tmp_path, monkeypatch, capsys):
    rows = [
        bench.Row("a launch", "0.10 s", "≤ 0.3 s", True),
        bench.Row("for comparison", "5 s", "", True),
        bench.Row("a slow one", "9 s", "≤ 1 s", False),
    ]
    for name in ("launches", "first_loss", "memory", "feeding", "own_ddp"):
        monkeypatch.setattr(bench, name, lambda *_, **__: [])
    monkeypatch.setattr(bench, "feeding", lambda **_: rows)
    out = tmp_path / "bench.json"
    assert bench.main(["--quick", "--out", str(out)]) == 1  # a goal was missed
    printed = capsys.readouterr().out
    assert "≤ 0.3 s: kept" in printed and "≤ 1 s: MISSED" in printed and "for comparison" in printed
    written = json.loads(out.read_text(encoding="utf-8"))
    assert [row["kept"] for row in written["rows"]] == [True, True, False]
    assert written["hardware"]["usable_cores"] >= 1


def test_both_ways_of_feeding_train_the_same_model():
    rows = {row.what: row.measured for row in bench.feeding(epochs=1)}
    accuracy = {text.rsplit(" ", 1)[1] for text in rows.values() if "accuracy" in text}
    assert len(accuracy) == 1


def test_each_version_of_ddp_is_set_against_torchs():
    rows = {row.what: row.goal for row in bench.own_ddp(rounds=1)}
    assert rows == {
        "own DDP, naive / torch's DDP": "≥ 1.8×",
        "own DDP, flat / torch's DDP": "≤ 1.08×",
        "own DDP, bucketed / torch's DDP": "",
        "own DDP, overlapped / torch's DDP": "≤ 1.15×",
    }


def test_ranks_and_their_server_are_weighed():
    rows = {row.what: row.measured for row in bench.memory()}
    assert set(rows) == {
        "warm rank training: peak memory",
        "warm rank training: its own",
        "warm server, while no rank runs: its own",
        "cold rank training: peak above `import torch`",
    }


def test_a_process_weighs_more_by_what_it_holds():
    def hold(rank):
        peak, own = bench._memory("self")
        held = bytearray(os.urandom(50_000_000))
        return [now - before for now, before in zip(bench._memory("self"), (peak, own), strict=True)], held[0]

    (((peak, own), _),) = spawn(hold, nprocs=1)
    assert 40 < own < 120  # 48 MB, and a copy that may not have gone yet
    assert peak > 40
