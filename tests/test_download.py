"""MNIST arrives once, whole or not at all, from a mirror on this machine that can misbehave in every way."""

import gzip
import hashlib
import http.server
import os
import socket
import threading
from collections import Counter
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torchvision
from idx import idx_files, make_digits

from ddp_src import download, spawn
from ddp_src.download import fetch, fetch_once, load_digits
from ddp_src.errors import DataError

TRAIN, TEST = 40, 20
FILES = idx_files(TRAIN, TEST)
MD5 = [(name, hashlib.md5(content).hexdigest()) for name, content in FILES.items()]


class Mirror(http.server.ThreadingHTTPServer):
    """Serves FILES on a free port of 127.0.0.1, as `mood` says, and counts the downloads of each."""

    def __init__(self, mood: str = "good", meet: int = 1) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.mood = mood
        self.downloads: Counter[str] = Counter()
        self.meeting = threading.Barrier(meet)
        self.ended = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/mnist/"

    def handle_error(self, request, client_address) -> None:
        """A client that hangs up early, as torchvision does when it asks for redirects, is no error."""


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        mirror, name = self.server, self.path.rsplit("/", 1)[1]
        if mirror.mood == "forbidden":
            return self.send_error(403)
        if mirror.mood == "silent":
            mirror.ended.wait()
            return None
        content = b"<html>Log in to this network</html>" if mirror.mood == "wrong" else FILES[name]
        # torchvision asks for each file twice: first, marked with this header, to follow redirects.
        if self.headers["Method"] != "HEAD":
            mirror.downloads[name] += 1
            mirror.meeting.wait()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if mirror.mood == "cut" else content)
        return None

    def log_message(self, *args) -> None:
        pass


@contextmanager
def mirror(mood: str = "good", meet: int = 1):
    with Mirror(mood, meet) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.ended.set()
            server.shutdown()
            thread.join()


@contextmanager
def rude_mirror(greeting: bytes):
    """A mirror that says `greeting` on each connection and closes it. Gives its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            while True:
                with listener.accept()[0] as connection:
                    if connection.recv(9) == b"the end":
                        return
                    connection.sendall(greeting)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            with socket.create_connection(listener.getsockname()) as last:
                last.sendall(b"the end")
                thread.join()


def use(
    folder: Path | str, *urls: str, own: str = "", set_env=os.environ.__setitem__, set_attr=setattr
) -> None:
    """Make `urls` torchvision's mirrors, `own` the one tried first, and the small files the expected ones."""
    set_env("DDP_DATA_DIR", str(folder))
    set_env("DDP_MNIST_MIRROR", own)
    set_env("no_proxy", "127.0.0.1")
    set_attr(torchvision.datasets.MNIST, "mirrors", list(urls))
    set_attr(torchvision.datasets.MNIST, "resources", MD5)


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def use_here(folder, monkeypatch):
    return partial(use, folder, set_env=monkeypatch.setenv, set_attr=monkeypatch.setattr)


def assert_whole(folder: Path) -> None:
    names = {name for packed in FILES for name in (packed, packed.removesuffix(".gz"))}
    assert os.listdir(folder) == ["MNIST"] and os.listdir(folder / "MNIST") == ["raw"]
    assert set(os.listdir(folder / "MNIST" / "raw")) == names
    for name, content in FILES.items():
        assert (folder / "MNIST" / "raw" / name).read_bytes() == content
        assert (folder / "MNIST" / "raw" / name.removesuffix(".gz")).read_bytes() == gzip.decompress(content)


def refusal(source: str = "mnist") -> DataError:
    with pytest.raises(DataError) as caught:
        fetch(source)
    return caught.value


def test_mnist_is_downloaded_once_and_then_reused(folder, use_here):
    with mirror() as server:
        use_here(server.url)
        fetch("mnist")
        assert_whole(folder)
        assert load_digits("mnist", train=True).images.equal(make_digits(TRAIN, 1)[0])
        assert load_digits("mnist", train=False).images.equal(make_digits(TEST, 2)[0])
        fetch("mnist")
        assert server.downloads == dict.fromkeys(FILES, 1)
    fetch("mnist")


def test_a_mirror_of_ones_own_is_asked_first(folder, use_here):
    with mirror() as own, mirror() as theirs:
        use_here(theirs.url, own=own.url.removesuffix("/"))
        fetch("mnist")
        assert own.downloads == dict.fromkeys(FILES, 1) and not theirs.downloads
    assert_whole(folder)


@pytest.mark.parametrize("mood", ["forbidden", "cut", "wrong"])
def test_a_bad_mirror_before_a_good_one_is_quiet(folder, use_here, mood, capfd):
    with mirror(mood) as bad, mirror() as good:
        use_here(bad.url, good.url)
        fetch("mnist")
    assert_whole(folder)
    output = capfd.readouterr()
    assert output.out == "" and output.err.splitlines() == [
        f"Downloading MNIST (12 MB) to {folder} | 正在下载 MNIST（12 MB）到 {folder}"
    ]


@pytest.mark.parametrize("greeting", [b"", b"220 not a web server\r\n\r\n"], ids=["nothing", "nonsense"])
def test_after_a_mirror_that_hangs_up_the_next_is_asked(folder, use_here, greeting):
    with rude_mirror(greeting) as bad, mirror() as good:
        use_here(bad, good.url)
        fetch("mnist")
    assert_whole(folder)


@pytest.mark.parametrize(
    ("mood", "reason"),
    [
        ("forbidden", "HTTP Error 403: Forbidden"),
        ("cut", "File not found or corrupted"),
        ("wrong", "File not found or corrupted"),
        ("silent", "timed out"),
    ],
)
def test_a_failed_download_says_so_and_leaves_nothing(folder, use_here, monkeypatch, mood, reason):
    monkeypatch.setattr(download, "SILENCE", 0.1)
    with mirror(mood) as server:
        use_here(server.url)
        error = refusal()
    assert f"MNIST could not be downloaded ({server.url}: " in error.en and reason in error.en
    assert f"MNIST 下载失败（{server.url}: " in error.zh and reason in error.zh
    assert "--data embedded" in error.en and "--data embedded" in error.zh
    assert not folder.exists() and os.listdir(folder.parent) == []
    assert socket.getdefaulttimeout() is None


@pytest.mark.parametrize("url", ["no-url", "http://127.0.0.1:1/", "ftp://127.0.0.1:1/", "http://[half"])
def test_a_mirror_that_cannot_be_one_is_a_failed_download(folder, use_here, url):
    use_here(own=url)
    assert f"MNIST could not be downloaded ({url}: " in refusal().en
    assert not folder.exists()


def test_a_file_with_the_right_checksum_and_wrong_content_is_refused(folder, use_here, monkeypatch):
    with mirror() as server:
        use_here(server.url)
        name = "t10k-labels-idx1-ubyte.gz"
        monkeypatch.setitem(FILES, name, FILES["train-labels-idx1-ubyte.gz"])
        right = hashlib.md5(FILES[name]).hexdigest()
        monkeypatch.setattr(torchvision.datasets.MNIST, "resources", [*MD5[:3], (name, right)])
        assert "there are 20 images but 40 labels" in refusal().en
    assert not folder.exists()


def test_a_folder_that_was_there_stays_when_the_download_fails(folder, use_here):
    folder.mkdir()
    (folder / "mine").write_text("kept")
    with mirror("forbidden") as server:
        use_here(server.url)
        refusal()
    assert os.listdir(folder) == ["mine"]


def test_a_broken_copy_is_named_and_not_replaced_unasked(folder, use_here):
    with mirror() as server:
        use_here(server.url)
        fetch("mnist")
        broken = folder / "MNIST" / "raw" / "train-labels-idx1-ubyte"
        broken.write_bytes(broken.read_bytes()[:-1])
        error = refusal()
        assert f"{broken} is 47 bytes long but its header says 48" in error.en
        assert f"delete {folder / 'MNIST'}" in error.en and f"删除 {folder / 'MNIST'}" in error.zh
        assert server.downloads.total() == 4


@pytest.mark.parametrize("where", ["mkdir", "replace", "chunk"])
def test_a_disk_that_refuses_is_told_as_that(folder, use_here, monkeypatch, where):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with mirror() as server:
        use_here(server.url)
        if where == "mkdir":
            monkeypatch.setattr(Path, "mkdir", full)
        elif where == "replace":
            monkeypatch.setattr(os, "replace", full)
        else:
            monkeypatch.setattr(torchvision.datasets.utils, "_urlretrieve", full)
        error = refusal()
    assert f"MNIST cannot be saved in {folder} (No space left on device)" in error.en
    assert f"MNIST 无法存入 {folder}（No space left on device）" in error.zh
    assert "DDP_DATA_DIR" in error.en and not folder.exists()


def fetch_alone(rank: int, folder: str, url: str) -> int:
    use(folder, url)
    download.SILENCE = 600.0  # on a busy machine the other process may come late
    fetch("mnist")
    return len(load_digits("mnist", train=True).labels)


def test_processes_that_do_not_wait_for_each_other_both_end_right(folder):
    with mirror(meet=2) as server:  # no file is sent before both have asked for it
        assert spawn(fetch_alone, (str(folder), server.url), nprocs=2, show=False) == [TRAIN] * 2
    assert server.downloads == dict.fromkeys(FILES, 2)
    assert_whole(folder)


def fetch_on_rank(rank: int, folder: str, url: str) -> tuple[str, str] | int:
    use(folder, url)
    try:
        fetch_once("mnist")
    except DataError as error:
        return error.en, error.zh
    return len(load_digits("mnist", train=True).labels)


def test_four_ranks_on_an_empty_folder_ask_for_each_file_once(folder):
    with mirror() as server:
        assert spawn(fetch_on_rank, (str(folder), server.url), nprocs=4, show=False) == [TRAIN] * 4
        assert server.downloads == dict.fromkeys(FILES, 1)
    assert_whole(folder)


@pytest.mark.parametrize("mood", ["forbidden", "cut", "wrong"])
def test_four_ranks_fail_alike_when_the_download_fails(folder, mood):
    with mirror(mood) as server:
        outcomes = spawn(fetch_on_rank, (str(folder), server.url), nprocs=4, show=False)
        assert server.downloads.total() == (mood != "forbidden")
    assert len(set(outcomes)) == 1
    english, chinese = outcomes[0]
    assert english.startswith(f"MNIST could not be downloaded ({server.url}: ")
    assert chinese.startswith(f"MNIST 下载失败（{server.url}: ")
    assert not folder.exists()


def fetch_on_two_machines(rank: int, folder: str, url: str) -> int:
    os.environ["LOCAL_RANK"] = str(rank % 2)
    use(f"{folder}{rank // 2}", url)
    fetch_once("mnist")
    return len(load_digits("mnist", train=True).labels)


def test_one_rank_of_each_machine_fetches(folder):
    with mirror() as server:
        assert spawn(fetch_on_two_machines, (str(folder), server.url), nprocs=4, show=False) == [TRAIN] * 4
        assert server.downloads == dict.fromkeys(FILES, 2)
    for machine in (0, 1):
        assert_whole(folder.with_name(f"data{machine}"))


def test_without_a_group_fetch_once_fetches(folder, use_here):
    with mirror() as server:
        use_here(server.url)
        fetch_once("mnist")
    assert_whole(folder)


def test_other_sources_are_checked(tmp_path):
    fetch("embedded")
    assert "absent does not exist" in refusal(str(tmp_path / "absent")).en


def test_mnist_is_kept_beside_the_package_unless_told_otherwise(monkeypatch):
    monkeypatch.delenv("DDP_DATA_DIR", raising=False)
    assert download.data_folder() == Path(download.__file__).parents[1] / "data"
    monkeypatch.setenv("DDP_DATA_DIR", "/elsewhere")
    assert download.data_folder() == Path("/elsewhere")
