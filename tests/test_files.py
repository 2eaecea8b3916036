"""Files are written whole or not at all."""

import pytest

from ddp_src.files import whole_file


def test_the_new_content_replaces_the_old_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"old")
    with whole_file(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_while_writing_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), whole_file(path) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_an_earlier_kill_left_is_written_over(tmp_path):
    (tmp_path / "a.txt.new").write_bytes(b"torn")
    with whole_file(tmp_path / "a.txt") as file:
        file.write(b"whole")
    assert (tmp_path / "a.txt").read_bytes() == b"whole"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
