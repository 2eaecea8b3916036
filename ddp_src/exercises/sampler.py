"""Chapter 04's exercises: a rank's share of the samples, and a test loss that no number of ranks changes."""

from __future__ import annotations

import math
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.distributed as dist

from ddp_src.exercises._exact_loss import exact_loss, judge_losses, try_loss
from ddp_src.exercises._exercise import Exercise, Feedback, WrongAnswer


def shard(n: int, rank: int, world: int, epoch: int, seed: int) -> list[int]:
    """The numbers of this rank's samples in this epoch, out of 0 … n - 1."""
    generator = torch.Generator().manual_seed(seed + epoch)  # no rank in it: all draw the same order
    order = torch.randperm(n, generator=generator).tolist()
    order += order[: -n % world]  # the first ones again, until the length is a multiple of `world`
    return order[rank::world]


@dataclass(frozen=True)
class Shares:
    """What one rank's `shard` gave for `n` samples: by epoch with seed 0, and in epoch 0 with seed 7."""

    n: int
    epochs: list[list[int]]
    reseeded: list[int]


def try_shard(fn: Callable, n: int) -> Shares:
    rank, world = dist.get_rank(), dist.get_world_size()
    epochs = [_numbers(fn(n, rank, world, epoch, 0)) for epoch in range(3)]
    return Shares(n, epochs, _numbers(fn(n, rank, world, 0, 7)))


def _numbers(value: object) -> list[int]:
    """A returned share as plain integers; raises `WrongAnswer` for what is no list of integers."""
    items = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(items, Iterable) and not isinstance(items, str | dict | set):
        numbers = [item.item() if hasattr(item, "item") else item for item in items]
        if all(isinstance(item, int) and not isinstance(item, bool) for item in numbers):
            return numbers
    shown = reprlib.repr(value)
    raise WrongAnswer(
        f"your function returns {shown} where a list of sample numbers is expected.",
        f"你的函数返回了 {shown}，而这里要的是一个列表，里面是样本的编号。",
    )


def judge_shards(results: Sequence[Sequence[Shares]]) -> Feedback | None:
    for ranks in results:
        n = ranks[0].n
        for epoch, shares in enumerate(zip(*(rank.epochs for rank in ranks), strict=True)):
            if wrong := _wrong_size(n, shares) or _wrong_samples(n, epoch, shares):
                return wrong
        if wrong := _wrong_order(n, ranks[0]):
            return wrong
    return None


def _wrong_size(n: int, shares: Sequence[Sequence[int]]) -> Feedback | None:
    world, sizes = len(shares), [len(share) for share in shares]
    wanted = math.ceil(n / world)
    if all(size == wanted for size in sizes):
        return None
    if sizes == [n] * world and world > 1:
        return Feedback(
            f"of {n} samples every one of the {world} ranks gets {n}: each does the whole work; "
            f"a rank's share is {wanted}.",
            f"共有 {n} 个样本，{world} 个 rank 每个都分到 {n} 个：大家都在做全部的活；"
            f"每个 rank 应分到 {wanted} 个。",
        )
    counts_en = ", ".join(f"rank {rank} gets {size}" for rank, size in enumerate(sizes))
    counts_zh = "，".join(f"rank {rank} 分到 {size} 个" for rank, size in enumerate(sizes))
    if len(set(sizes)) > 1:
        return Feedback(
            f"of {n} samples {counts_en}: a rank with more would wait for the others in vain; "
            f"repeat samples until each has {wanted}.",
            f"共有 {n} 个样本，{counts_zh}：多的 rank 会多走一步，白等别人；请重复几个样本，让每个 rank 都有 "
            f"{wanted} 个。",
        )
    return Feedback(
        f"of {n} samples {counts_en}: that is {sum(sizes)} in all; each rank needs {wanted}, so that "
        "every sample is seen and as few as possible twice.",
        f"共有 {n} 个样本，{counts_zh}，合计 {sum(sizes)} 个；每个 rank 要有 {wanted} 个，"
        "这样每个样本都有人看，重复的也最少。",
    )


def _wrong_samples(n: int, epoch: int, shares: Sequence[Sequence[int]]) -> Feedback | None:
    seen = Counter(number for share in shares for number in share)
    foreign = [number for number in seen if not 0 <= number < n]
    if foreign:
        rank = next(r for r, share in enumerate(shares) if foreign[0] in share)
        return Feedback(
            f"rank {rank} gets sample {foreign[0]}, but {n} samples have the numbers 0 to {n - 1}.",
            f"rank {rank} 分到了样本 {foreign[0]}，可是 {n} 个样本的编号是 0 到 {n - 1}。",
        )
    missing = [number for number in range(n) if number not in seen]
    if not missing:
        return None
    if all(share == shares[0] for share in shares):
        start = ", ".join(map(str, shares[0][:3]))
        return Feedback(
            f"n = {n}, epoch {epoch}: all {len(shares)} ranks get the same samples, {start}, …, and sample "
            f"{missing[0]} is on none: `rank` must decide which part is whose.",
            f"n = {n}，第 {epoch} 轮：{len(shares)} 个 rank 分到的样本都是 {start}, …，"
            f"样本 {missing[0]} 却谁也没分到：哪一份归谁，要由 `rank` 决定。",
        )
    twice = max(seen, key=lambda number: (seen[number], number))
    owners = [rank for rank, share in enumerate(shares) if twice in share]
    if len(owners) == 1:
        return Feedback(
            f"n = {n}, epoch {epoch}: sample {twice} is {seen[twice]} times on rank {owners[0]}, sample "
            f"{missing[0]} on none.",
            f"n = {n}，第 {epoch} 轮：样本 {twice} 在 rank {owners[0]} 上出现了 {seen[twice]} 次，"
            f"样本 {missing[0]} 却谁也没分到。",
        )
    ranks_en = ", ".join(map(str, owners[:-1])) + f" and {owners[-1]}"
    ranks_zh = "、".join(f"rank {rank}" for rank in owners)
    return Feedback(
        f"n = {n}, epoch {epoch}: sample {twice} is on ranks {ranks_en}, sample {missing[0]} on none: "
        "all ranks must share out one and the same order.",
        f"n = {n}，第 {epoch} 轮：样本 {twice} 同时在 {ranks_zh} 上，样本 {missing[0]} 却谁也没分到："
        "所有 rank 分的必须是同一个顺序。",
    )


def _wrong_order(n: int, rank: Shares) -> Feedback | None:
    """What is wrong with rank 0's order, when all its shares are right as sets."""
    first, second = rank.epochs[:2]
    start = f"{', '.join(map(str, first[:3]))}, …"
    if first == second:
        return Feedback(
            f"n = {n}: epochs 0 and 1 are the same: rank 0 gets {start} in both; the epoch must change the "
            "order.",
            f"n = {n}：第 0 轮和第 1 轮一模一样，rank 0 两轮拿到的都是 {start}；顺序应当随轮次改变。",
        )
    if first == rank.reseeded:
        return Feedback(
            f"n = {n}: seeds 0 and 7 give the same order: rank 0 gets {start} with both; use `seed` too.",
            f"n = {n}：种子 0 和 7 给出同样的顺序，rank 0 拿到的都是 {start}；`seed` 也要用上。",
        )
    start = f"{', '.join(map(str, second[:3]))}, …"
    if len({(after - before) % n for before, after in pairwise(second)}) == 1:
        return Feedback(
            f"n = {n}, epoch 1: rank 0 gets {start}, in equal steps: another start does not make 0 to "
            f"{n - 1} a random order.",
            f"n = {n}，第 1 轮：rank 0 拿到 {start}，相邻两个总差一样多：0 到 {n - 1} 只是换了起点，"
            "不算随机的顺序。",
        )
    if set(first) == set(second):
        return Feedback(
            f"n = {n}: in epochs 0 and 1 rank 0 gets the same {len(first)} samples, {start}, in another "
            "order: shuffle first, then deal out.",
            f"n = {n}：第 0 轮和第 1 轮，rank 0 拿到的是同样的 {len(first)} 个样本 {start}，只是换了先后："
            "先打乱，再分发。",
        )
    return None


EXERCISES = {
    "sampler-1": Exercise(
        cases=(21, 20, 40),
        trial=try_shard,
        judge=judge_shards,
        nprocs=3,
        hint=Feedback(
            "all ranks draw the same order with a `torch.Generator` seeded with `seed + epoch`; then each "
            "takes every `world`-th number, from its own `rank` on. How long must the order be for that?",
            "每个 rank 都用种子为 `seed + epoch` 的 `torch.Generator` 抽出同一个顺序，再从下标 `rank` 开始，"
            "每 `world` 个取一个。为此，这个顺序要有多长？",
        ),
        solution=shard,
    ),
    "sampler-2": Exercise(
        cases=(20, 21, 3),
        trial=try_loss,
        judge=judge_losses,
        nprocs=2,
        hint=Feedback(
            "a rank tests every `world_size`-th sample. How do you get the sum of its losses from their "
            "mean? Put the sum and the number of samples in one tensor; `dist.all_reduce` it, then divide.",
            "每个 rank 每 `world_size` 个样本测一个。已知这些样本损失的平均，怎样得到它们的总和？把总和与"
            "样本数放进一个张量，先 `dist.all_reduce`，再相除。",
        ),
        solution=exact_loss,
    ),
}
