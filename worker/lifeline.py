"""A worker never outlives the front end: the second line of defence behind the socket's end of file."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def hold(fd: int) -> None:
    """Ties this process to its parent; call it first, before anything slow.

    Asks the kernel for SIGKILL when the parent dies (Linux; elsewhere the socket alone must do), and keeps ``fd``, the
    inherited end of the socketpair, from processes that this one starts: a copy in a grandchild would hide our death.
    A parent that died before this call is noticed by the end of file on ``fd``.

    SIGINT is ignored: Ctrl-C reaches the whole process group, and the front end decides how to end.
    """
    os.set_inheritable(fd, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            code = ctypes.get_errno()
            raise OSError(code, f"prctl(PR_SET_PDEATHSIG): {os.strerror(code)}")
