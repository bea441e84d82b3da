"""The two commands, `offloaderd` (the daemon) and `offloadctl` (its client); a module has one subcommand or a few.

A subcommand reads its arguments, calls one thing and shows the result. Results go to stdout, progress and errors to
stderr; `program.py` turns every error into one line, a hint and an exit code.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # its core logs every lost connection, which users need not see
