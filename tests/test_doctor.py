"""What the doctor reports of the library, the backends and the optional packages."""

import io

import pytest

from maskprior import doctor
from maskprior.doctor import Fact, examine, print_report
from maskprior.kernels import native


def facts() -> dict[str, Fact]:
    return {fact.subject: fact for fact in examine()}


def test_the_backend_of_each_type_is_tried() -> None:
    found = facts()
    name = "native" if native.LIBRARY.functions else "aten"
    assert found["cpu float32"].is_well
    assert found["cpu float32"].text.startswith(f"{name} (error ")
    assert found["cpu float64"].text.startswith("aten (error ")
    assert "native computes float32 and bfloat16" in found["cpu float64"].text


def test_a_missing_library_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "LIBRARY", native.Library(None, 0, "was not built: no compiler"))
    found = facts()
    assert found["native attention"] == Fact(
        "native attention", False, "was not built: no compiler; the aten backend is used instead"
    )
    assert found["cpu float32"].text.endswith("native was not built: no compiler")


@pytest.mark.skipif(native.LIBRARY.functions is None, reason=native.LIBRARY.reason)
def test_a_present_library_names_its_code() -> None:
    assert facts()["native attention"].text.startswith(f"uses {native.LEVELS[native.LIBRARY.level]} code on ")


def test_a_wrong_result_is_not_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "TOLERANCE", dict.fromkeys(doctor.TOLERANCE, 0.0))
    assert not facts()["cpu bfloat16"].is_well


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "OPTIONAL", ("no-such-package", "torch"))
    found = facts()
    assert found["no-such-package"] == Fact("no-such-package", False, "not installed (optional)")
    assert found["torch"].is_well


def test_the_report_has_a_line_for_each_fact() -> None:
    stream = io.StringIO()
    print_report([Fact("torch", True, "2.6"), Fact("native attention", False, "was not built")], stream)
    assert stream.getvalue() == "ok  torch             2.6\n--  native attention  was not built\n"
