"""Files in the database: pictures and latents, each kept once, by its SHA-256."""

import hashlib

from sqlalchemy import Connection, insert, select

from . import tables as t

PNG, SAFETENSORS = "image/png", "application/vnd.safetensors"


def put_asset(c: Connection, content: bytes, media: str = PNG) -> str:
    """Stores a file, once, and returns its hash."""
    digest = hashlib.sha256(content).hexdigest()
    if c.execute(select(t.asset.c.sha256).where(t.asset.c.sha256 == digest)).first() is None:
        c.execute(insert(t.asset).values(sha256=digest, media=media, content=content))
    return digest


def get_asset(c: Connection, digest: str) -> tuple[str, bytes] | None:
    """Returns the media type and the content of a file, if it is there."""
    row = c.execute(select(t.asset).where(t.asset.c.sha256 == digest)).one_or_none()
    return None if row is None else (row.media, row.content)
