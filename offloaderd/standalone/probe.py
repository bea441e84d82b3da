"""The smallest possible questions to a loopback server, to learn whether it is ready."""

import asyncio

from offloaderd.standalone.ports import LOOPBACK

ANSWER_WITHIN_S = 2.0
_ANSWER_BYTES_MAX = 64 * 1024


async def ask(port: int, question: bytes, within_s: float = ANSWER_WITHIN_S) -> bytes:
    """Send `question` and return what is answered until the server closes; b"" when nobody answers."""
    try:
        async with asyncio.timeout(within_s):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            try:
                writer.write(question)
                return await _read_all(reader)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return b""


async def http_get(port: int, path: str, within_s: float = ANSWER_WITHIN_S) -> tuple[int, bytes]:
    """GET a path; returns status and body, (0, b"") when nobody answers."""
    answer = await ask(port, f"GET {path} HTTP/1.0\r\nHost: {LOOPBACK}:{port}\r\n\r\n".encode(), within_s)
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(None, 2)
    if len(words) < 2 or not words[1].isdigit():
        return 0, b""
    return int(words[1]), body


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    answer = bytearray()
    while len(answer) < _ANSWER_BYTES_MAX and (piece := await reader.read(4096)):
        answer += piece
    return bytes(answer)
