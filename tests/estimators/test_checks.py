"""scikit-learn's own estimator checks, at a fixed noise: they are about the interface, and calibration has its own tests."""

import warnings

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

from noisewise.estimators import PrivateClassifier, PrivateRegressor, base, spending

ESTIMATORS = {
    "classifier": PrivateClassifier(classes="public", ranges="public", steps=3, insecure_seed=0),
    "regressor": PrivateRegressor(target="public", ranges="public", steps=3, insecure_seed=0),
}
EXPECTED_FAILURES: dict[str, str] = {}  # check: why it makes no sense here; there is none at present
QUICK = {  # of both estimators; all the others are slow together
    "check_do_not_raise_errors_in_init_or_set_param",
    "check_dont_overwrite_attributes",
    "check_dtype_object",
    "check_estimators_unfitted",
    "check_fit2d_1sample",
    "check_fit_check_is_fitted",
    "check_get_params_invariance",
    "check_methods_sample_order_invariance",
    "check_n_features_in",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_set_params",
}


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(base, "noise_for", lambda *_: 1.0)
    monkeypatch.setattr(spending, "_FITS", [])


def checks(quick):
    for kind, estimator in ESTIMATORS.items():
        for _, check in estimator_checks_generator(estimator, legacy=True, expected_failed_checks=EXPECTED_FAILURES):
            name = check.func.__name__
            if (name in QUICK) == quick:
                yield pytest.param(estimator, check, id=f"{kind}-{name}")


def passes(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each fit of a check is a fit on the same rows
        check(estimator)
    return True


@pytest.mark.parametrize(("estimator", "check"), list(checks(quick=True)))
def test_interface(estimator, check):
    assert passes(estimator, check)


@pytest.mark.slow
@pytest.mark.parametrize(("estimator", "check"), list(checks(quick=False)))
def test_interface_entirely(estimator, check):
    assert passes(estimator, check)
