"""First program of a child process: it ends the child with its parent, then becomes the server.

Called by path as `guard.py PARENT-PID PROGRAM ARGUMENT...`, with nothing but the standard library. A `preexec_fn`
would do the same, but forks a process that may hold gRPC's and ZooKeeper's threads, where only exec is safe.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Request SIGKILL from the kernel for the parent's death, check that the parent still lives, and exec.

    SIGKILL and not SIGTERM: both servers survive it without loss, and the ports are free at once for a restart.
    """
    parent, program = int(arguments[0]), arguments[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
    try:
        os.execv(program[0], program)  # noqa: S606 - no shell wanted
    except OSError as error:
        sys.stderr.write(f"cannot run {program[0]}: {error.strerror}\n")
        os._exit(127)


if __name__ == "__main__":
    main(sys.argv[1:])
