"""Every planted fault can still be planted, and the tests that should see it are there: in milliseconds."""

import ast
import builtins
import keyword
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from helpers.planting import Mutant, plant, planted

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src"
ROOMS = planted()
MUTANTS = [mutant for faults in ROOMS.values() for mutant in faults]


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


@cache
def functions_of(path: Path) -> set[str]:
    return {node.name for node in ast.parse(text_of(path)).body if isinstance(node, ast.FunctionDef)}


def times_found(mutant):
    """How often the text of a fault occurs: not once means that the code has moved, and the fault must move too."""
    return text_of(SOURCE / "noisewise" / mutant.file).count(mutant.old)


@pytest.mark.parametrize("room", ROOMS)
def test_faults_can_be_planted(room):
    assert {m.name: (m.file, m.old, times_found(m)) for m in ROOMS[room] if times_found(m) != 1} == {}
    assert [mutant.name for mutant in ROOMS[room] if mutant.new == mutant.old] == []


def unknown_names(mutant, text):
    """Names that a fault brings in although its file has never heard of them: any test would see that."""
    code = re.sub(r"[bfr]?(\"[^\"]*\"|'[^']*')|#.*", " ", mutant.new)
    bound = {*re.findall(r"(?:import|as|for|def|lambda) (\w+)", code), *re.findall(r"(\w+) ?:?=(?!=)", code)}
    names = set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", code)) - bound - set(keyword.kwlist) - set(dir(builtins))
    return {name for name in names if name not in mutant.old and not re.search(rf"\b{name}\b", text)}


@pytest.mark.parametrize("room", ROOMS)
def test_no_fault_is_a_name_that_nobody_knows(room):
    unknown = {m.name: unknown_names(m, text_of(SOURCE / "noisewise" / m.file)) for m in ROOMS[room]}
    assert {name: names for name, names in unknown.items() if names} == {}


def test_a_name_that_nobody_knows_is_seen():
    for new, names in {"a or FRONT": {"FRONT"}, "f'{a.b}' or a(c=1)": set(), "import d; d.e(print)": set()}.items():
        assert unknown_names(Mutant("", "a.py", "a", new, ()), "a = 1") == names


def is_there(test):
    file, _, name = test.partition("::")
    return text_of(TESTS / file) != "" and (not name or name.split("[")[0] in functions_of(TESTS / file))


@pytest.mark.parametrize("room", ROOMS)
def test_the_tests_that_should_see_faults_are_there(room):
    assert [mutant.name for mutant in ROOMS[room] if not mutant.tests] == []
    assert {m.name: test for m in ROOMS[room] for test in m.tests if not is_there(test)} == {}


@pytest.mark.parametrize("room", ROOMS)
def test_faults_lie_beside_the_package_that_they_break(room):
    assert ROOMS[room]
    assert {Path(mutant.file).parent.as_posix() for mutant in ROOMS[room]} == {room}


def test_no_name_is_given_twice():
    assert [name for name, count in Counter(mutant.name for mutant in MUTANTS).items() if count > 1] == []


def test_a_text_that_occurs_twice_or_never_is_not_planted(tmp_path):
    (tmp_path / "noisewise").mkdir()
    file = tmp_path / "noisewise" / "a.py"
    file.write_text("one\ntwo\ntwo\n")
    for old in ("two", "three"):
        with pytest.raises(ValueError, match="not once"):
            plant(tmp_path, Mutant("", "a.py", old, "four", ()))
    plant(tmp_path, Mutant("", "a.py", "one", "four", ()))
    assert file.read_text() == "four\ntwo\ntwo\n"
