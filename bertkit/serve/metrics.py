"""A server's metrics for Prometheus, under the names of text-embeddings-inference."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

# Upper bounds: of seconds, from 15 microseconds to a quarter of a minute; and of counts.
_SECONDS = [1e-5 * 1.5**power for power in range(1, 36)]
_COUNTS = [2.0**power for power in range(18)]
_HISTOGRAMS = {
    "duration": ("te_request_duration", _SECONDS),
    "queue_duration": ("te_request_queue_duration", _SECONDS),
    "inference_duration": ("te_request_inference_duration", _SECONDS),
    "input_length": ("te_request_input_length", _COUNTS),
    "next_size": ("te_batch_next_size", _COUNTS),
    "next_tokens": ("te_batch_next_tokens", _COUNTS),
}


class Metrics:
    """Counters and histograms since the start. Callers must make sure that only one thread at a time writes each."""

    def __init__(self) -> None:
        self._counters: Counter[tuple[str, str, str]] = Counter()
        self._histograms = {name: [0] * (len(bounds) + 1) for name, (_, bounds) in _HISTOGRAMS.items()}
        self._sums = dict.fromkeys(_HISTOGRAMS, 0.0)

    def count(self, name: str, label: str, value: str) -> None:
        """Add one to a counter, such as te_request_failure with err="Overloaded"."""
        self._counters[name, label, value] += 1

    def observe(self, name: str, value: float) -> None:
        """Add a value, in seconds or a count, to a histogram."""
        self._histograms[name][bisect_left(_HISTOGRAMS[name][1], value)] += 1
        self._sums[name] += value

    def text(self, **gauges: float) -> str:
        """All metrics in Prometheus's text format (version 0.0.4). gauges: current values by name."""
        lines = []
        for name in dict.fromkeys(name for name, _, _ in [*self._counters]):
            lines.append(f"# TYPE {name} counter")
            lines += [
                f'{name}{{{key}="{value}"}} {count}' for (own, key, value), count in [*self._counters.items()] if own == name
            ]
        for name, value in gauges.items():
            lines += [f"# TYPE {name} gauge", f"{name} {value}"]
        for key, (name, bounds) in _HISTOGRAMS.items():
            lines.append(f"# TYPE {name} histogram")
            counts, total = [*self._histograms[key]], 0
            for bound, count in zip((*(f"{bound:g}" for bound in bounds), "+Inf"), counts, strict=True):
                total += count
                lines.append(f'{name}_bucket{{le="{bound}"}} {total}')
            lines += [f"{name}_sum {self._sums[key]}", f"{name}_count {total}"]
        return "\n".join([*lines, ""])
