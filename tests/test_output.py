"""What ranks print: whole lines with their rank, kept in a log, and not too many of them."""

import ctypes
import os
import subprocess
import sys
import warnings

import pytest
import torch.distributed as dist

from ddp_src import spawn
from ddp_src._output import Output


@pytest.fixture
def output(tmp_path):
    return Output([tmp_path / "rank0.log", tmp_path / "rank1.log"], show=True)


def append(path, data):
    with open(path, "ab") as file:
        file.write(data)


# --- following the logs ---------------------------------------------------------------------------------


def test_only_whole_lines_are_shown_until_the_end(output, tmp_path, capsys):
    append(tmp_path / "rank0.log", b"one\ntw")
    append(tmp_path / "rank1.log", "中".encode()[:1])
    output.pump()
    assert capsys.readouterr().out == "[rank 0] one\n"
    append(tmp_path / "rank0.log", b"o\n")
    append(tmp_path / "rank1.log", "中".encode()[1:])
    output.pump()
    assert capsys.readouterr().out == "[rank 0] two\n"
    output.close()
    assert capsys.readouterr().out == "[rank 1] 中\n"
    assert not output.cut


def test_bytes_that_are_no_text_do_no_harm(output, tmp_path, capsys):
    append(tmp_path / "rank0.log", b"caf\xe9 \x00\n\n\xff\n")
    output.close()
    assert capsys.readouterr().out == "[rank 0] caf\ufffd \x00\n[rank 0] \n[rank 0] \ufffd\n"


def test_a_flood_is_cut_and_its_end_is_shown(output, tmp_path, capsys):
    log = tmp_path / "rank0.log"
    append(log, b"".join(b"%d\n" % number for number in range(1000)))
    output.pump()
    append(log, b"last")
    output.close()
    lines = capsys.readouterr().out.splitlines()
    assert lines[:200] == [f"[rank 0] {number}" for number in range(200)]
    assert lines[200] == f"[rank 0] … 796 more lines in {log}"
    assert lines[201:] == [f"[rank 0] {text}" for text in (996, 997, 998, 999, "last")]
    assert output.cut


def test_a_few_lines_over_the_limit_are_all_shown(output, tmp_path, capsys):
    append(tmp_path / "rank0.log", b"".join(b"%d\n" % number for number in range(205)))
    output.close()
    assert capsys.readouterr().out.splitlines() == [f"[rank 0] {number}" for number in range(205)]
    assert not output.cut


def test_a_line_without_end_is_cut(output, tmp_path, capsys):
    append(tmp_path / "rank0.log", b"x" * 3000 + b"\n")
    output.close()
    assert capsys.readouterr().out == "[rank 0] " + "x" * 2000 + " … 3,000 characters in the log\n"


def test_a_bar_that_was_redrawn_leaves_its_last_state(output, tmp_path, capsys):
    append(tmp_path / "rank0.log", b"\r 0%\r50%\r100%\nend\r\n")
    output.close()
    assert capsys.readouterr().out == "[rank 0] 100%\n[rank 0] end\n"


def test_one_bar_is_drawn_in_place_and_prints_go_above_it(output, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("ddp_src._output._redraws", lambda: True)
    for log in ("rank0.log", "rank1.log"):
        append(tmp_path / log, b"\r50%")
    output.pump()
    output.pump()
    assert capsys.readouterr().out == "\r[rank 0] 50%"
    append(tmp_path / "rank1.log", b"\r60%\n")
    output.pump()
    assert capsys.readouterr().out == "\r[rank 1] 60%\n\r[rank 0] 50%"
    output.close()


PYTHONS = "lesson.py:3: UserWarning: careful\n  warnings.warn('careful')\n"
TORCHS = "[W1130 10:00:0{} reducer.cpp:9] Warning: unused\n"


def test_a_warning_of_all_ranks_is_shown_once_with_their_number(output, tmp_path, capsys):
    for rank in (0, 1):
        append(tmp_path / f"rank{rank}.log", f"before\n{PYTHONS}{TORCHS.format(rank)}after\n".encode())
    output.pump()
    assert capsys.readouterr().out.splitlines() == [
        "[rank 0] before",
        "[rank 0] after",
        "[rank 1] before",
        "[rank 1] after",
        "[2 ranks] lesson.py:3: UserWarning: careful",
        "[2 ranks]   warnings.warn('careful')",
        "[2 ranks] [W1130 10:00:00 reducer.cpp:9] Warning: unused",
    ]
    output.close()


def test_a_warning_of_one_rank_waits_a_little_for_the_others(output, tmp_path, capsys, monkeypatch):
    append(tmp_path / "rank1.log", PYTHONS.encode())
    output.pump()
    assert capsys.readouterr().out == ""
    monkeypatch.setattr("ddp_src._output.WARNING_HELD", -1)
    output.pump()
    shown = ["[rank 1] lesson.py:3: UserWarning: careful", "[rank 1]   warnings.warn('careful')"]
    assert capsys.readouterr().out.splitlines() == shown
    append(tmp_path / "rank0.log", b"lesson.py:3: UserWarning: careful\nnot its source\n")
    output.close()
    shown = ["[rank 0] not its source", "[rank 0] lesson.py:3: UserWarning: careful"]
    assert capsys.readouterr().out.splitlines() == shown


def test_torchs_own_noise_stays_in_the_log(output, tmp_path, capsys):
    append(
        tmp_path / "rank0.log", b"[Gloo] Rank 0 is connected to 1 peer ranks.\n[W101 ProcessGroupGloo] x\n"
    )
    append(tmp_path / "rank0.log", b"[Gloo] mine\n")
    output.close()
    assert capsys.readouterr().out == "[rank 0] [Gloo] mine\n"


def test_a_terminal_that_has_no_chinese_gets_escapes(tmp_path, monkeypatch):
    with open(tmp_path / "terminal", "w", encoding="ascii") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        output = Output([tmp_path / "rank0.log"], show=True)
        append(tmp_path / "rank0.log", "中\n".encode())
        output.close()
    assert (tmp_path / "terminal").read_text() == "[rank 0] \\u4e2d\n"


# --- from ranks -----------------------------------------------------------------------------------------


def test_python_c_and_the_system_print_whole_lines_of_their_rank(capfd, tmp_path):
    def work(rank):
        print("python", rank, "中文")
        ctypes.CDLL(None).printf(b"printf\n")  # which C by itself would keep to the end
        os.write(2, b"write \xff\n")
        subprocess.run(["echo", "child"], check=True)
        print("unfinished", end="")

    spawn(work, log_dir=tmp_path)
    shown = capfd.readouterr().out.splitlines()
    for rank in (0, 1):
        mine = [line for line in shown if line.startswith(f"[rank {rank}] ")]
        assert [line[9:] for line in mine] == [
            f"python {rank} 中文",
            "printf",
            "write \ufffd",
            "child",
            "unfinished",
        ]
        lines = (tmp_path / f"rank{rank}.log").read_bytes().splitlines()
        assert [line for line in lines if not line.startswith(b"[Gloo]")][2] == b"write \xff"


def test_a_warning_from_every_rank_is_one_line(capfd):
    def work(rank):
        warnings.warn("careful", stacklevel=1)
        dist.barrier()

    spawn(work, nprocs=3)
    shown = [line for line in capfd.readouterr().out.splitlines() if "careful" in line]
    assert [line.partition(" ranks] ")[0] for line in shown] == ["[3", "[3"]


def test_what_c_printed_is_not_lost_with_the_rank(tmp_path):
    program = """
import ctypes, os, sys
from ddp_src._process import send_output_to

send_output_to(sys.argv[1])
ctypes.CDLL(None).printf(b"before the end\\n")
os._exit(1)
"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    subprocess.run([sys.executable, "-c", program, tmp_path / "log"], env=environment)
    assert (tmp_path / "log").read_text() == "before the end\n"


def test_show_false_keeps_prints_out_of_sight(capfd, tmp_path):
    spawn(lambda rank: None)  # says once what runs here
    capfd.readouterr()
    spawn(lambda rank: print("quiet"), show=False, log_dir=tmp_path)
    assert capfd.readouterr().out == ""
    assert "quiet\n" in (tmp_path / "rank1.log").read_text()


def test_a_hundred_thousand_lines_are_kept_and_not_all_shown(capfd):
    def work(rank):
        if rank == 0:
            for number in range(100_000):
                print(number)

    spawn(work)
    shown = [line for line in capfd.readouterr().out.splitlines() if line.startswith("[rank 0] ")]
    assert len(shown) == 206
    assert shown[-1] == "[rank 0] 99999"
    log = shown[200].partition(" more lines in ")[2]
    with open(log) as file:
        assert [line for line in file.read().split() if line.isdigit()] == [str(n) for n in range(100_000)]


def test_a_rank_reads_nothing_and_may_close_its_output(capfd):
    def work(rank):
        assert sys.stdin.read() == ""
        sys.stdout.close()
        sys.stderr = None
        os.close(1)
        return rank

    assert spawn(work) == [0, 1]
    assert "Traceback" not in capfd.readouterr().out
