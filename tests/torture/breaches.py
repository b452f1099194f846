"""Attacks that say what nobody says: changed frames, cancels in every state, storms of connections, rings that lie.

Each is a scenario of its own, see scenarios.py.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import time

from tests.torture.attack import CRUMBS, GONE, SHORT_S, VALUES, Attack
from tests.wire import lives, puts
from tests.wire.catalog import question_tlv
from tests.wire.chunks import ABORTED_RUN, Run, runs_tlv
from tests.wire.frames import Kind, Op, WireFault, frame, tlv
from tests.wire.layouts import component
from tests.wire.requests import LAYER_MAJOR, Batch, Offer, PartRange, Section, offers_tlv
from tests.wire.rings import SharedMemoryStream, ShmRefused
from tests.wire.session import Session, hello_body
from tests.wire.streams import SocketStream


def mutations(attack: Attack) -> None:
    """Valid frames of every request with fields changed, under right checksums, on connections past Hello."""
    rng = attack.rng
    while attack.going():
        with contextlib.suppress(*GONE), attack.session(rng.choice([attack.target.namespace, None])) as session:
            handle = session.register(CRUMBS)
            for _ in range(rng.randint(1, 30)):
                op, body, payload = rng.choice(_requests(rng, handle))
                session.stream.send(frame(op, rng.randrange(1, 1 << 40), _mutated(rng, body), payload))
                attack.tally["acts"] += 1
            assert isinstance(session.stream, SocketStream)
            end = time.monotonic() + rng.choice([0.0, 0.05])
            with contextlib.suppress(TimeoutError):
                while attack.going():
                    session.next_frame(max(0.001, end - time.monotonic()))


def _mutated(rng: random.Random, body: bytes) -> bytes:
    changed = bytearray(body)
    for _ in range(rng.choice([0, 1, 1, 2, 4])):
        if changed:
            at = rng.randrange(len(changed))
            changed[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    if rng.random() < 0.1:
        del changed[rng.randrange(len(changed) + 1) // 8 * 8 :]
    return bytes(changed)


def _requests(rng: random.Random, handle: int) -> list[tuple[int, bytes, bytes]]:
    batch = Batch(deadline_us=rng.choice([0, 1, 10_000])).tlv()
    group = component(rng.randrange(2))
    section = Section(CRUMBS, [b"m%d" % rng.randrange(64) for _ in range(rng.randint(1, 8))], group, rng.randint(1, 3))
    sent = section.tlv(handle)
    ranged = Section(CRUMBS, section.keys, group, ranges=[PartRange(0, 3, 2)]).tlv(handle)
    offers = offers_tlv(0, [Offer(100, 100, ttl_s=rng.randrange(100))] * section.items)
    run = Run(0, rng.choice([0, ABORTED_RUN]), 0, 0, 1, 0, 100, 100, 1)
    owner, until = lives.owner_tlv(rng.randint(1, 9)), lives.until_tlv(rng.randrange(1000))
    return [
        (Op.MATCH, batch + sent, b""),
        (Op.GET, batch + sent, b""),
        (Op.GET, Batch(order=LAYER_MAJOR).tlv() + ranged, b""),
        (Op.PUT, batch + sent + offers, b""),
        (Op.CHUNK, runs_tlv([run], [7]), bytes(100)),
        (Op.RELEASE, batch + owner + sent, b""),
        (Op.DELETE, batch + sent, b""),
        (Op.CANCEL, tlv(Kind.CANCEL_TARGET, struct.pack("<Q", rng.randrange(1, 50))), b""),
        (Op.LIST, tlv(Kind.CURSOR, struct.pack("<QII", rng.choice([0, 1, rng.getrandbits(64)]), rng.randrange(9), 0)), b""),
        (Op.STAT, question_tlv(b"m1", [(group, rng.randint(1, 100))]), b""),
        (Op.PREFETCH, batch + until + sent, b""),
        (Op.TOUCH, batch + sent, b""),
        (Op.HOLD, batch + owner + until + sent, b""),
        (Op.RENEW, batch + owner + until, b""),
        (Op.EXPIRE, batch + tlv(Kind.EXPIRY, struct.pack("<II", rng.randrange(9), 0)) + sent, b""),
        (Op.CLEAR, tlv(Kind.LAYOUT_ID, CRUMBS.id), b""),
        (Op.LAYOUT_OF, tlv(Kind.LAYOUT_ID, CRUMBS.id), b""),
        (Op.REGISTER_LAYOUT, tlv(Kind.LAYOUT_CANONICAL, CRUMBS.canonical), b""),
    ]


def cancels(attack: Attack) -> None:
    """Puts and gets that are cancelled, aborted and left in every state, over sockets and shared memory."""
    rng = attack.rng
    while attack.going():
        with contextlib.suppress(*GONE, ShmRefused), _either(attack) as session:
            for _ in range(rng.randint(1, 20)):
                section = Section(VALUES, [attack.name() for _ in range(rng.randint(1, 4))])
                size = rng.choice([1, 5000, 70_000, session.server.block_bytes_max])
                one = puts.begin(session, [section], [[puts.plain(section, bytes(size))] * section.items])
                attack.tally["acts"] += 1
                if rng.random() < 0.5:
                    one.send_early()
                if rng.random() < 0.3:
                    session.frame_of(one.request_id)
                if rng.random() < 0.7:
                    attack.tally["cancelled"] += session.cancel(one.request_id).ok
                if rng.random() < 0.2:
                    break


def _either(attack: Attack) -> Session:
    if attack.rng.random() < 0.5:
        return attack.session()
    return Session(SharedMemoryStream.connect(attack.target.unix, timeout_s=SHORT_S), namespace=attack.target.namespace)


def storms(attack: Attack) -> None:
    """Connections that come and go as fast as they can: before Hello, in it, behind it, with a reset or without."""
    rng = attack.rng
    hello = frame(Op.HELLO, 1, hello_body(attack.target.namespace, 1, (1, 1), 1)) + frame(Op.STAT, 2)
    while attack.going():
        batch = []
        for _ in range(32):
            with contextlib.suppress(OSError):
                one = socket.create_connection(attack.target.address, SHORT_S)
                batch.append(one)
                if rng.random() < 0.7:
                    one.sendall(hello[: rng.randrange(len(hello) + 1)])
                attack.tally["acts"] += 1
        for one in batch:
            if rng.random() < 0.5:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.close()


def rings(attack: Attack) -> None:
    """Connections through shared memory that lie about their positions, end half way, or do nothing."""
    rng = attack.rng
    held: list[Session] = []
    while attack.going():
        try:
            session = Session(SharedMemoryStream.connect(attack.target.unix, timeout_s=SHORT_S))
        except (*GONE, ShmRefused):
            attack.tally["refused"] += 1
            attack.rest()
            continue
        attack.tally["acts"] += 1
        stream = session.stream
        assert isinstance(stream, SharedMemoryStream)
        kind = rng.randrange(4)
        if kind == 0:
            stream.up.tail.value = rng.getrandbits(64)
        elif kind == 1:
            stream.down.head.value = rng.getrandbits(64)
        elif kind == 2:
            stream.memory[: 4096 + 65_536] = os.urandom(4096 + 65_536)
        with contextlib.suppress(*GONE, WireFault):
            if kind < 3:
                stream.wake()
        held.append(session)
        while len(held) > 32:
            held.pop(0).close()
    for session in held:
        session.close()
