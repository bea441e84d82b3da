#!/usr/bin/env python3
"""Exit with 0 if the daemon in this container is alive, with 1 if it is not: /healthz over loopback.

Alive, not ready: a daemon that waits for ZooKeeper or the bucket is not helped by a restart. The port is the
environment's OFFLOADERD__HTTP__PORT, else the default; a port that only a settings file names is to be given there too.
"""

import http.client
import os
import sys

TIMEOUT_S = 3.0


def main() -> int:
    """Ask once."""
    connection = http.client.HTTPConnection(
        "127.0.0.1", int(os.environ.get("OFFLOADERD__HTTP__PORT", "7651")), timeout=TIMEOUT_S
    )
    try:
        connection.request("GET", "/healthz")
        return 0 if connection.getresponse().status == http.client.OK else 1
    except (OSError, http.client.HTTPException) as error:
        sys.stderr.write(f"offloaderd does not answer: {error}\n")
        return 1
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main())
