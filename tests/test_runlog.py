"""Run logs: what is written comes back, also after a crash, and a resumed run has each step once."""

import pytest

from ddp_src.runlog import Epoch, RunLogWriter, Step, mean_losses, read_run

STEPS = [Step(epoch=i // 2, step=i, loss=2.0 - i, samples=8, data=0.1 * i) for i in range(4)]
EPOCHS = [Epoch(epoch=e, step=2 * e + 2, accuracy=0.5, loss=1.0, samples=10) for e in range(2)]


def write(folder, records, rank=0, **options):
    with RunLogWriter(folder, rank, **options) as log:
        for record in records:
            log.write(record)


def test_records_come_back_in_order_and_by_rank(tmp_path):
    write(tmp_path, [STEPS[0], STEPS[1], EPOCHS[0]])
    write(tmp_path, STEPS[:1], rank=1)
    first, second = read_run(tmp_path)
    assert (first.rank, first.steps, first.epochs) == (0, STEPS[:2], EPOCHS[:1])
    assert (second.rank, second.steps, second.epochs) == (1, STEPS[:1], [])


def test_each_record_is_on_the_disk_before_the_next_one_is_made(tmp_path):
    log = RunLogWriter(tmp_path, 0)
    for count, step in enumerate(STEPS, 1):
        log.write(step)
        assert read_run(tmp_path)[0].steps == STEPS[:count]
    log.close()


def test_a_torn_last_line_is_ignored_and_the_rest_is_kept(tmp_path):
    write(tmp_path, STEPS)
    path = tmp_path / "rank0.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert read_run(tmp_path)[0].steps == STEPS[:3]
    path.write_bytes(path.read_bytes()[:-10] + "训".encode()[:2])  # cut inside a character
    assert read_run(tmp_path)[0].steps == STEPS[:3]


@pytest.mark.parametrize(("kept", "steps", "epochs"), [(0, 0, 0), (1, 1, 0), (2, 2, 1), (3, 3, 1), (4, 4, 2)])
def test_continuing_keeps_what_was_done_before_the_checkpoint(tmp_path, kept, steps, epochs):
    write(tmp_path, [STEPS[0], STEPS[1], EPOCHS[0], STEPS[2], STEPS[3], EPOCHS[1]])
    write(tmp_path, [], keep_steps=kept)
    (log,) = read_run(tmp_path)
    assert (log.steps, log.epochs) == (STEPS[:steps], EPOCHS[:epochs])
    assert [p.name for p in tmp_path.iterdir()] == ["rank0.jsonl"]


def test_the_mean_weighs_each_loss_by_its_samples():
    ranks = [
        [Step(epoch=0, step=0, loss=1.0, samples=3)],
        [Step(epoch=0, step=0, loss=5.0, samples=1), Step(epoch=0, step=1, loss=9.0, samples=1)],
    ]
    assert mean_losses(ranks) == [2.0]  # (1·3 + 5·1) / 4; the second step is not everybody's yet
