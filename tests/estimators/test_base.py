"""Private estimators: the budget, what is published, what is refused; scikit-learn's tools around them."""

import copy
import inspect
import math
import pickle
import warnings
from types import SimpleNamespace

import dp_accounting
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from noisewise.accounting.defaults import default_delta
from noisewise.cli.table_schema import SHARE as SHARE_OF_THE_COMMAND
from noisewise.data.tables.kinds import Classes, Number
from noisewise.data.tables.schema import Schema
from noisewise.errors import ConfigError, DataError, OddRows, PrivacyWarning, RunError
from noisewise.estimators import NotFitted, PrivateClassifier, PrivateRegressor, base, spending
from noisewise.estimators.columns import SHARE

N = 400


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Each test is a process of its own, as far as spending goes."""
    monkeypatch.setattr(spending, "_FITS", [])


def table(n=N, seed=0):
    """Two numbers and a text that decide the label, a group and people."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {"age": rng.integers(18, 90, n), "city": rng.choice(["A", "B"], n), "sex": rng.choice(["f", "m"], n)}
    )
    frame["income"] = rng.uniform(0, 100, n)
    frame["person"] = [f"p{i // 2}" for i in range(n)]
    y = np.where((frame["age"] > 50) ^ (frame["city"] == "A"), "yes", "no")
    return frame, y


RANGES = {"age": (18, 90), "city": ["A", "B"], "income": (0, 100), "sex": ["f", "m"], "person": "ignore"}

PLAIN = {name: what for name, what in RANGES.items() if name != "person"}


def classifier(**settings):
    return PrivateClassifier(**{"classes": ["no", "yes"], "ranges": RANGES, "steps": 4, **settings})


def quick(monkeypatch):
    """Noise 1, as far as a test is not about calibration."""
    monkeypatch.setattr(base, "noise_for", lambda *_: 1.0)


def test_a_frame_is_learnt_within_the_budget():
    X, _ = table(1000)
    y = np.where(X["age"] > 50, "yes", "no")
    fitted = PrivateClassifier(epsilon=8, classes=["no", "yes"], ranges=RANGES, steps=20).fit(X, y)
    assert 7.9 < fitted.epsilon_ <= 8
    assert fitted.delta_ == default_delta(1000)
    assert fitted.score(X, y) > 0.85
    assert (fitted.n_features_in_, fitted.feature_names_in_.tolist()) == (5, list(X.columns))
    np.testing.assert_allclose(fitted.predict_proba(X[:50]).sum(1), 1)
    assert (fitted.classes_[fitted.predict_proba(X[:50]).argmax(1)] == fitted.predict(X[:50])).all()
    accountant = dp_accounting.pld.PLDAccountant()  # the ledger read by somebody else
    for line in fitted.ledger_.lines:
        accountant.compose(line.event, line.count)
    assert accountant.get_epsilon(fitted.delta_) == pytest.approx(fitted.epsilon_)


def test_the_whole_of_epsilon_is_the_total_also_where_ranges_are_chosen_with_noise():
    X, y = table(8000)
    X = X[["age", "income"]]
    fitted = PrivateClassifier(epsilon=3, classes=["no", "yes"], steps=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OddRows)
        fitted.fit(X, y)
    purposes = [line.purpose for line in fitted.ledger_.lines]
    assert purposes == ["schema: kinds, magnitudes and texts", "schema: ranges", "gradient"]
    assert 2.9 < fitted.epsilon_ <= 3
    assert fitted.schema_.origin == "noised"
    assert SHARE == SHARE_OF_THE_COMMAND


def test_too_few_rows_for_noised_ranges_are_refused_with_the_ways_out():
    X, y = table()
    with pytest.raises(
        ConfigError, match=r"Nothing was released.*schema_epsilon=.*ranges=\(low, high\).*ranges='public'"
    ):
        PrivateClassifier(classes=["no", "yes"]).fit(X[["age", "income"]], y)


def test_what_is_published_is_not_read_off_the_rows():
    X, y = table()
    with pytest.raises(ConfigError, match=r"not read off private rows.*classes=\['no', 'yes'\]"):
        classifier(classes=None).fit(X, y)
    with pytest.raises(ConfigError, match=r"not read off private rows.*target=\(0, 100\)"):
        PrivateRegressor(ranges=RANGES).fit(X, X["income"])


def test_types_that_say_their_classes_need_no_list(monkeypatch):
    quick(monkeypatch)
    X, y = table()
    declared = pd.Series(pd.Categorical(y, categories=["no", "perhaps", "yes"]))
    assert classifier(classes=None).fit(X, declared).classes_.tolist() == ["no", "perhaps", "yes"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        assert classifier(classes=None).fit(X, y == "yes").classes_.tolist() == [False, True]
        public = classifier(classes="public", ranges="public").fit(X, np.where(y == "yes", 7, 3))
    assert public.classes_.tolist() == [3, 7]
    assert public.schema_.confirmed


def test_arrays_are_tables_whose_columns_are_x0_x1(monkeypatch):
    quick(monkeypatch)
    X, y = table()
    array = X[["age", "income"]].to_numpy()
    fitted = classifier(ranges={"x0": (18, 90), 1: (0, 100)}).fit(array, y)
    frame = classifier(ranges={"age": (18, 90), "income": (0, 100)})
    with pytest.warns(PrivacyWarning, match="fit again"):
        frame.fit(X[["age", "income"]], y)
    assert [fitted.schema_.columns[f"x{i}"] for i in (0, 1)] == [frame.schema_.columns[n] for n in ("age", "income")]


def test_people_are_protected_where_rows_have_owners(monkeypatch):
    quick(monkeypatch)
    X, y = table()
    by_column = classifier().fit(X, y, unit="person")
    assert by_column.ledger_.unit == "person"
    assert by_column.settings_.batch_size == N // 2 // 4
    with pytest.warns(PrivacyWarning):
        by_array = classifier(ranges=PLAIN).fit(X.drop(columns="person"), y, unit=X["person"])
    assert by_array.ledger_.unit == "person"
    assert by_column.predict(X).shape == (N,)


def test_a_schema_says_it_all(monkeypatch, tmp_path):
    quick(monkeypatch)
    X, y = table()
    schema = Schema(
        label="fate", target=Classes(("yes", "no")), columns={"age": Number(18, 90), "income": Number(0, 100)}
    )
    path = tmp_path / "schema.toml"
    path.write_text(schema.to_toml())
    fitted = PrivateClassifier(steps=4).fit(X[["age", "income"]], y, schema=path)
    assert fitted.schema_ == schema
    assert fitted.classes_.tolist() == ["yes", "no"]
    assert set(fitted.predict(X[["age", "income"]])) <= {"yes", "no"}


def test_numbers_are_predicted_in_their_units_and_within_reach(monkeypatch):
    quick(monkeypatch)
    X, _ = table(1000)
    y = 1000 + 5 * X["income"]
    fitted = PrivateRegressor(target=(1000, 1500), ranges=RANGES, steps=60).fit(X, y)
    assert fitted.score(X, y) > 0.8


def test_nothing_private_stays_in_a_fitted_estimator(monkeypatch):
    quick(monkeypatch)
    X, y = table()
    X["income"] = np.linspace(0.111, 99.111, N)
    fitted = classifier().fit(X, y)
    assert fitted.ledger_.identity is None
    stored = pickle.dumps(fitted)
    assert not any(np.float64(value).tobytes() in stored for value in X["income"][:50])
    again = pickle.loads(stored)
    assert (again.predict(X) == fitted.predict(X)).all()
    assert again.epsilon_ == fitted.epsilon_


def test_who_was_in_earlier_fits_does_not_leave_the_process(monkeypatch):
    quick(monkeypatch)
    X, y = table()
    classifier().fit(X, y)
    with pytest.warns(PrivacyWarning):
        fitted = classifier().fit(X, y)
    assert fitted.composed_epsilon_ > fitted.epsilon_
    spending._FITS.clear()
    alone = classifier().fit(X, y)
    for estimator in (fitted, alone):
        again = pickle.loads(pickle.dumps(estimator))
        assert set(vars(estimator)) - set(vars(again)) == {"_histories"}
        with pytest.raises(RunError, match="only in the process that fitted"):
            _ = again.composed_epsilon_
    assert copy.deepcopy(fitted).epsilon_ == fitted.epsilon_


def test_a_pipeline_and_a_clone_fit(monkeypatch):
    quick(monkeypatch)
    X, y = table()
    numbers = X[["age", "income"]]
    pipeline = make_pipeline(FunctionTransformer(lambda rows: rows / 100), classifier(ranges=(0, 1)))
    assert pipeline.fit(numbers, y).predict(numbers).shape == (N,)
    unfitted = clone(pipeline[-1])
    assert unfitted.get_params()["ranges"] == (0, 1)
    with pytest.raises(NotFitted, match="not fitted yet"):
        unfitted.predict(numbers)


def test_cross_validation_warns_at_each_fold_and_counts_what_folds_spend_together(monkeypatch):
    quick(monkeypatch)
    X, y = table()
    with pytest.warns(PrivacyWarning) as said:
        found = cross_validate(classifier(steps=2), X, y, cv=3, return_estimator=True)
    assert len([w for w in said if issubclass(w.category, PrivacyWarning)]) == 2  # all folds but the first
    assert "every fit spends its own epsilon" in str(said[0].message)
    assert "so far to" in str(said[0].message)
    fits = found["estimator"]
    totals = []
    for other in fits[:2]:  # each row of the last fold's fit is in one of the others
        accountant = dp_accounting.pld.PLDAccountant()
        for line in (*other.ledger_.lines, *fits[2].ledger_.lines):
            accountant.compose(line.event, line.count)
        totals.append(accountant.get_epsilon(fits[2].delta_))
    assert fits[2].composed_epsilon_ == pytest.approx(max(totals), rel=1e-4)
    assert fits[0].composed_epsilon_ == pytest.approx(fits[0].epsilon_)
    with pytest.warns(PrivacyWarning, match="fit again, fit"):
        assert np.isfinite(cross_val_score(classifier(steps=1), X[:100], y[:100], cv=2)).all()


def test_people_who_come_back_with_other_rows_pay_again(monkeypatch):
    quick(monkeypatch)
    X, y = table()
    first, second = slice(0, N, 2), slice(1, N, 2)  # both rows of each person
    before = classifier().fit(X[first], y[first], unit="person")
    with pytest.warns(PrivacyWarning, match="fit again on people"):
        again = classifier().fit(X[second], y[second], unit="person")
    both = before.ledger_.composed(again.ledger_).epsilon(again.delta_)
    assert again.composed_epsilon_ == pytest.approx(both) != pytest.approx(again.epsilon_)


def test_other_rows_are_others(monkeypatch):
    quick(monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        for seed in range(2):
            fitted = classifier().fit(*table(seed=seed))
    assert fitted.composed_epsilon_ == pytest.approx(fitted.epsilon_)


def test_an_audit_splits_by_group_and_compares_with_a_twin(monkeypatch):
    quick(monkeypatch)
    X, y = table()
    fitted = classifier().fit(X, y, groups="sex")
    assert "sex" not in fitted.schema_.columns
    held_out, labels = table(seed=1)
    alone = fitted.audit(held_out, labels)
    assert set(alone) == {"disparity", "calibration"}
    assert alone["disparity"].headline["accuracy"].value == pytest.approx(fitted.score(held_out, labels))
    assert alone["disparity"].status.status != "private"
    compared = fitted.audit(held_out, labels, groups={"town": held_out["city"]}, train=(X, y))
    assert set(compared) == {"disparity", "calibration", "membership"}
    assert "twin" in " ".join(compared["disparity"].sentences())
    assert any("town" in sentence for sentence in compared["disparity"].sentences()) or compared["disparity"].values


@pytest.mark.parametrize("kind", ["frame", "array"])
def test_unit_and_groups_are_no_features_and_need_not_be_there_later(monkeypatch, kind):
    quick(monkeypatch)
    X, y = table()
    X = X[["age", "person", "income", "sex"]]
    if kind == "array":
        X = np.column_stack([X["age"], np.arange(N) // 2, X["income"], X["sex"] == "f"]).astype(float)
    names = ("person", "sex") if kind == "frame" else ("x1", "x3")
    fitted = PrivateClassifier(classes=["no", "yes"], ranges=(0, 100), steps=4, insecure_seed=1)
    fitted.fit(X, y, groups=names[1], unit=names[0])
    assert fitted.n_features_in_ == 2
    assert getattr(fitted, "feature_names_in_", np.array(["age", "income"])).tolist() == ["age", "income"]
    assert (fitted.unit_, fitted.groups_) == (names[0], [names[1]])
    features = X.iloc[:, [0, 2]] if kind == "frame" else X[:, [0, 2]]
    np.testing.assert_array_equal(fitted.predict_proba(X), fitted.predict_proba(features))
    other = X.copy()
    if kind == "frame":
        other["person"], other["sex"] = "nobody", "m"
    else:
        other[:, [1, 3]] = 99
    np.testing.assert_array_equal(fitted.predict_proba(X), fitted.predict_proba(other))
    with pytest.raises(DataError, match=r"expecting 2 features|feature names should match"):
        fitted.predict(X.iloc[:, [0, 1]] if kind == "frame" else X[:, :1])


def of_others():
    held_out, labels = table(seed=1)
    held_out["person"] = "q" + held_out["person"]
    return held_out, labels


def test_whoever_was_trained_on_is_no_outsider(monkeypatch):
    quick(monkeypatch)
    X, y = table()
    held_out, labels = of_others()
    fitted = classifier(insecure_seed=1).fit(X, y, unit="person")
    again = pickle.loads(pickle.dumps(fitted))
    held_out.loc[:9, "person"] = ["p7", "p7", "p8", "p8", "p9", *["new"] * 5]
    refused = "3 of the people to audit on, by 'person', were trained on.*Leave their rows out of X"
    for asked in (fitted, again):
        with pytest.raises(DataError, match=refused):
            asked.audit(held_out, labels, train=(X, y), names="disparity")
    for unit in (None, "person", held_out["person"]):
        with pytest.raises(DataError, match=refused):
            fitted.audit(held_out, labels, unit=unit, names="disparity")
    assert again.audit(held_out, labels, names="disparity")  # of another process: who was trained on is in no file


def test_a_range_names_nobody(monkeypatch):
    quick(monkeypatch)
    X, y = table()
    held_out, labels = of_others()
    fitted = classifier(insecure_seed=1, ranges=PLAIN).fit(X.drop(columns="person"), y, unit=list(range(N)))
    held_out = held_out.drop(columns="person")
    assert fitted.audit(held_out, labels, unit=range(N), names="disparity")
    with pytest.raises(
        DataError, match=f"{N} of the people to audit on, by 'unit', were trained on.*number everyone differently"
    ):
        fitted.audit(held_out, labels, unit=list(range(N)), names="disparity")


def test_an_audit_counts_the_people_that_fit_was_told_of(monkeypatch):
    quick(monkeypatch)
    X, y = table()
    held_out, labels = of_others()
    fitted = classifier(insecure_seed=1).fit(X, y, unit="person")
    by_column = fitted.audit(held_out, labels, train=(X, y), names="disparity")
    said = fitted.audit(held_out.drop(columns="person"), labels, unit=held_out["person"], names="disparity")
    rows = fitted.audit(held_out, labels, unit=range(N), names="disparity")
    people = [result["disparity"].headline["accuracy"].n for result in (by_column, said, rows)]
    assert people == [N // 2, N // 2, N]


def test_rows_of_nobody_are_not_audited_where_people_are_protected(monkeypatch):
    quick(monkeypatch)
    X, y = table()
    bare, (held_out, labels) = X.drop(columns="person"), of_others()
    column = classifier().fit(X, y, unit="person")
    with pytest.warns(PrivacyWarning):
        entries = classifier(ranges=PLAIN).fit(bare, y, unit=X["person"])
    rows, owners = held_out.drop(columns="person"), held_out["person"]
    for fitted in (column, entries):
        with pytest.raises(DataError, match=r"unit=None: `fit` was told.*unit=\[\.\.\.\].*range\(len\(X\)\)"):
            fitted.audit(rows, labels)
    with pytest.raises(DataError, match="unit=None"):
        entries.audit(rows, labels, unit=owners, train=(bare, y))
    assert "membership" in entries.audit(rows, labels, unit=owners, train=(bare, y, X["person"]))


@pytest.mark.parametrize(
    ("y", "classes", "kind"),
    [
        (np.array([0, 1] * 50, dtype=object), [0, 1], "i"),
        (pd.Series([5, 7] * 50, dtype=object), [5, 7], "i"),
        (pd.Series([0, 1] * 50, dtype="Int64"), [0, 1], "i"),
        (np.array([True, False] * 50, dtype=object), None, "b"),
        (np.array(["a", "b"] * 50, dtype=object), ["a", "b"], "O"),
    ],
)
def test_labels_in_an_array_of_objects(monkeypatch, y, classes, kind):
    quick(monkeypatch)
    X = np.linspace(0, 1, 100)[:, None]
    fitted = PrivateClassifier(classes=classes, ranges=(0, 1), steps=2).fit(X, y)
    assert fitted.classes_.dtype.kind == kind
    assert set(fitted.predict(X).tolist()) <= set(y)
    assert fitted.score(X, y) == np.mean(fitted.predict(X) == np.asarray(y))
    assert fitted.audit(X, y)["calibration"].headline


def rows_of(last):
    made = np.random.default_rng(0)
    rows = [[float(made.integers(1, 3)), float(made.uniform(0, 10))] for _ in range(60)]
    rows[-1][0] = last
    return rows


def test_one_entry_of_a_list_does_not_change_how_others_are_read(monkeypatch):
    """NumPy gives a list one type: a single text would turn everybody's 1.0 into '1.0', which is no category."""
    quick(monkeypatch)
    y = [int(row[0] == 1) for row in rows_of(2.0)]
    fitted = PrivateClassifier(classes=[0, 1], ranges={0: ["1", "2"], 1: (0, 10)}, steps=2).fit(rows_of(2.0), y)

    def read(rows):
        return fitted.schema_.inputs(base.table_of(rows).columns)[:-1]

    for odd in ("x", True, None, 2**70):
        assert torch.equal(read(rows_of(2.0)), read(rows_of(odd)))
    assert torch.equal(read(rows_of(2.0)), read(np.array(rows_of(2.0))))
    assert np.array_equal(fitted.predict(rows_of(2.0)), fitted.predict(np.array(rows_of(2.0))))


def test_a_list_and_an_array_hold_the_same_people():
    rows = rows_of(2.0)
    one, other = (spending.digests(base.table_of(kind(rows)).columns) for kind in (list, np.array))
    assert np.array_equal(one, other)
    assert (spending.digests(base.table_of(rows_of("x")).columns) == one).sum() == len(rows) - 1


@pytest.mark.filterwarnings("ignore::noisewise.errors.PrivacyWarning")
@pytest.mark.parametrize("last", ["yes", " yes"])
def test_a_single_label_does_not_spell_a_class(monkeypatch, last):
    quick(monkeypatch)
    X = np.linspace(0, 1, 40)[:, None]
    y = np.array(["no", "yes"] * 20, dtype=object)
    schema = PrivateClassifier(classes=["no", "yes"], ranges=(0, 1), steps=2).fit(X, y).schema_
    y[-1] = last
    fitted = PrivateClassifier(steps=2).fit(X, y, schema=schema)
    assert fitted.classes_.tolist() == ["no", "yes"]
    assert fitted.audit(X, y)["calibration"].headline


@pytest.mark.parametrize("there", [0, 1])
def test_whether_a_class_occurs_does_not_spell_it(monkeypatch, there):
    quick(monkeypatch)
    X = np.linspace(0, 1, 40)[:, None]
    y = pd.Categorical(["no", "yes"] * (20 - there) + ["no", " c"] * there, categories=["no", "yes", " c"])
    assert PrivateClassifier(ranges=(0, 1), steps=2).fit(X, y).classes_.tolist() == [" c", "no", "yes"]


@pytest.mark.filterwarnings("ignore::noisewise.errors.PrivacyWarning")
def test_whole_labels_of_a_list_stay_whole_whatever_one_of_them_is(monkeypatch):
    quick(monkeypatch)
    X = np.linspace(0, 1, 40)[:, None]
    schema = PrivateClassifier(classes=[0, 1], ranges=(0, 1), steps=2).fit(X, [0, 1] * 20).schema_
    for last in (1, 1.0):
        fitted = PrivateClassifier(steps=2).fit(X, [0, 1] * 19 + [0, last], schema=schema)
        assert fitted.classes_.dtype.kind == "i"


def test_noise_that_can_be_had_again_has_no_finite_epsilon(monkeypatch):
    quick(monkeypatch)
    X = np.random.default_rng(3).uniform(size=(40, 1))
    fitted = PrivateClassifier(classes=[0, 1], ranges=(0, 1), steps=2, insecure_seed=0).fit(X, [0, 1] * 20)
    assert (fitted.status_.status, fitted.epsilon_) == ("not-private", math.inf)
    with pytest.warns(PrivacyWarning, match="so far to ∞"):
        again = PrivateClassifier(classes=[0, 1], ranges=(0, 1), steps=2).fit(X, [0, 1] * 20)
    assert math.isfinite(again.epsilon_)
    assert again.composed_epsilon_ == math.inf


def test_labels_of_several_kinds_are_refused():
    with pytest.raises(DataError, match="y: Unknown label type"):
        PrivateClassifier(classes=[0, 1], ranges=(0, 1)).fit(np.zeros((4, 1)), np.array([0, "1", 0, 1], dtype=object))


def test_settings_are_said_once_and_kept_as_they_are():
    shared = inspect.signature(base.Private).parameters
    for kind, own in ((PrivateClassifier, "classes"), (PrivateRegressor, "target")):
        assert set(inspect.signature(kind).parameters) == {*shared, own} == set(kind().get_params())
        ranges = {"age": (0, 1)}
        one = kind(2, ranges=ranges, **{own: "public"})
        assert one.ranges is ranges
        assert clone(one).get_params() == one.get_params()
        assert one != clone(one)
        with pytest.raises(TypeError):
            kind(2, 3)


def test_odd_values_are_told_when_predicting(monkeypatch):
    quick(monkeypatch)
    X, y = table()
    fitted = classifier().fit(X, y)
    X.loc[0, "income"] = 1e6
    with pytest.warns(OddRows, match="income"):
        fitted.predict(X)
    with pytest.raises(DataError, match="feature names should match"):
        fitted.predict(X.rename(columns={"income": "wage"}))


def test_one_s_own_model_is_a_function(monkeypatch):
    quick(monkeypatch)
    X, y = table()
    fitted = classifier(model=lambda shape, outputs: torch.nn.Linear(shape[0], outputs)).fit(X, y)
    assert isinstance(fitted.model_, torch.nn.Linear)


def test_predictions_are_those_of_the_average(monkeypatch):
    """The weights that `fit` averages are what is kept and asked."""
    quick(monkeypatch)
    trained = []

    def noted(recipe, **settings):
        trained.append(whole_fit(recipe, **settings))
        return trained[-1]

    whole_fit = base.fit
    monkeypatch.setattr(base, "fit", noted)
    X, y = table(100)
    fitted = classifier(steps=None).fit(X, y)
    averaged = trained[0].averaged
    assert all(torch.equal(parameter, averaged[name]) for name, parameter in fitted.model_.named_parameters())
    assert any(not torch.equal(parameter, averaged[name]) for name, parameter in trained[0].model.named_parameters())


def test_fits_of_other_processes_are_said_to_be_left_out(monkeypatch):
    quick(monkeypatch)
    monkeypatch.setattr(spending.multiprocessing, "current_process", lambda: SimpleNamespace(name="LokyProcess-1"))
    monkeypatch.setattr(spending, "_TOLD", [])
    X = np.random.default_rng(11).uniform(size=(40, 1))
    with pytest.warns(PrivacyWarning, match=r"another one started \(n_jobs\).*n_jobs=1"):
        PrivateClassifier(classes=[0, 1], ranges=(0, 1), steps=2).fit(X, [0, 1] * 20)
    X = np.random.default_rng(12).uniform(size=(40, 1))
    PrivateClassifier(classes=[0, 1], ranges=(0, 1), steps=2).fit(X, [0, 1] * 20)  # once is enough


def test_lists_are_checked_entry_by_entry(monkeypatch):
    quick(monkeypatch)
    y, rows = [0, 1] * 20, [[bool(place % 2), place / 40] for place in range(40)]
    fitted = PrivateClassifier(classes=[0, 1], ranges=(0, 1), steps=2).fit(rows, y)
    assert np.array_equal(fitted.predict(rows), fitted.predict(np.array(rows)))
    for wrong, words in (
        (math.inf, "contains infinity, in row 3, column 1"),
        (1j, "Complex data not supported"),
    ):
        with pytest.raises(DataError, match=words):
            fitted.predict([*rows[:3], [0.0, wrong]])
    with pytest.raises(DataError, match="rows have different lengths"):
        fitted.predict([[0.1, 0.2], [0.1]])


def test_rows_with_dates_and_huge_numbers_have_digests():
    frame = pd.DataFrame({"when": pd.date_range("2020", periods=4), "huge": [10**400, 1, "x", None]})
    marks = spending.digests({name: frame[name] for name in frame})
    assert len(set(marks.tolist())) == 4
    assert np.array_equal(marks, spending.digests({name: frame[name].copy() for name in frame}))
