"""JSON-RPC 2.0 over a target's unix socket, one call a connection.

Invariants: a call ends by its deadline on the wall clock, however slowly an answer trickles in (docs/adr/0029); an answer is
the one to this call and has a bounded length.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from typing import Any

from halfstep.errors import ProtocolError, Unavailable

ANSWER_BYTES_MAX = 16 << 20
_READ_BYTES = 64 << 10


class Refused(Exception):
    """The target answered with an error: its number, which for SPDK is a negative errno or one of JSON-RPC, and its text."""

    def __init__(self, method: str, code: int, message: str) -> None:
        super().__init__(f"{method}: {message} ({code})")
        self.code = code
        self.message = message


def request(number: int, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """As it goes over the socket."""
    asked: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "id": number}
    if params:
        asked["params"] = dict(params)
    return asked


class Rpc:
    """deadline_s: of each call. Errors of call(): Unavailable (nobody listens, too late, it went), ProtocolError, Refused."""

    def __init__(self, path: str, deadline_s: float) -> None:
        self._path = path
        self._deadline_s = deadline_s
        self._number = 0

    def call(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """What the target answers."""
        self._number += 1
        until = time.monotonic() + self._deadline_s
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
                stream.settimeout(self._left(until))
                stream.connect(self._path)
                stream.sendall(json.dumps(request(self._number, method, params or {})).encode())
                answer = self._answer(stream, until)
        except TimeoutError:
            raise Unavailable(
                f"SPDK at {self._path}: no answer to {method} within {self._deadline_s:g} s; see its log, or raise deadline_s"
            ) from None
        except OSError as error:
            raise Unavailable(
                f"SPDK at {self._path}: {method}: {error.strerror or error}; start the target, or correct rpc_socket"
            ) from None
        return self._result(method, answer)

    def _left(self, until: float) -> float:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def _answer(self, stream: socket.socket, until: float) -> object:
        data, decoder = bytearray(), json.JSONDecoder()
        while True:
            stream.settimeout(self._left(until))
            more = stream.recv(_READ_BYTES)
            if not more:
                raise ConnectionResetError(0, f"the target ended the connection after {len(data)} bytes of an answer")
            data += more
            if len(data) > ANSWER_BYTES_MAX:
                raise ProtocolError(f"SPDK at {self._path}: an answer of more than {ANSWER_BYTES_MAX} bytes; is it SPDK?")
            # A whole answer ends with a brace: a long one is not tried at each piece.
            if not data[-64:].rstrip().endswith(b"}") and bytes(data[:1]) in (b"{", b" "):
                continue
            try:
                return decoder.raw_decode(data.decode("utf-8", "surrogateescape").lstrip())[0]
            except RecursionError:
                raise self._no_spdk() from None
            except ValueError:
                if not data.lstrip().startswith(b"{"):
                    raise self._no_spdk() from None

    def _no_spdk(self) -> ProtocolError:
        return ProtocolError(f"SPDK at {self._path}: what came is no JSON-RPC; is it SPDK?")

    def _result(self, method: str, answer: object) -> Any:
        if not isinstance(answer, dict) or answer.get("id") != self._number:
            raise ProtocolError(f"SPDK at {self._path}: the answer to {method} is another one's; is it SPDK?")
        if "error" in answer:
            error = answer["error"] if isinstance(answer["error"], dict) else {}
            code = error.get("code")
            text = error.get("message")
            raise Refused(method, code if isinstance(code, int) else 0, str(text)[:500])
        if "result" not in answer:
            raise ProtocolError(f"SPDK at {self._path}: the answer to {method} has neither result nor error")
        return answer["result"]
