"""A read-only BookKeeper client; `ledgers.pulsar` is the ledger source over it. WIRE.md specifies its bytes.

`wire` has the bytes of requests and answers, `metadata` those of BookKeeper's nodes in ZooKeeper: neither does I/O.
`connections` sends requests to bookies by id. `replicas` reads ranges of entries and searches for a sound copy of each,
by a table of faults. `ledger_tail` and `long_poll` follow the end of an open ledger.
"""
