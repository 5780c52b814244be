import pytest

from noisewise.errors import ConfigError
from noisewise.userfiles import called, last_line, load, model_maker


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_object_is_found_by_file_and_name(folder):
    (folder / "parts.py").write_text("answer = 42\n")
    assert load("parts.py:answer") == 42


def test_a_file_is_run_once_and_sees_its_neighbours(folder):
    (folder / "neighbour_of_a_user.py").write_text("width = 3\n")
    (folder / "parts.py").write_text("from neighbour_of_a_user import width\nfirst = second = object()\n")
    assert load("parts.py:width") == 3
    assert load("parts.py:first") is load(f"{folder}/parts.py:second")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("parts.py", "say which object of which file, e.g. models.py:model"),
        ("parts.py:", "say which object of which file"),
        ("nowhere.py:model", "there is no file 'nowhere.py'"),
        ("parts.py:modle", r"parts.py has no 'modle'. It has: build, model, when\."),
        ("broken.py:model", "broken.py could not be run: ZeroDivisionError: division by zero"),
        ("torn.py:model", "torn.py could not be run: SyntaxError"),
        ("notes.txt:model", "notes.txt: not a Python file"),
    ],
)
def test_what_cannot_be_loaded_is_explained(folder, reference, message):
    (folder / "parts.py").write_text(
        "import math\nfrom datetime import date\nmodel, when, _own = 1, date(2020, 1, 1), 2\ndef build(): pass\n"
    )
    (folder / "broken.py").write_text("1 / 0\n")
    (folder / "torn.py").write_text("def (\n")
    (folder / "notes.txt").write_text("model\n")
    with pytest.raises(ConfigError, match=message):
        load(reference)


def test_a_model_is_made_of_its_sizes_or_of_nothing(folder):
    (folder / "makers.py").write_text("number = 3\ndef sized(shape, outputs, deep=2): pass\ndef fixed(*a, **b): pass\n"
                                      "def three(a, b, c): pass\n")  # fmt: skip
    assert model_maker("makers.py:sized") == (load("makers.py:sized"), 2)
    assert model_maker("makers.py:fixed") == (load("makers.py:fixed"), 0)
    with pytest.raises(ConfigError, match="is a int: must be a function"):
        model_maker("makers.py:number")
    with pytest.raises(ConfigError, match="needs 3 arguments"):
        model_maker("makers.py:three")


def test_an_error_in_a_users_function_is_said_to_be_its_own_with_its_line(folder):
    (folder / "failing.py").write_text(
        "def inner():\n    raise ValueError('boom')\n\ndef make(shape, outputs):\n    inner()\n"
    )
    with pytest.raises(ConfigError, match=r"'failing.py:make' failed with ValueError: boom \(failing.py, line 2\)"):
        called("failing.py:make", load("failing.py:make"), (3,), 2)


def test_a_users_function_may_have_options_of_any_name():
    assert called("own.py:make", lambda reference, function: (reference, function), reference=1, function=2) == (1, 2)


def test_a_refusal_of_ours_goes_through_a_users_function_as_it_is():
    def refuses():
        raise ConfigError("bound=-1: must be above 0.")

    with pytest.raises(ConfigError, match=r"^bound=-1"):
        called("own.py:refuses", refuses)


def test_an_error_is_the_files_where_it_came_out_of_it(tmp_path):
    (tmp_path / "mine.py").write_text("def broken(x):\n    return x.nrms\ndef asks(x):\n    return x()\n")

    def error_of(call):
        with pytest.raises(Exception) as caught:  # noqa: PT011  any
            call()
        return caught.value

    broken, asks = (load(f"{tmp_path / 'mine.py'}:{name}") for name in ("broken", "asks"))
    assert last_line(error_of(lambda: broken(3))) == "mine.py, line 2"
    assert last_line(error_of(lambda: asks(lambda: load("nothing")))) == ""  # it went on in noisewise
    assert last_line(error_of(lambda: [].nothing)) == ""
