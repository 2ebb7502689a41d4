"""Static files and their addresses; the content's hash is part of the address, so browsers may keep them."""

import hashlib
from functools import cache
from importlib.resources import files
from pathlib import Path

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

STATIC = "/static"
HASH_DIGITS = 12


def static_folder() -> Path:
    """Return the folder of static files in the installed package."""
    return Path(str(files("gradwire_web") / "static"))


@cache
def static_address(name: str) -> str:
    """Return the address of a static file, changing with its content."""
    content = (static_folder() / name).read_bytes()
    return f"{STATIC}/{name}?v={hashlib.sha256(content).hexdigest()[:HASH_DIGITS]}"


class Assets(StaticFiles):
    """Static files; those asked for with a hash never change under that address."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return the file, kept for a year with a hash in its address and checked each time without."""
        response = await super().get_response(path, scope)
        is_hashed = scope.get("query_string", b"").startswith(b"v=")
        response.headers["cache-control"] = "public, max-age=31536000, immutable" if is_hashed else "no-cache"
        return response
