"""Queues, tickets, asyncio and futures: submitting never waits, every ticket ends once, and nothing lands after its end."""

from __future__ import annotations

import asyncio
import gc
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import halfstep
from halfstep import ConfigError, Group, Layout, PartDescriptor, Rows, Ticket, _peer
from halfstep.client.numbers import OP_MATCH
from halfstep.client.ticket import Event

pytestmark = pytest.mark.integration

Blocks = Callable[..., Any]
KEYS = [b"a", b"b", b"c"]


@pytest.fixture
def stored(client: halfstep.Client, blocks: Blocks) -> Any:
    source = blocks(3, 100_000)
    assert client.put(KEYS, source, deadline_ms=120_000).ok.all()
    return source


def drained(queue: halfstep.Queue, count: int) -> list[Ticket[Any]]:
    """The tickets of `count` terminal events, in the order of the events."""
    done: list[Ticket[Any]] = []
    while len(done) < count:
        events = queue.wait(60)
        assert events, f"{len(done)} of {count} tickets ended"
        done += [event.ticket for event in events if event.done]
    return done


def test_every_ticket_ends_exactly_once(client: halfstep.Client, stored: Any) -> None:
    with client.queue() as queue:
        targets = [np.zeros_like(stored) for _ in range(50)]
        tickets = [queue.get(KEYS, target) for target in targets]
        ended = drained(queue, 50)
        assert sorted(t.id for t in ended) == sorted(t.id for t in tickets)
        assert queue.poll() == []
        for ticket, target in zip(tickets, targets, strict=True):
            assert ticket.done
            assert ticket.result().ok.all()
            assert (target == stored).all()


def test_the_descriptor_is_readable_when_poll_has_something_to_say(client: halfstep.Client, stored: Any) -> None:
    with client.queue() as queue:
        ready = select.poll()
        ready.register(queue.fileno(), select.POLLIN)
        assert ready.poll(0) == []
        ticket = queue.match(KEYS)
        assert ready.poll(60_000)
        while not ticket.done:
            queue.poll()
        assert ticket.result().prefix == 3
        assert ready.poll(0) == []


def test_waiting_for_one_ticket_keeps_the_events_of_others(client: halfstep.Client, stored: Any) -> None:
    with client.queue() as queue:
        descriptor = queue.fileno()
        first, second = queue.match(KEYS), queue.match(KEYS)
        assert second.result(60).prefix == 3
        assert first.result(60).prefix == 3
        third, fourth = queue.match(KEYS), queue.match(KEYS)
        assert fourth.wait(60)
        ready = select.poll()
        ready.register(descriptor, select.POLLIN)
        assert ready.poll(60_000)
        assert drained(queue, 1) == [third]


def test_queues_do_not_see_each_other(client: halfstep.Client, stored: Any) -> None:
    with client.queue() as one, client.queue() as two:
        tickets = [(one.match(KEYS), two.match(KEYS)) for _ in range(20)]
        assert set(drained(one, 20)) == {ticket for ticket, _ in tickets}
        assert set(drained(two, 20)) == {ticket for _, ticket in tickets}


def test_layer_order_counts_whole_layers(client: halfstep.Client, blocks: Blocks) -> None:
    layout = Layout({"name": "layers", "seed": id(client)}, [Group(8, (50_000,))])
    source = blocks(6, 400_000)
    keys = [bytes([number]) for number in range(6)]
    assert client.put(keys, source, layout=layout).ok.all()
    with client.queue() as queue:
        target = np.zeros_like(source)
        ticket = queue.get(keys, target, layout=layout, order="layer")
        steps = []
        while not ticket.done:
            for event in queue.wait(60):
                # What is complete may be used before the end.
                steps.append(event.steps_done)
                assert (target[:, : 50_000 * event.steps_done] == source[:, : 50_000 * event.steps_done]).all()
        assert steps == sorted(steps)
        assert ticket.steps_done == steps[-1] == 8
        assert (target == source).all()


def test_cancel_ends_a_ticket_and_nothing_lands_afterwards(client: halfstep.Client, stored: Any, daemon: Any) -> None:
    with client.queue() as queue:
        target = np.zeros_like(stored)
        daemon.pause()
        ticket = queue.get(KEYS, target)
        assert queue.poll() == []
        ticket.cancel()
        assert drained(queue, 1) == [ticket]
        assert {ticket.result().reason(item).split()[0] for item in range(3)} == {"cancelled"}
        daemon.resume()
        # The daemon answers in order: what it may have sent of the cancelled get came before this.
        assert client.match(KEYS).prefix == 3
        assert client.get(KEYS, np.zeros_like(stored)).ok.all()
        assert not target.any()


def test_a_deadline_ends_a_ticket_as_late(client: halfstep.Client, stored: Any, daemon: Any) -> None:
    target = np.zeros_like(stored)
    daemon.pause()
    result = client.get(KEYS, target, deadline_ms=50)
    assert not result.ok.any()
    found = client.match(KEYS, deadline_ms=50)
    assert not found.answered
    assert found.reason
    daemon.resume()
    assert client.get(KEYS, np.zeros_like(stored)).ok.all()
    assert not target.any()


def test_a_dropped_ticket_keeps_its_target_until_it_is_done(client: halfstep.Client, stored: Any, daemon: Any) -> None:
    with client.queue() as queue:
        target = np.zeros_like(stored)
        gone = weakref.ref(target)
        daemon.pause()
        queue.get(KEYS, target)
        del target
        gc.collect()
        assert gone() is not None
        daemon.resume()
        drained(queue, 1)
        gc.collect()
        assert gone() is None


def test_a_queue_that_is_dropped_or_closed_fences_its_tickets(client: halfstep.Client, stored: Any, daemon: Any) -> None:
    target = np.zeros_like(stored)
    daemon.pause()
    queue = client.queue()
    ticket = queue.get(KEYS, target)
    queue.close()
    assert ticket.done
    assert not ticket.result().ok.any()
    dropped = np.zeros_like(stored)
    client.queue().get(KEYS, dropped)
    gc.collect()
    daemon.resume()
    assert client.get(KEYS, np.zeros_like(stored)).ok.all()
    assert not target.any()
    assert not dropped.any()
    with pytest.raises(ConfigError, match="queue is closed"):
        queue.poll()


def test_a_region_fences_before_it_lets_go(client: halfstep.Client, stored: Any, daemon: Any) -> None:
    memory = bytearray(3 * 100_000)
    region = client.register(memory)
    template = region.template([PartDescriptor(0, 100_000, 1, 100_000)])
    with client.queue() as queue:
        daemon.pause()
        ticket = queue.get(KEYS, Rows(template, [0, 1, 2]))
        answers: list[Any] = []
        waiting = threading.Thread(target=lambda: answers.append(client.get(KEYS, Rows(template, [0, 1, 2]))))
        waiting.start()
        while region.native.uses < 2:
            threading.Event().wait(0.001)
        region.close()
        waiting.join(60)
        assert ticket.done
        assert [answer.reason(0).split()[0] for answer in answers] == ["cancelled"]
        memory.extend(b"it is ours again")
        daemon.resume()
        assert client.match(KEYS).prefix == 3
        assert not any(memory[: 3 * 100_000])
        with pytest.raises(ConfigError, match="region is closed"):
            queue.get(KEYS, Rows(template, [0, 1, 2]))


def test_a_region_closes_beside_threads_that_submit(client: halfstep.Client, stored: Any) -> None:
    memory = bytearray(3 * 100_000)
    region = client.register(memory)
    rows = Rows(region.template([PartDescriptor(0, 100_000, 1, 100_000)]), [0, 1, 2])
    under_way = threading.Barrier(7)
    ends: list[str] = []

    def work(get: Any) -> None:
        get(KEYS, rows)
        under_way.wait(60)
        try:
            while True:
                get(KEYS, rows)
        except ConfigError as error:
            ends.append(str(error))

    queues = [client.queue() for _ in range(3)]
    gets = [client.get] * 3 + [lambda *what, queue=queue: queue.get(*what).result() for queue in queues]
    threads = [threading.Thread(target=work, args=(get,)) for get in gets]
    for thread in threads:
        thread.start()
    under_way.wait(60)
    region.close()
    assert region.closed
    memory.extend(b"it is ours again")
    for thread in threads:
        thread.join(60)
    assert len(ends) == 6
    assert all("region is closed" in end for end in ends), ends
    for queue in queues:
        queue.close()
    region.close()


def test_a_region_does_not_wait_for_a_get_that_was_refused(client: halfstep.Client, stored: Any) -> None:
    region = client.register(bytearray(3 * 100_000))
    template = region.template([PartDescriptor(0, 100_000, 1, 100_000)])
    queue = client.queue()
    queue.fileno()
    queue._native.close()
    kept = []  # an exception keeps what was refused
    for take in (queue.run, queue.submit):
        with pytest.raises(ConfigError, match="queue is closed") as refused:
            take(client._requests.get(KEYS, Rows(template, [0, 1, 2])))
        kept.append(refused)
        assert queue._native.inside == 0
    assert [use.done for use in region._uses] == [True, True]
    closing = threading.Thread(target=region.close, daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive()
    assert region.closed


def test_one_thread_may_submit_while_another_waits(client: halfstep.Client, stored: Any) -> None:
    with client.queue() as queue:
        seen: list[Ticket[Any]] = []
        waiting = threading.Thread(target=lambda: seen.extend(drained(queue, 30)))
        waiting.start()
        tickets = [queue.match(KEYS) for _ in range(30)]
        waiting.join(60)
        assert set(seen) == set(tickets)


def test_several_threads_may_wait_for_tickets_of_one_queue(client: halfstep.Client, stored: Any) -> None:
    with client.queue() as queue:
        prefixes: list[int] = []

        def wait_for_some() -> None:
            prefixes.extend(queue.match(KEYS).result(60).prefix for _ in range(20))

        threads = [threading.Thread(target=wait_for_some) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert prefixes == [3] * 120


def test_call_backs_come_from_whoever_polls(client: halfstep.Client, stored: Any, caplog: pytest.LogCaptureFixture) -> None:
    with client.queue() as queue:
        called: list[tuple[Any, int]] = []
        ticket = queue.match(KEYS)

        def fails(_: Any) -> None:
            raise RuntimeError("in a call-back")

        ticket.add_done_callback(fails)
        ticket.add_done_callback(lambda t: called.append((t, threading.get_ident())))
        drained(queue, 1)
        assert called == [(ticket, threading.get_ident())]
        assert "in a call-back" in caplog.text
        ticket.add_done_callback(lambda t: called.append((t, 0)))
        assert called[-1] == (ticket, 0)


def test_closing_a_queue_ends_whoever_waits_on_it(client: halfstep.Client, stored: Any, daemon: Any) -> None:
    queue = client.queue()
    daemon.pause()
    ticket = queue.get(KEYS, np.zeros_like(stored))
    ended: list[Any] = []

    def wait_for_events() -> None:
        try:
            while True:
                ended.append(queue.wait())
        except ConfigError as error:
            ended.append(error)

    waiters = [threading.Thread(target=wait_for_events) for _ in range(3)]
    waiters.append(threading.Thread(target=lambda: ended.append(ticket.result())))
    for waiter in waiters:
        waiter.start()
    queue.close()
    for waiter in waiters:
        waiter.join(60)
        assert not waiter.is_alive()
    assert sum("closed" in str(error) for error in ended if isinstance(error, ConfigError)) == 3


def test_closing_the_client_ends_synchronous_calls_and_refuses_later_ones(
    client: halfstep.Client, stored: Any, daemon: Any
) -> None:
    assert client.match(KEYS).prefix == 3
    (queue,) = client._queues
    daemon.pause()
    said: list[Any] = []

    def call() -> None:
        said.append(client.get(KEYS, np.zeros_like(stored), deadline_ms=600_000))
        try:
            client.get(KEYS, np.zeros_like(stored))
        except ConfigError as error:
            said.append(error)

    calling = threading.Thread(target=call)
    calling.start()
    while not queue._native.inside:
        assert calling.is_alive()
        time.sleep(0.001)
    client.close()
    calling.join(60)
    assert not calling.is_alive()
    assert [said[0].reason(item).split()[0] for item in range(3)] == ["cancelled"] * 3
    assert "closed" in str(said[1])


def test_a_closed_queue_of_the_core_takes_nothing_more(layout: Layout) -> None:
    silent = socket.create_server(("127.0.0.1", 0))  # calls wait for a daemon that accepts and never answers
    core = _peer.Core(f"127.0.0.1:{silent.getsockname()[1]}", "default", 1, 0)
    handle = core.register_layout(layout.canonical)

    def batch(deadline_us: int) -> _peer.Batch:
        made = _peer.Batch(OP_MATCH)
        made.set_keys(handle, KEYS, 0, 1, False)
        made.set_outputs(False)
        made.set_options(deadline_us, 0, 0, 0, False)
        return made

    queue = _peer.Queue(Event)
    waiting = batch(600_000_000)
    running = threading.Thread(target=lambda: queue.run(waiting, core))
    running.start()
    while not queue.inside:
        assert running.is_alive()
        time.sleep(0.001)
    queue.close()
    assert waiting.done
    assert queue.in_flight == 0
    running.join(60)
    assert not running.is_alive()
    assert queue.inside == 0
    for take in (lambda late: queue.run(late, core), lambda late: queue.submit(late, None, core)):
        with pytest.raises(ConfigError, match="queue is closed"):
            take(batch(1000))
    queue.close()
    core.close()
    silent.close()


def test_a_batch_without_items_wakes_a_waiter_too(client: halfstep.Client, stored: Any) -> None:
    with client.queue() as queue:
        seen: list[Ticket[Any]] = []
        waiting = threading.Thread(target=lambda: seen.extend(drained(queue, 2)))
        waiting.start()
        tickets = {queue.match(KEYS), queue.match([])}
        waiting.join(60)
        assert set(seen) == tickets


def test_a_client_that_is_off_has_queues_too() -> None:
    with halfstep.connect("halfstep://127.0.0.1:1", mode="off") as client, client.queue() as queue:
        ready = select.poll()
        ready.register(queue.fileno(), select.POLLIN)
        assert queue.wait(0.01) == []
        seen: list[Ticket[Any]] = []
        waiting = threading.Thread(target=lambda: seen.extend(drained(queue, 1)))
        waiting.start()
        ticket = queue.get(KEYS, bytearray(3))
        waiting.join(60)
        assert seen == [ticket]
        assert ready.poll(0) == []
        queue.match(KEYS)
        assert ready.poll(60_000)
        assert asyncio.run(client.aio.match(KEYS)).prefix == 0


def test_a_client_that_nobody_closes_is_collected(daemon: Any, layout: Layout) -> None:
    client = halfstep.connect(daemon.url, layout=layout, required=True, deadline_ms=30_000)
    assert client.submit("match", KEYS).result(60).prefix == 0
    asyncio.run(client.aio.match(KEYS))
    client.queue().match(KEYS).result(60)
    gone = weakref.ref(client)
    threads = threading.active_count()
    del client
    gc.collect()
    assert gone() is None
    while threading.active_count() >= threads:
        threading.Event().wait(0.001)


def test_a_full_queue_ends_tickets_as_throttled(client: halfstep.Client, stored: Any, daemon: Any) -> None:
    with client.queue() as queue:
        daemon.pause()
        tickets = [queue.match(KEYS) for _ in range(5000)]
        ended = drained(queue, 5000 - 4096)
        assert set(ended) == set(tickets[4096:])
        assert all(ticket.result().reason.startswith("throttled") for ticket in ended)
        daemon.resume()
        drained(queue, 4096)
        assert all(ticket.done for ticket in tickets)


# ---- asyncio -------------------------------------------------------------------------------------------------------------


def test_a_hundred_gets_await_at_once(client: halfstep.Client, stored: Any) -> None:
    async def main() -> None:
        targets = [np.zeros_like(stored) for _ in range(100)]
        results = await asyncio.gather(*(client.aio.get(KEYS, target) for target in targets))
        assert all(result.ok.all() for result in results)
        assert all((target == stored).all() for target in targets)

    asyncio.run(main())
    asyncio.run(main())  # another loop, the same client


def test_all_calls_can_be_awaited(client: halfstep.Client) -> None:
    async def main() -> None:
        assert (await client.aio.put([b"x"], b"block")).stored == 1
        assert (await client.aio.match([b"x"], hold_ms=1000, owner=9)).prefix == 1
        assert (await client.aio.release(9)).ok.all()
        assert (await client.aio.delete([b"x"])).ok.all()
        assert (await client.aio.match([b"x"])).prefix == 0

    asyncio.run(main())


def test_a_cancelled_call_is_over_when_the_error_leaves_it(client: halfstep.Client, stored: Any, daemon: Any) -> None:
    target = np.zeros_like(stored)

    async def main() -> None:
        await client.aio.match(KEYS)
        daemon.pause()
        task = asyncio.create_task(client.aio.get(KEYS, target))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        daemon.resume()
        assert (await client.aio.match(KEYS)).prefix == 3
        assert not target.any()

    asyncio.run(main())


def test_closing_within_a_loop_leaves_the_loop_usable(daemon: Any, layout: Layout) -> None:
    async def main() -> None:
        for _ in range(5):
            with halfstep.connect(daemon.url, layout=layout, deadline_ms=30_000) as client:
                assert (await client.aio.put([b"x"], b"block")).ok.all()
        await asyncio.sleep(0)

    asyncio.run(main())


def test_closing_from_another_thread_ends_what_is_awaited(client: halfstep.Client, stored: Any, daemon: Any) -> None:
    target = np.zeros_like(stored)

    async def main() -> None:
        await client.aio.match(KEYS)
        daemon.pause()
        task = asyncio.create_task(client.aio.get(KEYS, target, deadline_ms=600_000))
        await asyncio.sleep(0)
        closing = threading.Thread(target=client.close)
        closing.start()
        result = await asyncio.wait_for(task, 60)
        assert result.reason(0).startswith("cancelled")
        await asyncio.to_thread(closing.join)

    asyncio.run(main())


# ---- futures -------------------------------------------------------------------------------------------------------------


def test_futures_complete_without_anybody_polling(client: halfstep.Client, stored: Any) -> None:
    target = np.zeros_like(stored)
    futures = [client.submit("match", KEYS) for _ in range(20)]
    get = client.submit("get", KEYS, target)
    assert [future.result(60).prefix for future in futures] == [3] * 20
    assert get.result(60).ok.all()
    assert (target == stored).all()
    with pytest.raises(ConfigError, match="operation='list'"):
        client.submit("list")  # type: ignore[call-overload]


def test_close_ends_futures_that_are_open(client: halfstep.Client, stored: Any, daemon: Any) -> None:
    daemon.pause()
    future = client.submit("get", KEYS, np.zeros_like(stored))
    client.close()
    assert not future.result(60).ok.any()


def test_a_loop_that_comes_while_the_client_closes_lets_go_of_its_queue(
    client: halfstep.Client, stored: Any, daemon: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = np.zeros_like(stored)

    async def main() -> None:
        faults: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: faults.append(context))
        await client.aio.match(KEYS)
        # As if this loop's queue had been opened just after close() looked which loops there are.
        monkeypatch.setattr(client.aio, "close", lambda: None)
        daemon.pause()
        task = asyncio.create_task(client.aio.get(KEYS, target, deadline_ms=600_000))
        await asyncio.sleep(0)
        await asyncio.to_thread(client.close)
        assert (await asyncio.wait_for(task, 60)).reason(0).startswith("cancelled")
        for _ in range(10):
            await asyncio.sleep(0)
        assert faults == []

    asyncio.run(main())


def test_calls_that_begin_while_the_client_closes_end_with_it(
    client: halfstep.Client, stored: Any, daemon: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = np.zeros_like(stored)
    ended: list[str] = []
    tickets: list[Any] = []

    class Between(list[Any]):
        """What close() clears when it has closed the queues that it knows."""

        def clear(self) -> None:
            super().clear()
            if not client.closed:
                tickets.append(client.queue().get(KEYS, target, deadline_ms=600_000))
                tickets[0].add_done_callback(lambda ticket: ended.append(ticket.result().reason(0)))

    daemon.pause()
    monkeypatch.setattr(client, "_idle", Between())
    client.close()
    assert tickets[0].done
    assert ended == ["cancelled (closed)"]
