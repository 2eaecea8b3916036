"""What the learner is told of an answer that did not return on every rank."""

from __future__ import annotations

from ddp_src._reports import Standing
from ddp_src.exercises._attempt import learners_line
from ddp_src.exercises._exercise import Feedback
from ddp_src.launch import LaunchError, LaunchRefused, RankFailed, RanksStuck, TimeLimitReached


def is_unfinished(error: LaunchError) -> bool:
    return isinstance(error, RankFailed) and error.error_type == "Unfinished"


def why_stopped(error: LaunchError, time_limit: float) -> Feedback:
    """Say in one sentence what `error` means for the learner's function; `time_limit` is in seconds."""
    if isinstance(error, RanksStuck):
        return _stuck(error)
    if isinstance(error, TimeLimitReached):
        return _endless(error, time_limit)
    if isinstance(error, LaunchRefused):
        return Feedback(
            "your function cannot be sent to the ranks: it uses something from outside that cannot be "
            "copied, such as an open file or a lock; create that inside the function.",
            "你的函数无法传给各个 rank：它用到了外面某个不能复制的东西，比如打开的文件或锁；"
            "请在函数里面创建它。",
        )
    if error.error_type == "WrongAnswer":
        return Feedback(*error.message.split("\n"))
    return _failed(error)


def _stuck(error: RanksStuck) -> Feedback:
    stands = [_stand(standing) for standing in error.standings]
    return Feedback(
        f"the ranks wait for one another: {'; '.join(stand.en for stand in stands)}. "
        "Every rank must make the same collective calls.",
        f"各个 rank 互相等待，卡住了：{'；'.join(stand.zh for stand in stands)}。"
        "每个 rank 都要做同样的集合通信调用。",
    )


def _stand(standing: Standing) -> Feedback:
    rank, line = f"rank {standing.rank}", learners_line(standing.frames)
    if standing.state == "returned":
        return Feedback(f"{rank} has returned", f"{rank} 已经返回")
    if not line.en:
        return Feedback(f"{rank} is not in your function", f"{rank} 不在你的函数里")
    return Feedback(f"{rank} is in your function{line.en}", f"{rank} 停在你的函数里{line.zh}")


def _endless(error: TimeLimitReached, time_limit: float) -> Feedback:
    if any(standing.state in ("starting", "ready") for standing in error.standings):
        return Feedback(
            f"the ranks had not started after {time_limit:g} s, so your function was not tried: "
            "the machine is busy; run this cell again.",
            f"{time_limit:g} 秒内 rank 还没有启动，你的函数没有运行：机器太忙，请再运行一次这个单元格。",
        )
    lines = [line for s in error.standings if (line := learners_line(s.frames)).en]
    line = lines[0] if lines else Feedback("", "")
    return Feedback(
        f"your function was not done after {time_limit:g} s and was ended{line.en}: "
        "is there a loop without an end?",
        f"你的函数运行了 {time_limit:g} 秒还没有结束，已被终止{line.zh}：是不是有循环停不下来？",
    )


def _failed(error: RankFailed) -> Feedback:
    if not error.error_type.startswith("ended "):
        what = " ".join(f"{error.error_type}: {error.message}".split())
        return Feedback(f"rank {error.rank} failed: {what}.", f"rank {error.rank} 出错：{what}。")
    how = error.error_type.removeprefix("ended by ").removeprefix("ended with ")
    return Feedback(
        f"your function ended its own process: rank {error.rank}, {how}.",
        f"你的函数让自己所在的进程退出了：rank {error.rank}，{how.replace('exit code', '退出码')}。",
    )
