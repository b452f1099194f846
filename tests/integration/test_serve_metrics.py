"""`halfstep serve --metrics`: what is counted, and which addresses it takes."""

from __future__ import annotations

import signal
import socket
import urllib.error
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.serving import Serve, refused, sample, scrape, works

import halfstep

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("metrics", ["nowhere", "192.0.2.1:9350", "a..b:9350"])
def test_a_metrics_address_that_cannot_be_is_found_before_a_store_is_made(
    serve: Callable[..., Serve], tmp_path: Path, metrics: str
) -> None:
    assert metrics in refused(serve("--metrics", metrics, "--insecure-listen"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("metrics", ["192.0.2.1:0", "0.0.0.0:0", ":0", "[::]:0"])
def test_metrics_beyond_loopback_only_with_the_flag(serve: Callable[..., Serve], tmp_path: Path, metrics: str) -> None:
    message = refused(serve("--metrics", metrics))
    assert f"metrics={metrics}: anybody who reaches it could read" in message
    assert "allow it with --insecure-listen" in message
    assert list(tmp_path.iterdir()) == []


def test_the_flag_allows_metrics_beyond_loopback(serve: Callable[..., Serve]) -> None:
    one = serve("--metrics", "0.0.0.0:0", "--insecure-listen")
    one.read_until("metrics")
    assert one.line("metrics").startswith("metrics    http://0.0.0.0:")
    assert "halfstep_connections_open" in scrape(one)


def test_metrics_count_hits_misses_by_reason_bytes_and_latencies(serve: Callable[..., Serve]) -> None:
    one = serve("--metrics", "127.0.0.1:0")
    one.read_until("metrics")
    url = f"halfstep://{one.line('listening').split()[1]}"
    before = scrape(one)
    assert sample(before, 'halfstep_payload_bytes_total{command="put"}') == 0
    assert works(url)
    with halfstep.connect(url, required=True, deadline_ms=30_000) as client:
        assert not client.get([b"absent"], bytearray(5000)).ok.any()
    after = scrape(one)
    assert sample(after, 'halfstep_answers_total{answer="ok",command="get",reason=""}') == 1
    assert sample(after, 'halfstep_answers_total{answer="miss",command="get",reason="absent"}') == 1
    assert sample(after, 'halfstep_payload_bytes_total{command="put"}') == 5000
    assert sample(after, 'halfstep_payload_bytes_total{command="get"}') == 5000
    assert sample(after, 'halfstep_request_latency_seconds_count{command="get"}') == 2
    assert sample(after, 'halfstep_request_latency_seconds_bucket{command="get",le="+Inf"}') == 2
    assert sample(after, 'halfstep_request_latency_seconds_sum{command="get"}') > 0
    assert sample(after, 'halfstep_store_writes_total{outcome="throttled"}') == 0
    assert 'halfstep_store_misses_total{reason="corrupt"} 0.0' in after
    assert one.finish(signal.SIGTERM)[0] == 0
    with pytest.raises(urllib.error.URLError):
        scrape(one)


def test_a_metrics_address_of_version_6_is_printed_as_a_url(serve: Callable[..., Serve]) -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError as error:
        pytest.skip(f"no ::1 here: {error}")
    one = serve("--metrics", "::1:0")
    assert one.read_until("metrics").startswith("metrics    http://[::1]:")
    assert "halfstep_connections_open" in scrape(one)
    assert one.finish(signal.SIGTERM)[0] == 0


def test_a_busy_metrics_address_is_named(serve: Callable[..., Serve]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        message = refused(serve("--metrics", address))
    assert f"metrics={address}" in message
    assert "--metrics" in message
