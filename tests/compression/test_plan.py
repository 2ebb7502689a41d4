import json
import subprocess
import sys

import pytest
import torch
from gradwire_compression import Plan, PlanError, optimizer_class_name
from gradwire_compression.plan import check_optimizer
from torch import nn


def _parameters():
    return [
        ("embedding", torch.zeros(100, 20)),
        ("norm", torch.zeros(5000)),
        ("small", torch.zeros(3, 5)),
        ("head", torch.zeros(100, 20)),
        ("wide", torch.zeros(100, 20, dtype=torch.float64)),
        ("counts", torch.zeros(100, 20, dtype=torch.int64)),
    ]


def test_plan_fills_in_parameters_so_that_equal_plans_have_equal_hashes():
    assert Plan(codec="int8") == Plan(codec="int8", parameters={"block": 256})
    assert Plan(codec="int8").hash() == Plan(codec="int8", parameters={"block": 256}).hash()
    assert Plan(codec="int8").hash() != Plan(codec="int8", parameters={"block": 128}).hash()
    assert Plan(codec="int8").hash() != Plan(codec="int8", force=True).hash()


def test_plan_hash_is_exact_in_float64_and_the_same_in_another_process():
    plan = Plan(codec="onebit", exempt_patterns=("*.weight", "层*"))
    number = plan.hash()
    assert 0 < number < 2**48
    assert int(float(number)) == number
    code = "import sys, json, gradwire_compression as g; print(g.Plan.from_dict(json.loads(sys.argv[1])).hash())"
    answer = subprocess.run(
        [sys.executable, "-c", code, json.dumps(plan.to_dict())], capture_output=True, text=True, check=True
    )
    assert int(answer.stdout) == number


def test_plan_survives_json():
    plan = Plan(codec="onebit", exempt_patterns=("a*",), min_elements=7, warmup_steps=3, exempt_1d=False)
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            {"codec": "gzip"},
            "codec 'gzip' is unknown; known codecs are none, bf16, fp16, int8, fp8, int4, onebit, topk",
        ),
        ({"codec": "int8", "parameters": {"bits": 4}}, "codec int8 has no parameter 'bits'; it has block"),
        ({"codec": "bf16", "parameters": {"block": 64}}, "codec bf16 has no parameter 'block'; it has none"),
        ({"codec": "int8", "parameters": {"block": 63}}, "int8.block is 63; wanted: int from 64 to 4096"),
        ({"codec": "int8", "parameters": {"block": 4097}}, "int8.block is 4097; wanted: int from 64 to 4096"),
        ({"codec": "int8", "parameters": {"block": 100.5}}, "int8.block is 100.5; wanted: int"),
        ({"codec": "int8", "parameters": {"block": True}}, "int8.block is True; wanted: int"),
        ({"warmup_steps": -1}, "warmup_steps is -1; wanted: an integer of 0 or more"),
        ({"min_elements": 1.5}, "min_elements is 1.5; wanted: an integer of 0 or more"),
        ({"exchange": "ring"}, "exchange is 'ring'; wanted: one of auto, flat, hierarchical, hybrid"),
        ({"level": 9}, "a plan has no field 'level'"),
    ],
)
def test_plan_refuses_in_one_sentence(values, text):
    with pytest.raises(PlanError) as caught:
        Plan.from_dict(values)
    assert text in str(caught.value)


def test_plan_resolves_every_tensor_with_a_reason():
    decisions = Plan(codec="int8", exempt_patterns=("hea?",)).resolve(_parameters())
    assert [(decision.name, decision.codec, decision.reason) for decision in decisions] == [
        ("embedding", "int8", ""),
        ("norm", "exact", "at most one dimension"),
        ("small", "exact", "fewer than 1024 elements"),
        ("head", "exact", "matches hea?"),
        ("wide", "exact", "torch.float64 is averaged as it is"),
        ("counts", "exact", "torch.int64 is averaged as it is"),
    ]
    assert [decision.numel for decision in decisions] == [2000, 5000, 15, 2000, 2000, 2000]


def test_plan_can_compress_vectors_and_small_tensors():
    decisions = Plan(codec="int8", exempt_1d=False, min_elements=0).resolve(_parameters()[:4])
    assert {decision.codec for decision in decisions} == {"int8"}


def test_plan_none_leaves_everything_exact():
    assert {decision.codec for decision in Plan().resolve(_parameters())} == {"exact"}


class MySGD(torch.optim.SGD):
    """Other arithmetic under a parent's name."""


@pytest.mark.parametrize("optimizer_class", ["Adam", "AdamW", "my.SGD", None])
def test_onebit_is_refused_where_it_is_not_known_to_be_safe(optimizer_class):
    with pytest.raises(PlanError, match=r"onebit is not safe under .*accepted for SGD only; use int8"):
        check_optimizer(Plan(codec="onebit"), optimizer_class)
    check_optimizer(Plan(codec="onebit", force=True), optimizer_class)
    check_optimizer(Plan(codec="int8"), optimizer_class)


def test_onebit_is_accepted_under_torchs_sgd_only():
    parameters = list(nn.Linear(2, 2).parameters())
    assert optimizer_class_name(torch.optim.SGD(parameters, lr=1.0)) == "SGD"
    check_optimizer(Plan(codec="onebit"), "SGD")
    name = optimizer_class_name(MySGD(parameters, lr=1.0))
    assert name.endswith(".MySGD")
    assert optimizer_class_name(torch.optim.AdamW(parameters)) == "AdamW"
    with pytest.raises(PlanError):
        check_optimizer(Plan(codec="onebit"), name)
