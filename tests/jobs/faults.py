"""Faults in noisewise.jobs that the tests must notice; `tests/mutants.py` plants them."""

from helpers.planting import Mutant

FAULTS = [
    Mutant(
        "jobs: a result of other settings is taken",
        "jobs/carrying.py",
        'if raw.get("digest") != job.digest:',
        "if False:",
        ("jobs/test_carrying.py::test_a_result_of_other_settings_is_not_taken",),
    ),
    Mutant(
        "jobs: a failure is passed over",
        "jobs/carrying.py",
        "    if not failed:\n",
        "    if True:\n",
        ("jobs/test_carrying.py::test_a_failing_job_is_named_and_the_others_are_kept",),
    ),
    Mutant(
        "jobs: a killed worker's job is lost",
        "jobs/carrying.py",
        "                queue.append(job)\n",
        "",
        ("jobs/test_local.py::test_a_worker_that_is_killed_is_replaced_and_its_job_done",),
    ),
    Mutant(
        "jobs: a job that kills its workers is tried for ever",
        "jobs/carrying.py",
        "                lost.add(job.key)\n",
        "                lost.clear() if len(done) < 3 else lost.add(job.key)\n",
        ("jobs/test_carrying.py::test_a_process_that_dies_is_said_and_what_was_done_is_kept",),
    ),
    Mutant(
        "jobs: workers hear nothing of a dead parent",
        "jobs/local.py",
        "while os.getppid() == parent:",
        "while True:",
        ("jobs/test_carrying.py::test_stopped_from_outside_every_worker_saves_and_ends",),
    ),
    Mutant(
        "jobs: workers are not asked to stop",
        "jobs/local.py",
        "            worker.process.terminate()",
        "            pass",
        ("jobs/test_carrying.py::test_stopped_from_outside_every_worker_saves_and_ends",),
    ),
    Mutant(
        "jobs: each worker takes all cores",
        "jobs/local.py",
        "    os.environ[THREADS] = str(threads)",
        '    os.environ[THREADS] = "64"',
        ("jobs/test_local.py::test_results_depend_on_neither_order_nor_number_of_workers",),
    ),
    Mutant(
        "jobs: a worker with other versions takes part",
        "jobs/worker.py",
        "    if other:\n",
        "    if False:\n",
        ("jobs/test_worker.py::test_a_worker_elsewhere_is_refused",),
    ),
    Mutant(
        "jobs: a worker that sees other files takes part",
        "jobs/worker.py",
        "    if not same:\n",
        "    if False:\n",
        ("jobs/test_worker.py::test_a_worker_elsewhere_is_refused",),
    ),
    Mutant(
        "jobs: Ray's killed workers are failures at once",
        "jobs/cluster.py",
        "    except ray.exceptions.RayError:\n        return LOST",
        '    except ray.exceptions.RayError:\n        return Failure("RunError", "lost")',
        ("jobs/test_cluster.py::test_a_worker_that_is_killed_is_replaced_and_its_job_done",),
    ),
    Mutant(
        "jobs: runs on Ray have a GPU each",
        "jobs/places.py",
        "else 1 / self.per_gpu",
        "else 1.0",
        ("jobs/test_places.py::test_shares_of_a_gpu",),
    ),
    Mutant(
        "jobs: Ray's workers go on after Ctrl-C",
        "jobs/cluster.py",
        "                ray.cancel(sent)",
        "                pass",
        ("jobs/test_cluster.py::test_ctrl_c_stops_the_workers_and_the_same_call_goes_on",),
    ),
]
