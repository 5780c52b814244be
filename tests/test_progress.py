"""The one progress bar: what it says, where it says it, and that it is silent unless asked for."""

import subprocess
import sys

import pytest

from noisewise.progress import Bar, tracked


def test_the_bar_is_on_the_error_stream_and_says_how_far_things_are(capsys):
    with Bar("shadow models", 5, done=1) as bar:
        bar.advance()
        bar.advance(2, extra="epsilon 1.25")
        bar.note("two more")
    out, error = capsys.readouterr()
    assert out == ""
    assert "shadow models" in error
    assert "4/5" in error
    assert "epsilon 1.25" in error
    assert "left" in error
    assert "two more" in error


def test_a_label_and_an_extra_word_stay_until_the_next(capsys):
    with Bar("first", 3) as bar:
        bar.advance(label="second", extra="word")
        bar.advance()
    error = capsys.readouterr().err
    assert "second" in error
    assert "word" in error
    assert (bar.done, bar.label) == (2, "second")


def test_a_bar_that_is_switched_off_counts_and_says_nothing(capsys):
    with Bar("training", 3, show=False) as bar:
        bar.advance(extra="word")
        bar.note("unheard")
    assert bar.done == 1
    assert capsys.readouterr() == ("", "")


def test_a_bar_that_is_switched_off_imports_nothing():
    code = (
        "import sys; from noisewise.progress import tracked; list(tracked('ab', 'letters', 2, show=False)); "
        "print('rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_items_are_counted_as_they_are_used(capsys):
    assert list(tracked("abc", "letters", 3)) == ["a", "b", "c"]
    assert "3/3" in capsys.readouterr().err


def test_the_bar_stops_when_something_fails(capsys):
    def failing():
        yield 1
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        list(tracked(failing(), "training", 3))
    assert "1/3" in capsys.readouterr().err
