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
        "    _check_same(team, occasion, _fingerprint(clipped, team, occasion))\n",
        "",
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
        "spread: noise on every rank before sums are added",
        "distributed/fetching.py",
        "        self._waiting[name] = total\n",
        "        self._waiting[name] = total + torch.randn_like(total)\n",
        ("distributed/test_sharding.py::test_noise_of_pieces_is_that_of_one_process_each_number_drawn_once",),
    ),
    Mutant(
        "spread: weights that were fetched ahead outlive the step",
        "distributed/fetching.py",
        "            self._now = self._next = None\n        self._forget()\n",
        "            self._now = self._next = None\n",
        ("distributed/test_fetching.py::test_the_second_time_weights_come_together_and_ahead",),
    ),
    Mutant(
        "spread: weights that came together share memory",
        "distributed/fetching.py",
        "flat if len(self._tensors) == 1 else flat.clone(memory_format=torch.contiguous_format)",
        "flat",
        ("distributed/test_fetching.py::test_weights_that_came_together_have_memory_of_their_own",),
    ),
    Mutant(
        "spread: weights come in the order of the last pass, whatever is asked for",
        "distributed/fetching.py",
        " or self._expected[here] != name:",
        ":",
        (
            "distributed/test_fetching.py::test_without_room_each_weight_comes_by_itself_and_a_pass_on_another_course_is_right_too",
        ),
    ),
    Mutant(
        "spread: every rank draws the noise of the first rows",
        "distributed/sharding.py",
        "return Piece(first * (",
        "return Piece(0 * (",
        ("distributed/test_sharding.py::test_noise_of_pieces_is_that_of_one_process_each_number_drawn_once",),
    ),
    Mutant(
        "spread: a rank keeps its own sum",
        "distributed/fetching.py",
        "arriving = self._team.add_in_parts_later(flat[0] if len(flat) == 1 else torch.cat(flat, 1))",
        "mine = torch.cat(flat, 1)[self._team.rank].clone()\n        arriving = lambda: mine",
        (
            "distributed/test_sharding.py::test_without_clipping_and_noise_it_is_the_gradient_of_fully_shard_which_still_works",
        ),
    ),
    Mutant(
        "spread: sums in pieces are added once more when they are joined",
        "distributed/joining.py",
        "for name, value in clipped.grads._values.items() if name not in pieces}",
        "for name, value in clipped.grads._values.items()}",
        ("distributed/test_sharding.py::test_spread_parameters_make_the_run_of_one_process",),
    ),
    Mutant(
        "spread: layers of any kind",
        "distributed/sharding.py",
        "and not isinstance(module, LAYERS):",
        "and not isinstance(module, nn.Module):",
        (
            "distributed/test_sharding.py::test_what_cannot_be_spread_is_refused_with_the_reason_before_anything_is_released",
        ),
    ),
    Mutant(
        "ranks: a network error is somebody else's bug",
        "distributed/team.py",
        '        except RuntimeError as error:\n            reason = " ".join(str(error).split()).rpartition',
        '        except OSError as error:\n            reason = " ".join(str(error).split()).rpartition',
        ("distributed/test_team.py::test_a_rank_that_is_gone_or_silent_stops_the_others[killed]",),
    ),
]
