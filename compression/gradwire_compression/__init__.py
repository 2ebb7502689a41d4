"""Codecs, kernels, error feedback, collectives and plans."""

from gradwire_compression.codecs import registry
from gradwire_compression.errors import (
    CompressionError,
    ExchangeError,
    HookTakenError,
    PlanError,
    PlanMismatchError,
    StateError,
)
from gradwire_compression.exchange import Exchange
from gradwire_compression.hooks import ddp
from gradwire_compression.kernels.dispatch import notes
from gradwire_compression.observer import BucketTiming, Match, Observer, Silence
from gradwire_compression.plan import Decision, Plan, optimizer_class_name
from gradwire_compression.prepared import Prepared, SwitchReport
from gradwire_compression.state import redistribute, seal
from gradwire_compression.state_bytes import checkpoint_entry
from gradwire_compression.state_files import load_state, save_state

__all__ = [
    "BucketTiming",
    "CompressionError",
    "Decision",
    "Exchange",
    "ExchangeError",
    "HookTakenError",
    "Match",
    "Observer",
    "Plan",
    "PlanError",
    "PlanMismatchError",
    "Prepared",
    "Silence",
    "StateError",
    "SwitchReport",
    "checkpoint_entry",
    "ddp",
    "load_state",
    "notes",
    "optimizer_class_name",
    "redistribute",
    "registry",
    "save_state",
    "seal",
]
