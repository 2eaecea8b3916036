"""The models: shapes, sizes, and what DDP makes of them."""

import gc
import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from ddp_src.errors import ConfigError
from ddp_src.model import SimpleModel, SmallCNN, build_model


def count(model):
    return sum(p.numel() for p in model.parameters()), len(list(model.parameters()))


def test_simple_model_is_784_100_10():
    model = SimpleModel()
    assert [tuple(p.shape) for p in model.parameters()] == [(100, 784), (100,), (10, 100), (10,)]
    assert count(model) == (79_510, 4)


def test_simple_model_computes_flatten_fc1_relu_fc2():
    torch.manual_seed(0)
    model = SimpleModel().double()
    images = torch.randn(3, 1, 28, 28, dtype=torch.float64)
    hidden = (images.reshape(3, 784) @ model.fc1.weight.T + model.fc1.bias).clamp(min=0)
    expected = hidden @ model.fc2.weight.T + model.fc2.bias
    torch.testing.assert_close(model(images), expected, rtol=0, atol=1e-12)


def test_small_cnn_has_as_many_parameters_as_its_docstring_says():
    assert count(SmallCNN()) == (1_223_370, 14)
    assert "1,223,370 parameters (4.9 MB in float32) in 14 tensors" in SmallCNN.__doc__


@pytest.mark.parametrize("name", ["simple", "cnn"])
def test_images_with_and_without_a_channel_score_the_same(name):
    torch.manual_seed(0)
    model = build_model(name)
    images = torch.randn(5, 28, 28)
    scores = model(images)
    assert scores.shape == (5, 10)
    assert torch.equal(scores, model(images.unsqueeze(1)))


@pytest.mark.parametrize("name", ["simple", "cnn"])
def test_a_sample_scores_the_same_alone_and_in_a_batch(name):
    torch.manual_seed(0)
    model = build_model(name).double()
    images = torch.randn(4, 28, 28, dtype=torch.float64)
    alone = torch.cat([model(image[None]) for image in images])
    torch.testing.assert_close(model(images), alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["simple", "cnn"])
def test_every_parameter_gets_a_gradient(name):
    torch.manual_seed(0)
    model = build_model(name)
    F.cross_entropy(model(torch.randn(8, 28, 28)), torch.arange(8)).backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize(("name", "kind"), [("simple", SimpleModel), ("cnn", SmallCNN)])
def test_build_model_by_name(name, kind):
    assert type(build_model(name)) is kind


def test_an_unknown_name_says_what_to_choose():
    with pytest.raises(ConfigError) as caught:
        build_model("resnet")
    assert caught.value.en == "There is no model 'resnet': choose simple or cnn."
    assert caught.value.zh == "没有名为 'resnet' 的模型：请选 simple 或 cnn。"


def record_buckets(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.manual_seed(rank)
    model = DistributedDataParallel(build_model("cnn"), bucket_cap_mb=1)
    sizes = []

    def hook(_state, bucket):
        sizes.append(bucket.buffer().nbytes)
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    model.register_comm_hook(None, hook)
    for _ in range(2):  # DDP builds its final buckets after the first backward
        sizes.clear()
        F.cross_entropy(model(torch.randn(2, 28, 28)), torch.arange(2)).backward()
    torch.save(sizes, f"{folder}/sizes{rank}.pt")
    del model
    gc.collect()
    dist.destroy_process_group()
    os._exit(0)


def test_small_cnn_fills_four_ddp_buckets_of_1_mb(tmp_path):
    mp.spawn(record_buckets, (str(tmp_path),), nprocs=2)
    expected = [1_185_320, 2_359_296, 1_180_672, 168_192]
    assert [torch.load(tmp_path / f"sizes{rank}.pt") for rank in (0, 1)] == [expected, expected]
    assert sum(expected) == 4 * 1_223_370
