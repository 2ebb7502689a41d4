import pytest
from gradwire.errors import SettingError
from gradwire.settings import ENVIRONMENT, read_settings
from gradwire_protocol.plans import PlanSpec


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for variable in ENVIRONMENT.values():
        monkeypatch.delenv(variable, raising=False)


def test_everything_has_a_default():
    settings = read_settings({})
    assert settings.run == "unnamed"
    assert settings.server is None
    assert settings.plan == PlanSpec()


def test_an_argument_wins_over_the_environment(monkeypatch):
    monkeypatch.setenv("GRADWIRE_RUN", "from the environment")
    monkeypatch.setenv("GRADWIRE_SERVER", "http://environment:1")
    settings = read_settings({"run": "argument"})
    assert settings.run == "argument"
    assert settings.server == "http://environment:1"


@pytest.mark.parametrize(
    "plan",
    [
        "int8",
        {"codec": "int8"},
        '{"codec": "int8", "parameters": {"block": 256}}',
        PlanSpec(codec="int8"),
    ],
)
def test_a_plan_can_be_said_in_four_ways(plan):
    settings = read_settings({"plan": plan})
    assert settings.plan.codec == "int8"
    assert settings.plan.parameters == {"block": 256}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"run": ""}, None),
        ({"run": "a\0b"}, "run"),
        ({"run": "x" * 300}, "300 characters"),
        ({"run_id": "not-an-id"}, "run_id"),
        ({"server": "host:8420"}, "host:8420"),
        ({"server": "http://::1:8123"}, "http://::1:8123"),
        ({"plan": "int9"}, "int9"),
        ({"plan": {"codec": "int8", "parameters": {"block": 1}}}, "64 to 4096"),
        ({"plan": "{broken"}, "plan"),
        ({"total_steps": -1}, "total_steps"),
        ({"total_steps": True}, "total_steps"),
        ({"link_bytes_per_second": "fast"}, "GRADWIRE_LINK_BYTES_PER_SECOND"),
        ({"better": {"accuracy": "up"}}, "accuracy"),
    ],
)
def test_bad_values_are_refused_by_name(arguments, said):
    if said is None:
        assert read_settings(arguments).run == "unnamed"
        return
    with pytest.raises(SettingError, match=said):
        read_settings(arguments)
