"""`build.py ack`: both texts are shown, then what was named is stamped, and nothing else."""

import pytest


def source(house) -> str:
    return (house.root / "notebooks/src/00_tiny.py").read_text(encoding="utf-8")


def test_ack_stamps_only_what_was_named(house):
    house.source("Three quarters", "Two thirds")
    house.source("从 0 升到 1", "从 0 升到 2")
    before = source(house).splitlines()
    status, shown = house("ack", "00", "title")
    assert status == 0
    assert [line.rstrip() for line in shown] == [
        f"{'title':56} |",
        f"{'':56} |",
        f"{'# A tiny chapter':56} | # 小小的一章",
        f"{'':56} |",
        f"{'Two thirds are 0.75, and see [the':56} | 四分之三是 0.75，",
        f"{'readme](../../README.md).':56} | 另见[说明](../../README.zh.md)。",
        "",
    ]
    changed = [(a, b) for a, b in zip(before, source(house).splitlines(), strict=True) if a != b]
    assert changed == [
        (
            '# %% [markdown] id="title" lang="zh" sync="fb3de5f9:18912263"',
            '# %% [markdown] id="title" lang="zh" sync="b9d36751:18912263"',
        )
    ]
    assert [line.split(":")[0] for line in house("check")[1][:-1] if "picture-alt" in line] == [
        "00_tiny zh picture-alt"
    ]


def test_a_new_translation_gets_its_first_stamp(house):
    right = source(house)
    house.source(' sync="fb3de5f9:18912263"', "")
    house("ack", "00", "title")
    assert source(house) == right


@pytest.mark.parametrize("name", ["gone", "*", "number"])
def test_an_unknown_id_stamps_nothing(house, capsys, name):
    house.source("Three quarters", "Two thirds")
    before = source(house)
    from build import main

    assert main(["ack", "00", "title", name], house.root) == 2
    said = capsys.readouterr()
    assert said.err == (
        f'00_tiny has no "{name}" in both languages; check the id (nothing was stamped).\n'
        f"00_tiny 里没有两种语言都写好的段落 “{name}”；请核对 id（没有改动任何内容）。\n"
    )
    assert source(house) == before
