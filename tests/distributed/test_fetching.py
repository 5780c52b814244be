"""Weights that are fetched in bundles and ahead of time: the right ones, in fewer messages, never those of an earlier pass."""

import random

import torch

from helpers.ranks import on_ranks
from noisewise.distributed import Team, fetching
from noisewise.distributed.fetching import Dividing, Fetching, Rows

SHAPES = {"a": (7, 3), "b": (4,), "c": (1, 5), "d": (6, 2, 2), "e": (9, 4)}
KINDS = {"a": torch.float32, "b": torch.float64, "c": torch.bfloat16, "d": torch.float32, "e": torch.float16}


def weights(seed):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator).to(KINDS[name]) for name, shape in SHAPES.items()}


class Counting(Team):
    """How often did the ranks speak of whole tensors?"""

    messages = 0

    def all_parts_later(self, part):
        self.messages += 1
        return super().all_parts_later(part)

    def add_in_parts_later(self, tensor):
        self.messages += 1
        return super().add_in_parts_later(tensor)


def rows_of(whole, team):
    each = -(-len(whole) // team.size)
    return Rows(whole[team.rank * each : (team.rank + 1) * each], whole.shape)


def passes(team, room, asked):
    """Was every weight the right one, and how many messages did each pass need? Weights change between passes."""
    team, current = Counting(team.rank, team.size), {}
    with_room(room)
    courier = Fetching(lambda name: rows_of(current[name], team), team)
    counts = []
    for seed, names in enumerate(asked):
        current, before = weights(seed), team.messages
        right = all(torch.equal(courier.whole(name), current[name]) for name in names)
        courier.end(whole=True)
        counts.append((right, team.messages - before))
    return counts


def with_room(room):
    fetching.BUNDLE = room


STEP = list("abcdeedcb")


def test_the_second_time_weights_come_together_and_ahead():
    for counts in on_ranks(2, passes, 1 << 20, [STEP, STEP, STEP, STEP[:5], STEP, STEP + STEP, STEP + STEP]):
        assert all(right for right, _ in counts)
        # one by one; all in one; so again; a pass that ends early; in two, therefore; what is new one by one; known again
        assert [number for _, number in counts] == [9, 1, 1, 1, 2, 11, 1]


def test_without_room_each_weight_comes_by_itself_and_a_pass_on_another_course_is_right_too():
    for counts in on_ranks(2, passes, 1, [STEP, STEP, list("abdd"), list("abdd"), [], STEP]):
        assert all(right for right, _ in counts)
        assert [number for _, number in counts] == [9, 8, 5, 3, 0, 10]


def memories(team):
    """Memory of the weights of a pass: where each of them lies."""
    courier, current = Fetching(lambda name: rows_of(weights(0)[name], team), team), {}
    for _ in range(2):
        current = {name: courier.whole(name) for name in "abcde"}
        courier.end(whole=True)
    return {name: weight.untyped_storage().data_ptr() for name, weight in current.items()}


def test_weights_that_came_together_have_memory_of_their_own():
    """What autograd keeps of a weight is known by its memory: two in one would be taken for each other."""
    for ranks in (1, 2):
        for lies in on_ranks(ranks, memories):
            assert len(set(lies.values())) == len(SHAPES)


def random_passes(team):
    chance, answers = random.Random(1), []
    for _ in range(15):
        courses = [chance.choices("abcde", k=chance.randrange(12)) for _ in range(3)]
        asked = [chance.choice(courses) * chance.choice([1, 2]) for _ in range(6)]
        answers.append(passes(team, chance.choice([1, 40, 100, 400]), asked))
    return answers


def test_any_course_is_right_and_the_same_for_all_ranks():
    first, *others = on_ranks(3, random_passes)
    assert all(right for counts in first for right, _ in counts)
    assert all(other == first for other in others)


def error_on_the_way(team):
    courier = Fetching(lambda name: rows_of(weights(0)[name], team), team)
    for name in STEP:
        courier.whole(name)
    courier.end(whole=True)
    courier.whole("a")
    courier.end(whole=False)
    return [torch.equal(courier.whole(name), weights(0)[name]) for name in STEP]


def test_after_an_error_of_all_ranks_a_pass_begins_anew():
    assert all(all(right) for right in on_ranks(2, error_on_the_way))


def divided(team, room):
    """A rank's rows of sums over ranks, whose parts are whole numbers: any order of adding gives the same."""
    team = Counting(team.rank, team.size)
    with_room(room)
    sums = Dividing(team)
    kinds = {"a": torch.float32, "b": torch.float64, "c": torch.float32, "d": torch.float32, "e": torch.float32}
    totals = {
        name: torch.arange(float(torch.Size(shape).numel())).view(shape).to(kinds[name])
        for name, shape in SHAPES.items()
    }
    for name, total in totals.items():
        sums.add(name, (team.rank + 1) * total)
    parts = sums.parts()
    everybody = team.size * (team.size + 1) // 2
    right = [torch.equal(parts[name], rows_of(everybody * total, team).here) for name, total in totals.items()]
    return right, parts.keys() == totals.keys(), team.messages


def test_sums_are_added_and_divided_in_bundles_of_one_type():
    for size in (2, 3):
        for room, messages in ((1 << 20, 3), (1, 5)):
            for right, complete, number in on_ranks(size, divided, room):
                assert all(right)
                assert complete
                assert number == messages
