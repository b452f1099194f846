import os
import signal
import threading
import time
from pathlib import Path

from halfstep.daemon.signals import STOPPING, StopSignals


def test_a_signal_at_any_point_of_a_wait_ends_it() -> None:
    # Handlers run on the waiting thread, wherever it is: with a lock between the two, some of these never come back.
    for delay_us in range(0, 400, 2):
        with StopSignals() as stop:
            sender = threading.Thread(target=lambda us=delay_us: (time.sleep(us / 1e6), os.kill(os.getpid(), signal.SIGTERM)))
            sender.start()
            while not stop.wait(10):
                pass
            sender.join()
            assert stop.received == [signal.SIGTERM]


def test_many_signals_are_one_end_and_all_are_heard_in_order() -> None:
    with StopSignals() as stop:
        assert not stop.wait(0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTERM):
            os.kill(os.getpid(), number)
        assert stop.wait(10)
        assert stop.wait(0)
        assert stop.received == [signal.SIGINT, signal.SIGTERM, signal.SIGTERM]


def test_the_handlers_and_descriptors_from_before_are_back() -> None:
    before = [signal.getsignal(number) for number in STOPPING]
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    with StopSignals():
        assert [signal.getsignal(number) for number in STOPPING] != before
    assert [signal.getsignal(number) for number in STOPPING] == before
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
