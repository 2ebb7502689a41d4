"""The page of compatibility says what the tests prove, no more, and in which versions."""

from pathlib import Path

import pytest

from docs import compatibility


def test_page_is_what_the_marks_say() -> None:
    assert compatibility.PAGE.read_text() == compatibility.page(), "write it anew: python -m docs.compatibility"


def test_every_integration_is_proved_with_the_real_package() -> None:
    proved = {proof.package for proof in compatibility.proofs() if proof.claim == "steered"}
    modules = Path(compatibility.ROOT / "agent" / "gradwire" / "integrations").glob("[!_]*.py")
    assert {path.stem for path in modules} - {"following"} <= proved


def test_version_is_the_one_that_ci_runs() -> None:
    pins = compatibility.versions()
    assert {proof.package for proof in compatibility.proofs()} <= set(pins)


def test_mark_with_an_unknown_claim_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "test_made_up.py"
    mark = '@pytest.mark.compatibility(framework="a", package="torch", claim="perfect", proves="b")'
    path.write_text(f"{mark}\ndef test_nothing():\n    pass\n")
    with pytest.raises(ValueError, match="test_nothing claims 'perfect'"):
        list(compatibility._proofs_of(path))
