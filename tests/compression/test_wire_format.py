"""The examples of docs/wire-format.md against the code."""

import re
from pathlib import Path

import pytest
import torch
from gradwire_compression.buckets import pack
from gradwire_compression.codecs.base import ScaledCodec
from gradwire_compression.layout import Layout

CPU = torch.device("cpu")
PAGE = (Path(__file__).parents[2] / "docs" / "wire-format.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(int8|fp8|int4|onebit|topk)` \| ([^|`]*, [^|`]*) \| ([^|]*) \|$", PAGE, re.MULTILINE)


def _bytes(text):
    """Turn "`7fc1` + 2 × `00`, then `01`" into bytes."""
    parts = re.findall(r"(?:(\d+) × )?`([0-9a-f]+)`", text)
    return b"".join(bytes.fromhex(digits) * int(count or 1) for count, digits in parts)


def test_page_has_its_examples():
    assert len(ROWS) == 8


@pytest.mark.parametrize(("name", "gradient", "payload"), ROWS)
def test_payload_is_the_documented_one(name, gradient, payload):
    x = torch.tensor([float(number.replace("−", "-")) for number in gradient.split(",")])
    codec = ScaledCodec("topk", 256, CPU, num_scales=2) if name == "topk" else ScaledCodec(name, 64, CPU)
    layout = Layout.build(pack([("tensor", x.numel())]), codec.block)
    encoded = torch.full((codec.wire_bytes(1),), 0x99, dtype=torch.uint8)
    codec.encode(x, layout, torch.zeros(x.numel()), encoded)
    assert bytes(encoded.tolist()).hex() == _bytes(payload).hex()
