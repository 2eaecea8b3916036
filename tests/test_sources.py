"""Every kind of source loads, and everything that can be wrong with one is said in one sentence."""

import gzip
import hashlib
import os
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from idx import idx_files, make_digits

from ddp_src.digit_files import read_pth
from ddp_src.errors import DataError
from ddp_src.sources import EMBEDDED, read_digits


def refusal(source, *, train: bool = True) -> DataError:
    with pytest.raises(DataError) as caught:
        read_digits(source, train=train)
    error = caught.value
    assert error.en.endswith(".") and error.zh.endswith("。")
    assert re.search("[\u4e00-\u9fff]", error.zh) and not re.search("[\u4e00-\u9fff]", error.en)
    assert "\n" not in error.en + error.zh
    assert Path(source).name in error.en and Path(source).name in error.zh
    return error


@pytest.fixture
def saved(tmp_path):
    """Save anything as a torch file; its path."""

    def save(content, name: str = "digits.pth") -> Path:
        torch.save(content, tmp_path / name)
        return tmp_path / name

    return save


def write_idx(folder: Path, *, plain: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in idx_files(6, 3).items():
        (folder / (name.removesuffix(".gz") if plain else name)).write_bytes(
            gzip.decompress(content) if plain else content
        )


def test_the_embedded_file_is_the_one_its_readme_names():
    digest = hashlib.sha256(EMBEDDED.read_bytes()).hexdigest()
    assert digest == "246e0c30eeea57c8d0037d3f38c8e00651ec204cc61b8022563e9aeeb9d756f4"
    assert digest in (EMBEDDED.parent / "README.md").read_text(encoding="utf-8")


def test_embedded_digits_are_split_by_fifths_and_balanced():
    train, test = read_digits("embedded", train=True), read_digits("embedded", train=False)
    assert train.images.shape == (4000, 28, 28) and test.images.shape == (1000, 28, 28)
    assert train.images.dtype == torch.uint8 and train.labels.dtype == torch.int64
    assert train.labels.bincount().tolist() == [400] * 10
    assert test.labels.bincount().tolist() == [100] * 10
    with np.load(EMBEDDED) as arrays:
        assert (test.images.numpy() == arrays["images"][0::5]).all()
        assert (train.images[:4].numpy() == arrays["images"][1:5]).all()
        assert (train.images[4].numpy() == arrays["images"][6]).all()


def test_a_lone_pth_file_keeps_every_fifth_sample_for_testing(saved):
    images, labels = make_digits(11)
    path = saved((images, labels.to(torch.uint8)))
    train, test = read_digits(str(path), train=True), read_digits(path, train=False)
    assert test.labels.tolist() == [0, 5, 0] and test.images.equal(images[[0, 5, 10]])
    assert train.labels.tolist() == [1, 2, 3, 4, 6, 7, 8, 9]
    assert train.images.equal(images[[1, 2, 3, 4, 6, 7, 8, 9]]) and train.labels.dtype == torch.int64


def test_a_train_file_goes_with_the_test_file_beside_it(saved):
    train_path = saved(make_digits(7, 1), "my_train_set.pth")
    assert len(read_digits(train_path, train=False).labels) == 2, "alone, every fifth sample is for testing"
    saved(make_digits(4, 2), "my_test_set.pth")
    assert read_digits(train_path, train=True).images.equal(make_digits(7, 1)[0])
    assert read_digits(train_path, train=False).images.equal(make_digits(4, 2)[0])


def test_a_folder_of_the_two_pth_files_loads(saved):
    folder = saved(make_digits(7, 1), "mnist_train.pth").parent
    saved(make_digits(4, 2), "mnist_test.pth")
    assert read_digits(folder, train=True).images.equal(make_digits(7, 1)[0])
    assert read_digits(folder, train=False).images.equal(make_digits(4, 2)[0])


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "gz"])
@pytest.mark.parametrize("place", [".", "MNIST/raw"])
def test_a_folder_of_original_files_loads(tmp_path, place, plain):
    write_idx(tmp_path / place, plain=plain)
    for train, count, seed in ((True, 6, 1), (False, 3, 2)):
        digits = read_digits(str(tmp_path), train=train)
        assert digits.images.equal(make_digits(count, seed)[0])
        assert digits.labels.tolist() == list(range(count)) and digits.labels.dtype == torch.int64


def test_torchvision_reads_the_same_from_the_same_folder(tmp_path):
    from torchvision.datasets import MNIST

    write_idx(tmp_path / "MNIST" / "raw", plain=True)
    theirs, ours = MNIST(tmp_path, train=True), read_digits(tmp_path, train=True)
    assert ours.images.equal(theirs.data) and ours.labels.equal(theirs.targets)


def test_a_tilde_is_the_home_folder(saved, monkeypatch):
    path = saved(make_digits(5))
    monkeypatch.setenv("HOME", str(path.parent))
    assert len(read_pth("~/digits.pth").labels) == 5


def test_a_file_in_the_older_torch_format_loads(tmp_path):
    torch.save(make_digits(5), tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    assert read_pth(tmp_path / "old.pth").images.equal(make_digits(5)[0])


GOOD = make_digits(6)


@pytest.mark.parametrize(
    ("content", "en", "zh"),
    [
        ({"data": 1, "targets": 2}, "holds a dict that is not a pair of tensors", "dict 不是一对张量"),
        ((*GOOD, 3), "holds a tuple that is not a pair of tensors", "tuple 不是一对张量"),
        ((GOOD[0], [1, 2]), "holds a tuple that is not a pair of tensors", "tuple 不是一对张量"),
        (torch.zeros(2, 28, 28), "holds a Tensor that is not a pair", "Tensor 不是一对张量"),
        ((GOOD[0].float(), GOOD[1]), "these are torch.float32 [6, 28, 28]", "却是 torch.float32 [6, 28, 28]"),
        ((GOOD[0][:, :14], GOOD[1]), "these are torch.uint8 [6, 14, 28]", "却是 torch.uint8 [6, 14, 28]"),
        ((GOOD[0].flatten(1), GOOD[1]), "these are torch.uint8 [6, 784]", "却是 torch.uint8 [6, 784]"),
        ((GOOD[0], GOOD[1].float()), "these are torch.float32 [6]", "却是 torch.float32 [6]"),
        ((GOOD[0], GOOD[1] > 3), "these are torch.bool [6]", "却是 torch.bool [6]"),
        ((GOOD[0], GOOD[1][:, None]), "these are torch.int64 [6, 1]", "却是 torch.int64 [6, 1]"),
        ((GOOD[0], GOOD[1][:5]), "there are 6 images but 5 labels", "有 6 幅图像，却有 5 个标签"),
        ((GOOD[0], GOOD[1] + 6), "label 10 at position 4 is not a digit", "位置 4 的标签是 10"),
        ((GOOD[0], GOOD[1] - 1), "label -1 at position 0 is not a digit", "位置 0 的标签是 -1"),
        ((GOOD[0][:0], GOOD[1][:0]), "it holds no samples", "一个样本也没有"),
        ((GOOD[0][:1], GOOD[1][:1]), "holds a single sample", "只有一个样本"),
    ],
)
def test_what_is_not_a_pair_of_digit_tensors_is_refused(saved, content, en, zh):
    error = refusal(saved(content))
    assert en in error.en and zh in error.zh


class RunsCode:
    def __reduce__(self):
        return os.mkdir, ("harm",)


@pytest.mark.parametrize("write", [torch.save, lambda content, path: path.write_bytes(pickle.dumps(content))])
@pytest.mark.parametrize("content", [RunsCode(), tuple(part.numpy() for part in GOOD)], ids=["code", "numpy"])
def test_pickled_objects_are_refused_and_nothing_in_them_runs(tmp_path, monkeypatch, write, content):
    monkeypatch.chdir(tmp_path)
    write(content, tmp_path / "digits.pth")
    error = refusal(tmp_path / "digits.pth")
    assert "holds Python objects, which could run code when loaded" in error.en
    assert "存有 Python 对象，载入时可能执行其中的代码" in error.zh
    assert "weights_only" not in str(error) and not Path("harm").exists()


@pytest.mark.parametrize("content", [b"not a torch file", b"PK, but no zip", b"\0\0\x08\x03", b"x" * 100_000])
def test_what_is_no_torch_file_is_refused(tmp_path, content):
    (tmp_path / "digits.pth").write_bytes(content)
    error = refusal(tmp_path / "digits.pth")
    assert (
        "is not a torch file, or it was cut short" in error.en and "不是 torch 文件，或者不完整" in error.zh
    )


def test_a_torch_file_cut_short_anywhere_is_refused(saved):
    path = saved(GOOD)
    whole = path.read_bytes()
    for size in range(1, len(whole), len(whole) // 20):
        path.write_bytes(whole[:size])
        assert "cut short" in refusal(path).en


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "digits.pth").touch()
    error = refusal(tmp_path / "digits.pth")
    assert "is empty" in error.en and "是空文件" in error.zh


def test_a_name_that_is_not_there_is_refused(tmp_path):
    error = refusal(tmp_path / "absent.pth")
    assert "absent.pth does not exist" in error.en and "absent.pth 不存在" in error.zh


def test_a_folder_in_place_of_a_file_is_refused(tmp_path):
    with pytest.raises(DataError, match="is a folder where a file is wanted") as caught:
        read_pth(tmp_path)
    assert "是文件夹，这里需要的是文件" in caught.value.zh


def test_a_folder_without_digits_says_what_was_looked_for(tmp_path):
    error = refusal(tmp_path)
    for name in ("mnist_train.pth", "train-images-idx3-ubyte(.gz)", "MNIST/raw/train-images-idx3-ubyte(.gz)"):
        assert name in error.en and name in error.zh


def test_a_file_without_permission_is_refused(saved, monkeypatch):
    def denied(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    path = saved(GOOD)
    monkeypatch.setattr(torch, "load", denied)  # root, who runs the tests in many places, may read everything
    error = refusal(path)
    assert "may not be read by you" in error.en and "没有读取" in error.zh


def test_an_original_file_that_is_missing_is_named(tmp_path):
    write_idx(tmp_path, plain=False)
    (tmp_path / "train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match="train-labels-idx1-ubyte does not exist"):
        read_digits(tmp_path, train=True)


@pytest.mark.parametrize("keep", [0, 5, 30, -9, -1], ids=lambda keep: f"[:{keep}]")
def test_a_gz_file_cut_short_is_refused(tmp_path, keep):
    write_idx(tmp_path, plain=False)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(
        DataError, match=r"train-images-idx3-ubyte.gz (is empty|cannot be read, it may be cut short)"
    ):
        read_digits(tmp_path, train=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: b"<html>" + content, "begins with 1013478509 instead of 2051"),
        (lambda content: content[:3], "begins with 8 instead of 2051"),
        (lambda content: content[:-1], "is 4719 bytes long but its header says 4720"),
        (lambda content: content + b"\0", "is 4721 bytes long but its header says 4720"),
        (lambda content: content[:10], "is 10 bytes long but its header says 16"),
        (
            lambda content: content[:15] + b"\x0e" + content[16:],
            "is 4720 bytes long but its header says 2368",
        ),
    ],
)
def test_a_damaged_original_file_is_refused(tmp_path, change, words):
    write_idx(tmp_path, plain=True)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=words) as caught:
        read_digits(tmp_path, train=True)
    assert path.name in caught.value.zh


def test_labels_in_place_of_images_are_refused(tmp_path):
    write_idx(tmp_path, plain=False)
    labels = (tmp_path / "train-labels-idx1-ubyte.gz").read_bytes()
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(labels)
    with pytest.raises(DataError, match="begins with 2049 instead of 2051"):
        read_digits(tmp_path, train=True)


def test_original_files_of_different_length_are_refused(tmp_path):
    write_idx(tmp_path, plain=False)
    labels = (tmp_path / "t10k-labels-idx1-ubyte.gz").read_bytes()
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(labels)
    with pytest.raises(DataError, match="there are 6 images but 3 labels"):
        read_digits(tmp_path, train=True)
