"""What the commands share: how they speak, and the server that they speak with."""

import argparse
import os
import sys

from gradwire_protocol.codecs import Number

from gradwire.client import Client
from gradwire.settings import ENVIRONMENT
from gradwire.transport.http import clean_server, exposes_token
from gradwire.wording import printable


def say(text: str) -> None:
    """Print to stdout, as a terminal can show it."""
    # Flushed here, where a reader that has gone is still noticed without a complaint of Python's.
    print(printable(text), flush=True)


def complain(text: str, *, command: str = "gradwire") -> None:
    """Print one line to stderr."""
    print(f"{command}: {printable(text)}", file=sys.stderr, flush=True)


def client_of(options: argparse.Namespace) -> Client | None:
    """Return a client of the server in the options or the environment, None if none is named."""
    server = options.server or os.environ.get(ENVIRONMENT["server"])
    token = options.token or os.environ.get(ENVIRONMENT["token"])
    if not server:
        return None
    if exposes_token(clean_server(server), token):
        complain("the token travels unencrypted over plain http; others on the way can read it and act with it")
    return Client(server, token)


def parameter(text: str) -> tuple[str, Number]:
    """Read NAME=NUMBER."""
    name, _, value = text.partition("=")
    try:
        return name, int(value)
    except ValueError:
        return name, float(value)
