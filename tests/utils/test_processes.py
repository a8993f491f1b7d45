"""TCP connections of a process, as the system lists them."""

import contextlib
import os
import socket
import sys

import pytest

from hybridnn.utils.processes import host_of, open_connections

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")


@pytest.mark.parametrize(
    ("family", "listens_at"), [(socket.AF_INET, "127.0.0.2"), (socket.AF_INET6, "::")], ids=["IPv4", "mapped into IPv6"]
)
def test_connections_have_the_addresses_of_both_ends(family: socket.AddressFamily, listens_at: str) -> None:
    both = family == socket.AF_INET6
    with socket.create_server((listens_at, 0), family=family, dualstack_ipv6=both) as server:
        before = set(open_connections())
        client = socket.create_connection(("127.0.0.2", server.getsockname()[1]), source_address=("127.0.0.3", 0))
        accepted, _ = server.accept()
        with client, accepted:
            found = set(open_connections(os.getpid())) - before
            pairs = {(connection.local, connection.remote, connection.is_silent) for connection in found}
            assert pairs == {("127.0.0.2", "127.0.0.3", False), ("127.0.0.3", "127.0.0.2", False)}
        assert set(open_connections()) == before


def test_a_connection_waits_while_the_other_side_does_not_receive() -> None:
    with socket.create_server(("127.0.0.2", 0)) as server:
        client = socket.create_connection(server.getsockname(), source_address=("127.0.0.3", 0))
        accepted, _ = server.accept()
        with client, accepted:
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    client.send(bytes(1 << 16))
            waiting = {connection.local: connection.is_waiting for connection in open_connections()}
            assert (waiting["127.0.0.3"], waiting["127.0.0.2"]) == (True, False)


def test_connections_of_other_processes_are_not_listed() -> None:
    with socket.create_server(("127.0.0.2", 0)) as server:
        client = socket.create_connection(server.getsockname(), source_address=("127.0.0.3", 0))
        accepted, _ = server.accept()
        with client, accepted:
            child = os.fork()
            if child == 0:
                client.close()
                accepted.close()
                os._exit(sum(connection.remote.startswith("127.0.0.") for connection in open_connections()))
            assert os.waitpid(child, 0)[1] == 0


def test_a_process_that_does_not_exist_has_none() -> None:
    assert open_connections(2**30) == ()


def test_addresses_have_names_where_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"10.99.0.2": ("node2", [], [])}

    def resolve(address: str) -> tuple[str, list[str], list[str]]:
        if address not in names:
            raise socket.herror(1, "Unknown host")
        return names[address]

    monkeypatch.setattr(socket, "gethostbyaddr", resolve)
    assert [host_of(address) for address in ("10.99.0.2", "10.99.0.3")] == ["node2 (10.99.0.2)", "10.99.0.3"]
