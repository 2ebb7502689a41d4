"""The service runs without torch, and training code starts without the web stack."""

import subprocess
import sys

import pytest

BLOCKED = """
import importlib, pkgutil, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in {blocked!r}:
            raise ImportError(f"{{name}} is not to be imported here")
        if top in {frameworks!r}:
            raise ModuleNotFoundError(f"{{name}} is not installed here", name=top)

sys.meta_path.insert(0, Blocker())
for top in {packages!r}:
    package = importlib.import_module(top)
    for module in pkgutil.walk_packages(package.__path__, top + "."):
        if not module.name.endswith((".__main__", ".env")) and ".versions." not in module.name:
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                # Optional: kernels for CUDA are compiled with it, and nothing else imports them unasked.
                if error.name != "triton" and not module.name.startswith("gradwire.integrations."):
                    raise
"""

# Each integration imports its own, and nothing else imports an integration.
FRAMEWORKS = ("accelerate", "deepspeed", "lightning", "megatron", "pytorch_lightning", "tqdm", "transformers")

WEB_STACK = (
    "fastapi",
    "starlette",
    "sqlalchemy",
    "alembic",
    "uvicorn",
    "jinja2",
    "plotly",
    "babel",
    "prometheus_client",
)


@pytest.mark.parametrize(
    ("packages", "blocked"),
    [
        (
            ("gradwire_server", "gradwire_web", "gradwire_migrations"),
            ("torch", "triton", "gradwire", "gradwire_compression"),
        ),
        (("gradwire_protocol",), ("torch", "triton", *WEB_STACK)),
        (("gradwire_compression", "gradwire"), WEB_STACK),
    ],
    ids=["service", "protocol", "training"],
)
def test_room_imports_without_what_it_must_not_need(packages: tuple[str, ...], blocked: tuple[str, ...]) -> None:
    code = BLOCKED.format(packages=packages, blocked=blocked, frameworks=FRAMEWORKS)
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr


def test_agent_and_its_command_import_without_torch() -> None:
    code = BLOCKED.format(packages=(), blocked=("torch",), frameworks=FRAMEWORKS) + "import gradwire, gradwire.cli"
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
