"""Damage to the bytes of a file, as disks, networks, editors and attackers do it."""

import random
import string


def damaged(chance: random.Random, content: bytes) -> tuple[bytes, str]:
    """The content with one to three changes, and what they are."""
    said = []
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        how = chance.choice([_flipped, _flipped, _overwritten, _cut, _removed, _repeated, _number, _number, _letter])
        content = how(chance, content)
        said.append(how.__name__.removeprefix("_"))
    return content, " and ".join(said)


def _place(chance: random.Random, content: bytes) -> int:
    """Anywhere, or near the start, where headers are."""
    return min(chance.choice([chance.randrange(len(content) + 1), chance.randrange(400)]), len(content))


def _flipped(chance: random.Random, content: bytes) -> bytes:
    if not content:
        return content
    at = min(_place(chance, content), len(content) - 1)
    return content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :]


def _overwritten(chance: random.Random, content: bytes) -> bytes:
    at, count = _place(chance, content), chance.choice([1, 4, 8, 100, 4096])
    count = min(count, len(content) - at)
    return (
        content[:at] + chance.choice([bytes(count), b"\xff" * count, chance.randbytes(count)]) + content[at + count :]
    )


def _cut(chance: random.Random, content: bytes) -> bytes:
    return content[: chance.choice([0, len(content) - 1, _place(chance, content)])]


def _removed(chance: random.Random, content: bytes) -> bytes:
    at = _place(chance, content)
    return content[:at] + content[at + chance.choice([1, 2, 64, 512]) :]


def _repeated(chance: random.Random, content: bytes) -> bytes:
    at = _place(chance, content)
    return content[:at] + content[max(0, at - chance.choice([1, 8, 512])) :]


def _number(chance: random.Random, content: bytes) -> bytes:
    """Another number where one is written in digits."""
    places = [at for at in range(min(len(content), 4000)) if chr(content[at]) in string.digits]
    if not places:
        return _flipped(chance, content)
    at = chance.choice(places)
    value = chance.choice([b"7", b"-1", b"0", b"1e999", b"99999999", b"9" * 30, b"null", b"[]", b'"a"', b"NaN"])
    return content[:at] + value + content[at + 1 :]


def _letter(chance: random.Random, content: bytes) -> bytes:
    """Another letter in a name, an escape sequence or an invalid character."""
    places = [at for at in range(min(len(content), 4000)) if chr(content[at]) in string.ascii_letters]
    if not places:
        return _flipped(chance, content)
    at = chance.choice(places)
    value = chance.choice([b"x", b"\\u001b[2J", b"\xff", b'"', b"{", b"[" * 3000, b"\x00", b"../"])
    return content[:at] + value + content[at + 1 :]
