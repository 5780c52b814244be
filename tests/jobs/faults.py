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
        "jobs: nothing is tried once more",
        "jobs/carrying.py",
        "if outcome is LOST and job.key not in lost:",
        "if outcome is LOST and job.key in lost:",
        ("jobs/test_local.py::test_a_worker_that_is_killed_is_replaced_and_its_job_done",),
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
        "jobs/places.py",
        "(os.cpu_count() or 1) // self.processes",
        "(os.cpu_count() or 1)",
        ("jobs/test_places.py::test_cores_are_shared_unless_the_user_has_chosen",),
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
        "jobs: the text of a bug goes through Ray",
        "jobs/cluster.py",
        "ray.remote(do_far)",
        "ray.remote(__import__('noisewise.jobs.worker').jobs.worker.do)",
        ("jobs/test_cluster.py::test_rays_messages_hold_no_value_of_a_row",),
    ),
    Mutant(
        "jobs: the text of a bug is open to others",
        "jobs/worker.py",
        "os.O_WRONLY, 0o600)",
        "os.O_WRONLY, 0o644)",
        ("jobs/test_worker.py::test_a_bug_goes_far_by_its_kind_and_place_and_its_text_stays_with_the_owner",),
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
