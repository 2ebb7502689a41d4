"""The fixtures of browser tests."""

from browsing import chromium, person
from server_process import server

__all__ = ["chromium", "person", "server"]
