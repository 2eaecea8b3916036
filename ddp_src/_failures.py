"""The errors of a launch, in the words a learner reads: the cause first, in English and Chinese."""

from __future__ import annotations

import contextlib
import copyreg
import linecache
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ddp_src._reports import Failure, Frame, Standing, users_frames

STATES = {
    "starting": "starting · 正在启动",
    "ready": "waiting to join the group · 等待加入进程组",
    "running": "running · 正在运行",
    "stopped": "stopped by a signal · 被信号暂停",
    "failed": "failed · 出错",
    "peer gone": "stopped because a peer was gone · 因对端已断开而停止",
}
LINES_SHOWN = 20  # of a message, at either end
LINE_WIDTH = 2_000  # characters shown of one line
CALLS_SHOWN = 5  # of the learner's code, at either end of the stack


class LaunchError(RuntimeError):
    """A launch that could not start or did not end well. Its text is written for the learner."""

    def _render_traceback_(self) -> list[str]:
        """IPython shows this in place of the frames of multiprocessing, which are not about the reader."""
        return [f"{type(self).__name__}: {self}"]

    def __reduce__(self) -> tuple:
        """A worker of a pool sends it to its caller; by itself Python would call the class with the text."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__


class LaunchRefused(LaunchError):
    """The arguments cannot work, and nothing was started."""

    def __init__(self, en: str, zh: str) -> None:
        super().__init__(f"{en}\n{zh}")


class RankFailed(LaunchError):
    """A rank raised or died. `rank`, `error_type` and `message` name the one that did so first."""

    def __init__(self, failure: Failure, standings: Sequence[Standing], log: Path) -> None:
        self.rank, self.error_type, self.message = failure.rank, failure.error_type, failure.message
        lines = [f"rank {self.rank} failed first · rank {self.rank} 最先出错"]
        lines += [_what(failure)]
        lines += _about_memory(failure)
        lines += _shortened([_quote(frame) for frame in users_frames(failure.frames)])
        lines += [_fate(standing) for standing in standings if standing.rank != self.rank]
        super().__init__("\n".join([*lines, f"log · 日志: {log}"]))


class RanksStuck(LaunchError):
    """A rank waited inside one collective for longer than `timeout` seconds."""

    def __init__(self, standings: Sequence[Standing], timeout: float | None) -> None:
        self.standings = tuple(standings)
        en, zh = (f"more than {timeout:g} s", f"超过 {timeout:g} 秒") if timeout else ("too long", "太久")
        head = [
            f"a rank waited {en} in a collective that the others did not join",
            f"有 rank 在一次集合通信里等了{zh}，而别的 rank 没有来",
        ]
        super().__init__("\n".join([*head, *map(_stand, standings)]))


class TimeLimitReached(LaunchError):
    """The launch took longer than its `time_limit`."""

    def __init__(self, standings: Sequence[Standing], time_limit: float) -> None:
        self.standings = tuple(standings)
        head = [
            f"not done after {time_limit:g} s: all ranks were ended",
            f"{time_limit:g} 秒内没有做完：所有 rank 都已结束",
        ]
        super().__init__("\n".join([*head, *map(_stand, standings)]))


def _what(failure: Failure) -> str:
    if not failure.message:
        return failure.error_type
    if failure.traceback:
        return f"{failure.error_type}: {_without_its_middle(failure.message)}"
    last = "\n".join("    " + line for line in failure.message.splitlines())
    return f"{failure.error_type}; the last that it printed · 它最后打印的是:\n{last}"


def _without_its_middle(message: str) -> str:
    """A message may hold all the keys of a state dict, or a whole tensor; the log has all of it."""
    lines = [line if len(line) <= LINE_WIDTH else f"{line[:LINE_WIDTH]} …" for line in message.splitlines()]
    left_out = len(lines) - 2 * LINES_SHOWN
    if left_out <= 0:
        return "\n".join(lines)
    note = f"… lines not shown: {left_out:,} · 省略 {left_out:,} 行"
    return "\n".join([*lines[:LINES_SHOWN], note, *lines[-LINES_SHOWN:]])


def _about_memory(failure: Failure) -> list[str]:
    """What may be behind SIGKILL, which a system sends when its memory runs out."""
    if failure.error_type != "ended by SIGKILL":
        return []
    en, zh = "memory may have run out", "可能是内存不够"
    if failure.oom_kills:
        en, zh = (
            "memory ran out, and the system ended this rank",
            "内存耗尽，系统结束了这个 rank",
        )
    if failure.peak_mb:
        en += f"; this rank's peak as last seen: {failure.peak_mb:,.0f} MB"
        zh += f"；最后一次看到的峰值：{failure.peak_mb:,.0f} MB"
    return [en, zh]


def _shortened(calls: list[str]) -> list[str]:
    """The outermost and the innermost ones: a recursion without end has a thousand."""
    left_out = len(calls) - 2 * CALLS_SHOWN
    if left_out <= 0:
        return calls
    note = f"  … calls not shown: {left_out} · 省略 {left_out} 层调用"
    return [*calls[:CALLS_SHOWN], note, *calls[-CALLS_SHOWN:]]


def _fate(standing: Standing) -> str:
    """What became of a rank that was not the first to fail."""
    rank = f"rank {standing.rank}"
    if standing.state == "peer gone":
        return f"{rank} stopped because a peer was gone · {rank} 因对端已断开而停止"
    if standing.state == "failed":
        return f"{rank} failed after it · {rank} 随后出错"
    if standing.state == "returned":
        return f"{rank} had returned · {rank} 已经返回"
    return f"{rank} was ended with it · {rank} 随之结束"


def _stand(standing: Standing) -> str:
    """Where a rank stood when it was ended."""
    last = f"\n    last collective · 最后的集合通信: {standing.collective}" if standing.collective else ""
    return f"rank {standing.rank}: {_place(standing)}{last}"


def _place(standing: Standing) -> str:
    if standing.state == "returned":
        return "fn returned · 函数已经返回"
    users = users_frames(standing.frames)
    if not users:
        return STATES[standing.state]
    return _call_into_torch(standing.frames, users[-1]) + _quote(users[-1]).strip()


def _call_into_torch(frames: Sequence[Frame], last_of_user: Frame) -> str:
    """The public function below the learner's last line, such as `all_reduce` or `backward`."""
    below = frames[len(frames) - frames[::-1].index(last_of_user) :]
    names = [f.function for f in below if not f.function.startswith("_") and f.function != "wrapper"]
    return f"in {names[0]}, " if names else ""


def _quote(frame: Frame) -> str:
    linecache.checkcache(frame.file)  # the file may have been edited since an earlier launch
    source = linecache.getline(frame.file, frame.line).strip()
    return f"  {_where(frame)}" + (f"\n    {source}" if source else "")


def _where(frame: Frame) -> str:
    """The frame as its reader would name it: a cell by its number, a file by its path from here."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    kind, name = (shell and shell.compile.format_code_name(frame.file)) or ("File", frame.file)
    with contextlib.suppress(FileNotFoundError):  # the working folder is gone
        if kind != "Cell" and name.startswith(os.getcwd() + os.sep):
            name = os.path.relpath(name)
    return f"{kind} {name}, line {frame.line}, in {frame.function}"
