"""Files that a killed process never leaves half-written, and tensors in them."""

import errno
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor


class RecordError(ValueError):
    """A record, or a file beside it, is not what it should be; the message names the file."""


def prepare_folder(folder: Path) -> None:
    """Make the folder, and make sure that files can be written there, before hours are spent on them.

    Raises:
        OSError: the folder can't be made or written; the error names it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{secrets.token_hex(4)}.tmp"
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        raise _explain(error, folder) from error


def _explain(error: OSError, path: Path) -> OSError:
    # Python chooses the subclass (PermissionError, …) by the number.
    return OSError(error.errno or errno.EIO, f"cannot write: {error.strerror or error}", str(path))


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file, all or nothing: a temporary file in its folder, fsync, rename.

    Killed at any moment, it leaves the old file or the new one; at worst a ``.NAME.*.tmp`` stays behind.

    Raises:
        OSError: the folder can't be made or written; the error names ``path``.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        _sync_folder(path.parent)
    except OSError as error:
        raise _explain(error, path) from error


def _sync_folder(folder: Path) -> None:
    if not hasattr(os, "O_DIRECTORY"):  # Windows can't open a folder; there the rename alone must do
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as safetensors, all or nothing; tied ones are stored once for each name.

    Raises:
        OSError: the folder can't be made or written; the error names ``path``.
    """
    # A clone each, as safetensors refuses tensors that share memory.
    write_atomically(path, save({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        RecordError: the file is truncated or corrupt.
        OSError: there is no such file, or it can't be read.
    """
    try:
        return load(path.read_bytes())
    except SafetensorError as error:
        raise RecordError(
            f"{path}: expected safetensors, got a truncated or corrupt file: {error}"
        ) from error
