import pytest
import torch

from bench import kernels
from bench.kernels import COMPILED, REFERENCE

NUMEL = 5000


def test_every_codec_with_kernels_is_measured_on_every_backend() -> None:
    rows = kernels.measure(quick=True, numel=NUMEL).rows
    found = {(row["codec"], row["backend"], row["operation"]) for row in rows}
    for codec in kernels.codecs_with_kernels():
        for backend in (COMPILED, REFERENCE):
            assert {(codec, backend, "encode"), (codec, backend, "decode")} <= found
    assert {"int8", "onebit"} <= set(kernels.codecs_with_kernels())
    assert "none" not in kernels.codecs_with_kernels()


def test_backend_that_differs_from_the_reference_is_refused() -> None:
    subjects = kernels.make_subjects(torch.randn(NUMEL))
    wrong = next(one for one in subjects if one.codec == "int8" and one.backend == COMPILED)
    wrong.written["residual"][7] = 1.0
    with pytest.raises(RuntimeError, match="int8"):
        kernels.check(subjects)


def test_vector_of_zeros_is_refused() -> None:
    with pytest.raises(RuntimeError, match="zero or not finite"):
        kernels.check(kernels.make_subjects(torch.zeros(NUMEL)))


def test_ratios_are_taken_round_by_round() -> None:
    times = {("float32", "torch", "copy"): [1e-3, 4e-3, 1e-3], ("int8", COMPILED, "encode"): [2e-3, 8e-3, 2e-3]}
    row = kernels.rows_of(times, 250_000)[1]
    assert (row["x copy"], row["±"], row["rounds"]) == (2.0, 0.0, 3)
    assert row["GB/s"] == pytest.approx(0.5)


@pytest.mark.parametrize(("ratio", "is_met"), [(2.0, True), (2.01, False)])
def test_targets_look_at_compiled_kernels(ratio: float, is_met: bool) -> None:
    rows = [
        {"codec": "onebit", "backend": COMPILED, "operation": "encode", "x copy": ratio},
        {"codec": "onebit", "backend": REFERENCE, "operation": "encode", "x copy": 200.0},
    ]
    targets = kernels.targets_of(rows)
    assert targets["onebit_encode_times_a_copy"].ok is is_met
    assert targets["topk_encode_times_a_copy"].ok is False
