"""A receiver returns complete messages and never waits, whatever arrives."""

from __future__ import annotations

import os
import pickle
from multiprocessing.connection import Connection, Pipe

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.tasks.toolchain.workers.messages import LogSoFar, Receiver, Returned, Unreadable, send

VALUES = st.recursive(st.none() | st.integers() | st.binary(max_size=5000), st.lists)


def pipe() -> tuple[Receiver, Connection]:
    receiving, sending = Pipe(duplex=False)
    return Receiver(receiving), sending


@given(values=st.lists(VALUES, max_size=4), pieces=st.lists(st.integers(1, 4000), min_size=1))
def test_messages_that_arrive_in_pieces_are_returned_in_order_when_they_are_complete(
    values: list[object], pieces: list[int]
) -> None:
    whole, sending = pipe()
    for value in values:
        send(sending, Returned(value))
    sending.close()
    stream = whole.connection
    os.set_blocking(stream.fileno(), True)
    data = b"".join(iter(lambda: os.read(stream.fileno(), 1 << 16), b""))
    stream.close()
    receiver, sending = pipe()
    received: list[object] = []
    while data:
        for piece in pieces:
            os.write(sending.fileno(), data[:piece])
            data = data[piece:]
            while (message := receiver.receive()) is not None:
                received.append(message)
    assert received == [Returned(value) for value in values]
    assert not receiver.at_end
    sending.close()
    assert receiver.receive() is None
    assert receiver.at_end
    receiver.close()


def test_half_a_message_is_no_message() -> None:
    receiver, sending = pipe()
    os.write(sending.fileno(), (1000).to_bytes(8, "big") + b"a part")
    assert receiver.receive() is None
    sending.close()
    assert receiver.receive() is None
    assert receiver.at_end
    receiver.close()


@pytest.mark.parametrize(
    "sent",
    [
        (2**62).to_bytes(8, "big"),
        (4).to_bytes(8, "big") + b"text",
        (5).to_bytes(8, "big") + pickle.dumps(LogSoFar(b"a log"))[:5],
    ],
)
def test_what_is_no_message_is_unreadable(sent: bytes) -> None:
    receiver, sending = pipe()
    os.write(sending.fileno(), sent)
    with pytest.raises(Unreadable):
        receiver.receive()
    sending.close()
    receiver.close()
