"""What `gradwire trial` makes of its command and of what the ranks did; the trainings are in tests/distributed."""

import math
import sys

import pytest
import torch
from gradwire.client import Interval, Quality
from gradwire.errors import SettingError
from gradwire.trial.arm import checksum_of
from gradwire.trial.losses import BackwardLosses
from gradwire.trial.outcome import Timing, arm_outcome, speedup, timing, why_unpaired
from gradwire.trial.rank import seed_process
from gradwire.trial.records import RankResult
from gradwire.trial.report import quality_sentence
from gradwire.trial.torchrun import rewrite
from msgspec.structs import replace as with_fields

RANK = (sys.executable, "-m", "gradwire.trial.rank")

RESULT = RankResult(
    rank=0,
    world_size=1,
    device="cpu",
    checksum="abc",
    start_step=0,
    step_seconds=(0.01,) * 39,
    losses=(2.5, *(1.0,) * 39),
    is_cut=True,
)


@pytest.mark.parametrize(
    ("command", "wanted", "name"),
    [
        (
            ["torchrun", "--nproc-per-node", "2", "a/train.py", "--lr", "3", "--nnodes"],
            ["torchrun", "--nproc-per-node", "2", "--no-python", *RANK, "a/train.py", "--lr", "3", "--nnodes"],
            "train",
        ),
        (
            ["torchrun", "-m", "pkg.train", "-m"],
            ["torchrun", "--no-python", *RANK, "-m", "pkg.train", "-m"],
            "pkg.train",
        ),
        (
            ["python3", "-m", "torch.distributed.run", "--standalone", "train.py"],
            ["python3", "-m", "torch.distributed.run", "--standalone", "--no-python", *RANK, "train.py"],
            "train",
        ),
        (
            ["/opt/bin/torchrun", "--no-python", "gradwire", "run", "--", "train.py", "-x"],
            ["/opt/bin/torchrun", "--no-python", *RANK, "train.py", "-x"],
            "train",
        ),
        (
            ["torchrun", "--no-python", "python3", "train.py"],
            ["torchrun", "--no-python", *RANK, "train.py"],
            "train",
        ),
    ],
)
def test_every_process_runs_the_script_as_a_rank_of_the_trial(
    command: list[str], wanted: list[str], name: str
) -> None:
    launch = rewrite(command)
    assert list(launch.command) == wanted
    assert launch.name == name


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (["python", "train.py"], "starts torchrun"),
        ([], "starts torchrun"),
        (["torchrun", "--nnodes", "2", "train.py"], "one machine; got --nnodes 2"),
        (["torchrun", "--no-python", "./train.sh"], "cannot look into './train.sh'"),
        (["torchrun", "--no-python", "python", "-O", "train.py"], "no options of Python"),
    ],
)
def test_what_is_no_trial_is_refused_by_a_sentence(command: list[str], text: str) -> None:
    with pytest.raises(SettingError, match=text):
        rewrite(command)


def test_equal_starts_are_a_pair_and_others_say_why_not() -> None:
    assert why_unpaired([RESULT], [with_fields(RESULT, losses=(2.5, *(9.0,) * 39))]) == ""
    other = with_fields(RESULT, checksum="abd")
    assert "rank 0 began with other parameters (checksum abc, then abd)" in why_unpaired([RESULT], [other])
    data = with_fields(RESULT, losses=(2.5000001, *RESULT.losses[1:]))
    assert "draws its data from something else" in why_unpaired([RESULT], [data])
    assert "2 and 1 ranks" in why_unpaired([RESULT, with_fields(RESULT, rank=1)], [RESULT])
    assert "after step 7" in why_unpaired([RESULT], [with_fields(RESULT, start_step=7)])
    gpu = [with_fields(result, device="cuda") for result in (RESULT, data)]
    assert why_unpaired(gpu[:1], gpu[1:]) == ""


def test_scripts_that_name_no_loss_are_a_pair_whose_loss_is_unknown() -> None:
    silent = with_fields(RESULT, losses=(math.nan,) * 40)
    assert why_unpaired([silent], [silent]) == ""
    assert "draws its data" in why_unpaired([silent], [RESULT])
    assert arm_outcome("run", "none", [silent], 40).last_loss is None


def test_arm_compares_common_steps_only() -> None:
    other = with_fields(RESULT, rank=1, losses=(2.5, *(3.0,) * 39))
    arm = arm_outcome("run", "int8", [RESULT, other], 20)
    assert (arm.num_steps, arm.last_loss) == (40, 2.0)
    assert arm.timing.step_seconds == pytest.approx(0.01)


def test_step_time_leaves_out_the_first_steps_and_states_its_error() -> None:
    seconds = [5.0] * 10 + [0.9, 1.1] * 45
    found = timing(seconds)
    assert found.step_seconds == pytest.approx(1.0, rel=0.02)
    assert found.standard_error is not None
    assert timing([1.0] * 8) == Timing(step_seconds=1.0)
    assert timing([1.0]) == Timing(step_seconds=None)


def test_speedup_has_an_interval_or_is_not_stated() -> None:
    exact, noisy = Timing(step_seconds=1.3, standard_error=0.0), Timing(step_seconds=1.0, standard_error=0.01)
    found = speedup(exact, noisy)
    assert found is not None
    assert found.value == pytest.approx(1.3)
    # Student's t for 18 degrees of freedom, by hand.
    assert found.high / found.value == pytest.approx(math.exp(2.101 * 0.01))
    assert found.low * found.high == pytest.approx(1.69)
    assert speedup(exact, Timing(step_seconds=1.0)) is None


@pytest.mark.parametrize(
    ("quality", "sentence"),
    [
        (
            Quality(
                state="within_limit",
                drift=Interval(value=0.001, low=-0.0002, high=0.002),
                limit=0.005,
                metric="loss",
                num_checks=10,
                last_step=1200,
            ),
            "Quality within limit: loss is 0.1 % worse than uncompressed (-0.02 to 0.2 %; limit 0.5 %), 10 checks, "
            "last at step 1 200.",
        ),
        (
            Quality(state="breach", drift=Interval(reason="nonfinite"), limit=0.005, metric="loss"),
            "Quality beyond limit: loss is not a finite number.",
        ),
        (
            Quality(state="no_evidence", drift=Interval(), limit=0.005, reason="no_common_steps"),
            "No evidence about quality: the runs have no loss at the same steps. This does not mean quality is "
            "fine.",
        ),
    ],
)
def test_sentence_says_what_the_server_found(quality: Quality, sentence: str) -> None:
    assert quality_sentence(quality) == sentence


def test_checksum_sees_parameters_and_buffers() -> None:
    model = torch.nn.BatchNorm1d(8)
    before = checksum_of(model)
    assert checksum_of(model) == before
    model.running_mean[3] += 1e-6  # type: ignore[index]
    changed = checksum_of(model)
    assert changed != before
    with torch.no_grad():
        model.weight[0] = 2.0
    assert checksum_of(model) not in (before, changed)


def test_seeded_process_draws_the_same_again() -> None:
    state = torch.get_rng_state()
    try:
        seed_process(7)
        first = torch.rand(3)
        seed_process(7)
        assert torch.equal(torch.rand(3), first)
        seed_process(8)
        assert not torch.equal(torch.rand(3), first)
    finally:
        torch.set_rng_state(state)


@pytest.fixture
def losses(monkeypatch: pytest.MonkeyPatch) -> BackwardLosses:
    monkeypatch.setattr(torch.Tensor, "backward", torch.Tensor.backward)
    monkeypatch.setattr(torch.amp.GradScaler, "scale", torch.amp.GradScaler.scale)
    return BackwardLosses()


def test_loss_is_what_backward_is_called_on(losses: BackwardLosses) -> None:
    weight = torch.ones((), requires_grad=True)
    (weight * 2).backward()
    (weight * 4).backward()
    # Of several numbers none is the loss.
    (weight * torch.ones(3)).backward(torch.ones(3))
    taken = losses.take()
    assert taken is not None
    assert float(taken) == 3.0
    assert losses.take() is None
    assert weight.grad == 9.0


def test_scaled_loss_counts_as_it_was_before(losses: BackwardLosses) -> None:
    weight = torch.ones((), requires_grad=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(weight * 2).backward()
    taken = losses.take()
    assert taken is not None
    assert float(taken) == 2.0
    assert weight.grad == 2048.0
