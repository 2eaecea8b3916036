"""Chapter 03: what the collectives leave, the ring's sums, the fitted line; and its exercises."""

import pytest
import torch
import torch.distributed as dist

from ddp_src import RankFailed, RanksStuck, check, hint, message_cost, spawn
from ddp_src.exercises import _verdict
from ddp_src.exercises.collectives import EXERCISES, mean_over_ranks
from ddp_src.lessons import collectives
from ddp_src.lessons.collectives import Held
from ddp_src.ring import ring_all_reduce


@pytest.fixture(scope="module")
def ranks():
    return spawn(collectives.every_collective, nprocs=3, backend="gloo", show=False)


@pytest.fixture(scope="module")
def rings():
    return spawn(collectives.ring_and_torch, nprocs=4, backend="gloo", show=False)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("send / recv", [[1], [10], [100]], [[1], [10], [1]]),
        ("broadcast", [[1], [10], [100]], [[1], [1], [1]]),
        ("all_reduce", [[1], [10], [100]], [[111], [111], [111]]),
        ("scatter", [[1, 2, 3], [], []], [[1], [2], [3]]),
        ("gather", [[1], [10], [100]], [[1, 10, 100], [], []]),
        ("all_gather", [[1], [10], [100]], [[1, 10, 100]] * 3),
        ("reduce_scatter", [[1, 2, 3], [10, 20, 30], [100, 200, 300]], [[111], [222], [333]]),
        (
            "all_to_all",
            [[1, 2, 3], [10, 20, 30], [100, 200, 300]],
            [[1, 10, 100], [2, 20, 200], [3, 30, 300]],
        ),
    ],
)
def test_what_a_collective_leaves_on_each_rank(name, before, after, ranks):
    assert [held[name] for held in ranks] == [Held(b, a) for b, a in zip(before, after, strict=True)]


def test_gloos_reduce_leaves_partial_sums_beside_its_destination(ranks):
    assert [held["reduce"] for held in ranks] == [Held([1], [111]), Held([10], [110]), Held([100], [100])]


@pytest.mark.parametrize("name", ["barrier", "all_reduce without barrier"])
def test_nobody_goes_on_before_the_last_has_come(name, ranks):
    waited = [rank[name] for rank in ranks]
    assert max(w.came for w in waited) <= min(w.left for w in waited)


def test_the_ring_step_by_step(rings):
    assert [len(rank.steps) for rank in rings] == [7, 7, 7, 7]  # the start and 2(4−1) steps
    top_row = [[rank.steps[step][0] for rank in rings] for step in range(7)]
    assert top_row == [
        [1, 10, 100, 1000],
        [1, 10, 110, 1000],
        [1, 10, 110, 1110],
        [1111, 10, 110, 1110],
        [1111, 1111, 110, 1110],
        [1111, 1111, 1111, 1110],
        [1111, 1111, 1111, 1111],
    ]
    after_half = [rank.steps[3] for rank in rings]
    assert [column[rank] for rank, column in enumerate(after_half)] == [1111] * 4  # a reduce-scatter
    assert [rank.total for rank in rings] == [[1111] * 4] * 4


def test_sums_of_whole_numbers_are_equal_bit_for_bit(rings):
    for rank in rings:
        exact = sum(r.whole.own.double() for r in rings)
        assert torch.equal(rank.whole.torchs.double(), exact)
        assert torch.equal(rank.whole.ring, rank.whole.torchs)
        assert torch.equal(rank.whole.turned, rank.whole.torchs)


def test_another_order_of_additions_rounds_otherwise(rings):
    sums = rings[0].random
    exact = sum(rank.random.own.double() for rank in rings)
    assert 0.1 < (sums.ring != sums.torchs).float().mean() < 0.4
    assert (sums.ring - exact).abs().max() < 1e-6
    assert (sums.torchs - exact).abs().max() < 1e-6
    x0, x1, x2, x3 = (rank.random.own[:1024] for rank in rings)  # the first chunk
    assert torch.equal(sums.ring[:1024], ((x1 + x2) + x3) + x0)
    assert torch.equal(sums.torchs[:1024], ((x3 + x2) + x1) + x0)
    assert torch.equal(sums.turned, sums.torchs)


def test_all_ranks_hold_the_same_bits(rings):
    for rank in rings[1:]:
        assert torch.equal(rank.random.ring, rings[0].random.ring)
        assert torch.equal(rank.random.torchs, rings[0].random.torchs)


def ring_of(rank, length):
    x = torch.arange(float(length)) + rank
    ring_all_reduce(x)
    return x.tolist()


@pytest.mark.parametrize(("nprocs", "length"), [(1, 3), (2, 5), (3, 10), (3, 2)])
def test_the_ring_takes_any_number_of_ranks_and_any_length(nprocs, length):
    expected = [float(nprocs * i + sum(range(nprocs))) for i in range(length)]
    assert spawn(ring_of, (length,), nprocs, backend="gloo", show=False) == [expected] * nprocs


def test_one_time_per_size():
    times = spawn(message_cost.all_reduce_times, ([4, 4096], 3), 2, show=False)
    assert [len(medians) for medians in times] == [2, 2]
    assert all(seconds > 0 for medians in times for seconds in medians)


SIZES = [4 * 4**k for k in range(13)]


def test_the_line_is_found_again():
    seconds = [2e-4 + size / 1e9 for size in SIZES]
    alpha, beta = message_cost.fit_line(SIZES, seconds)
    assert alpha == pytest.approx(2e-4) and beta == pytest.approx(1e9)
    assert message_cost.ratios(SIZES, seconds, alpha, beta) == pytest.approx([1.0] * 13)


def test_spoilt_times_do_not_pull_the_line():
    seconds = [2e-4 + size / 1e9 for size in SIZES]
    for spoilt in (0, 5, 8, 12):
        seconds[spoilt] *= 7
    alpha, beta = message_cost.fit_line(SIZES, seconds)
    assert alpha == pytest.approx(2e-4) and beta == pytest.approx(1e9)


def test_times_that_fall_have_no_line():
    with pytest.raises(ValueError, match="no line fits"):
        message_cost.fit_line([4, 16, 64], [3.0, 2.0, 1.0])


def test_the_fine_print(ranks):
    seen = [rank["fine print"] for rank in ranks]
    assert [rank.in_sub_group for rank in seen] == [101, 10, 101]
    notes = [{"rank": 0, "loss": 0.5}, {"rank": 1, "loss": 1.5}, {"rank": 2, "loss": 2.5}]
    assert all(rank.notes == notes for rank in seen)
    assert [rank.gathered_has_gradient for rank in seen] == [False, False, False]
    assert [rank.gradient for rank in seen] == [1.0, 1.0, 1.0]
    assert [rank.after_wait for rank in seen] == [111.0, 111.0, 111.0]
    assert all(0 < rank.returned_after < 1 for rank in seen)


def test_a_collective_under_an_if_leaves_rank_0_waiting():
    with pytest.raises(RanksStuck) as caught:
        spawn(collectives.log_on_rank_0, nprocs=3, backend="gloo", timeout=1, show=False)
    waiting, *others = caught.value.standings
    assert "log_on_rank_0" in [frame.function for frame in waiting.frames]
    assert [standing.state for standing in others] == ["returned", "returned"]


def test_debug_names_the_two_calls():
    with pytest.raises(RankFailed) as caught:
        spawn(collectives.call_another, nprocs=3, backend="gloo", debug=True, show=False)
    start, end = caught.value.message.partition(" Rank ")[0], caught.value.message.rpartition(".")[2]
    assert start == "Detected mismatch between collectives on ranks."
    assert end.startswith("Collectives differ") and "ALLREDUCE" in end and "BROADCAST" in end


@pytest.mark.parametrize("debug", [False, True])
def test_swapped_calls_mix_two_sums_without_an_error(debug):
    swapped = spawn(collectives.swap_two_calls, nprocs=3, backend="gloo", debug=debug, show=False)
    assert swapped == [(121, 212), (212, 121), (121, 212)]


# The exercises.


@pytest.fixture
def told(capsys):
    """Check an answer; what is printed, in lines."""

    def run(name, fn):
        capsys.readouterr()
        check(name, fn)
        return capsys.readouterr().out.splitlines()

    return run


def pieces_summed(x, pieces):
    """What the wrong answers below have in common: reduce_scatter, divide, all_gather."""
    own = torch.empty_like(pieces[dist.get_rank()])
    dist.reduce_scatter(own, pieces)
    parts = [torch.empty_like(piece) for piece in pieces]
    dist.all_gather(parts, own / dist.get_world_size())
    return torch.cat(parts)


def leave_the_rest_out(x):
    ranks = dist.get_world_size()
    share = len(x) // ranks
    return pieces_summed(x, [x[i * share : (i + 1) * share] for i in range(ranks)])


def keep_the_padding(x):
    padded = torch.nn.functional.pad(x, (0, -len(x) % dist.get_world_size()))
    return pieces_summed(x, list(padded.chunk(dist.get_world_size())))


@pytest.mark.parametrize(
    ("fn", "english", "chinese"),
    [
        (
            leave_the_rest_out,
            "length 10 on 4 ranks: you return 8 numbers; pad x with zeros to a multiple of 4, "
            "so that none is left out.",
            "长度 10、4 个 rank：你返回了 8 个数；先用零把 x 补齐到 4 的倍数，一个数也不能漏。",
        ),
        (
            keep_the_padding,
            "length 10 on 4 ranks: you return 12 numbers; cut the padding off.",
            "长度 10、4 个 rank：你返回了 12 个数；要把补齐的部分去掉。",
        ),
        (
            lambda x: pieces_summed(x, list(x.reshape(dist.get_world_size(), -1))),
            "length 10 on 4 ranks: your function raises RuntimeError: shape '[4, -1]' is invalid for input "
            "of size 10; pad x with zeros to a multiple of 4, and cut the padding off at the end.",
            "长度 10、4 个 rank：你的函数抛出了 RuntimeError: shape '[4, -1]' is invalid for input "
            "of size 10；先用零把 x 补齐到 4 的倍数，最后再把补的部分去掉。",
        ),
        (
            lambda x: mean_over_ranks(x / dist.get_world_size()),
            "the first number is 69.4375, which is 1/4 of the mean 277.75: you divide by 4 twice.",
            "第一个数是 69.4375，只有平均值 277.75 的 1/4：多除了一次 4。",
        ),
        (
            lambda x: 4 * mean_over_ranks(x),
            "the first number is 1111, the sum over the ranks; their mean is 277.75: divide by 4, once.",
            "第一个数是 1111，这是各个 rank 之和；平均值是 277.75：还要除以 4，只除一次。",
        ),
        (
            lambda x: x * 1,
            "length 8, rank 0: your number at index 0 is 1, the mean there is 277.75.",
            "长度 8、rank 0：下标 0 处，你给出的是 1，平均值应当是 277.75。",
        ),
        (
            lambda x: dist.all_reduce(x),
            "your function calls all_reduce: build it from reduce_scatter and all_gather instead.",
            "你的函数调用了 all_reduce：这道题要用 reduce_scatter 和 all_gather 把它搭出来。",
        ),
        (
            lambda x: x.sum().item(),
            "your function returns a float where a tensor of 8 numbers is expected.",
            "你的函数返回了 float，而这里要的是有 8 个数的张量。",
        ),
    ],
    ids=["rest left out", "padding kept", "reshape", "divided twice", "sum", "own", "all_reduce", "number"],
)
def test_a_wrong_mean_is_told_by_its_value(fn, english, chinese, told):
    assert told("collectives-1", fn) == [f"✗ collectives-1: {english}", f"✗ collectives-1：{chinese}"]


def test_an_error_at_every_length_is_told_with_its_line(told):
    assert "your function raises RuntimeError: " in told("collectives-1", lambda x: x.reshape(7, 5))[0]


def everyone_prints(loss):
    total = loss.clone()
    dist.all_reduce(total)
    print("mean", total.item() / 3)


def on_rank_0(line):
    if dist.get_rank() == 0:
        print(line)


def overwrite(loss):
    dist.all_reduce(loss)
    on_rank_0(loss.item() / dist.get_world_size())


def print_the_sum(loss):
    total = loss.clone()
    dist.all_reduce(total)
    on_rank_0(total.item())


@pytest.mark.parametrize(
    ("fn", "english", "chinese"),
    [
        (
            everyone_prints,
            "rank 1 prints 'mean 1.75': let only rank 0 print.",
            "rank 1 也打印了 'mean 1.75'：只让 rank 0 打印。",
        ),
        (
            lambda loss: on_rank_0(loss.item()),
            "rank 0 prints '0.5': that is its own loss; the mean over 3 ranks is 1.7500.",
            "rank 0 打印的是 '0.5'：那只是它自己的损失；3 个 rank 的平均损失是 1.7500。",
        ),
        (
            print_the_sum,
            "rank 0 prints '5.25': that is the sum of 3 losses; the mean over 3 ranks is 1.7500.",
            "rank 0 打印的是 '5.25'：那是 3 个损失之和；3 个 rank 的平均损失是 1.7500。",
        ),
        (
            lambda loss: on_rank_0(7),
            "rank 0 prints '7': that is not the mean; the mean over 3 ranks is 1.7500.",
            "rank 0 打印的是 '7'：那不是平均值；3 个 rank 的平均损失是 1.7500。",
        ),
        (
            lambda loss: dist.all_reduce(loss),
            "no rank prints anything: let rank 0 print the mean loss, here 1.7500.",
            "没有一个 rank 打印任何内容：应当由 rank 0 打印平均损失，这里是 1.7500。",
        ),
        (
            overwrite,
            "the mean is right, but on rank 0 `loss` was 0.5 and is now 5.25: reduce a copy, `loss.clone()`.",
            "平均值对了，但 rank 0 上的 `loss` 原来是 0.5，现在成了 5.25："
            "请先 `loss.clone()`，再对副本归约。",
        ),
    ],
    ids=["everyone prints", "own loss", "sum", "another number", "nothing", "overwritten"],
)
def test_a_wrong_report_is_told_by_what_it_prints(fn, english, chinese, told):
    assert told("collectives-2", fn) == [f"✗ collectives-2: {english}", f"✗ collectives-2：{chinese}"]


def test_a_collective_under_the_if_is_told_who_waits_where(told, monkeypatch):
    monkeypatch.setattr(_verdict, "TIMEOUT", 1)

    def print_mean_loss(loss):
        if dist.get_rank() == 0:
            dist.all_reduce(loss)
            print(loss.item() / 3)

    english, chinese = told("collectives-2", print_mean_loss)
    assert english.startswith("✗ collectives-2: the ranks wait for one another: rank 0 is in your function")
    assert "`dist.all_reduce(loss)`); rank 1 has returned; rank 2 has returned." in english
    assert "rank 1 已经返回；rank 2 已经返回。" in chinese


def rounded(loss):
    total = loss.clone()
    dist.reduce(total, dst=0)
    if dist.get_rank() == 0:
        print(f"loss of this rank {loss:.2f}, of all {total / 3:.2f}")


@pytest.mark.parametrize("fn", [rounded, EXERCISES["collectives-2"].solution])
def test_another_right_report_is_right(fn, told):
    assert told("collectives-2", fn)[0] == "✓ collectives-2: right in all 2 cases, on 3 ranks."


def test_another_right_mean_is_right(told):
    def mean(x):
        return keep_the_padding(x)[: len(x)]

    assert told("collectives-1", mean)[0] == "✓ collectives-1: right in all 3 cases, on 4 ranks."
    assert told("collectives-1", mean_over_ranks)[0] == "✓ collectives-1: right in all 3 cases, on 4 ranks."


@pytest.mark.parametrize("name", list(EXERCISES))
def test_an_empty_answer_is_not_yet_and_there_is_a_hint(name, told, capsys):
    english, chinese = told(name, lambda x: ...)
    assert english.startswith(f"○ {name}: not yet") and chinese.startswith(f"○ {name}：还没写")
    hint(name)
    assert len(capsys.readouterr().out.splitlines()) == 2
