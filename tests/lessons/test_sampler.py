"""Chapter 04: who sees which sample, the exact accuracy, the streams, and what its exercises say."""

import math
import random
from collections import Counter
from fractions import Fraction

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from ddp_src import check, spawn
from ddp_src.data import Digits, MNISTDataset, load_digits
from ddp_src.lessons import sampler
from ddp_src.model import SimpleModel

WITHOUT, WITH = False, True


def run(samples, called, nprocs, epochs=3):
    return spawn(sampler.train, (samples, called, epochs), nprocs=nprocs, show=False)


def test_without_set_epoch_every_epoch_is_the_first():
    ranks = run(600, WITHOUT, 2)
    for trained in ranks:
        assert trained.epochs == [trained.epochs[0]] * 3
        assert len(trained.different) == 300
    assert ranks[0].different | ranks[1].different == set(range(600))
    assert len(sampler.joined_batches(ranks)) == 3  # 300 = 128 + 128 + 44


def test_with_set_epoch_every_epoch_deals_all_samples_anew():
    ranks = run(600, WITH, 2)
    for epoch in range(3):
        assert sorted(ranks[0].epochs[epoch] + ranks[1].epochs[epoch]) == list(range(600))
    assert len({tuple(epoch) for epoch in ranks[0].epochs}) == 3
    assert len(ranks[0].different) > 450  # 7 / 8 of 600 are expected
    assert len(sampler.joined_batches(ranks)) == 9


@pytest.mark.parametrize("called", [WITHOUT, WITH])
def test_twenty_samples_on_three_ranks_make_one_repeat_in_every_epoch(called):
    ranks = run(20, called, 3)
    repeats = []
    for epoch in range(3):
        counts = Counter(number for rank in ranks for number in rank.epochs[epoch])
        assert (len(counts), counts.total()) == (20, 21)
        repeats.append(max(counts, key=counts.get))
    assert (len(set(repeats)) == 1) == (called is WITHOUT)


def test_the_ranks_train_together_on_their_own_samples():
    first, second = run(300, WITH, 2)
    for name, tensor in first.weights.items():
        assert torch.equal(tensor, second.weights[name])
    assert [len(losses) for losses in first.losses] == [2, 2, 2]  # 150 = 128 + 22
    assert first.losses != second.losses
    assert first.accuracy == second.accuracy


def test_the_last_loss_weighs_each_batch_by_its_samples():
    trained = sampler.Trained([[[0], [1]], [[2, 3, 4], [5]]], [[9.0, 9.0], [1.0, 5.0]], 0.5, {})
    assert trained.last_loss == 2.0  # (3 × 1 + 1 × 5) / 4
    assert trained.epochs == [[0, 1], [2, 3, 4, 5]]
    assert trained.different == {0, 1, 2, 3, 4, 5}


def test_joined_batches_are_sets_over_all_ranks():
    def trained(*epochs):
        return sampler.Trained([list(steps) for steps in epochs], [], 0.5, {})

    ranks = [trained([[0, 1], [2]], [[1, 4], [2]]), trained([[4], [5]], [[0], [6]])]
    assert sampler.joined_batches(ranks) == {frozenset({0, 1, 4}), frozenset({2, 5}), frozenset({2, 6})}


def always_zero(images):
    scores = torch.zeros(len(images), 10)
    scores[:, 0] = 1
    return scores


def accuracy_of_made_up_digits(rank, samples):
    """A model that always says 0; every seventh label and the last one are something else."""
    labels = torch.zeros(samples, dtype=torch.int64)
    labels[::7] = labels[-1] = 3
    digits = MNISTDataset.from_digits(Digits(torch.zeros(samples, 28, 28, dtype=torch.uint8), labels))
    return sampler.exact_accuracy(always_zero, digits)


@pytest.mark.parametrize(
    ("samples", "right", "world_sizes"),
    [(10_007, 8576, (1, 2, 3)), (499, 426, (2, 3, 4)), (21, 17, (2,)), (1, 0, (3,))],
)
def test_the_exact_accuracy_is_the_same_number_on_any_number_of_ranks(samples, right, world_sizes):
    for world_size in world_sizes:
        ranks = spawn(accuracy_of_made_up_digits, (samples,), world_size, backend="gloo", show=False)
        assert ranks == [right / samples] * world_size  # to the last digit


def test_padding_and_the_mean_of_ranks_are_other_numbers_on_three_ranks_alone():
    torch.manual_seed(0)
    model = SimpleModel()
    digits = MNISTDataset.from_digits(load_digits(train=False))
    images, labels = digits[list(range(1000))]
    right = (model(images).argmax(1) == labels).tolist()
    one, two, three = (
        spawn(sampler.test, (model.state_dict(),), nprocs, backend="gloo", show=False)[0]
        for nprocs in (1, 2, 3)
    )
    assert {one.exact, two.exact, three.exact, one.padded, two.padded} == {sum(right) / 1000}
    assert (one.slots, two.slots, three.slots) == (1000, 1000, 1002)
    assert three.padded == (sum(right) + right[0] + right[1]) / 1002 != three.exact
    shares = [right[rank::3] for rank in range(3)]
    mean = sum(Fraction(sum(share), len(share)) for share in shares) / 3
    assert three.mean_of_ranks == pytest.approx(float(mean), rel=1e-14)
    assert float(mean) != three.exact


def test_what_the_chapter_says_of_ten_samples_on_three_ranks():
    def deal(**options):
        return [list(DistributedSampler(range(10), 3, rank, **options)) for rank in range(3)]

    assert deal(shuffle=False) == [[0, 3, 6, 9], [1, 4, 7, 0], [2, 5, 8, 1]]
    assert deal(shuffle=False, drop_last=True) == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    assert deal() == [[4, 5, 0, 2], [1, 3, 8, 4], [7, 9, 6, 1]]  # as in the alt text of its figure


def test_a_loader_takes_no_shuffle_with_a_sampler_and_no_sampler_with_a_stream():
    half = DistributedSampler(range(10), 2, 0)
    with pytest.raises(ValueError, match="mutually exclusive with shuffle"):
        DataLoader(range(10), shuffle=True, sampler=half)
    with pytest.raises(ValueError, match="expected unspecified sampler option"):
        DataLoader(sampler.Stream(10), sampler=half)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_stream_comes_once_per_rank_and_worker(workers):
    received = spawn(sampler.read_stream, (False, 10, workers), 2, backend="gloo", show=False)
    for batches in received:
        counts = Counter(number for batch in batches for number in batch)
        assert counts == {number: max(1, workers) for number in range(10)}


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_a_shared_stream_comes_once_over_all_ranks_and_workers(workers):
    received = spawn(sampler.read_stream, (True, 11, workers), 2, backend="gloo", show=False)
    numbers = [sorted(number for batch in batches for number in batch) for batches in received]
    assert numbers == [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9]]


@pytest.fixture
def told(capsys):
    """Check an answer; everything printed, in lines without the exercise's name."""

    def run(name, fn):
        capsys.readouterr()
        check(name, fn)
        english, chinese = capsys.readouterr().out.splitlines()
        return english.replace(f" {name}: ", " "), chinese.replace(f" {name}：", " ")

    return run


def drawn(n, seed):
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()


def padded(order, world):
    return order + order[: -len(order) % world]


def torchs_own(n, rank, world, epoch, seed):
    dealer = DistributedSampler(range(n), world, rank, seed=seed)
    dealer.set_epoch(epoch)
    return list(dealer)


def in_one_piece(n, rank, world, epoch, seed):
    return torch.tensor(padded(drawn(n, 100 * seed + epoch), world)).chunk(world)[rank]


def without_torch(n, rank, world, epoch, seed):
    return tuple(padded(random.Random(f"{seed} {epoch}").sample(range(n), n), world)[rank::world])


@pytest.mark.parametrize("fn", [torchs_own, in_one_piece, without_torch])
def test_another_right_shard_is_right(fn, told):
    assert told("sampler-1", fn) == (
        "✓ right in all 3 cases, on 3 ranks.",
        "✓ 3 个 rank、3 组数据，全对。",
    )


WRONG_SHARDS = {
    "seed + rank": (
        lambda n, rank, world, epoch, seed: padded(drawn(n, seed + epoch + rank), world)[rank::world],
        "✗ n = 21, epoch 0: sample 20 is on ranks 1 and 2, sample 1 on none: all ranks must share out one "
        "and the same order.",
        "✗ n = 21，第 0 轮：样本 20 同时在 rank 1、rank 2 上，样本 1 却谁也没分到：所有 rank 分的必须是同一个"
        "顺序。",
    ),
    "no rank": (
        lambda n, rank, world, epoch, seed: padded(drawn(n, seed + epoch), world)[::world],
        "✗ n = 21, epoch 0: all 3 ranks get the same samples, 11, 9, 13, …, and sample 1 is on none: `rank` "
        "must decide which part is whose.",
        "✗ n = 21，第 0 轮：3 个 rank 分到的样本都是 11, 9, 13, …，样本 1 却谁也没分到：哪一份归谁，要由 "
        "`rank` 决定。",
    ),
    "one rank repeats itself": (
        lambda n, rank, world, epoch, seed: [i if i != 20 else 2 for i in range(rank, n, world)],
        "✗ n = 21, epoch 0: sample 2 is 2 times on rank 2, sample 20 on none.",
        "✗ n = 21，第 0 轮：样本 2 在 rank 2 上出现了 2 次，样本 20 却谁也没分到。",
    ),
    "no epoch": (
        lambda n, rank, world, epoch, seed: padded(drawn(n, seed), world)[rank::world],
        "✗ n = 21: epochs 0 and 1 are the same: rank 0 gets 11, 9, 13, … in both; the epoch must change the "
        "order.",
        "✗ n = 21：第 0 轮和第 1 轮一模一样，rank 0 两轮拿到的都是 11, 9, 13, …；顺序应当随轮次改变。",
    ),
    "no seed": (
        lambda n, rank, world, epoch, seed: padded(drawn(n, epoch), world)[rank::world],
        "✗ n = 21: seeds 0 and 7 give the same order: rank 0 gets 11, 9, 13, … with both; use `seed` too.",
        "✗ n = 21：种子 0 和 7 给出同样的顺序，rank 0 拿到的都是 11, 9, 13, …；`seed` 也要用上。",
    ),
    "another start": (
        lambda n, rank, world, epoch, seed: [
            (seed + epoch + i) % n for i in range(rank, n + -n % world, world)
        ],
        "✗ n = 21, epoch 1: rank 0 gets 1, 4, 7, …, in equal steps: another start does not make 0 to 20 "
        "a random order.",
        "✗ n = 21，第 1 轮：rank 0 拿到 1, 4, 7, …，相邻两个总差一样多：0 到 20 只是换了起点，"
        "不算随机的顺序。",
    ),
    "shuffled after dealing": (
        lambda n, rank, world, epoch, seed: [
            padded(list(range(n)), world)[rank::world][i] for i in drawn(math.ceil(n / world), seed + epoch)
        ],
        "✗ n = 21: in epochs 0 and 1 rank 0 gets the same 7 samples, 0, 18, 3, …, in another order: shuffle "
        "first, then deal out.",
        "✗ n = 21：第 0 轮和第 1 轮，rank 0 拿到的是同样的 7 个样本 0, 18, 3, …，只是换了先后："
        "先打乱，再分发。",
    ),
    "no padding": (
        lambda n, rank, world, epoch, seed: drawn(n, seed + epoch)[rank::world],
        "✗ of 20 samples rank 0 gets 7, rank 1 gets 7, rank 2 gets 6: a rank with more would wait for "
        "the others in vain; repeat samples until each has 7.",
        "✗ 共有 20 个样本，rank 0 分到 7 个，rank 1 分到 7 个，rank 2 分到 6 个：多的 rank 会多走一步，白等"
        "别人；请重复几个样本，让每个 rank 都有 7 个。",
    ),
    "drop_last": (
        lambda n, rank, world, epoch, seed: drawn(n, seed + epoch)[: n - n % world][rank::world],
        "✗ of 20 samples rank 0 gets 6, rank 1 gets 6, rank 2 gets 6: that is 18 in all; each rank needs 7, "
        "so that every sample is seen and as few as possible twice.",
        "✗ 共有 20 个样本，rank 0 分到 6 个，rank 1 分到 6 个，rank 2 分到 6 个，合计 18 个；每个 rank 要有 "
        "7 个，这样每个样本都有人看，重复的也最少。",
    ),
    "everything": (
        lambda n, rank, world, epoch, seed: drawn(n, seed + epoch),
        "✗ of 21 samples every one of the 3 ranks gets 21: each does the whole work; a rank's share is 7.",
        "✗ 共有 21 个样本，3 个 rank 每个都分到 21 个：大家都在做全部的活；每个 rank 应分到 7 个。",
    ),
    "counting from 1": (
        lambda n, rank, world, epoch, seed: [i + 1 for i in range(rank, n, world)],
        "✗ rank 2 gets sample 21, but 21 samples have the numbers 0 to 20.",
        "✗ rank 2 分到了样本 21，可是 21 个样本的编号是 0 到 20。",
    ),
    "no numbers": (
        lambda n, rank, world, epoch, seed: [0.5],
        "✗ your function returns [0.5] where a list of sample numbers is expected.",
        "✗ 你的函数返回了 [0.5]，而这里要的是一个列表，里面是样本的编号。",
    ),
    "a string": (
        lambda n, rank, world, epoch, seed: "012",
        "✗ your function returns '012' where a list of sample numbers is expected.",
        "✗ 你的函数返回了 '012'，而这里要的是一个列表，里面是样本的编号。",
    ),
    "one number": (
        lambda n, rank, world, epoch, seed: torch.tensor(3),
        "✗ your function returns tensor(3) where a list of sample numbers is expected.",
        "✗ 你的函数返回了 tensor(3)，而这里要的是一个列表，里面是样本的编号。",
    ),
}


@pytest.mark.parametrize("mistake", WRONG_SHARDS)
def test_a_wrong_shard_is_told_what_it_did(mistake, told):
    fn, english, chinese = WRONG_SHARDS[mistake]
    assert told("sampler-1", fn) == (english, chinese)


def left_open_shard(n, rank, world, epoch, seed):
    """The numbers of this rank's samples in this epoch."""
    ...


def left_open_loss(mean_loss, n):
    loss = ...
    return loss / n


def test_an_open_answer_is_told_that_it_is_not_written_yet(told):
    assert told("sampler-1", left_open_shard) == (
        "○ not yet: write `shard(n, rank, world, epoch, seed)`, then run this cell again.",
        "○ 还没写：写好 `shard(n, rank, world, epoch, seed)`，再运行一次这个单元格。",
    )
    assert told("sampler-2", left_open_loss) == (
        "○ not yet: write `exact_loss(mean_loss, n)`, then run this cell again.",
        "○ 还没写：写好 `exact_loss(mean_loss, n)`，再运行一次这个单元格。",
    )


def every_other(n):
    return range(dist.get_rank(), n, dist.get_world_size())


def by_torchs_sampler(n, **options):
    return list(DistributedSampler(range(n), shuffle=False, **options))


def in_two_pieces(n):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    return range(n * rank // world_size, n * (rank + 1) // world_size)


def added_up(*values):
    total = torch.tensor(values, dtype=torch.float32)
    dist.all_reduce(total)
    return total


def over_all(mean, tested):
    loss, tested = added_up(mean * tested, tested)
    return loss / tested


def as_the_accuracy_above(mean, tested):
    loss, tested = added_up(mean, tested)
    return loss / tested


def answer(share, join):
    """An answer that tests the samples of `share(n)` and joins their mean loss and their number."""

    def exact_loss(mean_loss, n):
        mine = share(n)
        return join(mean_loss(mine), len(mine))

    return exact_loss


def one_by_one(mean_loss, n):
    mine = torch.tensor(every_other(n))
    return over_all(sum(mean_loss(sample[None]) for sample in mine) / len(mine), len(mine))


@pytest.mark.parametrize("fn", [answer(every_other, over_all), answer(in_two_pieces, over_all), one_by_one])
def test_another_right_loss_is_right(fn, told):
    assert told("sampler-2", fn) == (
        "✓ right in all 3 cases, on 2 ranks.",
        "✓ 2 个 rank、3 组数据，全对。",
    )


WRONG_LOSSES = {
    "mean of the ranks' means": (
        answer(every_other, lambda mean, tested: added_up(mean)[0] / 2),
        "✗ you give 0.9091, the mean of the ranks' mean losses 1.318 and 0.5, but these are of 11 and 10 "
        "samples; all 21 have 0.9286: add up first, then divide once.",
        "✗ 你给出 0.9091，它是各 rank 平均损失 1.318 和 0.5 的平均，可它们的样本数是 11 和 10；全部 "
        "21 个样本的平均损失应为 0.9286：先求和，最后只除一次。",
    ),
    "means added up as if they were sums": (
        answer(every_other, as_the_accuracy_above),
        "✗ you give 0.0875, that is 1.25 + 0.5 over 20, but these are means, of 10 and 10 samples: turn each "
        "into a sum before you add them up.",
        "✗ 你给出 0.0875，也就是 1.25 + 0.5 再除以 20，可加起来的是平均值，分别来自 10 和 10 个样本：先把它们"
        "变回总和，再相加。",
    ),
    "padded": (
        answer(by_torchs_sampler, over_all),
        "✗ 21 samples on 2 ranks: you counted 22; sample 0 was tested 2 times (on rank 0 and 1).",
        "✗ 21 个样本、2 个 rank：你数了 22 个；样本 0 被测试了 2 次（在 rank 0、rank 1 上）。",
    ),
    "drop_last": (
        answer(lambda n: by_torchs_sampler(n, drop_last=True), over_all),
        "✗ 21 samples on 2 ranks: you tested 20 of them; sample 20 was tested on no rank.",
        "✗ 21 个样本、2 个 rank：你只测试了其中 20 个；样本 20 没有任何 rank 测试过。",
    ),
    "own loss": (
        answer(every_other, lambda mean, tested: mean),
        "✗ rank 0 gives 1.25, the mean loss of its own 10 samples; all 20 have 0.875, and every rank must "
        "give that: add up over the ranks.",
        "✗ rank 0 给出 1.25，那只是它自己 10 个样本的平均损失；全部 20 个样本的是 0.875，每个 rank 都应给出"
        "这个数：要在各个 rank 之间求和。",
    ),
    "everything on every rank": (
        answer(range, lambda mean, tested: mean),
        "✗ 20 samples on 2 ranks: each rank tested all 20; share the work out, so that each sample is tested "
        "on one rank.",
        "✗ 20 个样本、2 个 rank：每个 rank 都测试了全部 20 个；请分工，每个样本只由一个 rank 测试。",
    ),
    "only the losses added up": (
        answer(every_other, lambda mean, tested: added_up(mean * tested)[0] / tested),
        "✗ 20 samples: rank 0 gives 1.75, but their losses add up to 17.5: 0.875.",
        "✗ 20 个样本：rank 0 给出 1.75，而它们的损失合计 17.5：应为 0.875。",
    ),
    "one number instead of a list": (
        lambda mean_loss, n: mean_loss(3),
        "✗ mean_loss takes a list of sample numbers; you gave it 3.",
        "✗ mean_loss 要的是一个列表，里面是样本的编号；你给它的是 3。",
    ),
    "counting from 1": (
        answer(lambda n: range(1, n + 1), over_all),
        "✗ you test sample 20, but 20 samples have the numbers 0 to 19.",
        "✗ 你测试了样本 20，可是 20 个样本的编号是 0 到 19。",
    ),
}


@pytest.mark.parametrize("mistake", WRONG_LOSSES)
def test_a_wrong_loss_is_told_what_it_did(mistake, told):
    fn, english, chinese = WRONG_LOSSES[mistake]
    assert told("sampler-2", fn) == (english, chinese)
