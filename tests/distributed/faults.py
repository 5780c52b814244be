"""Faults in noisewise.distributed that the tests must notice; `tests/mutants.py` plants them."""

from helpers.planting import Mutant

FAULTS = [
    Mutant(
        "ranks: noise on every rank before sums are added",
        "distributed/joining.py",
        "        team.add(vector)\n",
        "        vector += torch.randn_like(vector)\n        team.add(vector)\n",
        ("distributed/test_joining.py::test_noise_is_drawn_once_and_the_same_on_all_ranks",),
    ),
    Mutant(
        "ranks: each draws from a root of its own, unseen",
        "distributed/joining.py",
        "    if not team.same(_fingerprint(clipped, team, occasion)):",
        "    if False:",
        ("distributed/test_joining.py::test_sums_are_added_kept_coordinates_travel_and_what_differs_is_refused",),
    ),
    Mutant(
        "ranks: parts overlap",
        "distributed/team.py",
        "return units.tensor_split(self.size)[self.rank]",
        "return units[self.rank * (len(units) // self.size) :][: self.largest_part(len(units))]",
        ("distributed/test_team.py::test_parts_are_disjoint_whole_in_order_and_alike",),
    ),
    Mutant(
        "ranks: packed values of other masks",
        "distributed/joining.py",
        "team.packed.support is not support",
        "False",
        ("distributed/test_joining.py::test_sums_are_added_kept_coordinates_travel_and_what_differs_is_refused",),
    ),
    Mutant(
        "ranks: the question of an adaptive rule is answered by one rank",
        "distributed/joining.py",
        "query = Bounded(total(query._values, {}, team), query.sensitivity, query.support)",
        "pass",
        ("distributed/test_joining.py::test_several_processes_make_the_run_of_one",),
    ),
    Mutant(
        "ranks: a network error is somebody else's bug",
        "distributed/team.py",
        '        except RuntimeError as error:\n            reason = " ".join(str(error).split()).rpartition',
        '        except OSError as error:\n            reason = " ".join(str(error).split()).rpartition',
        ("distributed/test_team.py::test_a_rank_that_is_gone_or_silent_stops_the_others[killed]",),
    ),
]
