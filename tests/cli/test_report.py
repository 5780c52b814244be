"""report: train, audit and read the page."""

from __future__ import annotations

import shutil

from noisewise.runs.files import read_json
from noisewise.wording import at_most

QUICK = ("--data", "digits", "--noise-multiplier", "4", "--steps", "3", "--batch-size", "64")


# --- train, audit, report, demo
def test_train_audit_report(noisewise, tmp_path) -> None:
    trained = noisewise("train", *QUICK, "--out", "runs/a")
    assert trained.code == 0, trained.err
    privacy = read_json(tmp_path / "runs/a/summary.json")["privacy"]
    for text in (
        f"epsilon {at_most(privacy['epsilon'])} (PLD)", "delta 1e-05", "add-remove, unit: one row", "private: every release",
        "runs/a/", "never publish this folder", "3 of about 64 rows", "Next: noisewise audit runs/a",
    ):  # fmt: skip
        assert text in trained.words
    audited = noisewise("audit", "runs/a", "--only", "disparity", "--only", "calibration")
    assert audited.code == 0
    extremes = read_json(tmp_path / "runs/a/sensitive/audits/disparity.json")["values"]["extremes"]["class"]
    payer, pays = extremes["pays_most"], extremes["largest_cost"]["value"] < 0  # after three steps noise may be ahead
    who = f"Class {payer} pays most" if pays else f"Nobody pays; class {payer} gains least"
    for text in ("everyone", "class 9", "private − twin", who, "not-private", "Mean loss"):
        assert text in audited.words
    assert all(len(line) <= 120 for line in audited.out.splitlines())
    reported = noisewise("report", "runs/a", "--out", "page.html")
    assert reported.code == 0
    assert "page.html" in reported.words
    assert "do not publish" in reported.words
    for text in ("Next: noisewise suggest runs/a", "Next: noisewise report runs/a --shareable"):
        assert text in reported.words
    shutil.copytree(tmp_path / "runs/a", tmp_path / "runs/b")
    both = noisewise("report", "runs/a", "runs/b", "--out", "both.html")
    assert "Next: noisewise compare runs/a runs/b" in both.words
    assert (tmp_path / "page.html").stat().st_size > 10_000
    assert noisewise("report", "runs/a", "--out", "page.html").code == 0  # written anew
    refused = noisewise("report", "runs/a", "--out", "runs/a/model.safetensors")
    assert refused.code == 2
    assert (
        "runs/a/model.safetensors exists and is no internal report of noisewise: choose another --out" in refused.words
    )
    inside = noisewise("report", "runs/a", "--out", "runs/a/page.html")
    assert "better move it out" in inside.words
    again = noisewise("train", *QUICK, "--out", "runs/a")
    assert again.code == 2
    assert "finished run" in again.words
