"""The goals of the figures: ratios within one run, on two cores that all processes share."""

from __future__ import annotations

PUSH_RATE = {"10 KiB": 0.9, "1 KiB": 0.7}
"""Streaming upload of one topic, over bare multipart upload of the same bytes in the same parts."""
PUSH_CPU = {"10 KiB": 2.0, "1 KiB": 5.0}
"""CPU seconds of the daemon for it, over the bare client's; at most."""
PUSH_CPU_S = {"10 KiB": 1.8}
"""CPU seconds of the daemon for a pushed GiB; at most."""
ENGINE_MB_S = {"10 KiB": 400.0, "1 KiB": 200.0}
"""Engine alone into a store that discards, on a core that frames entries of 1 KiB in plain Python at CORE_MB_S."""
CORE_MB_S = 500.0
CLOUD_RATE = 0.8
"""Push to an emulator of another kind of store, and reading back, over the bare client of that service."""
READ_RATE = {"10 KiB": 0.8, "1 KiB": 0.6}
"""Catch-up read over gRPC, over bare ranged GETs of the same ranges with as many at once."""
READ_CPU = 1.1
"""CPU seconds of the daemon for a GiB of it; at most."""
DIRECT_RATE, DIRECT_FASTEST, DIRECT_CPU = 0.9, 0.85, 0.1
"""A direct read: over the same bare GETs, over the fastest client's; CPU seconds of the daemon for a GiB, at most."""
STOCK_OFFLOAD = {"1 KiB": 2.0, "10 KiB": 1.4}
STOCK_READ, STOCK_RANDOM = 2.0, 15.0
"""How many times as fast as Pulsar's own offloader: offload, sequential read, random read."""
TWO_PROCESSES = 1.7
"""Two processes of a host over one, whose entries are made inside them; where there are cores for it."""
FOUR_READERS = 0.8
"""Four readers of one segment, over what the cores give them: the CPU of all processes spread over them, or that of the
process that has most to do, whose loop is one thread."""
FAIR_SHARE = 0.7
FETCHED = 1.1
"""Bytes fetched from S3 for them, over the segment; at most."""
COLD_GETS, COLD_GET_KIB, COLD_P50, WARM_P99 = 1.0, 128.0, 2.0, 1.3
"""A read of one entry of 1 KiB: GETs, their size, p50 over a bare GET of 64 KiB; when its block is cached, p99 over
that of gRPC with empty work."""
DURABLE_OVER_AGE_S = 2.0
"""p99 of the time to durable beyond the largest age of a segment."""
PEAK_OVER_BUDGET = 1.15
IDLE_REQUESTS_MIN, IDLE_KIB = 1.0, 25.0
"""An idle topic: requests a minute to anything, and memory."""
IDLE_CORES = 0.1
"""All idle topics of a daemon, as a share of a core."""
TAIL_RATE = 0.6
"""Tailing real bookies, over the bare loop of the wire codec."""
SILENCE_S = 10.0
"""The last message before a silence is durable."""
DISK_GETS_SAVED, DISK_MEMORY = 0.95, 1.1
"""A second read from the disk cache: GETs that it saves; the daemon's memory over one without a disk, at most."""
WHOLE_RATE = {"1 KiB": 0.8, "10 KiB": 0.8}
"""From bookies to S3, over the slower of the codec's loop and a bare upload."""
WHOLE_CPU = {"1 KiB": 4.0, "10 KiB": 1.9}
"""CPU seconds of the daemon for a GiB of it, at most."""
OTHER_TENANT = 1.2
"""p99 of a tenant's lag, and of its reads, when another one tries ten times its share, over its share; at most."""
