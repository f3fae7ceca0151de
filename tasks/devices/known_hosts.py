"""The host keys of SSH devices, read from a known_hosts file of OpenSSH. The file is never rewritten."""

import os
from pathlib import Path

import paramiko
from paramiko.hostkeys import HostKeyEntry, InvalidHostKey

SSH_PORT = 22


class UnknownHostKey(paramiko.SSHException):
    """The host is not in the file of known hosts."""


class RevokedHostKey(paramiko.SSHException):
    """The host has a key that the file of known hosts marks as revoked."""


class KnownHosts(paramiko.MissingHostKeyPolicy):
    """The host keys of a file, and the policy for a host that is not in the file.

    Lines that paramiko cannot use, such as `@cert-authority`, are ignored. A key that is `@revoked` is always refused.
    """

    def __init__(self, path: Path, *, accept_new: bool) -> None:
        """Read the file, which may be missing. Raises OSError.

        `accept_new`: whether to append the key of an unknown host to the file.
        """
        self.path = path
        self._accept_new = accept_new
        self._entries: list[HostKeyEntry] = []
        self._revoked: set[bytes] = set()
        for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
            marker, _, rest = line.strip().partition(" ")
            if marker == "@revoked" and (entry := _entry(rest.strip())) is not None:
                self._revoked.add(entry.key.asbytes())
            elif not marker.startswith(("#", "@")) and (entry := _entry(line.strip())) is not None:
                self._entries.append(entry)

    def install(self, client: paramiko.SSHClient, host: str, port: int) -> None:
        """Make the client check the key of the host that it is about to connect to."""
        name = host if port == SSH_PORT else f"[{host}]:{port}"
        keys: dict[str, paramiko.PKey] = {}  # by type
        for entry in self._entries:
            if entry.key.asbytes() not in self._revoked and any(_matches(name, pattern) for pattern in entry.hostnames):
                keys.setdefault(entry.key.get_name(), entry.key)
        for key_type, key in keys.items():
            client.get_host_keys().add(name, key_type, key)
        client.set_missing_host_key_policy(self)

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        """Append the key of an unknown host to the file, or refuse the host. Raises SSHException and OSError."""
        if key.asbytes() in self._revoked:
            raise RevokedHostKey(hostname)
        if not self._accept_new:
            raise UnknownHostKey(hostname)
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        line = f"{hostname} {key.get_name()} {key.get_base64()}\n".encode()
        # One write with O_APPEND: other lines stay as they are, even if another process appends at the same time.
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            ends_with_newline = size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
            os.write(descriptor, line if ends_with_newline else b"\n" + line)
        finally:
            os.close(descriptor)
        client.get_host_keys().add(hostname, key.get_name(), key)


def _entry(line: str) -> HostKeyEntry | None:
    try:
        return HostKeyEntry.from_line(line)
    except (paramiko.SSHException, InvalidHostKey, ValueError):
        return None


def _matches(name: str, pattern: str) -> bool:
    """Return whether a host name of the file, which may be hashed, is `name`."""
    return pattern == name or (pattern.startswith("|1|") and paramiko.HostKeys.hash_host(name, pattern) == pattern)
