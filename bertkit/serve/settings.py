"""The options of `bertkit serve`."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from bertkit.config import convert_values, option


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Where a server listens, who may ask, and how much at once."""

    host: str = option("127.0.0.1", "address to listen on; one that other machines can reach needs --token")
    port: int = option(8000, "port to listen on; 0: any free port", minimum=0, maximum=65535)
    token: str | None = option(
        None, "token that requests must send as Authorization: Bearer TOKEN; default: the variable BERTKIT_TOKEN"
    )
    auth: bool = option(True, "whether other machines need a token")
    max_batch_tokens: int = option(
        8192, "maximum tokens in a batch of requests; on a CPU at most 1,024", unit="tokens", minimum=1
    )
    max_request_tokens: int = option(65536, "refuse requests with more tokens", unit="tokens", minimum=1)
    max_request_bytes: int = option(2**21, "refuse requests with more bytes", unit="bytes", minimum=1)
    max_queue: int = option(512, "refuse new requests while this many are waiting", unit="requests", minimum=1)
    timeout: float = option(60.0, "time limit for receiving a request, and for answering it", unit="seconds", minimum=0.001)
    log_texts: bool = option(False, "print each request with its texts on stderr")

    def __post_init__(self) -> None:
        convert_values(self)


def is_local(host: str) -> bool:
    """Whether a host name or address is a loopback one, which no other machine can reach."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
