"""The dataset, the loaders' share of samples on any number of ranks, and `python -m ddp_src.data`."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from idx import make_digits
from torch.utils.data import DataLoader

from ddp_src import data
from ddp_src.data import Digits, MNISTDataset, batches, load_digits, train_loader
from ddp_src.digit_files import read_pth
from ddp_src.errors import DataError


def numbered(count: int) -> MNISTDataset:
    """A dataset whose images tell their index: the first three pixels spell it."""
    images = torch.zeros(count, 28, 28, dtype=torch.uint8)
    for digit in range(3):
        images[:, 0, digit] = torch.arange(count) // 100**digit % 100
    return MNISTDataset.from_digits(Digits(images, torch.arange(count) % 10))


def indices(batch) -> list[int]:
    images, labels = batch
    pixels = (images[:, 0, 0, :3] * 255).round().long()
    found = (pixels * torch.tensor([1, 100, 10000])).sum(1).tolist()
    assert labels.tolist() == [index % 10 for index in found], "a label belongs to another image"
    return found


def epoch_of(dataset, rank, world_size, *, epoch=0, start=0, batch_size=4, seed=0) -> list[list[int]]:
    loader = train_loader(dataset, batch_size=batch_size, rank=rank, world_size=world_size, seed=seed)
    return [indices(batch) for batch in batches(loader, epoch=epoch, start=start)]


@pytest.fixture
def pth(tmp_path):
    torch.save(make_digits(50), tmp_path / "digits.pth")
    return str(tmp_path / "digits.pth")


def test_one_sample_is_an_image_from_0_to_1_and_its_label(pth):
    dataset = MNISTDataset(pth)
    image, label = dataset[7]
    assert len(dataset) == 50
    assert image.shape == (1, 28, 28) and image.dtype == torch.float32
    assert label.shape == () and label.dtype == torch.int64 and label == 7
    assert image.equal(make_digits(50)[0][7].float().div(255)[None])
    assert dataset[[0, 49]][0].max() == 1.0 and dataset[[0, 49]][0].min() == 0.0


def test_a_list_of_indices_gives_the_whole_batch(pth):
    dataset = MNISTDataset(pth)
    images, labels = dataset[[9, 3, 3, 49]]
    assert images.shape == (4, 1, 28, 28) and images.dtype == torch.float32
    assert labels.tolist() == [9, 3, 3, 9] and labels.dtype == torch.int64
    for row, index in enumerate([9, 3, 3, 49]):
        assert images[row].equal(dataset[index][0])


def test_totensor_gives_the_same_numbers_as_no_transform(pth):
    from torchvision.transforms import ToTensor

    plain, transformed = MNISTDataset(pth), MNISTDataset(pth, transforms=ToTensor())
    for index in (0, 13, [4, 2, 49]):
        assert plain[index][0].equal(transformed[index][0]) and plain[index][1].equal(transformed[index][1])
    everything = transformed[list(range(50))][0]
    assert everything.max() == 1.0 and everything.dtype == torch.float32


def test_a_transform_gets_what_torchvisions_own_dataset_gives(pth):
    seen = []
    dataset = MNISTDataset(pth, transforms=lambda image: seen.append(image) or torch.zeros(1))
    dataset[3]
    assert (type(seen[0]).__name__, seen[0].mode, seen[0].size) == ("Image", "L", (28, 28))
    assert list(seen[0].tobytes()) == make_digits(50)[0][3].flatten().tolist()


def test_a_plain_dataloader_works_too(pth):
    images, labels = next(iter(DataLoader(MNISTDataset(pth), batch_size=8, sampler=range(20))))
    assert images.shape == (8, 1, 28, 28) and labels.tolist() == list(range(8))


def test_a_dataset_ends_and_refuses_what_is_out_of_range(pth):
    dataset = MNISTDataset(pth)
    assert len(list(dataset)) == 50
    for index in (50, [0, 50]):
        with pytest.raises(IndexError):
            dataset[index]


def test_float64_images_are_exact():
    digits = Digits(*make_digits(5))
    images, _ = MNISTDataset.from_digits(digits, dtype=torch.float64)[[0, 1, 2]]
    assert images.dtype == torch.float64 and images.equal(digits.images[:3, None].double() / 255)


def test_serving_a_batch_leaves_the_digits_alone(pth):
    dataset = MNISTDataset(pth)
    dataset[[1, 2]][0].zero_()
    dataset[1][0].zero_()
    assert dataset.data.equal(make_digits(50)[0]) and dataset.data.dtype == torch.uint8


def test_dataset_and_loader_survive_pickling(pth):
    from torchvision.transforms import ToTensor

    dataset = pickle.loads(pickle.dumps(MNISTDataset(pth, transforms=ToTensor())))
    assert dataset[3][0].equal(MNISTDataset(pth)[3][0])
    loader = pickle.loads(pickle.dumps(train_loader(numbered(20), batch_size=4, rank=1, world_size=2)))
    assert [indices(batch) for batch in batches(loader, epoch=3)] == epoch_of(numbered(20), 1, 2, epoch=3)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("count", [7, 20, 21, 64])
def test_ranks_share_each_epoch_evenly_and_miss_nothing(count, world_size):
    per_rank = [epoch_of(numbered(count), rank, world_size) for rank in range(world_size)]
    sizes = {tuple(len(batch) for batch in rank) for rank in per_rank}
    assert len(sizes) == 1, "every rank has as many batches, of the same sizes"
    served = [index for rank in per_rank for batch in rank for index in batch]
    assert set(served) == set(range(count))
    assert len(served) == -(-count // world_size) * world_size, "no more repeats than evening out needs"


def test_two_ranks_see_in_each_step_what_one_process_sees_in_a_batch_twice_as_large():
    ranks = [epoch_of(numbered(64), rank, 2, epoch=5, batch_size=4) for rank in range(2)]
    alone = epoch_of(numbered(64), 0, 1, epoch=5, batch_size=8)
    interleaved = [
        [index for pair in zip(*step, strict=True) for index in pair] for step in zip(*ranks, strict=True)
    ]
    assert interleaved == alone


def test_each_epoch_and_each_seed_has_an_order_of_its_own():
    orders = [
        epoch_of(numbered(64), 0, 2, epoch=epoch, seed=seed) for epoch, seed in ((0, 0), (1, 0), (0, 9))
    ]
    assert orders[0] != orders[1] and orders[0] != orders[2]
    assert epoch_of(numbered(64), 0, 2, epoch=1) == orders[1], "and the same one whenever it is asked for"


def test_one_loader_serves_epoch_after_epoch():
    loader = train_loader(numbered(64), batch_size=4, rank=1, world_size=2)
    for epoch in (0, 1, 2, 0):
        served = [indices(batch) for batch in batches(loader, epoch=epoch)]
        assert served == epoch_of(numbered(64), 1, 2, epoch=epoch)
    assert len(loader) == 8


@pytest.mark.parametrize("start", [0, 1, 5, 8, 9])
def test_an_epoch_resumes_at_any_batch_and_loads_none_before_it(start):
    dataset = numbered(64)
    whole = epoch_of(dataset, 1, 2, epoch=3)
    asked = []
    read = MNISTDataset.__getitem__

    class Watched(MNISTDataset):
        def __getitem__(self, index):
            asked.append(index)
            return read(self, index)

    watched = Watched.from_digits(Digits(dataset.data, dataset.targets))
    loader = train_loader(watched, batch_size=4, rank=1, world_size=2)
    assert [indices(batch) for batch in batches(loader, epoch=3, start=start)] == whole[start:]
    assert asked == whole[start:]
    asked.clear()
    assert [indices(batch) for batch in batches(loader, epoch=3)] == whole, (
        "the next epoch starts at its start"
    )


def test_loaders_take_nothing_from_the_global_random_numbers():
    before = torch.get_rng_state()
    epoch_of(numbered(20), 0, 2)
    list(data.test_loader(numbered(20), batch_size=4))
    assert torch.get_rng_state().equal(before)


def test_fewer_training_samples_than_ranks_are_refused():
    assert len(epoch_of(numbered(3), 2, 3)) == 1
    with pytest.raises(DataError, match="3 training samples are too few for 4 ranks") as caught:
        train_loader(numbered(3), batch_size=4, rank=0, world_size=4)
    assert "3 个训练样本分不到 4 个 rank" in caught.value.zh


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [1, 3, 21, 1007])
def test_testing_meets_every_sample_exactly_once(count, world_size):
    served = []
    for rank in range(world_size):
        loader = data.test_loader(numbered(count), batch_size=4, rank=rank, world_size=world_size)
        mine = [indices(batch) for batch in loader]
        assert len(mine) == len(loader) and all(0 < len(batch) <= 4 for batch in mine)
        served += [index for batch in mine for index in batch]
    assert sorted(served) == list(range(count))


def run_program(*arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    environ = os.environ | {"PYTHONPATH": str(Path(data.__file__).parents[1]), "PYTHONUTF8": "1"}
    return subprocess.run(
        [sys.executable, "-m", "ddp_src.data", *arguments],
        cwd=cwd,
        env=environ,
        capture_output=True,
        encoding="utf-8",
    )


def test_the_program_writes_the_two_files_of_the_original_listing(tmp_path):
    done = run_program(cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(os.listdir(tmp_path)) == ["mnist_test.pth", "mnist_train.pth"]
    for name, train in (("mnist_train.pth", True), ("mnist_test.pth", False)):
        images, labels = torch.load(tmp_path / name, weights_only=True)
        assert images.equal(load_digits(train=train).images) and images.dtype == torch.uint8
        assert labels.equal(load_digits(train=train).labels) and labels.dtype == torch.int64
        assert f"{name}: {len(images)} digits | {len(images)} 个数字" in done.stdout
    assert len(MNISTDataset(tmp_path / "mnist_train.pth")) == 4000
    assert len(load_digits(str(tmp_path), train=False).labels) == 1000


def test_the_program_explains_itself():
    text = run_program("--help", cwd=Path.cwd()).stdout
    for word in ("--data SOURCE", "--out FOLDER", "embedded", "mnist", ".pth", "数据来源", "文件夹"):
        assert word in text


def test_the_program_ends_with_two_sentences_and_status_2_on_bad_data(tmp_path):
    done = run_program("--data", "absent.pth", "--out", "new", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    english, chinese = done.stderr.splitlines()
    assert english.startswith("absent.pth does not exist: ") and chinese.startswith("absent.pth 不存在：")
    assert os.listdir(tmp_path) == []


def stderr_of(*arguments: str, capsys) -> str:
    assert data.main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


@pytest.mark.parametrize("name", ["mnist_train.pth", "mnist_test.pth"])
def test_the_program_does_not_overwrite_what_it_reads(tmp_path, capsys, name):
    torch.save(make_digits(50), tmp_path / name)
    before = (tmp_path / name).read_bytes()
    said = stderr_of("--data", str(tmp_path / name), "--out", str(tmp_path), capsys=capsys)
    assert "would be overwritten" in said and "会被覆盖" in said
    assert os.listdir(tmp_path) == [name] and (tmp_path / name).read_bytes() == before
    assert data.main(["--data", str(tmp_path / name), "--out", str(tmp_path / "other")]) == 0
    assert len(read_pth(tmp_path / "other" / "mnist_train.pth").labels) == 40


def test_out_that_is_a_file_is_refused(tmp_path, capsys):
    (tmp_path / "taken").write_text("mine")
    said = stderr_of("--out", str(tmp_path / "taken"), capsys=capsys)
    assert "taken (File exists): choose another folder with --out." in said
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path, capsys):
    # /proc refuses everybody, root included, as a read-only folder refuses others.
    where = "/proc/self" if sys.platform == "linux" else str(tmp_path / "taken" / "below")
    (tmp_path / "taken").write_text("mine")
    said = stderr_of("--out", where, capsys=capsys)
    assert f"cannot write to {where} (" in said and f"无法写入 {where}（" in said


def test_a_full_disk_is_told_and_the_old_files_stay(tmp_path, capsys, monkeypatch):
    torch.save(make_digits(50), tmp_path / "mnist_train.pth")
    before = (tmp_path / "mnist_train.pth").read_bytes()
    synced = []

    def disk_full(descriptor):
        synced.append(descriptor)
        if len(synced) == 1:  # of the first file to be finished: then neither may appear
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", disk_full)
    said = stderr_of("--out", str(tmp_path), capsys=capsys)
    assert "(No space left on device): choose another folder with --out." in said
    assert "（No space left on device）：请用 --out 指定别的文件夹。" in said
    assert os.listdir(tmp_path) == ["mnist_train.pth"]
    assert (tmp_path / "mnist_train.pth").read_bytes() == before
