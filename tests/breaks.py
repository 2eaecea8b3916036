"""Known mistakes, each planted in a copy of the project: the test named beside it must turn red.

    ./launch.sh test --breaks [WORD]     only the rows with WORD in their file or test

Prints "red" or "NOT CAUGHT" per row; exits 1 if a mistake is not caught, or can no longer be planted.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Break:
    """`old`, which occurs once in `file`, becomes `new`; then `test` (a pytest node id) must fail."""

    file: str
    old: str
    new: str
    test: str


ROWS = [
    Break(
        "launch.sh",
        'refuse() { say "$@"; exit 2; }',
        'refuse() { say "$@"; exit 0; }',
        "tests/test_launch_sh.py::test_a_wrong_word_gets_the_usage_and_status_2",
    ),
    Break(
        "launch.sh",
        'ready() { [ -x "$venv/bin/python" ]',
        'ready() { [ -x "$venv/bin/python" ] && return',
        "tests/test_launch_sh.py::test_a_killed_setup_is_begun_again",
    ),
    Break(
        "launch.sh",
        '  [ ! -s "$unfinished" ] || mv "$unfinished" "$venv/ddp-setup"\n',
        "",
        "tests/test_launch_sh.py::test_an_update_that_fails_leaves_a_complete_environment_complete",
    ),
    Break(
        "launch.sh",
        "    sys.exit(75)",
        "    sys.exit(0)",
        "tests/test_launch_sh.py::test_two_setups_at_once_make_one_environment",
    ),
    Break(
        "tests/conftest.py",
        'report.outcome = "failed"',
        'report.outcome = "skipped"',
        "tests/test_conftest.py::test_a_skip_fails_the_run_in_ci_alone",
    ),
    Break(
        "notebooks/conftest.py",
        "system_raise_on_error = True",
        "system_raise_on_error = False",
        "tests/test_conftest.py::test_a_shell_command_that_fails_fails_its_notebook",
    ),
    Break(  # no all-reduce
        "ddp_src/train.py",
        'if place.device.type == "cuda" else None)\n',
        'if place.device.type == "cuda" else None)\n        model.require_backward_grad_sync = False\n',
        "tests/test_train.py::test_n_ranks_are_one_process_on_the_joined_batch_after_every_step[2]",
    ),
    Break(  # no broadcast at the start
        "ddp_src/train.py",
        "model = DDP(model, ",
        "model = DDP(model, init_sync=False, ",
        "tests/test_train.py::test_all_ranks_end_with_bit_equal_parameters[2]",
    ),
    Break(
        "ddp_src/data.py",
        "    loader.sampler.sampler.set_epoch(epoch)\n",
        "",
        "tests/test_train.py::test_every_epoch_has_an_order_of_its_own",
    ),
    Break(  # one rank's accuracy for the accuracy
        "ddp_src/train.py",
        "= sum_over_ranks([correct, loss, samples], device)",
        "= correct, loss, samples",
        "tests/test_train.py::test_accuracy_is_the_same_number_on_any_number_of_ranks[1000]",
    ),
    Break(
        "ddp_src/checkpoint.py",
        '        optimizer.load_state_dict(state["optimizer"])\n',
        "",
        "tests/test_train.py::test_a_killed_run_goes_on_as_if_nothing_had_happened[2-16]",
    ),
    Break(  # buckets that DDP rebuilds after the first step, which 1 and 2 ranks do not show
        "ddp_src/train.py",
        "    settle_buckets(model, train_set[[0, 0]][0].to(place.device))\n",
        "",
        "tests/test_train.py::test_a_killed_run_goes_on_as_if_nothing_had_happened[3-13]",
    ),
    Break(
        "ddp_src/checkpoint.py",
        '    torch.set_rng_state(state["torch"])\n',
        "",
        "tests/test_train.py::test_each_rank_gets_its_own_random_generators_back",
    ),
    Break(
        "ddp_src/train.py",
        "    if not same_on_all_ranks(history.digest):",
        "    if False:",
        "tests/test_train.py::test_ranks_that_drift_apart_are_told",
    ),
    Break(  # the mean of the ranks' means
        "ddp_src/runlog.py",
        "sum(s.loss * s.samples for s in at_step) / samples",
        "sum(s.loss for s in at_step) / len(at_step)",
        "tests/test_runlog.py::test_the_mean_weighs_each_loss_by_its_samples",
    ),
    Break(  # written in place
        "ddp_src/files.py",
        'fresh = Path(f"{path}.new")',
        "fresh = Path(path)",
        "tests/test_files.py::test_an_error_while_writing_leaves_the_old_file",
    ),
    Break(  # padding counted in an accuracy
        "ddp_src/data.py",
        "mine = range(rank, len(dataset), world_size)",
        "mine = list(DistributedSampler(dataset, world_size, rank))",
        "tests/test_train.py::test_accuracy_is_the_same_number_on_any_number_of_ranks[21]",
    ),
    Break(
        "ddp_src/lessons/quickstart.py",
        "model = DDP(model)  #",
        "model = DDP(model, init_sync=False)  #",
        "tests/lessons/test_quickstart.py::test_the_ranks_hold_equal_weights_and_unequal_losses",
    ),
    Break(  # every rank a batch as large as one process had
        "ddp_src/lessons/quickstart.py",
        "batch_size=256 // world_size",
        "batch_size=256",
        "tests/lessons/test_quickstart.py::test_the_mean_of_the_ranks_is_the_loss_of_one_process",
    ),
    Break(  # every rank all samples
        "ddp_src/lessons/quickstart.py",
        "sampler = DistributedSampler(digits)  #",
        "sampler = DistributedSampler(digits, 1, 0)  #",
        "tests/lessons/test_quickstart.py::test_the_ranks_hold_equal_weights_and_unequal_losses",
    ),
    Break(
        "ddp_src/exercises/quickstart.py",
        "if step.given > max(step.losses):",
        "if False:",
        "tests/test_exercises.py::test_a_mean_larger_than_every_loss_is_told_so",
    ),
    Break(  # the lowest rank for the first
        "ddp_src/_watch.py",
        "key=lambda f: (f.is_peer_gone, f.is_peer_gone != f.is_timeout, f.at)",
        "key=lambda f: f.rank",
        "tests/test_first_cause.py::test_of_two_failures_the_earlier_one_is_told[early-1]",
    ),
    Break(  # a rank that outlives its parent while it holds the GIL
        "ddp_src/_process.py",
        " | os.O_ASYNC",
        "",
        "tests/test_launch_end.py::test_a_killed_parent_leaves_no_process",
    ),
    Break(
        "ddp_src/_folder.py",
        "        _remove_when_killed(_root)\n",
        "",
        "tests/test_folder.py::test_the_temporary_folder_is_empty_after_the_end[SIGKILL]",
    ),
    Break(  # listens on whatever the host's name means
        "ddp_src/_rank.py",
        '        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = interface\n',
        "",
        "tests/test_launch_end.py::test_ranks_listen_on_loopback_alone",
    ),
    Break(
        "ddp_src/_payload.py",
        "(marshal.loads, (marshal.dumps(code),))",
        "cloudpickle.cloudpickle._code_reduce(code)",
        "tests/test_first_cause.py::test_the_text_leads_with_the_cause_and_the_learners_line",
    ),
    Break(
        "ddp_src/_watch.py",
        "CAUSE_GRACE if self._first().is_peer_gone else SETTLE",
        "SETTLE",
        "tests/test_first_cause.py::test_a_cause_that_comes_to_light_after_its_victims_complaint_is_told",
    ),
    Break(
        "ddp_src/_watch.py",
        "ended = self._processes[rank].exitcode is not None",
        "ended = self._processes[rank].sentinel in ready",
        "tests/test_first_cause.py::test_a_child_that_outlives_its_rank_hides_nothing",
    ),
    Break(
        "ddp_src/_rank.py",
        "    torch.default_generator.seed()\n",
        "",
        "tests/test_launch.py::test_warm_ranks_draw_numbers_of_their_own",
    ),
    Break(
        "ddp_src/_rank.py",
        "    multiprocessing.set_start_method(orders.start_method, force=True)\n",
        "",
        "tests/test_launch.py::test_loader_workers_start_as_they_would_in_the_caller",
    ),
    Break(
        "ddp_src/_start.py",
        "main.__spec__, process.ORIGINAL_DIR = None, os.getcwd()",
        "main.__spec__ = None",
        "tests/test_launch.py::test_ranks_see_this_moment_of_their_caller",
    ),
    Break(
        "ddp_src/_process.py",
        "    _buffer_c_output_by_line()\n",
        "",
        "tests/test_output.py::test_what_c_printed_is_not_lost_with_the_rank",
    ),
    Break(
        "ddp_src/_interrupts.py",
        "        if not self._let_through:\n",
        "        if False:\n",
        "tests/test_launch_end.py::test_an_interrupt_while_ranks_start_leaves_none",
    ),
    Break(
        "ddp_src/distributed.py",
        "        for _ in range(2):\n",
        "        for _ in range(0):\n",
        "tests/test_distributed.py::test_settled_buckets_add_up_in_the_same_order_from_the_first_step",
    ),
    Break(
        "ddp_src/_rank.py",
        "    gc.freeze()  # else",
        "    pass  # else",
        "tests/test_launch.py::test_the_warm_server_has_one_thread_no_gpu_and_none_of_this_project",
    ),
    Break(
        "ddp_src/_ending.py",
        "    end_processes(strays)",
        "    end_processes([])",
        "tests/test_launch_end.py::test_a_rank_leaves_no_child_behind[raises-start_session]",
    ),
    Break(
        "ddp_src/_rank.py",
        "    end_processes(descendants(os.getpid()))\n",
        "",
        "tests/test_launch_end.py::test_a_rank_leaves_no_child_behind[returns-start_session]",
    ),
    Break(
        "ddp_src/_memory.py",
        'cgroups / controllers / path.lstrip("/")',
        'cgroups / path.lstrip("/")',
        "tests/test_memory.py::test_kills_are_counted_in_version_1",
    ),
    Break(
        "ddp_src/_watch.py",
        "now - self._oom_kills if known else None",
        "now",
        "tests/test_first_cause.py::test_that_a_system_which_killed_before_is_not_blamed",
    ),
    Break(
        "ddp_src/_watch.py",
        'channel.send("where")',
        "pass",
        "tests/test_first_cause.py::test_one_batch_too_many_on_one_rank",
    ),
    Break(
        "ddp_src/_reports.py",
        "            return WATCHDOG in self.message\n",
        "            return False\n",
        "tests/test_first_cause.py::test_a_rank_that_nccls_watchdog_ended_waited_too_long",
    ),
    Break(
        "ddp_src/_output.py",
        "        if _WARNING.match(line):\n",
        "        if False:\n",
        "tests/test_output.py::test_a_warning_of_all_ranks_is_shown_once_with_their_number",
    ),
    Break(
        "ddp_src/_server.py",
        "    _end_server_without_socket()\n    with",
        "    with",
        "tests/test_launch.py::test_a_swept_temporary_folder_costs_a_new_server_and_nothing_else",
    ),
    Break(
        "ddp_src/_server.py",
        "    _remember_what_it_read()\n",
        "",
        "tests/test_launch.py::test_a_variable_that_torch_reads_when_it_is_loaded_starts_cold_and_says_so",
    ),
    Break(
        "ddp_src/_rank.py",
        "    dist.set_debug_level_from_env()",
        "    pass",
        "tests/test_launch.py::test_the_debug_level_of_the_environment_is_heard_by_warm_ranks",
    ),
    Break(  # the caller's own interface, for all to reach
        "ddp_src/_rank.py",
        '        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = interface\n',
        "",
        "tests/test_launch_network.py::test_no_other_machine_can_connect_while_a_launch_runs[forkserver]",
    ),
    Break(  # a store that listens on every address
        "ddp_src/_rank.py",
        'dist.FileStore(os.path.join(orders.folder, "store"), orders.world_size)',
        'dist.TCPStore("127.0.0.1", 29517, orders.world_size, rank == 0)',
        "tests/test_launch_network.py::test_no_other_machine_can_connect_while_a_launch_runs[forkserver]",
    ),
    Break(
        "ddp_src/_folder.py",
        "_is_own(left) and ",
        "",
        "tests/test_launch_trust.py::test_another_users_folder_is_not_swept",
    ),
    Break(  # pickles in a folder that is not the launch's own
        "ddp_src/_rank.py",
        'Path(self.folder, f"result{rank}.pkl")',
        'Path(self.logs, f"result{rank}.pkl")',
        "tests/test_launch_trust.py::test_a_pickle_that_lies_about_is_never_loaded",
    ),
    Break(
        "ddp_src/_server.py",
        '"forkserver" if sys.platform == "linux" else "spawn"',
        '"forkserver"',
        "tests/test_launch_platform.py::test_nothing_is_forked_from_a_process_with_torch[darwin]",
    ),
    Break(
        "ddp_src/_process.py",
        '    if not hasattr(os, "setpgid"):\n',
        "    if False:\n",
        "tests/test_launch_platform.py::test_the_results_are_right_and_the_prints_are_shown[win32]",
    ),
    Break(
        "ddp_src/_rank.py",
        'if sys.platform == "linux" else "lo0"',
        'if sys.platform == "linux" else "lo"',
        "tests/test_launch_platform.py"
        "::test_ranks_meet_through_a_file_and_talk_over_the_systems_loopback[darwin]",
    ),
    Break(  # the warm server would get the stop button's signal while it is importing
        "ddp_src/_server.py",
        "    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})\n",
        "    mask = signal.pthread_sigmask(signal.SIG_BLOCK, set())\n",
        "tests/test_launch_kernel.py::test_an_interrupt_while_the_first_process_starts_leaves_no_rank"
        "[forkserver-multiprocessing.forkserver-5]",
    ),
    Break(  # a kernel's end would end it before it could remove anything
        "ddp_src/_folder.py",
        "stdin=reader, start_new_session=True,",
        "stdin=reader,",
        "tests/test_launch_kernel.py::test_the_end_of_a_kernel_ends_all_and_leaves_nothing[restart now]",
    ),
    Break(  # shown at the end alone
        "ddp_src/_watch.py",
        "            self._output.pump()\n",
        "",
        "tests/test_launch_kernel.py::test_whole_lines_appear_below_a_cell_that_still_runs",
    ),
    Break(
        "ddp_src/_process.py",
        " | os.O_ASYNC)",
        ")",
        "tests/test_launch_kernel.py::test_the_end_of_a_kernel_ends_all_and_leaves_nothing[kill -9]",
    ),
    Break(  # the sampler is never told the epoch
        "ddp_src/lessons/sampler.py",
        "            sampler.set_epoch(epoch)\n",
        "            pass\n",
        "tests/lessons/test_sampler.py::test_with_set_epoch_every_epoch_deals_all_samples_anew",
    ),
    Break(  # padding counted in a test
        "ddp_src/lessons/sampler.py",
        "mine = range(dist.get_rank(), len(digits), dist.get_world_size())",
        "mine = list(DistributedSampler(digits, shuffle=False))",
        "tests/lessons/test_sampler.py::"
        "test_the_exact_accuracy_is_the_same_number_on_any_number_of_ranks[21-17-world_sizes2]",
    ),
    Break(  # the mean of the ranks' accuracies
        "ddp_src/lessons/sampler.py",
        "    return right / tested\n",
        "    accuracy = torch.tensor(count_right(model, digits, mine) / max(1, len(mine)))\n"
        "    dist.all_reduce(accuracy)\n"
        "    return accuracy.item() / dist.get_world_size()\n",
        "tests/lessons/test_sampler.py::"
        "test_the_exact_accuracy_is_the_same_number_on_any_number_of_ranks[499-426-world_sizes1]",
    ),
    Break(  # every rank reads the whole stream
        "ddp_src/lessons/sampler.py",
        "islice(super().__iter__(), self.rank, None, self.world_size)",
        "super().__iter__()",
        "tests/lessons/test_sampler.py::test_a_shared_stream_comes_once_over_all_ranks_and_workers[2]",
    ),
    Break(  # every worker reads its rank's whole part
        "ddp_src/lessons/sampler.py",
        "return islice(mine, worker.id, None, worker.num_workers) if worker else mine",
        "return mine",
        "tests/lessons/test_sampler.py::test_a_shared_stream_comes_once_over_all_ranks_and_workers[2]",
    ),
    Break(
        "ddp_src/exercises/sampler.py",
        "    if first == second:",
        "    if False:",
        "tests/lessons/test_sampler.py::test_a_wrong_shard_is_told_what_it_did[no epoch]",
    ),
    Break(  # 0 … n - 1 from another start passes for a random order
        "ddp_src/exercises/sampler.py",
        "in pairwise(second)}) == 1:",
        "in pairwise(second)}) == 0:",
        "tests/lessons/test_sampler.py::test_a_wrong_shard_is_told_what_it_did[another start]",
    ),
    Break(  # a rank that keeps its samples for ever
        "ddp_src/exercises/sampler.py",
        "    if set(first) == set(second):",
        "    if False:",
        "tests/lessons/test_sampler.py::test_a_wrong_shard_is_told_what_it_did[shuffled after dealing]",
    ),
    Break(
        "ddp_src/exercises/_exact_loss.py",
        "    if counted == n:",
        "    if True:",
        "tests/lessons/test_sampler.py::test_a_wrong_loss_is_told_what_it_did[padded]",
    ),
    Break(  # the ring around a repeated sample
        "ddp_src/plots/shares.py",
        "        if len(owners) > 1:",
        "        if False:",
        "tests/test_plots_sampler.py::test_a_sample_seen_twice_is_ringed_and_no_other",
    ),
    Break(  # the phase "data" takes what went on between two steps
        "ddp_src/lessons/one_process.py",
        "        clock.lap()  # what goes on between two steps belongs to neither\n",
        "",
        "tests/lessons/test_one_process.py::test_each_phase_gets_its_own_lap_and_the_time_between_steps_none",
    ),
    Break(  # gradients add up over the steps
        "ddp_src/lessons/one_process.py",
        "        optimizer.zero_grad()\n",
        "",
        "tests/lessons/test_one_process.py::test_the_timed_loop_trains_like_a_plain_one",
    ),
    Break(  # unequal parts: each rank divides by its own number of samples
        "ddp_src/lessons/one_process.py",
        "dist.get_world_size() / total",
        "dist.get_world_size() / len(labels)",
        "tests/lessons/test_one_process.py::test_what_ddp_makes_of_two_parts",
    ),
    Break(  # the mean of the parts' means
        "ddp_src/exercises/one_process.py",
        "return total / sum(counts)",
        "return sum(grads) / len(grads)",
        "tests/test_exercises.py::test_the_reference_solution_is_right[one_process-1]",
    ),
    Break(  # the update is divided too
        "ddp_src/exercises/_step_time.py",
        "return (data + forward + backward) / ranks + update",
        "return (data + forward + backward + update) / ranks",
        "tests/lessons/test_one_process.py::test_the_right_time_is_right",
    ),
    Break(  # seconds on an axis of milliseconds
        "ddp_src/plots/step_times.py",
        "1e3 * getattr(step, phase)",
        "getattr(step, phase)",
        "tests/test_plots_one_process.py::test_phases_stand_end_to_end_in_ms",
    ),
    Break(  # the sign of a gradient is lost in its image
        "ddp_src/plots/gradients.py",
        "vmin=-limit",
        "vmin=0",
        "tests/test_plots_one_process.py::test_a_row_has_one_scale_about_zero_and_the_same_bytes_each_time",
    ),
    Break(
        "ddp_src/ring.py",
        "    for step in range(2 * (n - 1)):",
        "    for step in range(n - 1):",
        "tests/lessons/test_collectives.py::test_the_ring_step_by_step",
    ),
    Break(
        "ddp_src/ring.py",
        "            incoming += received",
        "            incoming.copy_(received)",
        "tests/lessons/test_collectives.py::test_sums_of_whole_numbers_are_equal_bit_for_bit",
    ),
    Break(
        "ddp_src/lessons/collectives.py",
        "    dist.reduce(x, dst=0)\n",
        "    dist.all_reduce(x)\n",
        "tests/lessons/test_collectives.py::test_gloos_reduce_leaves_partial_sums_beside_its_destination",
    ),
    Break(
        "ddp_src/lessons/collectives.py",
        "    work.wait()\n",
        "",
        "tests/lessons/test_collectives.py::test_the_fine_print",
    ),
    Break(
        "ddp_src/exercises/collectives.py",
        "    padded = F.pad(x, (0, share * world_size - len(x)))",
        "    padded = F.pad(x, (0, 0))",
        "tests/lessons/test_collectives.py::test_another_right_mean_is_right",
    ),
    Break(
        "ddp_src/exercises/collectives.py",
        "    total = loss.clone()",
        "    total = loss",
        "tests/lessons/test_collectives.py::test_another_right_report_is_right",
    ),
    Break(
        "ddp_src/plots/cells.py",
        "        if not promised:\n",
        "        if False:\n",
        "tests/test_plots_collectives.py::test_what_is_not_promised_is_hatched_and_named_in_the_legend",
    ),
    Break(  # the order of the model, where backward begins with the last layer
        "ddp_src/exercises/inside_ddp.py",
        "for size in reversed(sizes):",
        "for size in sizes:",
        "tests/lessons/test_inside_ddp.py::test_the_reference_solution_cuts_as_ddp_does",
    ),
    Break(  # a bucket that closes only when it is past the cap
        "ddp_src/exercises/inside_ddp.py",
        "if sum(bucket) >= limit:",
        "if sum(bucket) > limit:",
        "tests/lessons/test_inside_ddp.py::test_the_reference_solution_cuts_as_ddp_does",
    ),
    Break(  # a last bucket that is never sent
        "ddp_src/exercises/inside_ddp.py",
        "return [*closed, bucket] if bucket else closed",
        "return closed",
        "tests/lessons/test_inside_ddp.py::test_the_reference_solution_cuts_as_ddp_does",
    ),
    Break(  # around the wrapper: nobody averages the gradients, and nothing says so
        "ddp_src/lessons/inside_ddp.py",
        "loss = loss_of(ddp, images, labels)",
        "loss = ddp.module.loss(images, labels)",
        "tests/lessons/test_inside_ddp.py::test_gradients_and_weights_are_kept_equal_losses_and_buffers_not",
    ),
    Break(  # 25 written down is not the default: it takes away the small first bucket
        "ddp_src/lessons/inside_ddp.py",
        "ddp = DDP(model, **options)",
        'ddp = DDP(model, **{"bucket_cap_mb": 25, **options})',
        "tests/lessons/test_inside_ddp.py::test_the_buckets_are_rebuilt_in_the_order_of_backward",
    ),
    Break(  # two all-reduces at once counted twice
        "ddp_src/profiler_trace.py",
        "for start, end in _union(spans))",
        "for start, end in ((span.start, span.end) for span in spans))",
        "tests/test_plots_inside_ddp.py::test_overlap_counts_each_moment_once",
    ),
    Break(
        "ddp_src/lessons/processes.py",
        "    sys.stdout.flush()\n",
        "",
        "tests/lessons/test_processes.py::test_the_launcher_returns_what_every_rank_returned_and_loses_no_print",
    ),
    Break(
        "ddp_src/lessons/processes.py",
        "        return fork_readers(read_digits, digits)",
        "        return fork_readers(read_own, sources.EMBEDDED)",
        "tests/lessons/test_processes.py::test_readers_forked_after_the_file_was_opened_spoil_each_others_reading",
    ),
    Break(
        "ddp_src/lessons/processes.py",
        "    if rank == 1:\n        sys.exit()",
        "    if rank == 0:\n        sys.exit()",
        "tests/lessons/test_processes.py::test_plain_spawn_blames_the_rank_that_waited",
    ),
    Break(
        "ddp_src/terminal.py",
        "for descriptor in (1, 2)}",
        "for descriptor in (1,)}",
        "tests/lessons/test_processes.py::test_both_streams_of_a_child_are_shown_with_short_paths",
    ),
    Break(
        "ddp_src/exercises/processes.py",
        "    if all(node == 0 for node, _ in places.given):",
        "    if all(local == 0 for _, local in places.given):",
        "tests/lessons/test_processes.py::test_divided_by_the_world_size",
    ),
    Break(
        "ddp_src/plots/inheritance.py",
        "_cell(table, column, row, way.fate[thing])",
        "_cell(table, column, row, ways[0].fate[thing])",
        "tests/test_plots_processes.py::test_every_fate_is_written_in_the_cell_of_its_way_and_thing",
    ),
    Break(  # sum for mean
        "ddp_src/own_ddp.py",
        "            p.grad /= dist.get_world_size()\n",
        "",
        "tests/lessons/test_ddp_from_scratch.py::test_every_version_with_a_sync_is_one_process_in_every_case[2-naive]",
    ),
    Break(  # no broadcast at the start
        "ddp_src/own_ddp.py",
        "            dist.broadcast(tensor.detach(), src=0)",
        "            pass",
        "tests/lessons/test_ddp_from_scratch.py::test_every_version_with_a_sync_is_one_process_in_every_case[2-flat]",
    ),
    Break(  # a bucket never flushed: one whose layer got no gradient
        "ddp_src/own_ddp.py",
        "            self.launch_next()\n        for work",
        "            break\n        for work",
        "tests/lessons/test_ddp_from_scratch.py::test_every_version_with_a_sync_is_one_process_in_every_case[2-overlapped]",
    ),
    Break(  # buckets that leave in the order of readiness, which differs between ranks
        "ddp_src/own_ddp.py",
        "while len(self.works) < len(self.buckets) and self.missing[len(self.works)] == 0:\n"
        "            self.launch_next()",
        "if self.missing[number] == 0:\n"
        "            self.works.append(dist.all_reduce(self.buckets[number], async_op=True))",
        "tests/lessons/test_ddp_from_scratch.py::test_every_version_with_a_sync_is_one_process_in_every_case[2-overlapped]",
    ),
    Break(  # gradients that are not views of the buffer
        "ddp_src/own_ddp.py",
        "        self.buffer.zero_()  # never None: the next gradient would lie outside the buffer",
        "        super().zero_grad()",
        "tests/lessons/test_ddp_from_scratch.py::test_replicas_that_sync_stay_equal_bit_for_bit[Flat]",
    ),
    Break(  # all buckets at the end, as in the version before
        "ddp_src/own_ddp.py",
        "                p.register_post_accumulate_grad_hook(partial(self.mark_ready, number))",
        "                pass",
        "tests/lessons/test_ddp_from_scratch.py::test_buckets_leave_while_backward_runs_in_the_last_version_only",
    ),
    Break(
        "ddp_src/_interrupts.py",
        "        if self._waiting and not self._came:\n",
        "        if self._waiting:\n",
        "tests/test_launch_end.py::test_an_interrupt_in_the_middle_of_another_ones_work_forgets_no_rank",
    ),
    Break(
        "ddp_src/_rank.py",
        "        channel.send(_describe_in_peace(rank, error))",
        "        channel.send(_describe(rank, error))",
        "tests/test_first_cause.py::test_an_error_that_a_signal_handler_raises_meanwhile_is_told",
    ),
    Break(
        "ddp_src/launch.py",
        "outcome.failure.waited or orders.timeout",
        "orders.timeout",
        "tests/test_first_cause.py::test_a_group_with_a_timeout_of_its_own_is_told_with_that",
    ),
    Break(
        "ddp_src/launch.py",
        "    with contextlib.suppress(OSError), open(",
        "    with open(",
        "tests/test_first_cause.py::test_a_full_disk_hides_no_cause",
    ),
    Break(
        "ddp_src/_failures.py",
        '    if left_out <= 0:\n        return "\\n".join(lines)\n    note = f"… lines',
        '    if True:\n        return "\\n".join(lines)\n    note = f"… lines',
        "tests/test_first_cause.py::test_of_a_long_message_the_middle_is_left_out",
    ),
    Break(
        "ddp_src/_server.py",
        '    os.environ["PYTHONSAFEPATH"] = "1"\n',
        '    os.environ["PYTHONSAFEPATH"] = ""\n',
        "tests/test_launch.py::test_a_file_named_like_a_module_of_python_does_not_stop_the_server",
    ),
]


def copy_tree(source: Path, target: Path) -> None:
    """Copy what git would commit, and what is not yet added, but nothing that it ignores."""
    names = subprocess.run(
        ["git", "-C", source, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, names.split("\0")):
        if (source / name).is_file():  # one deleted but not yet committed is still listed
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, target / name)


def run_tests(tree: Path, *tests: str) -> int:
    """pytest's exit status in `tree`, whose own ddp_src comes before the installed one."""
    env = os.environ | {"PYTHONPATH": str(tree)}
    env.pop("CI", None)  # there a skip fails, and would pass for "red"
    options = ["-q", "-x", "-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:nbmake"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    return subprocess.run(
        command, cwd=tree, env=env, stdin=subprocess.DEVNULL, capture_output=True
    ).returncode


def try_row(source: Path, row: Break) -> str:
    """Plant one mistake in a fresh copy: "red" if its test fails, else what is wrong."""
    with tempfile.TemporaryDirectory(prefix="ddp-breaks-") as folder:
        tree = Path(folder)
        copy_tree(source, tree)
        path = tree / row.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if (occurs := text.count(row.old)) != 1:
            return f"NOT CAUGHT (the old text occurs {occurs} times)"
        path.write_text(text.replace(row.old, row.new), encoding="utf-8")
        status = run_tests(tree, row.test)
    if status == 1:
        return "red"
    return "NOT CAUGHT" if status == 0 else f"NOT CAUGHT (pytest exit status {status})"


def green_before(source: Path, tests: Sequence[str]) -> set[str]:
    """Those of `tests` that pass with no mistake planted; a test that is red anyway shows nothing."""
    with tempfile.TemporaryDirectory(prefix="ddp-breaks-") as folder:
        copy_tree(source, Path(folder))
        if run_tests(Path(folder), *tests) == 0:
            return set(tests)
        return {test for test in tests if run_tests(Path(folder), test) == 0}


def run_rows(source: Path, rows: Sequence[Break]) -> bool:
    """Try each row and print its verdict; True if all are red."""
    green = green_before(source, list(dict.fromkeys(row.test for row in rows)))
    verdicts = []
    for row in rows:
        verdict = try_row(source, row) if row.test in green else "NOT CAUGHT (its test fails unbroken)"
        verdicts.append(verdict)
        print(f"{verdict}: {row.file}: {row.old.strip()!r} -> {row.new.strip()!r}: {row.test}", flush=True)
    caught = verdicts.count("red")
    print(f"{caught} of {len(rows)} mistakes are caught")
    return caught == len(rows)


def main() -> int:
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    rows = [row for row in ROWS if word in row.file or word in row.test]
    if not rows:
        print(f"no row has {word!r} in its file or test", file=sys.stderr)
        print(f"没有哪一行的文件或测试含有 {word!r}", file=sys.stderr)
        return 2
    return 0 if run_rows(Path(__file__).resolve().parent.parent, rows) else 1


if __name__ == "__main__":
    sys.exit(main())
