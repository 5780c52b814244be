"""The room as a whole: every audit has its result, its name and its functions."""

from __future__ import annotations

from noisewise import audits
from noisewise.audits import AUDITS, RESULTS
from noisewise.audits.result import Result


def test_every_audit_has_its_result() -> None:
    assert set(AUDITS) <= set(RESULTS)
    assert all(issubclass(result, Result) and result.title for result in RESULTS.values())
    assert all(audit.asks and "retrain" in audit.takes for audit in AUDITS.values())


def test_every_audit_is_offered_by_its_name_and_under_its_functions() -> None:
    assert {name: audit.name for name, audit in AUDITS.items()} == {name: name for name in AUDITS}
    assert all(getattr(audits, audit.run.__name__) is audit.run for audit in AUDITS.values())
    assert all(getattr(audits, result.__name__) is result for result in RESULTS.values())
    assert {result.__name__ for result in RESULTS.values()} <= set(audits.__all__)
