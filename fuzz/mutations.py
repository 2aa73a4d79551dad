"""Values, bytes, text and trees that nobody who means well would write."""

import copy
import json
import math
import random
import struct
from typing import Any

NUMBERS: tuple[float, ...] = (
    *(0, -0.0, 1, -1, 2, 3, 7, 0.1, 0.5, 1.5, 10, 100, 1e-320, 1e-6, 1e5, 10**6, 1e308, -1e308),
    *(math.inf, -math.inf, math.nan, 255, 256, 257, 65535, 65536, 2**31 - 1, 2**31, -(2**31)),
    *(2**32, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**9, 10**12, 10**18, 10**25),
)
TEXTS = (
    *("", " ", "\t", "\n", "\r\n", "\0", "a\0b", "0", "1", "-1", "1e9", "NaN", "inf", "None"),
    *("null", "true", "[]", "{}", "cat", "dark", "bright", "label", "image", "a", "b", "x"),
    *("../outside/secret.txt", "../outside/secret.bin", "../outside", "/etc/passwd", "/", "."),
    *("..", "~", "C:\\x", "file:///etc/passwd", "http://localhost:1/x", "\\\\host\\share"),
    *("%s%n%x", "{0}", "{self}", "[red]x[/]", "[/nothing]", "\x1b[31m", "\x1b]0;x\x07", "\u202e"),
    *("é", "ß", "🦊", "\ufeff", "\ud800", "a" * 300, "a" * 70_000, "=cmd|' /C calc'!A0"),
    *("<script>alert(1)</script>", "'; drop table votes; --", '"', "'", ",", ";", "\\"),
    *("__class__", "__import__('os').system('id')", "os:system", "builtins:eval", "x" * 5000),
)


def number(rng: random.Random) -> float:
    """Returns a number at some limit, or a usual one."""
    if rng.random() < 0.2:
        return rng.choice((rng.randint(-5, 50), rng.uniform(-2, 2), rng.randint(0, 2**40)))
    return rng.choice(NUMBERS)


def text(rng: random.Random) -> str:
    """Returns text that something may stumble over."""
    chosen = rng.choice(TEXTS)
    return mutate_text(rng, chosen) if rng.random() < 0.2 else chosen


def value(rng: random.Random, depth: int = 0) -> Any:
    """Returns any value that JSON can hold, and some that Python's reader takes besides."""
    kind = rng.randrange(10 if depth < 3 else 7)
    if kind < 3:
        return number(rng)
    if kind < 5:
        return text(rng)
    if kind < 7:
        return rng.choice((None, True, False, [], {}))
    if kind == 7:
        return [value(rng, depth + 1) for _ in range(rng.randrange(5))]
    if kind == 8:
        return {text(rng): value(rng, depth + 1) for _ in range(rng.randrange(5))}
    deep: Any = 1
    for _ in range(rng.choice((5, 40, 150))):
        deep = [deep] if rng.random() < 0.5 else {"a": deep}
    return deep


def mutate_bytes(rng: random.Random, content: bytes, most: int = 6) -> bytes:
    """Flips, cuts, repeats, inserts and overwrites, a few times."""
    data = bytearray(content)
    for _ in range(rng.randint(1, most)):
        # Headers decide more than what follows them.
        end = len(data) if rng.random() < 0.5 else min(len(data), 96)
        at = rng.randrange(end + 1)
        kind = rng.randrange(7)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(data):
            data[at] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        elif kind == 2:
            del data[at:]
        elif kind == 3:
            del data[at : at + rng.randint(1, 16)]
        elif kind == 4:
            data[at:at] = data[at : at + rng.randint(1, 64)] * rng.randint(1, 4)
        elif kind == 5:
            data[at:at] = rng.randbytes(rng.randint(1, 16))
        else:
            code = rng.choice("<>") + rng.choice("BHIQ")
            size = struct.calcsize(code)
            limit = 2 ** (8 * size)
            chosen = rng.choice(
                (0, 1, limit - 1, limit // 2, limit // 2 - 1, rng.randrange(limit))
            )
            data[at : at + size] = struct.pack(code, chosen)
    return bytes(data)


def mutate_text(rng: random.Random, content: str, words: tuple[str, ...] = ()) -> str:
    """Cuts, repeats and inserts pieces of text, and puts other numbers in."""
    for _ in range(rng.randint(1, 4)):
        at, to = sorted(rng.randrange(len(content) + 1) for _ in range(2))
        kind = rng.randrange(6)
        if kind == 0:
            content = content[:at]
        elif kind == 1:
            content = content[:at] + content[to:]
        elif kind == 2:
            content = content[:at] + content[at:to] * rng.choice((2, 3, 30)) + content[to:]
        elif kind == 3:
            content = content[:at] + repr(number(rng)) + content[at:]
        elif kind == 4:
            content = content[:at] + rng.choice((*TEXTS, *words)) + content[at:]
        else:
            content = content[:at] + rng.choice("()[]{},;:=.-+\"' \n\0") + content[at + 1 :]
        content = content[:200_000]
    return content


def mutate_tree(rng: random.Random, tree: Any) -> Any:
    """Replaces, removes, renames and repeats what is at some places of a tree."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.randint(1, 3)):
        groups = [group for group in _groups(tree) if group]
        if not groups:
            return value(rng)
        group = rng.choice(groups)
        key = rng.choice(list(group) if isinstance(group, dict) else range(len(group)))
        kind = rng.randrange(6)
        if kind == 0:
            del group[key]
        elif kind == 1 and isinstance(group, dict):
            group[text(rng)] = group.pop(key)
        elif kind == 1 or (kind == 2 and isinstance(group, list)):
            group.insert(key, copy.deepcopy(group[key]))
        elif kind == 3 and isinstance(group[key], int | float):
            group[key] = number(rng)
        elif kind == 4 and isinstance(group[key], list) and group[key]:
            group[key] = group[key] * rng.choice((2, 100, 5000))
        else:
            group[key] = value(rng)
    return tree


def _groups(tree: Any) -> list[Any]:
    if not isinstance(tree, dict | list):
        return []
    inside = tree.values() if isinstance(tree, dict) else tree
    return [tree, *(group for part in inside for group in _groups(part))]


def dump(rng: random.Random, tree: Any) -> bytes:
    """Writes a tree as JSON, now and then damaged, in another encoding, or nested without end."""
    try:
        content = json.dumps(tree, ensure_ascii=rng.random() < 0.5)
    except (ValueError, RecursionError):
        content = "[" * 100_000
    kind = rng.randrange(20)
    if kind == 0:
        return mutate_bytes(rng, content.encode(errors="surrogatepass"))
    if kind == 1:
        return content.encode("utf-16", errors="surrogatepass")
    if kind == 2:
        depth = rng.choice((33, 1000, 200_000))
        return ('{"a":' * depth + "1" + "}" * depth).encode()
    return content.encode(errors="surrogatepass")
