"""The pictures that a README shows are a chapter's outputs, and stay that."""

import base64

import pytest

NAME = "notebooks/figures/00_tiny-picture.png"
FINDING = (
    "00_tiny 00_tiny-picture.png: a README shows this picture and it is not the cell's output; "
    "run `build.py build`. README 用到的这张图与单元格的输出不同；请运行 `build.py build`。"
)


@pytest.fixture
def shown(house):
    house.change("README.md", "[the chapter]", f"![one line]({NAME}) [the chapter]")
    assert house("build") == (0, ["00_tiny: built"])
    return house


def test_build_takes_the_picture_out_of_the_chapter(shown):
    (output,) = shown.notebook("en")["picture"].outputs
    assert (shown.root / NAME).read_bytes() == base64.b64decode(output.data["image/png"])
    assert shown("check")[0] == 0


@pytest.mark.parametrize("spoil", ["missing", "changed"])
def test_a_picture_that_is_not_the_output_is_found_and_mended(shown, spoil):
    path = shown.root / NAME
    path.unlink() if spoil == "missing" else path.write_bytes(b"another")
    status, lines = shown("check")
    assert status == 1
    assert FINDING in lines
    shown("build")
    assert shown("check")[0] == 0


def test_no_picture_is_written_that_no_readme_shows(house):
    house("build")
    assert not (house.root / "notebooks/figures").exists()
