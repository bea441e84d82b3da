"""The tables of the embedded ledger store.

| table    | one row for each        | columns                                                        |
|----------|-------------------------|----------------------------------------------------------------|
| topics   | topic                   | topic_id, name (persistent://...)                              |
| ledgers  | ledger                  | ledger_id, topic_id, entries, size_bytes, closed, closed_at_ms |
| rows     | run of entries          | see rows.py                                                    |
| doomed   | deleted ledger with rows| ledger_id                                                      |
| sequence | store                   | next_ledger_id: no id is ever given twice                      |
| store    | store                   | store_id: a UUID, made once                                    |
| births   | ledger                  | ledger_id, created_ms                                          |

Older releases made no `store` and no `births`: a file gets them when it is opened to be written.
"""

from typing import Final

APPLICATION_ID: Final = int.from_bytes(b"OFLD")
FORMAT_VERSION: Final = 1

SCHEMA: Final = """
BEGIN IMMEDIATE;
CREATE TABLE topics (topic_id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE ledgers (
  ledger_id INTEGER PRIMARY KEY,
  topic_id INTEGER NOT NULL REFERENCES topics,
  entries INTEGER NOT NULL,
  size_bytes INTEGER NOT NULL,
  closed INTEGER NOT NULL,
  closed_at_ms INTEGER NOT NULL
);
CREATE TABLE rows (
  ledger_id INTEGER NOT NULL,
  first_entry_id INTEGER NOT NULL,
  entry_count INTEGER NOT NULL,
  bytes_before INTEGER NOT NULL,
  lengths BLOB NOT NULL,
  lengths_crc32c INTEGER NOT NULL,
  payloads BLOB NOT NULL,
  payloads_crc32c INTEGER NOT NULL
);
CREATE UNIQUE INDEX rows_by_entry ON rows (ledger_id, first_entry_id);
CREATE TABLE doomed (ledger_id INTEGER PRIMARY KEY);
CREATE TABLE sequence (one INTEGER PRIMARY KEY CHECK (one = 1), next_ledger_id INTEGER NOT NULL);
INSERT INTO sequence VALUES (1, 0);
"""
LATER: Final = """
CREATE TABLE IF NOT EXISTS store (one INTEGER PRIMARY KEY CHECK (one = 1), store_id TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS births (ledger_id INTEGER PRIMARY KEY, created_ms INTEGER NOT NULL);
"""
"""Tables that older releases of the same format do not know, and leave alone."""
STAMP: Final = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT_VERSION}; COMMIT;"
