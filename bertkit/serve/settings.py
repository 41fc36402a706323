"""The options of `bertkit serve`."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from bertkit.config import check_values, option

_USED = ("serve",)


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Where a server listens, who may ask, and how much at once."""

    host: str = option("127.0.0.1", "address to listen on; one that other machines reach needs --token", used=_USED)
    port: int = option(8000, "port to listen on; 0: any that is free", minimum=0, maximum=65535, used=_USED)
    token: str | None = option(
        None, "what requests must carry as Authorization: Bearer TOKEN; default: the variable BERTKIT_TOKEN", used=_USED
    )
    auth: bool = option(True, "whether other machines need a token", used=_USED)
    max_batch_tokens: int = option(
        8192, "most tokens of requests that are computed together", unit="tokens", minimum=1, used=_USED
    )
    max_request_tokens: int = option(65536, "refuse requests of more", unit="tokens", minimum=1, used=_USED)
    max_request_bytes: int = option(2**21, "refuse requests of more", unit="bytes", minimum=1, used=_USED)
    max_queue: int = option(512, "refuse requests while so many wait", unit="requests", minimum=1, used=_USED)
    timeout: float = option(
        60.0, "longest time for a request to come, and for its answer", unit="seconds", minimum=0.001, used=_USED
    )
    log_texts: bool = option(False, "print each request with its texts on stderr; otherwise none is", used=_USED)

    def __post_init__(self) -> None:
        check_values(self)


def is_local(host: str) -> bool:
    """Whether a host name or address is this machine's own, which no other machine reaches."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
