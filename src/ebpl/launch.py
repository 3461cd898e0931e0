"""The processes that train one run together: which of them this one is, and how the command starts them.

torchrun and SLURM say in environment variables who a process is; processes that the command starts itself get
torchrun's variables. Collective work is in `ebpl.training.distributed`. Nothing here needs torch. The end of the file
keeps processes that know nothing of each other out of one folder.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import itertools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ebpl.errors import RunError, UsageError
from ebpl.io import write_failed

INTERRUPTED = 130
GRACE = 10.0
"""Seconds that the others get to end by themselves after one has ended badly."""
_STARTER = "EBPL_STARTED_BY"
_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_NTASKS", "SLURM_PROCID")


@dataclass(frozen=True)
class ProcessInfo:
    """Where a process stands among those that train together: its number, and how many each machine has."""

    index: int = 0
    devices: int = 1
    nodes: int = 1
    slurm: bool = False

    @property
    def count(self) -> int:
        """The number of processes on all machines."""
        return self.devices * self.nodes

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files and messages."""
        return self.index == 0


def place() -> ProcessInfo:
    """Where torchrun, SLURM or the command, if one of them started this process, has put it."""
    rank, count = _number("RANK"), _number("WORLD_SIZE") or 1
    if rank is not None and count > 1:
        devices = _number("LOCAL_WORLD_SIZE") or count
        return _even(ProcessInfo(rank, devices, count // devices), count)
    rank, count = _number("SLURM_PROCID"), _number("SLURM_NTASKS") or 1
    if rank is not None and count > 1 and os.environ.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        nodes = _number("SLURM_NNODES") or 1
        here = ProcessInfo(rank, _number("SLURM_NTASKS_PER_NODE") or count // nodes, nodes, slurm=True)
        return _even(here, count)
    return ProcessInfo()


def _even(here: ProcessInfo, count: int) -> ProcessInfo:
    if here.count != count:
        raise UsageError(
            f"{count} processes were started on {max(here.nodes, 2)} machines, not the same number on each. Start "
            "equally many on every machine, one for each GPU."
        )
    return here


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else None


def start(arguments: Sequence[str], devices: int | None, nodes: int | None) -> int | None:
    """Run this command in as many processes as asked for and return its exit code; None if there is nothing to start.

    There is nothing to start for one process, and none below torchrun or SLURM, which have started all of them. A
    process that is asked to run by itself does so even there.
    """
    if devices is None and nodes is None:
        return None
    devices, nodes = devices or 1, nodes or 1
    if devices * nodes == 1:
        part()
        return None
    return None if place().count > 1 else _supervise(arguments, devices, nodes)


def part() -> None:
    """Run by itself from now on, though others were started beside this process; it keeps its GPU."""
    global _own_gpu
    local = _number("LOCAL_RANK")
    _own_gpu = _number("SLURM_LOCALID") if local is None else local
    for name in _NAMES:
        os.environ.pop(name, None)


def own_gpu() -> int | None:
    """The number of the GPU that a process which has parted from the others should use."""
    return _own_gpu


_own_gpu: int | None = None


def _supervise(arguments: Sequence[str], devices: int, nodes: int) -> int:
    shared = {**os.environ, **_meeting_point(nodes), _STARTER: str(os.getpid())}
    shared |= {"WORLD_SIZE": str(devices * nodes), "LOCAL_WORLD_SIZE": str(devices)}
    first = int(shared["NODE_RANK"]) * devices
    shared["GROUP_RANK"] = str(first // devices)
    command = [sys.executable, "-m", "ebpl", *arguments]
    children: list[subprocess.Popen[bytes]] = []
    try:
        for local in range(devices):
            own = {"RANK": str(first + local), "LOCAL_RANK": str(local)}
            children.append(subprocess.Popen(command, env={**shared, **own}, stdin=subprocess.DEVNULL))
        return _watched(children, first)
    except KeyboardInterrupt:
        for child in children:
            child.terminate()
        _wait(children, GRACE)
        return INTERRUPTED  # the first process has said so
    finally:
        for child in children:
            child.kill()
            child.wait()


def _meeting_point(nodes: int) -> dict[str, str]:
    """Where the processes find each other."""
    if nodes == 1:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1]), "NODE_RANK": "0"}
    wanted = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")
    missing = [name for name in wanted if name not in os.environ]
    if missing:
        raise UsageError(
            f"--nodes {nodes} needs the environment variable{'s' * (len(missing) > 1)} {', '.join(missing)} on every "
            "machine: the address and a free port of the first machine, and this machine's number from 0. torchrun "
            "and SLURM set them for you."
        )
    if not os.environ["NODE_RANK"].isdecimal() or int(os.environ["NODE_RANK"]) >= nodes:
        raise UsageError(f"NODE_RANK is {os.environ['NODE_RANK']!r}, but must be a number from 0 to {nodes - 1}.")
    return {}


def _watched(children: list[subprocess.Popen[bytes]], first: int) -> int:
    """The exit code of all: 0, or that of a process that ended badly, which the others do not outlive."""
    while True:
        codes = [child.poll() for child in children]
        if all(code == 0 for code in codes):
            return 0
        if any(codes):
            break
        time.sleep(0.1)
    _wait(children, GRACE)
    bad = [(index, code) for index, child in enumerate(children, first) if (code := child.poll())]
    index, code = next((one for one in bad if one[1] < 0), bad[0])  # one that was killed is why the others failed
    if code > 0:
        return code
    print(f"ebpl: Process {index} of the training was ended by {signal.Signals(-code).name}.", file=sys.stderr)
    return 128 - code


def _wait(children: list[subprocess.Popen[bytes]], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(child.poll() is None for child in children):
        time.sleep(0.05)


def follow_starter() -> None:
    """End with the process that started this one, however that ends, and leave the keyboard to it."""
    if _STARTER in os.environ:
        starter = int(os.environ.pop(_STARTER))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=_end_with, args=(starter,), daemon=True).start()


def _end_with(starter: int) -> NoReturn:
    while os.getppid() == starter:
        time.sleep(0.5)
    os._exit(1)


def leave(code: int) -> int:
    """The exit code; a process that fails among others ends at once, without waiting for them."""
    if code and place().count > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


OLD_PART = 60.0
"""Seconds after which a half-made folder of a process that is gone is removed."""
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


def create_folder(path: Path, make: Callable[[Path], None]) -> bool:
    """A new folder, which `make` fills under a hidden name: it appears whole or, after a kill, not at all.

    False where there is something already, even if another process was faster by a moment; a folder that was empty is
    replaced.
    """
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    part = target.with_name(f".{target.name[:180]}.part-{os.getpid()}-{secrets.token_hex(3)}")
    if not _is_free(target):
        return False
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_old_parts(target)
        try:
            part.mkdir()
            make(part)
            part.rename(target)
        except OSError as error:
            if error.errno in _TAKEN:
                return False
            if not target.is_dir():
                raise
            os.close(os.open(target / ".lock", os.O_CREAT | os.O_EXCL))  # a mount point, or nothing may stand beside it
            make(target)
    except FileExistsError:
        return False
    except OSError as error:
        raise write_failed(path, error) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return True


def create_free_folder(parent: Path, name: str, make: Callable[[Path], None]) -> Path:
    """The same under a name that is free, with -2, -3 ... appended where it is taken."""
    name = "".join(c if c.isalnum() or c in "._-" else "_" for c in name)
    names = (parent / (name if number == 1 else f"{name}-{number}") for number in itertools.count(1))
    return next(path for path in names if create_folder(path, make))


def _is_free(path: Path) -> bool:
    return not os.path.lexists(path) or (path.is_dir() and not any(path.iterdir()))


def _remove_old_parts(path: Path) -> None:
    """Remove what killed processes left of making this folder."""
    for old in path.parent.glob(f".{glob.escape(path.name[:180])}.part-*"):
        with contextlib.suppress(OSError, ValueError):
            starter = int(old.name.rpartition(".part-")[2].partition("-")[0])
            if time.time() - old.stat().st_mtime > OLD_PART and not Path(f"/proc/{starter}").exists():
                shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a run directory for this process, by a lock on a file in it."""
    try:
        lock = (path / ".lock").open("w")
    except OSError as error:
        raise write_failed(path, error) from error
    with lock:
        with contextlib.suppress(ImportError):  # not a POSIX system: no lock there
            import fcntl

            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunError(f"{path} is being trained by another process. Wait for it, or stop it first.") from None
        yield
