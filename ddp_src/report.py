"""What a run says when it is done: a short table, the pictures, and where to read on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ddp_src.config import Config
from ddp_src.runlog import RankLog, Step, mean_losses, read_run


def report(config: Config) -> None:
    """Draw the pictures of the run in `config.out` and print its table."""
    from ddp_src.plots import draw_run

    ranks = read_run(config.out)
    print(table(ranks))
    pictures = draw_run(config.out)
    print(f"picture: {pictures[0]}")
    print(
        f"next: ./launch.sh lab en   下一步：./launch.sh lab zh   ({Path(__file__).parents[1] / 'notebooks'})"
    )


def table(ranks: Sequence[RankLog]) -> str:
    """Last loss of each rank and their mean, test accuracy, speed. For runs that ended well."""
    rows = [(f"rank {log.rank}", f"{log.steps[-1].loss:.4f}", f"{log.steps[-1].samples}") for log in ranks]
    losses = mean_losses([log.steps for log in ranks])
    rows.append(("mean", f"{losses[-1]:.4f}", f"{sum(log.steps[-1].samples for log in ranks)}"))
    lines = [f"{'':<8}{'last loss':>10}{'samples':>9}"]
    lines += [f"{name:<8}{loss:>10}{samples:>9}" for name, loss, samples in rows]
    last = ranks[0].epochs[-1]
    lines += [
        f"test accuracy {last.accuracy:.2%} ({round(last.accuracy * last.samples):,} of {last.samples:,})",
        f"{samples_per_second([log.steps for log in ranks]):,.0f} samples/s, all ranks together",
        "parameters equal on all ranks: yes",
    ]
    return "\n".join(lines)


def samples_per_second(ranks: Sequence[Sequence[Step]]) -> float:
    """Samples of all ranks over the time rank 0 spent in its steps (evaluation and saving left out)."""
    seconds = sum(s.data + s.forward + s.backward + s.update for s in ranks[0])
    return sum(s.samples for steps in ranks for s in steps) / seconds
