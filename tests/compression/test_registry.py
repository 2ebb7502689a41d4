import pytest
import torch
from gradwire_compression import Plan, PlanError, plan, registry
from gradwire_compression.plan import Plan as PlanClass
from gradwire_protocol.codecs import CATALOGUE
from gradwire_protocol.plans import EXCHANGES, PlanSpec


def test_registry_equals_the_catalogue_of_the_protocol():
    assert registry.available() == tuple(CATALOGUE)
    for name, spec in CATALOGUE.items():
        facts = registry.facts(name)
        assert facts.bits_per_element == spec.bits_per_element
        assert facts.is_lossy == spec.is_lossy
        assert facts.has_residual == spec.has_residual
        assert facts.safe_optimizers == spec.safe_optimizers
        assert facts.safe_alternative == spec.safe_alternative
        rows = [(p.name, p.kind, p.default, p.low, p.high, p.direction, p.presets) for p in facts.parameters]
        assert rows == [(p.name, p.kind, p.default, p.low, p.high, p.direction, p.presets) for p in spec.parameters]


def test_safe_alternatives_are_codecs_without_conditions():
    for name in registry.available():
        facts = registry.facts(name)
        if facts.safe_optimizers:
            assert not registry.facts(facts.safe_alternative).safe_optimizers


def test_plan_has_the_fields_and_defaults_that_travel():
    travelling = PlanSpec()
    names = PlanSpec.__struct_fields__
    assert set(PlanClass().to_dict()) == set(names)
    for name in names:
        assert getattr(Plan(), name) == getattr(travelling, name)
    assert plan.EXCHANGES == EXCHANGES


@pytest.mark.parametrize("name", [name for name in registry.available() if name != "none"])
def test_codec_without_kernels_for_a_device_is_refused(name):
    with pytest.raises(PlanError, match=f"{name} has no kernels for mps tensors in this version; use none"):
        registry.make(name, Plan(codec=name).parameters, torch.device("mps"))


@pytest.mark.parametrize("name", [name for name in registry.available() if name != "none"])
def test_codecs_but_powersgd_have_kernels_for_cuda(name):
    if name == "powersgd":
        with pytest.raises(PlanError, match="powersgd has no kernels for cuda tensors"):
            registry.make(name, Plan(codec=name).parameters, torch.device("cuda"))
    else:
        assert registry.make(name, Plan(codec=name).parameters, torch.device("cuda")).name == name
