"""Chapter 06: what DDP sends and when, how it cuts buckets, what it leaves alone, and its exercise."""

import pytest
import torch
import torch.nn.functional as F

from ddp_src import RankFailed, check, spawn
from ddp_src.exercises.inside_ddp import buckets
from ddp_src.lessons import inside_ddp
from ddp_src.profiler_trace import collectives, in_phase, layer_gradients, overlap, read_spans, stretch


def through_ddp(ddp, images, labels):
    return F.cross_entropy(ddp(images), labels)


def around_ddp(ddp, images, labels):
    return ddp.module.loss(images, labels)


def ddp_has_no_such_method(ddp, images, labels):
    return ddp.loss(images, labels)


def two_forwards(ddp, images, labels):
    return F.cross_entropy(ddp(images), labels) + F.cross_entropy(ddp(1 - images), labels)


# --- messages


@pytest.fixture(scope="module")
def spans(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    spawn(inside_ddp.profile_steps, (str(path),), nprocs=2, backend="gloo", show=False)
    return read_spans(path)


@pytest.mark.parametrize(
    ("phase", "sent"),
    [
        ("construct", [("all_gather", 1), ("broadcast", 72), ("broadcast", 3_151_872)]),
        ("forward 1", []),
        ("backward 1", [("all_reduce", 3_151_872)]),
        ("forward 2", [("broadcast", 25), ("broadcast", 2)]),
        ("backward 2", [("all_reduce", 262_656), ("all_reduce", 2_889_216)]),
    ],
)
def test_what_each_phase_sends(spans, phase, sent):
    assert [(one.name, one.numbers) for one in collectives(in_phase(spans, phase))] == sent


def test_the_all_reduce_overlaps_with_backward_from_step_2_on(spans):
    first, second = (in_phase(spans, f"backward {step}") for step in (1, 2))
    assert len(layer_gradients(first)) == len(layer_gradients(second)) == 12
    assert overlap(stretch(layer_gradients(first)), collectives(first)) == 0
    assert overlap(stretch(layer_gradients(second)), collectives(second)) > 0


# --- buckets

LAYER = 512 * 512 * 4 + 512 * 4  # bytes


def sizes(options):
    ranks = spawn(inside_ddp.record_buckets, (options,), nprocs=2, show=False)
    assert ranks[0] == ranks[1]
    return [[bucket.nbytes for bucket in sent] for sent in ranks[0]]


def test_the_buckets_are_rebuilt_in_the_order_of_backward():
    (first,), second, third = spawn(inside_ddp.record_buckets, ({},), nprocs=2, show=False)[0]
    in_order = [f"{layer}.{kind}" for layer in range(12) for kind in ("weight", "bias")]
    assert (first.nbytes, first.parameters) == (12 * LAYER, in_order)
    assert [bucket.parameters for bucket in second] == [["11.bias", "11.weight"], in_order[-3::-1]]
    assert [bucket.nbytes for bucket in second] == [LAYER, 11 * LAYER]
    assert third == second


@pytest.mark.parametrize(
    ("cap", "after"),
    [(25, [12 * LAYER]), (4, [4 * LAYER] * 3), (1, [LAYER] * 12), (0.001, [2048, 1_048_576] * 12)],
)
def test_a_bucket_closes_when_it_has_reached_the_cap(cap, after):
    assert sizes({"bucket_cap_mb": cap}) == [[12 * LAYER], after, after]


@pytest.mark.parametrize(
    ("option", "counts"), [("static_graph", [1, 1, 2]), ("find_unused_parameters", [2, 2, 2])]
)
def test_options_that_change_when_the_buckets_are_rebuilt(option, counts):
    assert [len(sent) for sent in sizes({option: True})] == counts


@pytest.mark.parametrize(("as_view", "blocks"), [(False, 24), (True, 2)])
def test_gradients_live_in_the_buckets_as_views(as_view, blocks):
    found = spawn(inside_ddp.gradient_storages, (as_view,), nprocs=2, show=False)
    assert found == [(24, blocks)] * 2


# --- construction


def test_construction_gives_every_rank_the_weights_of_rank_0():
    (kept, same), (other, given) = spawn(inside_ddp.wrap, (100,), nprocs=2, show=False)
    assert kept == same == given != other


def test_construction_refuses_other_shapes_on_another_rank():
    with pytest.raises(RankFailed) as caught:
        spawn(inside_ddp.wrap_unequal, nprocs=2, show=False)
    assert caught.value.rank == 1
    assert (
        "sizes [101, 784] appears not to match sizes of the same param in process 0" in caught.value.message
    )


# --- what it leaves alone


def train(loss_of):
    return spawn(inside_ddp.train_step, (loss_of,), nprocs=2, show=False)


@pytest.fixture(scope="module")
def ranks():
    return train(through_ddp)


def test_gradients_and_weights_are_kept_equal_losses_and_buffers_not(ranks):
    first, second = ranks
    assert torch.equal(first.gradients, second.gradients)
    assert torch.equal(first.weights, second.weights)
    assert first.loss != second.loss
    assert not torch.equal(first.running_mean, second.running_mean)


def test_around_the_wrapper_gradients_stay_what_each_rank_computed(ranks):
    alone = train(around_ddp)
    assert not torch.equal(alone[0].gradients, alone[1].gradients)
    assert not torch.equal(alone[0].weights, alone[1].weights)
    mean = (alone[0].gradients + alone[1].gradients) / 2
    assert torch.allclose(mean, ranks[0].gradients, rtol=0, atol=1e-6)
    assert [rank.loss for rank in alone] == [rank.loss for rank in ranks]


def test_the_wrapper_has_none_of_the_models_methods():
    with pytest.raises(RankFailed) as caught:
        train(ddp_has_no_such_method)
    assert caught.value.message == "'DistributedDataParallel' object has no attribute 'loss'"


def test_two_forwards_and_one_backward_work_with_batchnorm():
    first, second = train(two_forwards)
    assert torch.equal(first.gradients, second.gradients)
    assert torch.isfinite(first.gradients).all()


def test_saved_names_have_a_prefix_that_the_plain_model_refuses(ranks):
    plain, state = inside_ddp.Classifier(), ranks[0].state
    assert list(state)[:2] == ["module.layers.0.weight", "module.layers.0.bias"]
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "layers.0.weight"'):
        plain.load_state_dict(state)
    plain.load_state_dict({name.removeprefix("module."): tensor for name, tensor in state.items()})


# --- the exercise


@pytest.fixture
def told(capsys):
    def run(fn):
        capsys.readouterr()
        check("inside_ddp-1", fn)
        return capsys.readouterr().out.splitlines()

    return run


def test_the_reference_solution_cuts_as_ddp_does(told):
    assert told(buckets)[0] == "✓ inside_ddp-1: right in all 4 cases, on 2 ranks."


def test_a_right_answer_of_another_kind_is_right(told):
    def answer(sizes, first_cap, cap):
        found, start, ready = [], 0, sizes[::-1]
        for end in range(1, len(ready) + 1):
            if sum(ready[start:end]) >= (cap if found else first_cap) or end == len(ready):
                found.append(tuple(ready[start:end]))
                start = end
        return found

    assert told(answer) == [
        "✓ inside_ddp-1: right in all 4 cases, on 2 ranks.",
        "✓ inside_ddp-1：2 个 rank、4 组数据，全对。",
    ]


def test_an_empty_answer_is_told_not_yet(told):
    assert told(lambda sizes, first_cap, cap: ...)[0] == (
        "○ inside_ddp-1: not yet: write `buckets(sizes, first_cap, cap)`, then run this cell again."
    )


def test_the_order_of_the_model_is_told_where_ddp_begins(told):
    assert told(lambda sizes, first_cap, cap: buckets(sizes[::-1], first_cap, cap)) == [
        "✗ inside_ddp-1: your first bucket begins with 1,048,576 B, the first parameter of the first layer; "
        "DDP starts from the last layer, with 2,048 B: its gradients are ready first.",
        "✗ inside_ddp-1：你的第一个桶从 1,048,576 B 开始，那是第一层的第一个参数；DDP 从最后一层开始，"
        "先放 2,048 B：那里的梯度最先算好。",
    ]


def closes_before_the_cap(sizes, first_cap, cap):
    found = [[]]
    for size in reversed(sizes):
        if found[-1] and sum(found[-1]) + size > (first_cap if len(found) == 1 else cap):
            found.append([])
        found[-1].append(size)
    return found


def test_a_bucket_closed_before_the_cap_is_told_how_much_it_holds(told):
    assert told(closes_before_the_cap) == [
        "✗ inside_ddp-1: your bucket 0 holds 7 gradients, 3,153,920 B, below the cap of 4,194,304 B: DDP's "
        "is still open then, and closes once it has reached the cap, with 8 gradients and 4,202,496 B.",
        "✗ inside_ddp-1：你的 0 号桶里有 7 个梯度，共 3,153,920 B，还不到上限 4,194,304 B："
        "这时 DDP 的桶还开着，要达到上限才关，那时有 8 个梯度，共 4,202,496 B。",
    ]


def forgets_to_return(sizes, first_cap, cap):
    sizes.reverse()


@pytest.mark.parametrize(
    ("fn", "english", "chinese"),
    [
        (
            lambda sizes, first_cap, cap: buckets(sizes, cap, cap),
            "your bucket 0 holds 24 gradients, 12,607,488 B: the first bucket has a cap of its own, "
            "1,048,576 B, and closes with 1,050,624 B.",
            "你的 0 号桶里有 24 个梯度，共 12,607,488 B：第一个桶有自己的上限 1,048,576 B，"
            "装到 1,050,624 B 就关上了。",
        ),
        (
            lambda sizes, first_cap, cap: buckets(sizes, first_cap, first_cap),
            "your bucket 1 holds 2 gradients, 1,050,624 B: the small cap of 1,048,576 B is the first "
            "bucket's alone, all others have 26,214,400 B.",
            "你的 1 号桶里有 2 个梯度，共 1,050,624 B：较小的上限 1,048,576 B 只属于第一个桶，"
            "其余的桶上限都是 26,214,400 B。",
        ),
        (
            lambda sizes, first_cap, cap: buckets(sizes, first_cap + 1, cap + 1),
            "your bucket 0 holds 3 gradients, 3,145,728 B: with 2,097,152 B it had reached the cap of "
            "2,097,152 B, and closes there.",
            "你的 0 号桶里有 3 个梯度，共 3,145,728 B：装到 2,097,152 B 时就达到了上限 2,097,152 B，"
            "应当在那里关上。",
        ),
        (
            lambda sizes, first_cap, cap: buckets(sizes, first_cap, cap)[:-1],
            "8 of 24 gradients are in none of your buckets, 4,202,496 B: the last bucket is sent too, "
            "full or not.",
            "24 个梯度里有 8 个不在你的任何一个桶里，共 4,202,496 B：最后一个桶不管满没满，都要发出去。",
        ),
        (
            lambda sizes, first_cap, cap: [*buckets(sizes, first_cap, cap), []],
            "your bucket 3 of 4 is empty: a bucket is sent only when gradients are in it.",
            "你给出了 4 个桶，其中 3 号桶是空的：桶里有梯度才会发送。",
        ),
        (
            lambda sizes, first_cap, cap: [[40, 20]],
            "your buckets hold 2 gradients, 40, 20; DDP's hold 24, in the order 2,048, 1,048,576, 2,048, "
            "1,048,576, ….",
            "你的桶里有 2 个梯度：40, 20；DDP 的有 24 个，顺序是 2,048, 1,048,576, 2,048, 1,048,576, …。",
        ),
        (
            lambda sizes, first_cap, cap: sizes[:2],
            "your function returns [1048576, 2048], where a list of buckets is expected, each a list of "
            "sizes.",
            "你的函数返回了 [1048576, 2048]，而这里要的是桶的列表，每个桶又是一个由字节数组成的列表。",
        ),
        (
            forgets_to_return,
            "your function returns None where a list of buckets is expected: is `return` missing?",
            "你的函数返回了 None，而这里要的是桶的列表：是不是漏写了 `return`？",
        ),
    ],
    ids=[
        "no first cap",
        "first cap for all",
        "past the cap",
        "not flushed",
        "empty",
        "other",
        "flat",
        "None",
    ],
)
def test_other_wrong_answers_are_told_by_their_own_values(fn, english, chinese, told):
    assert told(fn) == [f"✗ inside_ddp-1: {english}", f"✗ inside_ddp-1：{chinese}"]
